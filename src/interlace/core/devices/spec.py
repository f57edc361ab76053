"""Properties of a device that a planner and a compiler need, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from interlace.core.dtypes import DType, bf16


@dataclass(frozen=True)
class Latencies:
    """Costs of an item in addition to bytes and FLOPs, in nanoseconds on an idle device.

    Attributes:
        post_ns: barrier and release add of an item that posts, or of a part that arrives.
        wait_ns: a wait that is already met: its row, one poll, a barrier.
        hand_off_ns: hand-off latency, from before a post until after the wait that it ends.
        ll_ns: time from an item's end until other items have its output as LL words, in place of a post, a hand-off
            and a fill.
        ticket_ns: claiming a ticket and broadcasting it to all threads.
        fill_ns: time from an item's first loads to its first multiplication.
        launch_ns: time from the end of a kernel to the start of the next in a CUDA graph.
    """

    post_ns: float
    wait_ns: float
    hand_off_ns: float
    ll_ns: float
    ticket_ns: float
    fill_ns: float
    launch_ns: float


@dataclass(frozen=True)
class L2:
    """Last-level cache as modelled by the simulation; see ``sim/l2``.

    Attributes:
        sides: number of parts of the cache, each near an equal share of the SMs.
        side_bytes: capacity of one part.
        evict_first_bytes: of data that were loaded with the policy ``evict_first``, the bytes that a full part keeps;
            with as many as ``side_bytes`` or more, the policy changes nothing.
    """

    sides: int
    side_bytes: int
    evict_first_bytes: int = 1 << 62

    def resize(self, side_bytes: int) -> L2:
        """Return the cache with another capacity of a part, of which as large a share may be data to evict first."""
        first = self.evict_first_bytes * side_bytes // self.side_bytes
        return replace(self, side_bytes=side_bytes, evict_first_bytes=first)


@dataclass(frozen=True)
class StageCosts:
    """Costs of a megakernel's items in addition to multiplying and loading; see ``kernels/matmul/megakernel_cost``.

    Attributes:
        least_ns: minimum duration of a stage of the ring.
        each_ns: fixed cost of a stage, added to its other costs.
        epilogue_bytes_per_s: epilogue rate for a tile's float32 sums.
        turned: factor on the epilogue's time if weights are the tensor core's 64-row operand (swap-AB).
        saturating: share of the SMs that reaches the full memory rate.
        shallow: fraction by which weights take longer with hardly any of them in flight.
    """

    least_ns: float
    each_ns: float
    epilogue_bytes_per_s: float
    turned: float
    saturating: float
    shallow: float


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """Properties of one device.

    Attributes:
        name: name as the driver reports it.
        capability: compute capability of a GPU, major and minor; (0, 0) for a CPU.
        architecture: target architecture of CUDA C++, such as ``sm_90a``; empty for a CPU.
        sms: number of streaming multiprocessors (on a CPU: workers that the simulation uses).
        smem_bytes: shared memory that one thread block may use.
        l1_bytes: L1 cache and shared memory of one SM together.
        register_bytes: registers of one SM.
        l2_bytes: size of the last-level cache, as the driver reports it.
        clock_hz: highest clock of the SMs.
        bus_bytes_per_s: theoretical bandwidth of the memory bus.
        dram_bytes_per_s: read bandwidth that a streaming kernel reaches.
        rates: (dtype's name, FLOP/s that a large dense matmul reaches) of dtypes, bf16 at least.
        sm_dram_bytes_per_s: maximum read bandwidth of one SM from memory while the others are idle.
        sm_l2_bytes_per_s: maximum read bandwidth of one SM through the L2, for hits and misses.
        sm_miss_bytes_per_s: additional cost of an SM's bytes from memory, below any ceiling, as a rate.
        sm_sum_bytes_per_s: rate at which an SM stores and loads partial sums while it does not multiply.
        speed_spread: fraction by which the slowest SM is slower than the fastest on the same work.
        l2: model of the last-level cache.
        latencies: costs of an item in addition to bytes and FLOPs.
        stages: costs of an item in the ring of the megakernel.
        like: name of the chip from which ``derived`` were scaled, empty if there are none.
        derived: attributes that were not measured on this device but derived by the rules of ``scaled``.
    """

    name: str
    capability: tuple[int, int]
    architecture: str
    sms: int
    smem_bytes: int
    l1_bytes: int
    register_bytes: int
    l2_bytes: int
    clock_hz: float
    bus_bytes_per_s: float
    dram_bytes_per_s: float
    rates: tuple[tuple[str, float], ...]
    sm_dram_bytes_per_s: float
    sm_l2_bytes_per_s: float
    sm_miss_bytes_per_s: float
    sm_sum_bytes_per_s: float
    speed_spread: float
    l2: L2
    latencies: Latencies
    stages: StageCosts
    like: str = ""
    derived: tuple[str, ...] = ()

    def flops_per_s(self, dtype: DType) -> float:
        """Return the dense matrix rate in a dtype: the measured one, or the bf16 rate times the dtype's ``rate``."""
        rates = dict(self.rates)
        return rates.get(dtype.name, rates[bf16.name] * dtype.rate)

    @property
    def on_chip_bytes(self) -> int:
        """Total capacity of all on-chip memory: L2, L1 and shared memory, and registers."""
        return self.l2_bytes + self.sms * (self.l1_bytes + self.register_bytes)

    @property
    def estimate_note(self) -> str:
        """Sentence that names the ceilings that were not measured; empty if all were."""
        ceilings = {"dram_bytes_per_s": "the rate of memory", "rates": "the rate of matmuls"}
        unknown = [what for name, what in ceilings.items() if name in self.derived]
        if not unknown:
            return ""
        return (
            f"nobody measured {' or '.join(unknown)} of {self.name}: predictions scale an {self.like}'s, good enough "
            "to rank plans by, too rough to judge a time by"
        )

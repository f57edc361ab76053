"""What a planner and a compiler need to know about a device, as data."""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.dtypes import DType, bf16


@dataclass(frozen=True)
class Latencies:
    """What an item costs besides bytes and FLOPs, in nanoseconds on an idle device.

    Attributes:
        post_ns: barrier and release add of an item that posts, or of a part that arrives.
        wait_ns: a wait that is met already: its row, one poll, a barrier.
        hand_over_ns: from before a post to behind the wait that it ends.
        word_ns: from an item's end to where others have what it left as words, in place of a post, a hand-over and a
            fill.
        ticket_ns: drawing a ticket and telling all threads.
        fill_ns: from an item's first loads to its first multiplication.
        launch_ns: from the end of a kernel to the start of the next in a CUDA graph.
    """

    post_ns: float
    wait_ns: float
    hand_over_ns: float
    word_ns: float
    ticket_ns: float
    fill_ns: float
    launch_ns: float


@dataclass(frozen=True)
class L2:
    """The last-level cache as the simulation takes it; see ``sim/l2``.

    Attributes:
        sides: parts of the cache, each near an equal share of the SMs.
        side_bytes: what one part holds.
    """

    sides: int
    side_bytes: int


@dataclass(frozen=True)
class Stages:
    """What items of the one launch cost besides what they multiply and load; see ``kernels/matmul/walk_cost``.

    Attributes:
        least_ns: of a stage of the ring.
        each_ns: of a stage, beside whatever else it takes.
        epilogue_bytes_per_s: of a tile's float32 sums.
        turned: how much longer that takes where weights are the tensor core's 64-row operand.
        saturating: share of the SMs that have all of memory's rate.
        shallow: how much longer weights take, as a part, with hardly any of them under way.
    """

    least_ns: float
    each_ns: float
    epilogue_bytes_per_s: float
    turned: float
    saturating: float
    shallow: float


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """One device.

    Attributes:
        name: as the driver reports it.
        capability: compute capability of a GPU, major and minor; (0, 0) of a CPU.
        architecture: what CUDA C++ is compiled for, such as ``sm_90a``; empty of a CPU.
        sms: streaming multiprocessors (on a CPU: workers that the simulation uses).
        smem_bytes: shared memory that one thread block may use.
        l1_bytes: L1 cache and shared memory of one SM together.
        register_bytes: registers of one SM.
        l2_bytes: size of the last-level cache, as the driver reports it.
        clock_hz: highest clock of the SMs.
        bus_bytes_per_s: what the memory bus could move.
        dram_bytes_per_s: read bandwidth that a streaming kernel reaches.
        rates: (dtype's name, FLOP/s that a large dense matmul reaches) of dtypes, bf16 at least.
        sm_dram_bytes_per_s: most that one SM reads from memory while the others are idle.
        sm_l2_bytes_per_s: most that one SM reads through the L2, whether it hits or not.
        sm_miss_bytes_per_s: what bytes from memory cost an SM besides, below any ceiling, as a rate.
        sm_sum_bytes_per_s: rate at which an SM stores and loads partial sums, while it multiplies nothing.
        speed_spread: by which part the slowest SM is slower than the fastest on the same work.
        l2: how that cache behaves.
        latencies: what an item costs besides.
        stages: what it costs by the one launch's ring.
        like: name of the chip from which ``derived`` were scaled, empty if there are none.
        derived: attributes that nobody measured on this device, by the rules of ``scaled``.
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
    stages: Stages
    like: str = ""
    derived: tuple[str, ...] = ()

    def flops_per_s(self, dtype: DType) -> float:
        """Dense matrix rate in a dtype: as measured, else that in bf16 times the dtype's ``rate``."""
        rates = dict(self.rates)
        return rates.get(dtype.name, rates[bf16.name] * dtype.rate)

    @property
    def on_chip_bytes(self) -> int:
        """Everything that can hold data on this side of DRAM."""
        return self.l2_bytes + self.sms * (self.l1_bytes + self.register_bytes)

    @property
    def estimated(self) -> str:
        """Which ceilings nobody measured, as one sentence; empty if there are none."""
        ceilings = {"dram_bytes_per_s": "the rate of memory", "rates": "the rate of matmuls"}
        unknown = [what for name, what in ceilings.items() if name in self.derived]
        if not unknown:
            return ""
        return (
            f"nobody measured {' or '.join(unknown)} of {self.name}: predictions scale an {self.like}'s, good enough "
            "to rank plans by, too rough to judge a time by"
        )

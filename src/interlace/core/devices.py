"""What a planner needs to know about a device, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from interlace.core.dtypes import DType, fp32

_FP32_SHARE = 67 / 989  # of the bf16 rate (H200 data sheet)


@dataclass(frozen=True)
class Latencies:
    """What an item costs besides bytes and FLOPs, in nanoseconds. Defaults were measured on an H200, idle.

    Attributes:
        post_ns: barrier and release add of an item that posts, or of a part that arrives (benchmarks/results/
            sync-h200.json, as are the next three).
        wait_ns: a wait that is met already: its row, one poll, a barrier.
        hand_over_ns: from before a post to behind the wait that it ends.
        ticket_ns: drawing a ticket and telling all threads.
        fill_ns: from an item's first loads to its first multiplication. An extra part of a tile costs 1500 to 2500
            (docs/performance.md), of which a ticket and a wait are 950; this is the middle of the rest.
        launch_ns: from the end of a kernel to the start of the next in a CUDA graph. An empty kernel takes 630 there;
            the time in which the kernel before drains is not part of it.
    """

    post_ns: float = 337.0
    wait_ns: float = 479.0
    hand_over_ns: float = 987.0
    ticket_ns: float = 471.0
    fill_ns: float = 1050.0
    launch_ns: float = 1000.0


@dataclass(frozen=True)
class L2:
    """The last-level cache as the simulation takes it; see ``sim/l2``.

    Attributes:
        sides: parts of the cache, each near an equal share of the SMs.
        side_bytes: what one part holds.
        ways: lines of a set, where the cache is taken line by line.
    """

    sides: int
    side_bytes: int
    ways: int = 16


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """One device.

    Attributes:
        name: as the driver reports it.
        sms: streaming multiprocessors (on a CPU: workers that the simulation uses).
        l2_bytes: size of the last-level cache, as the driver reports it.
        dram_bytes_per_s: read bandwidth that a streaming kernel reaches.
        flops_per_s: dense bf16 matrix rate that a large matmul reaches.
        smem_bytes: shared memory that one thread block may use.
        l1_bytes: L1 cache and shared memory of one SM together.
        register_bytes: registers of one SM.
        sm_dram_bytes_per_s: most that one SM reads from memory while the others are idle.
        sm_l2_bytes_per_s: most that one SM reads through the L2, whether it hits or not.
        sm_miss_bytes_per_s: what bytes from memory cost an SM besides, below any ceiling, as a rate.
        sm_sum_bytes_per_s: rate at which an SM stores and loads partial sums, while it multiplies nothing.
        l2: how that cache behaves.
        speed_spread: by which part the slowest SM is slower than the fastest on the same work.
        latencies: what an item costs besides.
    """

    name: str
    sms: int
    l2_bytes: int
    dram_bytes_per_s: float
    flops_per_s: float
    smem_bytes: int
    sm_dram_bytes_per_s: float
    sm_l2_bytes_per_s: float
    sm_miss_bytes_per_s: float
    sm_sum_bytes_per_s: float
    l2: L2
    speed_spread: float
    latencies: Latencies = Latencies()
    l1_bytes: int = 256 << 10
    register_bytes: int = 256 << 10

    def multiplying(self, dtype: DType) -> DeviceSpec:
        """The device with the rate at which it multiplies a dtype; fp32 does not go through tensor cores."""
        return replace(self, flops_per_s=self.flops_per_s * _FP32_SHARE) if dtype is fp32 else self

    @property
    def on_chip_bytes(self) -> int:
        """Everything that can hold data on this side of DRAM."""
        return self.l2_bytes + self.sms * (self.l1_bytes + self.register_bytes)


#: Measured on the device. Rates of memory and tensor cores: docs/performance.md. What a lone SM gets from memory was
#: not measured; it is 64 KiB in flight, with which all SMs together reach the stream's rate, per microsecond of
#: latency. The rate of an SM through the L2 and what a miss costs it besides fit times of 8192-cubed matmuls under four
#: orders (benchmarks/results/traffic-h200.json): 11 TB/s in all, and 50 us per GB. Partial sums of 64 KiB take 5 us to
#: store and load (docs/performance.md). The cache is half gone where 31 MiB are read by all SMs, as steeply as in sets
#: of 128 or more (l2-h200.json). Tiles take 2.3 to 3 % longer on the slowest SMs than on the fastest, always the same
#: ones (explored-hopper-h200.json).
H200 = DeviceSpec(
    name="NVIDIA H200",
    sms=132,
    l2_bytes=60 << 20,
    dram_bytes_per_s=4.53e12,
    flops_per_s=790e12,
    smem_bytes=227 << 10,
    sm_dram_bytes_per_s=65e9,
    sm_l2_bytes_per_s=84e9,
    sm_miss_bytes_per_s=150e9,
    sm_sum_bytes_per_s=26e9,
    l2=L2(sides=2, side_bytes=31 << 20, ways=128),
    speed_spread=0.025,
)
#: Stands in where there is no GPU: few workers, so that small examples still have waves.
CPU = DeviceSpec(
    name="cpu",
    sms=8,
    l2_bytes=1 << 20,
    dram_bytes_per_s=20e9,
    flops_per_s=100e9,
    smem_bytes=227 << 10,
    sm_dram_bytes_per_s=5e9,
    sm_l2_bytes_per_s=10e9,
    sm_miss_bytes_per_s=1e12,
    sm_sum_bytes_per_s=1e12,
    l2=L2(sides=1, side_bytes=1 << 20),
    speed_spread=0.0,
)


def spec_for(name: str, sms: int, l2_bytes: int, smem_bytes: int) -> DeviceSpec:
    """The spec of a GPU that the driver describes like this.

    An H200 has its measured spec. For any other GPU, which nobody measured, that of an H200 stands in, with as many SMs
    and as much cache as it has: good enough to rank plans by, too rough to judge a time by.
    """
    if name == H200.name and sms == H200.sms:
        return H200
    return replace(
        H200,
        name=name,
        sms=sms,
        l2_bytes=l2_bytes,
        flops_per_s=H200.flops_per_s * sms / H200.sms,
        smem_bytes=smem_bytes,
        l2=replace(H200.l2, side_bytes=H200.l2.side_bytes * l2_bytes // H200.l2_bytes),
    )

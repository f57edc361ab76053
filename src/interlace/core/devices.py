"""What a planner needs to know about a device, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceSpec:
    """One device.

    Attributes:
        name: as the driver reports it.
        sms: streaming multiprocessors (on a CPU: workers that the simulation uses).
        l2_bytes: size of the last-level cache.
        dram_bytes_per_s: read bandwidth that a streaming kernel reaches.
        flops_per_s: dense bf16 matrix rate that a large matmul reaches.
        smem_bytes: shared memory that one thread block may use.
        l1_bytes: L1 cache and shared memory of one SM together.
        register_bytes: registers of one SM.
    """

    name: str
    sms: int
    l2_bytes: int
    dram_bytes_per_s: float
    flops_per_s: float
    smem_bytes: int
    l1_bytes: int = 256 << 10
    register_bytes: int = 256 << 10

    @property
    def on_chip_bytes(self) -> int:
        """Everything that can hold data on this side of DRAM."""
        return self.l2_bytes + self.sms * (self.l1_bytes + self.register_bytes)


#: Measured on the device (docs/performance.md): 4 GiB read stream, 8192-cubed bf16 matmul on random data.
H200 = DeviceSpec("NVIDIA H200", 132, 60 << 20, 4.53e12, 790e12, 227 << 10)
#: Stands in where there is no GPU: few workers, so that small examples still have waves.
CPU = DeviceSpec("cpu", 8, 1 << 20, 20e9, 100e9, 227 << 10)

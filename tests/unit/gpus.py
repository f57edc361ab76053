"""GPUs as data, for tests of what would run on them."""

from __future__ import annotations

from interlace.bench.case import FFNCase
from interlace.core.devices import H200, DeviceSpec, Properties, spec_for
from interlace.core.dtypes import DType, bf16
from interlace.workloads.ffn import FFNShape

#: As the driver describes an A100.
A100 = spec_for(
    Properties(
        name="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        sms=108,
        smem_bytes=163 << 10,
        l2_bytes=40 << 20,
        clock_hz=1.41e9,
        bus_bytes_per_s=2.0e12,
    )
)


def on_h200(m: int, shape: FFNShape, dtype: DType = bf16) -> FFNCase:
    return FFNCase(m, shape, dtype, H200)


def on_a100(m: int, shape: FFNShape, dtype: DType = bf16, gpu: DeviceSpec = A100) -> FFNCase:
    return FFNCase(m, shape, dtype, gpu)

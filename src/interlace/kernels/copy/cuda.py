"""The CUDA C++ body of copy, for the one launch."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.text import CudaBody

COPY_CUDA = CudaBody(
    include("ops/copy.cuh"),
    "copy_tile",
    constants=("BM", "BN"),
    is_proved=True,
)

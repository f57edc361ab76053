"""The CUDA C++ body of gather, for the one launch."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import CudaBody

GATHER_CUDA = CudaBody(
    ROWS + include("ops/gather.cuh"),
    "gather_tile",
    constants=("BM", "BN"),
    is_proved=True,
)

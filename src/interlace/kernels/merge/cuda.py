"""The CUDA C++ body of merge, for the one launch."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda.rows import ROWS, VECTORS
from interlace.kernels.text import CudaBody

MERGE_CUDA = CudaBody(
    ROWS + VECTORS + include("ops/merge.cuh"),
    "merge_tile",
    constants=("H", "CHOSEN", "BM", "BN"),
    is_proved=True,
)

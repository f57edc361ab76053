"""The CUDA C++ bodies of adaptive quadrature, for the one launch."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import CudaBody

_MAX_WARPS = 8
#: Behind ``ROWS``: the sum of what all threads have, in the same order every time.
_SUM = include("ops/quadrature/block_sum.cuh")

REFINE_CUDA = CudaBody(
    ROWS + _SUM + include("ops/quadrature/refine.cuh"),
    "refine_tile",
    optional_args=("wanted", "more"),
    scratch_bytes=lambda op: 2 * 4 * _MAX_WARPS,
    is_proved=True,
)

TOTAL_CUDA = CudaBody(
    ROWS + _SUM + include("ops/quadrature/total.cuh"),
    "total_tile",
    scratch_bytes=lambda op: 4 * _MAX_WARPS,
    is_proved=True,
)

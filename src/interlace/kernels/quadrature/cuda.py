"""CUDA source of adaptive quadrature in the megakernel."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda_body import CudaBody

_MAX_WARPS = 8

REFINE_CUDA = CudaBody(
    include("ops/rows.cuh", "ops/quadrature/block_sum.cuh", "ops/quadrature/refine.cuh"),
    "refine_tile",
    optional_args=("wanted", "more"),
    scratch_bytes=lambda op: 2 * 4 * _MAX_WARPS,
    is_proved=True,
)

TOTAL_CUDA = CudaBody(
    include("ops/rows.cuh", "ops/quadrature/block_sum.cuh", "ops/quadrature/total.cuh"),
    "total_tile",
    scratch_bytes=lambda op: 4 * _MAX_WARPS,
    is_proved=True,
)

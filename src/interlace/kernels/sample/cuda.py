"""The CUDA C++ bodies that draw tokens, for the one launch."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.argmax.cuda import FIRST
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import CudaBody

_WARPS = 8  # of a block, at most
_SEGMENTS = include("ops/sample/segments.cuh")

SEGMENT_STATS_CUDA = CudaBody(
    ROWS + _SEGMENTS + include("ops/sample/outline.cuh"),
    "outline_tile",
    constants=("BN",),
    is_proved=True,
)

CUTOFF_CUDA = CudaBody(
    ROWS + _SEGMENTS + include("ops/sample/cutoff.cuh"),
    "cutoff_tile",
    constants=("LOW",),
    scratch_bytes=lambda op: 8 * _WARPS,
    is_proved=True,
)

GUMBEL_ARGMAX_CUDA = CudaBody(
    ROWS + _SEGMENTS + FIRST + include("ops/sample/noisy.cuh"),
    "noisy_tile",
    constants=("BN",),
    scratch_bytes=lambda op: 8 * _WARPS,
    is_proved=True,
)

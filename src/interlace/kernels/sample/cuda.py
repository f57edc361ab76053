"""CUDA source of sampling in the megakernel: outline of the logits, cutoff, noisy maximum."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda_body import CudaBody

_WARPS = 8  # of a block, at most
_CUTOFF_BYTES = 3 * 8 + 256 * 4  # of a warp: shares of three cutoffs, and its list of segments
_SEGMENTS = "ops/rows.cuh", "ops/sample/segments.cuh"
_ARGMAX = "ops/argmax/first.cuh", "ops/argmax/pieces.cuh", "ops/argmax/most.cuh"

SEGMENT_STATS_CUDA = CudaBody(
    include(*_SEGMENTS, "ops/sample/outline.cuh"),
    "outline_tile",
    constants=("BN",),
    is_proved=True,
)

CUTOFF_CUDA = CudaBody(
    include(*_SEGMENTS, "ops/sample/cutoff.cuh"),
    "cutoff_tile",
    constants=("LOW",),
    scratch_bytes=lambda op: _CUTOFF_BYTES * _WARPS,
    is_proved=True,
)

GUMBEL_ARGMAX_CUDA = CudaBody(
    include(*_SEGMENTS, *_ARGMAX, "ops/sample/noisy.cuh"),
    "noisy_tile",
    constants=("BN",),
    scratch_bytes=lambda op: 8 * _WARPS,
    is_proved=True,
)

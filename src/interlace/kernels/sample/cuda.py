"""CUDA source of sampling in the megakernel: outline of the logits, cutoff, noisy maximum."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda_body import CudaBody

_WARPS = 8  # of a block, at most
_SEGMENTS = "ops/rows.cuh", "ops/sample/segments.cuh"

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
    scratch_bytes=lambda op: 8 * _WARPS,
    is_proved=True,
)

GUMBEL_ARGMAX_CUDA = CudaBody(
    include(*_SEGMENTS, "ops/argmax/first.cuh", "ops/sample/noisy.cuh"),
    "noisy_tile",
    constants=("BN",),
    scratch_bytes=lambda op: 8 * _WARPS,
    is_proved=True,
)

"""The CUDA C++ bodies of argmax, for the one launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import CudaBody

_MAX_WARPS = 8
#: Behind ``ROWS``: what is larger, or as large and first, of threads.
FIRST = include("ops/argmax/first.cuh")

#: Behind ``FIRST``.
_BY_PIECES = include("ops/argmax/pieces.cuh")
_BLOCK_ARGMAX = _BY_PIECES + include("ops/argmax/most.cuh")
#: The same where rows begin anywhere: by 16 bytes but for the ends of a row.
_RAGGED_BLOCK_ARGMAX = _BY_PIECES + include("ops/argmax/most_ragged.cuh")
_BLOCK_ARGMAX_TILE = include("ops/argmax/most_tile.cuh")


def _select_ragged(op: Op, tensors: Mapping[str, Tensor]) -> CudaBody | None:
    by_pieces = int(op.param("N")) * tensors["x"].dtype.itemsize % 16 == 0
    return (
        None
        if by_pieces
        else replace(
            BLOCK_ARGMAX_CUDA, source=ROWS + FIRST + _RAGGED_BLOCK_ARGMAX + _BLOCK_ARGMAX_TILE, select_variant=None
        )
    )


BLOCK_ARGMAX_CUDA = CudaBody(
    ROWS + FIRST + _BLOCK_ARGMAX + _BLOCK_ARGMAX_TILE,
    "most_tile",
    constants=("BN",),
    scratch_bytes=lambda op: 8 * _MAX_WARPS,
    is_proved=True,
    select_variant=_select_ragged,
)

REDUCE_ARGMAX_CUDA = CudaBody(
    ROWS + FIRST + include("ops/argmax/first_tile.cuh"),
    "first_tile",
    scratch_bytes=lambda op: 8 * _MAX_WARPS,
    is_proved=True,
)

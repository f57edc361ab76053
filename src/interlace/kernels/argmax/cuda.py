"""CUDA source of argmax in the megakernel: the largest element of column tiles, then of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda_body import CudaBody

_MAX_WARPS = 8


def _text(columns: str) -> str:
    """Return the text of a tile whose columns a header scans."""
    names = "rows", "argmax/first", "argmax/pieces", f"argmax/{columns}", "argmax/most_tile"
    return include(*(f"ops/{name}.cuh" for name in names))


def _select_ragged(op: Op, tensors: Mapping[str, Tensor]) -> CudaBody | None:
    by_pieces = int(op.param("N")) * tensors["x"].dtype.itemsize % 16 == 0
    return None if by_pieces else replace(BLOCK_ARGMAX_CUDA, source=_text("most_ragged"), select_variant=None)


BLOCK_ARGMAX_CUDA = CudaBody(
    _text("most"),
    "most_tile",
    constants=("BN",),
    scratch_bytes=lambda op: 8 * _MAX_WARPS,
    is_proved=True,
    select_variant=_select_ragged,
)

REDUCE_ARGMAX_CUDA = CudaBody(
    include("ops/rows.cuh", "ops/argmax/first.cuh", "ops/argmax/first_tile.cuh"),
    "first_tile",
    scratch_bytes=lambda op: 8 * _MAX_WARPS,
    is_proved=True,
)

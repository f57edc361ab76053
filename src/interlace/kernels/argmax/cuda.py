"""CUDA source of argmax in the megakernel: the largest element of column tiles, then of these."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda_body import CudaBody, CudaVariants

_MAX_WARPS = 8


def _build_body(columns: str) -> CudaBody:
    """Return the body of a tile whose columns a header scans."""
    names = "rows", "argmax/first", "argmax/pieces", f"argmax/{columns}", "argmax/most_tile"
    return CudaBody(
        include(*(f"ops/{name}.cuh" for name in names)),
        "most_tile",
        constants=("BN",),
        scratch_bytes=lambda op: 8 * _MAX_WARPS,
        is_proved=True,
    )


_RAGGED = _build_body("most_ragged")


def _select_ragged(op: Op, tensors: Mapping[str, Tensor]) -> CudaBody | None:
    by_pieces = int(op.param("N")) * tensors["x"].dtype.itemsize % 16 == 0
    return None if by_pieces else _RAGGED


BLOCK_ARGMAX_CUDA = CudaVariants(_build_body("most"), _select_ragged)

REDUCE_ARGMAX_CUDA = CudaBody(
    include("ops/rows.cuh", "ops/argmax/first.cuh", "ops/argmax/first_tile.cuh"),
    "first_tile",
    scratch_bytes=lambda op: 8 * _MAX_WARPS,
    is_proved=True,
)

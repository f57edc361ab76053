"""CUDA source that ops over rows share: warps of a tile in groups, one for each row (``csrc/ops/row_groups``).

Tiles of 8 rows or more load their rows through the ring, unless a row is longer than a stage should be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda_body import CudaBody

_MAX_WARPS = 12  # of a block
_MIN_ROWS = 8  # of a tile whose rows come through the ring
_PIECE_BYTES = 16
_STAGE_BYTES, _MAX_STAGE_BYTES = 16 << 10, 32 << 10  # of short rows; of one row, as of matmuls

#: Bytes of shared memory for two reductions over a block of the most warps.
ROW_GROUP_SCRATCH_BYTES = 2 * 4 * _MAX_WARPS

_VECTORS = "ops/rows.cuh", "ops/vectors.cuh"
ROW_GROUPS = include(*_VECTORS, "ops/row_groups/of_tile.cuh", "ops/row_groups/row_groups.cuh")
_OF_ROW = include("ops/row_groups/of_row.cuh", "ops/row_groups/row_groups.cuh", "ops/row_groups/in_ring.cuh")


def generate_ring_rows(columns: str) -> str:
    """Return the text, in place of ``ROW_GROUPS``, for tiles of many rows, which come through the ring.

    Args:
        columns: name of the constant that is the columns of a tile.
    """
    return include(*_VECTORS, "ops/row_groups/element.cuh") + f"constexpr int WIDE = {columns};\n" + _OF_ROW


def make_ring_variant(
    body: CudaBody, columns: str, operands: Callable[[Op], int] = lambda op: 1
) -> Callable[[Op, Mapping[str, Tensor]], CudaBody | None]:
    """Return ``CudaBody.select_variant``: a body whose rows come through the ring, if a tile has eight rows or more.

    Args:
        body: without ``stage_bytes``.
        columns: name of the param that is the columns of a tile.
        operands: op -> how many matrices have rows in a stage.
    """

    def make_ring_body(op: Op, tensors: Mapping[str, Tensor]) -> CudaBody | None:
        rows, row = int(op.param("BM")), int(op.param(columns)) * tensors["x"].dtype.itemsize
        pitch = max(row // _PIECE_BYTES, 1) * _PIECE_BYTES * operands(op)
        if rows < _MIN_ROWS or pitch > _MAX_STAGE_BYTES:
            return None
        return replace(body, stage_bytes=lambda op: pitch * min(rows, max(1, _STAGE_BYTES // pitch)))

    return make_ring_body


def build_row_body(make_row: str) -> CudaBody:
    """Return the body of an op that computes each row of out (M, N) from that of x, in tiles of BM rows.

    Args:
        make_row: text of ``make_row`` (``csrc/ops/row_groups/whole_rows.cuh``).
    """

    def body(text: str) -> CudaBody:
        return CudaBody(
            text,
            "rows_tile",
            constants=("BM", "N"),
            scratch_bytes=lambda op: ROW_GROUP_SCRATCH_BYTES,
            is_proved=True,
            prefers_two_warpgroups=True,
            max_warpgroups=_MAX_WARPS // 4,
            short_inputs=(("x", "M"),),
        )

    fetched = body(generate_ring_rows("N") + make_row + include("ops/row_groups/whole_rows_in_ring.cuh"))
    in_stages = make_ring_variant(replace(fetched, post_wait_inputs=("x",), loads_struct="Loads"), "N")
    return replace(body(ROW_GROUPS + make_row + include("ops/row_groups/whole_rows.cuh")), select_variant=in_stages)

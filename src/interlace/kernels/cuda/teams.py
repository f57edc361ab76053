"""What texts that go through rows have in common, behind ``ROWS``; see ``kernels/teams``. BM is the rows of a tile.

    BM    of 4 warps                     of 8 warps         of 12 warps
    1     a row by all                   a row by all       a row by all
    4     a row by each                  a row by two       a row by three
    8     two rows by each, in turn      a row by each      two rows by three, in turn

From 8 rows on they come through the ring, unless they are longer than a stage should be; then each is for as few warps
as hold it in a few registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda.rows import ROWS, VECTORS
from interlace.kernels.text import CudaBody

_MAX_WARPS = 12  # of a block
_MIN_ROWS = 8  # of a tile whose rows come through the ring
_PIECE_BYTES = 16
_STAGE_BYTES, _MAX_STAGE_BYTES = 16 << 10, 32 << 10  # of short rows; of a row, as of what products have there

#: Bytes of shared memory for two reductions over a block of the most warps.
ROW_GROUP_SCRATCH_BYTES = 2 * 4 * _MAX_WARPS

_OF_TILE = include("ops/row_groups/of_tile.cuh")

_GROUPED_ROWS = include("ops/row_groups/row_groups.cuh")

ROW_GROUPS = ROWS + VECTORS + _OF_TILE + _GROUPED_ROWS

_RING_ROWS = include("ops/row_groups/in_ring.cuh")
_ELEMENT = include("ops/row_groups/element.cuh")
_GROUP_OF_ROW = include("ops/row_groups/of_row.cuh")


def generate_ring_rows(columns: str) -> str:
    """For tiles of many rows, which come through the ring (``csrc/ring/fetched.cuh``): in the place of ``ROW_GROUPS``.

    Args:
        columns: the constant that has those of a tile.
    """
    wide = f"constexpr int WIDE = {columns};\n"
    return ROWS + VECTORS + _ELEMENT + wide + _GROUP_OF_ROW + _GROUPED_ROWS + _RING_ROWS


def make_ring_variant(
    body: CudaBody, columns: str, operands: Callable[[Op], int] = lambda op: 1
) -> Callable[[Op, Mapping[str, Tensor]], CudaBody | None]:
    """``CudaBody.select_variant``: a body whose rows come through the ring, where a tile has eight at least.

    Args:
        body: without ``stage_bytes``.
        columns: the param that has those of a tile.
        operands: op -> matrices of which rows come.
    """

    def other(op: Op, tensors: Mapping[str, Tensor]) -> CudaBody | None:
        rows, row = int(op.param("BM")), int(op.param(columns)) * tensors["x"].dtype.itemsize
        pitch = max(row // _PIECE_BYTES, 1) * _PIECE_BYTES * operands(op)
        if rows < _MIN_ROWS or pitch > _MAX_STAGE_BYTES:
            return None
        return replace(body, stage_bytes=lambda op: pitch * min(rows, max(1, _STAGE_BYTES // pitch)))

    return other


_WHOLE_ROWS = include("ops/row_groups/whole_rows.cuh")
_WHOLE_ROWS_IN_RING = include("ops/row_groups/whole_rows_in_ring.cuh")


def build_row_body(make_row: str) -> CudaBody:
    """The body of an op that makes each row of out (M, N) of the one of x, in tiles of BM rows.

    Args:
        make_row: text of ``make_row(turn, row, out, some, a)``, which all of a team call together: ``turn`` is 0 or 1,
            unlike from one row of a team to its next where nothing else keeps their reductions apart, and there is a
            row to store where there is ``some``.
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

    fetched = body(generate_ring_rows("N") + make_row + _WHOLE_ROWS_IN_RING)
    in_stages = make_ring_variant(replace(fetched, post_wait_inputs=("x",), loads_struct="Loads"), "N")
    return replace(body(ROW_GROUPS + make_row + _WHOLE_ROWS), select_variant=in_stages)

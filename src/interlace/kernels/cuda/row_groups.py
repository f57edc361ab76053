"""CUDA source that ops over rows share: warps of a tile in groups, one for each row (``csrc/ops/row_groups``).

Tiles of 8 rows or more load their rows through the ring, unless a row is longer than a stage should be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda_body import CudaBody, CudaVariants
from interlace.kernels.cuda_loads import CudaLoads, RingStage
from interlace.kernels.megakernel_body import Warpgroups

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


def build_ring_variants(
    plain: CudaBody,
    in_ring: CudaBody,
    inputs: tuple[str, ...],
    columns: str,
    count_matrices: Callable[[Op], int] = lambda op: 1,
) -> CudaVariants:
    """Return the body of an op over rows; if a tile has eight rows or more, its rows come through the ring.

    Args:
        plain: body with plain loads.
        in_ring: body whose struct ``Loads`` loads rows; its ring is filled in here.
        inputs: arguments that come through the ring.
        columns: name of the param that is the columns of a tile.
        count_matrices: op -> number of matrices with rows in a stage.
    """

    def select_ring(op: Op, tensors: Mapping[str, Tensor]) -> CudaBody | None:
        rows, row = int(op.param("BM")), int(op.param(columns)) * tensors["x"].dtype.itemsize
        pitch = max(row // _PIECE_BYTES, 1) * _PIECE_BYTES * count_matrices(op)
        if rows < _MIN_ROWS or pitch > _MAX_STAGE_BYTES:
            return None
        stage_bytes = pitch * min(rows, max(1, _STAGE_BYTES // pitch))
        ring = RingStage("Loads", post_wait_inputs=inputs, stage_bytes=lambda op: stage_bytes)
        return replace(in_ring, loads=replace(in_ring.loads, ring=ring))

    return CudaVariants(plain, select_ring)


def build_row_body(make_row: str) -> CudaVariants:
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
            loads=CudaLoads(short_inputs=(("x", "M"),)),
            warpgroups=Warpgroups(max_count=_MAX_WARPS // 4, prefers_two=True),
            is_proved=True,
        )

    return build_ring_variants(
        body(ROW_GROUPS + make_row + include("ops/row_groups/whole_rows.cuh")),
        body(generate_ring_rows("N") + make_row + include("ops/row_groups/whole_rows_in_ring.cuh")),
        ("x",),
        "N",
    )

"""CUDA source of block-sparse matmuls in the megakernel; ``csrc/ops/block_sparse.cuh`` says how it works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interlace.core.dtypes import DType, int32
from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import Struct
from interlace.kernels.base import require
from interlace.kernels.block_sparse.tiles import is_transposed
from interlace.kernels.bodies import PANEL, MegakernelTile, check_alignment
from interlace.kernels.cuda.config import Parameters, template_of
from interlace.kernels.matmul.megakernel_body import (
    MATMUL,
    PITCH_BYTES,
    PLAIN,
    check_stage,
    check_sums,
    count_warpgroups,
    declare_product,
)
from interlace.kernels.matmul.megakernel_operands import NO_OPTIONAL_OPERANDS, ROW_BYTES, check_operands
from interlace.kernels.matmul.megakernel_operands import OPERANDS as OF_MATMUL
from interlace.kernels.matmul.tilings import TALL
from interlace.kernels.megakernel_body import MegakernelBody, MegakernelLoads, Tiling, Warpgroups

_WEIGHT = ("blocks", "columns", "rows")
_HEADER_BYTES = 16  # of the first stage of an item: the first block of its row, and their number
_MAX_WARPGROUPS = 2

#: Operands of each op in a launch.
OPERANDS = Struct(
    "Operands",
    (
        *OF_MATMUL.fields,
        ("columns", "const int*"),
        ("rows", "const int*"),
        ("blocks", "int"),
    ),
)

BLOCK_SPARSE = MATMUL + include("ops/block_sparse.cuh")


def check(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the launch can load an op's tensors, whatever its tile is.

    Raises:
        DTypeError, ShapeError: it cannot.
    """
    check_operands(op, {name: tensor for name, tensor in tensors.items() if tensor.dtype is not int32})
    _check_depth(op)


def _check_depth(op: Op) -> None:
    """Raise ShapeError unless the blocks of an op are whole panels deep."""
    depth = int(op.param("DEPTH"))
    require(
        depth % PANEL == 0,
        f"op {op.name!r}: blocks are {depth} deep, and bulk loads bring panels of {PANEL}; use blocks of a multiple of "
        f"{PANEL}, or the persistent executor, whose Triton bodies take powers of two from 16 on",
    )


def build_tile(op: Op, is_prefetched: bool, warpgroups: int) -> MegakernelTile:
    """Return how the tiles of an op are computed: weights are the 64-row operand where rows of x do not fill it.

    Args:
        is_prefetched: True if blocks and table are loaded before the waits.

    Raises:
        ShapeError: its tile suits no warpgroups, registers or bulk loads.
    """
    _check_depth(op)
    bm, bn, bk = (int(op.param(name)) for name in ("BM", "BN", "BK"))
    swap = is_transposed(bm, warpgroups)
    tall, wide = (bn, bm) if swap else (bm, bn)
    check_sums(check_stage(op), tall, bm * bn, warpgroups, "a taller one, or fewer warps")
    own: Parameters = {"BM": bm, "BN": bn, "BK": bk, "ROWS": bm, "GATES": 1, "SWAP_AB": swap}
    own |= {"HEIGHT": int(op.param("HEIGHT")), "DEPTH": int(op.param("DEPTH")), "PREFETCHED": is_prefetched}
    type_, config = template_of("BlockSparse", own | PLAIN)
    return MegakernelTile(
        type_,
        (declare_product(wide), config),
        prefetchable_bytes=bn * bk * 2,
        dependent_bytes=bm * bk * 2,
        scratch_bytes=(min(wide, TALL) if swap else TALL) * PITCH_BYTES,
        overread_bytes=0,
        partial_elements=bm * bn,
        header_bytes=_HEADER_BYTES,
    )


def pack(op: Op, tensors: Mapping[str, Any], dtype: DType) -> bytes:
    """Return the operands of an op, given its tensors on the device by argument.

    Raises:
        ShapeError: a tensor of bulk loads or of vector stores that does not begin at a multiple of 16 bytes.
    """
    from interlace.kernels.cuda.launcher import encode_tensor_map

    for name in ("x", "blocks", "out"):
        check_alignment(op.name, name, tensors[name].data_ptr(), 16, "bulk loads and vector stores want")

    def encode_map(name: str, rows: int) -> bytes:
        *heights, width = tensors[name].shape
        shape = heights[0] * (heights[1] if len(heights) > 1 else 1), width
        address = tensors[name].data_ptr()
        box = rows, PANEL
        return encode_tensor_map(
            address, shape, (width, 1), box, dtype, is_swizzled=True, l2_fetch_bytes=ROW_BYTES
        ).descriptor

    m = int(op.param("M"))
    own = {
        "x": encode_map("x", int(op.param("BM"))),
        "weight": encode_map("blocks", int(op.param("BN"))),
        **{name: tensors[name] for name in ("out", "columns", "rows")},
        "blocks": int(op.param("BLOCKS")),
        **dict.fromkeys(("m", "x_rows"), m),
        "residual_rows": 0,
        "n": int(op.param("N")),
        "k": int(op.param("K")),
    }
    return OPERANDS.pack(**{**NO_OPTIONAL_OPERANDS, **own})


def _build_body(is_prefetched: bool) -> MegakernelBody:
    def build(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
        return build_tile(op, is_prefetched, warpgroups)

    tiling = Tiling(build, Warpgroups(_MAX_WARPGROUPS, count_required=count_warpgroups))
    loads = MegakernelLoads(prefetchable_inputs=_WEIGHT if is_prefetched else ())
    return MegakernelBody(BLOCK_SPARSE, OPERANDS, pack, tiling, loads, check=check)


#: Body whose loader reads the table and the blocks before all waits, and body whose loader waits first.
PREFETCHING_BODY, WAITING_BODY = _build_body(True), _build_body(False)


@dataclass(frozen=True)
class BlockSparseBodies:
    """Bodies of block-sparse matmuls: a weight that no earlier op writes is loaded before the waits."""

    @property
    def is_proved(self) -> bool:
        """True: the tests of the package check both bodies against the access maps."""
        return True

    @property
    def max_warpgroups(self) -> int:
        """Upper bound of the consumer warpgroups that may compute a tile."""
        return _MAX_WARPGROUPS

    def build_megakernel_body(self, op: Op, tensors: Mapping[str, Tensor], read_only: frozenset[str]) -> MegakernelBody:
        """Return the body for an op.

        Args:
            tensors: tensors of the graph, by argument.
            read_only: arguments that no earlier op writes.
        """
        return PREFETCHING_BODY if read_only.issuperset(_WEIGHT) else WAITING_BODY

"""CUDA source of matmuls of experts in the megakernel; ``csrc/ops/experts.cuh`` says how it works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlace.core.dtypes import DType, int32
from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import Struct
from interlace.kernels.bodies import PANEL, MegakernelTile
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
from interlace.kernels.megakernel_body import MegakernelBody, Tiling, Warpgroups

_TALL, _WIDEST = 64, 256
_HEADER_BYTES = 1024  # after the weights of a stage; slots begin at multiples of it

#: Operands of each op in a launch.
OPERANDS = Struct(
    "Operands",
    (
        *OF_MATMUL.fields,
        ("owner", "const int*"),
        ("experts", "int"),
    ),
)

EXPERTS = MATMUL + include("ops/experts.cuh")


def check(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the launch can load an op's tensors, whatever its tile is.

    Raises:
        DTypeError, ShapeError: it cannot.
    """
    check_operands(op, {name: tensor for name, tensor in tensors.items() if tensor.dtype is not int32})


def _count_gates(op: Op) -> int:
    return 1 + any(access.arg == "gate" for access in op.reads)


def build_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
    """Return how the tiles of an op are computed: weights are the 64-row operand where that wastes fewer rows.

    Raises:
        ShapeError: its tile suits no warpgroups, registers or bulk loads.
    """
    bm, bn, k = (int(op.param(name)) for name in ("BM", "BN", "BK"))
    gates = _count_gates(op)
    transposed = bm % (_TALL * warpgroups) != 0
    tall, wide = (bn, bm) if transposed else (bm, bn)
    check_sums(check_stage(op), tall, gates * bm * bn, warpgroups, "a taller one, or fewer warps")
    joined = gates == 2 and not transposed and k == PANEL and bm == _TALL * warpgroups and 2 * bn <= _WIDEST
    own: Parameters = {"BM": bm, "BN": bn, "BK": k, "ROWS": bm, "GATES": gates, "SWAP_AB": transposed, "JOINED": joined}
    type_, config = template_of("Experts", own | PLAIN)
    return MegakernelTile(
        type_,
        (declare_product(2 * wide if joined else wide), config),
        prefetchable_bytes=gates * bn * k * 2 + _HEADER_BYTES,
        dependent_bytes=bm * k * 2,
        scratch_bytes=(min(wide, _TALL) if transposed else _TALL) * PITCH_BYTES,
        overread_bytes=0,
        partial_elements=gates * bm * bn,
    )


def pack(op: Op, tensors: Mapping[str, Any], dtype: DType) -> bytes:
    """Return the operands of an op, given its tensors on the device by argument."""
    from interlace.kernels.cuda.launcher import encode_tensor_map

    def encode_map(name: str, rows: int) -> bytes | None:
        if name not in tensors:
            return None
        value = tensors[name]
        *matrices, height, width = value.shape
        shape = (height * (matrices[0] if matrices else 1), width)
        return encode_tensor_map(
            value.data_ptr(), shape, (width, 1), (rows, PANEL), dtype, is_swizzled=True, l2_fetch_bytes=ROW_BYTES
        ).descriptor

    bm, bn = int(op.param("BM")), int(op.param("BN"))
    own = {
        "x": encode_map("x", bm),
        "weight": encode_map("weight", bn),
        "gate": encode_map("gate", bn),
        "out": tensors["out"],
        "owner": tensors["owner"],
        "experts": int(op.param("E")),
        **dict.fromkeys(("m", "x_rows"), op.grid[0] * bm),
        "residual_rows": 0,
        "n": int(op.param("N")),
        "k": int(op.param("K")),
    }
    return OPERANDS.pack(**{**NO_OPTIONAL_OPERANDS, **own})


MEGAKERNEL_BODY = MegakernelBody(
    EXPERTS, OPERANDS, pack, Tiling(build_tile, Warpgroups(count_required=count_warpgroups)), check=check
)

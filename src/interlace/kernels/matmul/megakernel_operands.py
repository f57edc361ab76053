"""Operands of a matmul in the megakernel: the struct in device memory, and how an op's tensors fill it.

A tile of 16 tokens x 64 weight rows x 128 has boxes of 16 x 64 elements of ``x`` and 64 x 64 of ``weight``: bulk loads
bring two of each for a stage. With 100 weight rows, the last box (``weight_last``) has 36 rows in steps of 8: 40.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlace.core.dtypes import DType
from interlace.core.errors import DTypeError
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import TENSOR_MAP, Struct
from interlace.kernels.base import require
from interlace.kernels.bodies import LL_WORD, NO_CLUSTER, PANEL, Cluster, LLTensors, check_alignment
from interlace.kernels.matmul.tilings import count_loaded_rows, is_skinny

#: Bytes of a row of a box.
ROW_BYTES = 2 * PANEL
#: L2 fetch granularity, one line of a box: weights stream 1 to 2 % faster than with 256 B (benchmarks/notes/ffn.md).
_L2_FETCH_BYTES = ROW_BYTES
_PIECE_BYTES = 16  # alignment in bytes of bulk loads, and bytes that an epilogue loads and stores at once
_SUMS_OF_SQUARES = ("x_squares", "squares")
_VECTOR_OPERANDS = ("bias", "residual", "scale")  # with one of these, out is stored by 8 elements
_STEP = 8
_ROW_STEP = 8  # elements: bulk loads address rows in steps of 16 bytes

#: Arguments that an op may poll.
LL_INPUTS = ("x", "x_squares")
#: Fields that operands have in addition to tensors if some tensors use the LL protocol.
LL_FIELDS = (
    *((f"{name}_words", f"const {LL_WORD}*") for name in LL_INPUTS),
    *((f"{name}_words", f"{LL_WORD}*") for name in ("out", "scaled", "squares")),
    *((name, "unsigned") for name in ("x_number", "x_squares_number", "number", "publications")),
)
#: Fields of a launch for each op.
OPERANDS = Struct(
    "Operands",
    (
        *((name, TENSOR_MAP) for name in ("x", "weight", "gate", "x_last", "weight_last", "gate_last", "x_scale")),
        *((name, f"{const}ELEMENT*") for name, const in (("bias", "const "), ("residual", "const "), ("out", ""))),
        *((name, "int") for name in ("m", "n", "x_rows", "residual_rows")),
        *((name, f"const {kind}*") for name, kind in (("x_squares", "float"), ("scale", "ELEMENT"))),
        *((name, f"{kind}*") for name, kind in (("scaled", "ELEMENT"), ("squares", "float"))),
        *LL_FIELDS,
        ("k", "int"),
    ),
)
#: Operands that not every op has, for an op without them: null pointers, and LL numbers of 0.
NO_OPTIONAL_OPERANDS: Mapping[str, int | None] = {
    name: 0 if kind == "unsigned" else None
    for name, kind in OPERANDS.fields
    if kind != "int" and name not in ("x", "weight", "out")
}


def check(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the launch can load an op's tensors, whatever its tile is.

    Rows of out may begin at any element unless other operands are added to them, so the head of a language model may
    have any vocabulary size.

    Raises:
        DTypeError, ShapeError: a tensor that it cannot load.
    """
    anywhere = _SUMS_OF_SQUARES if any(name in tensors for name in _VECTOR_OPERANDS) else (*_SUMS_OF_SQUARES, "out")
    check_operands(op, {name: tensor for name, tensor in tensors.items() if name not in anywhere})


def is_ragged(op: Op) -> bool:
    """Return True if rows of out do not begin at multiples of 16 bytes."""
    return int(op.param("N")) % _ROW_STEP != 0


def check_operands(op: Op, operands: Mapping[str, Tensor]) -> None:
    """Raise unless these tensors of an op, by argument, can go through the ring and the tensor cores.

    Raises:
        DTypeError: one is neither of bf16 nor of fp16.
        ShapeError: rows of a matrix do not begin at multiples of 16 bytes.
    """
    for name, tensor in operands.items():
        if not tensor.dtype.on_tensor_cores or tensor.dtype.itemsize != 2:
            raise DTypeError(
                f"op {op.name!r} has {tensor}; the megakernel multiplies bf16 and fp16. Use the persistent "
                "executor, whose Triton bodies take fp32 too"
            )
        require(
            len(tensor.shape) < 2 or tensor.shape[-1] % _ROW_STEP == 0,
            f"op {op.name!r} has {name} {tensor}; bulk loads need rows of a multiple of {_ROW_STEP} elements. Pad it, "
            "or use the persistent executor, whose Triton bodies take any shape",
        )


def pack(op: Op, tensors: Mapping[str, Any], dtype: DType, cluster: Cluster = NO_CLUSTER) -> bytes:
    """Pack the operands of an op, given its tensors on the device by argument."""
    return OPERANDS.pack(**_build_operands(op, tensors, dtype, cluster))


def _build_operands(op: Op, tensors: Mapping[str, Any], dtype: DType, cluster: Cluster = NO_CLUSTER) -> dict[str, Any]:
    """Return the operands of an op by name, given its tensors by argument, which share a dtype except sums of squares.

    In a cluster, a box is a block's share of the rows that a tile needs.

    Raises:
        ShapeError: an operand of bulk loads, or of vector loads of the epilogue, that does not begin at a multiple of
            16 bytes.
    """
    from interlace.kernels.cuda.launcher import encode_tensor_map

    wanting = dict.fromkeys(("bias", "residual", "out", "scale", "scaled", "x_squares"), "its epilogue wants")
    wanting |= dict.fromkeys(("x", "weight", "gate", "x_scale"), "bulk loads want")
    for name, why in wanting.items():
        if name in tensors:
            check_alignment(op.name, name, tensors[name].data_ptr(), _PIECE_BYTES, why)
    params = op.parameters
    bm, bn, bk = (int(params[name]) for name in ("BM", "BN", "BK"))
    panels = is_skinny(op)

    def encode_map(name: str, rows: int) -> Any:
        if name not in tensors:
            return None
        value = tensors[name]
        shape, strides = tuple(value.shape), tuple(value.stride())
        box: tuple[int, ...] = rows, PANEL
        if panels:  # a stage of them at once
            (m, k), (pitch, one) = shape, strides
            shape, strides, box = (k // PANEL, m, PANEL), (PANEL, pitch, one), (bk // PANEL, *box)
        address = value.data_ptr()
        return encode_tensor_map(
            address, shape, strides, box, dtype, is_swizzled=True, l2_fetch_bytes=_L2_FETCH_BYTES
        ).descriptor

    def gains() -> Any:
        """Encode the map that loads the gains of a stage, one line per panel."""
        if "x_scale" not in tensors:
            return None
        value, panels = tensors["x_scale"], int(params["K"]) // PANEL
        return encode_tensor_map(value.data_ptr(), (panels, PANEL), (PANEL, 1), (bk // PANEL, PANEL), dtype).descriptor

    def count_last_rows(extent: int, step: int, most: int, shares: int) -> int:
        """Return the rows in a share of the last box, a multiple of 8 and at most those of a full box."""
        return min(most // shares, -(-(extent - (extent - 1) // step * step) // (_STEP * shares)) * _STEP)

    rows, columns, loaded = int(tensors["x"].shape[0]), int(params["N"]), count_loaded_rows(op)
    return {
        **NO_OPTIONAL_OPERANDS,
        "x": encode_map("x", loaded // cluster.columns),
        "weight": encode_map("weight", bn // cluster.rows),
        "gate": encode_map("gate", bn // cluster.rows),
        "x_last": encode_map("x", count_last_rows(rows, bm, loaded, cluster.columns)),
        "weight_last": encode_map("weight", count_last_rows(columns, bn, bn, cluster.rows)),
        "gate_last": encode_map("gate", count_last_rows(columns, bn, bn, cluster.rows)),
        "x_scale": gains(),
        "x_rows": rows,
        "residual_rows": int(tensors["residual"].shape[0]) if "residual" in tensors else 0,
        **{name: tensors.get(name) for name in ("bias", "residual", "out", "x_squares", "scale", "scaled", "squares")},
        "m": int(params["M"]),
        "n": columns,
        "k": int(params["K"]),
    }


def pack_ll(op: Op, tensors: Mapping[str, Any], dtype: DType, ll_tensors: LLTensors) -> bytes:
    """Pack the operands of an op some of whose arguments are LL words; ``tensors`` has these as ``<name>_words``."""
    epochs = ll_tensors.epochs
    written = next((number for name, number in epochs.items() if name not in LL_INPUTS), 0)
    words = {name: tensors.get(name) for name, _ in LL_FIELDS if name.endswith("_words")}
    read = {f"{name}_number": epochs.get(name, 0) for name in LL_INPUTS}
    own = {"number": written, "publications": ll_tensors.epochs_per_run}
    return OPERANDS.pack(**{**_build_operands(op, tensors, dtype), **words, **read, **own})

"""CUDA source of causal attention in the megakernel; ``csrc/ops/causal_attention.cuh`` says how it works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlace.core.dtypes import DType
from interlace.core.errors import DTypeError
from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import TENSOR_MAP, Struct
from interlace.kernels.base import require
from interlace.kernels.bodies import PANEL, MegakernelTile
from interlace.kernels.megakernel_body import MegakernelBody, MegakernelLoads, Tiling, Warpgroups

_ROW_BYTES = 2 * PANEL
_PITCH_BYTES = _ROW_BYTES + 16
_ROWS = 64  # of a warpgroup
_STEP = 16  # elements of a head that a product takes
_NARROWEST, _WIDEST = PANEL, 4 * PANEL  # elements of a head
_WIDEST_IN_REGISTERS = 3 * PANEL  # elements of queries that are kept in registers, not in the scratch
_ALIGN = 1024  # bytes: operands of products begin at a multiple
_MAX_KEYS = 128
_KEYS_STEP = 16  # of a product

#: Operands of each op in a launch.
OPERANDS = Struct(
    "Operands",
    (
        *((name, TENSOR_MAP) for name in "qkv"),
        ("first", "const int*"),
        ("out", "ELEMENT*"),
        *((name, "int") for name in ("rows", "window", "kv_heads", "group")),
    ),
)

_SOURCE = include("ops/causal_attention.cuh")


def _generate_product(
    type_: str, width: int, names: Mapping[str, int], *, transposed: bool = False, in_registers: bool = True
) -> str:
    """Return ``type_<width>``: accumulators += A (64 x 16) * B (16 x width, contiguous along k).

    Args:
        names: functions, and whether they add to the accumulators (else they set these).
        transposed: True if B is contiguous along its columns.
        in_registers: True if A is in registers, False if it is in shared memory like B.
    """
    count = width // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(accumulators[{i}])' for i in range(count))
    declared, given = "unsigned long long a", '"l"(a)'
    first, second, modes = f"%{count}", f"%{count + 1}", "1, 1, 0, 0"
    if in_registers:
        declared, given = "unsigned a, unsigned b, unsigned c, unsigned d", '"r"(a), "r"(b), "r"(c), "r"(d)'
        first, second = f"{{{', '.join(f'%{count + i}' for i in range(4))}}}", f"%{count + 4}"
        modes = f"1, 1, {int(transposed)}"
    functions = "".join(
        f"  DEVICE static void {name}(float (&accumulators)[{count}], {declared}, unsigned long long second) {{\n"
        f'    asm volatile("wgmma.mma_async.sync.aligned.m64n{width}k16.f32." ELEMENT_PTX "." ELEMENT_PTX '
        f'" {{{registers}}}, {first}, {second}, {adds}, {modes};"\n'
        f'                 : {operands} : {given}, "l"(second));\n'
        "  }\n"
        for name, adds in names.items()
    )
    return f"template <> struct {type_}<{width}> {{\n{functions}}};\n"


def check_heads(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Raise DTypeError or ShapeError unless the launch can multiply heads of an op, whatever its tile is."""
    dtype, head_dim = tensors["q"].dtype, int(op.param("D"))
    if not dtype.on_tensor_cores or dtype.itemsize != 2:
        raise DTypeError(
            f"op {op.name!r} has {tensors['q']}; the megakernel multiplies bf16 and fp16. Use the persistent executor, "
            "whose Triton bodies take fp32 too"
        )
    require(
        _NARROWEST <= head_dim <= _WIDEST and head_dim % _STEP == 0,
        f"op {op.name!r} has heads of {head_dim} elements, and its body in the megakernel takes multiples of {_STEP} "
        f"from {_NARROWEST} to {_WIDEST}; use the persistent executor, whose Triton bodies take others too",
    )


def count_warpgroups(op: Op) -> int:
    return max(1, int(op.param("num_warps")) // 4)


def build_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
    """Return how the tiles of an op are computed. Raises ShapeError if no warpgroups or products suit them."""
    rows, keys, head_dim = (int(op.param(name)) for name in ("BM", "BN", "D"))
    what = f"op {op.name!r}: tile of {rows} queries by {keys} keys"
    require(
        rows == _ROWS * warpgroups,
        f"{what}: {warpgroups} warpgroups have {_ROWS} rows each; use {_ROWS * warpgroups} queries",
    )
    require(
        keys % _KEYS_STEP == 0 and keys <= _MAX_KEYS,
        f"{what}: use at most {_MAX_KEYS} keys, a multiple of {_KEYS_STEP}",
    )
    panels = -(-head_dim // PANEL)
    keeps_queries = head_dim > _WIDEST_IN_REGISTERS
    slot = max(keys * panels * _ROW_BYTES, rows * _ROW_BYTES)
    return MegakernelTile(
        f"CausalAttention<{head_dim}, {keys}>",
        (
            _generate_product("Scores", keys, {"set": 0, "add": 1}, in_registers=not keeps_queries),
            _generate_product("Sums", panels * PANEL, {"add": 1}, transposed=True),
        ),
        prefetchable_bytes=slot,
        dependent_bytes=slot,
        scratch_bytes=_ROWS * panels * _ROW_BYTES + _ALIGN if keeps_queries else _ROWS * _PITCH_BYTES,
        overread_bytes=0,
        partial_elements=0,
    )


def encode_head_map(value: Any, rows: int, head_dim: int, dtype: DType) -> bytes:
    """Encode the tensor map of boxes of ``rows`` rows of a panel of one head, of a matrix of rows of heads.

    Heads are a dimension, so that elements of a panel after its head are zeros.
    """
    from interlace.kernels.cuda.launcher import encode_tensor_map

    (count, wide), stride = value.shape, value.stride(0)
    shape, strides, box = (count, wide // head_dim, head_dim), (stride, head_dim, 1), (rows, 1, PANEL)
    return encode_tensor_map(
        value.data_ptr(), shape, strides, box, dtype, is_swizzled=True, l2_fetch_bytes=_ROW_BYTES
    ).descriptor


def _pack(op: Op, tensors: Mapping[str, Any], dtype: DType) -> bytes:
    """Return the operands of an op, given its tensors on the device by argument."""
    boxes = {"q": int(op.param("BM")), "k": int(op.param("BN")), "v": int(op.param("BN"))}
    return OPERANDS.pack(
        **{name: encode_head_map(tensors[name], rows, int(op.param("D")), dtype) for name, rows in boxes.items()},
        first=tensors["first"],
        out=tensors["out"],
        rows=int(op.param("T")),
        window=int(op.param("WINDOW")),
        kv_heads=int(op.param("KV_HEADS")),
        group=int(op.param("GROUP")),
    )


MEGAKERNEL_BODY = MegakernelBody(
    _SOURCE,
    OPERANDS,
    _pack,
    Tiling(build_tile, Warpgroups(count_required=count_warpgroups)),
    MegakernelLoads(pre_wait_inputs=("first",)),
    check=check_heads,
)

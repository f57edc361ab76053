"""The CUDA C++ body of causal attention for the one launch.

Each consumer warpgroup has 64 rows of a tile. Queries take the first stage of an item, from which they go into
registers; every further one is a block of keys and values. All lie in panels of 64 elements (128 bytes: one swizzled
line), row under row:

    slot           first stage                      further stages
    independent    elements 0..63 of the queries    keys
    dependent      elements 64..127, if there are   values

All of them are loaded behind the item's waits, so the loader that runs ahead opens its slots with no bytes. How many
stages an item has follows from ``first``, which all roles read; no op before may write it.

First operands are queries and weights, in registers, in which the layout of sums is that of a first operand too; values
lie with their rows along the reduction (a transposed second operand). While the products with the values of one block
are under way, the scores of the next become weights (Shah et al., FlashAttention-3, 2024, section 3.2).
"""

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
from interlace.kernels.bodies import PANEL, MegakernelBody, MegakernelTile

_ROW_BYTES = 2 * PANEL
_PITCH_BYTES = _ROW_BYTES + 16
_ROWS = 64  # of a warpgroup
_WIDEST = 2 * PANEL  # of a head: queries lie in the two slots of a stage
_MAX_KEYS = 128
_KEYS_STEP = 16  # of a product

#: What a launch has of each op.
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


def _generate_product(type_: str, width: int, names: Mapping[str, int], transposed: bool) -> str:
    """``type_<width>``: sums += A (64 x 16, in registers) * B (16 x width, along k; if transposed, along its columns).

    ``names`` has its functions, and whether they add to what sums are (else these are set).
    """
    count = width // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(sums[{i}])' for i in range(count))
    first = ", ".join(f"%{count + i}" for i in range(4))
    functions = "".join(
        f"  DEVICE static void {name}(float (&sums)[{count}], unsigned a, unsigned b, unsigned c, unsigned d, "
        "unsigned long long second) {\n"
        f'    asm volatile("wgmma.mma_async.sync.aligned.m64n{width}k16.f32." ELEMENT_PTX "." ELEMENT_PTX '
        f'" {{{registers}}}, {{{first}}}, %{count + 4}, {adds}, 1, 1, {int(transposed)};"\n'
        f'                 : {operands} : "r"(a), "r"(b), "r"(c), "r"(d), "l"(second));\n'
        "  }\n"
        for name, adds in names.items()
    )
    return f"template <> struct {type_}<{width}> {{\n{functions}}};\n"


def _check(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Raise DTypeError or ShapeError unless the launch can multiply heads of an op, whatever its tile is."""
    dtype, head_dim = tensors["q"].dtype, int(op.param("D"))
    if not dtype.on_tensor_cores or dtype.itemsize != 2:
        raise DTypeError(
            f"op {op.name!r} has {tensors['q']}; the one launch multiplies bf16 and fp16. Use the persistent executor, "
            "whose Triton bodies take fp32 too"
        )
    require(
        head_dim in (PANEL, _WIDEST),
        f"op {op.name!r} has heads of {head_dim} elements, and its body in the one launch takes {PANEL} or {_WIDEST}; "
        "use the persistent executor, whose Triton bodies take others too",
    )


def _count_warpgroups(op: Op) -> int:
    return max(1, int(op.param("num_warps")) // 4)


def _build_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
    """How the tiles of an op are computed. Raises ShapeError if they suit no warpgroups or products."""
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
    slot = max(keys * head_dim * 2, rows * _ROW_BYTES)
    return MegakernelTile(
        f"CausalAttention<{head_dim}, {keys}>",
        (
            _generate_product("Scores", keys, {"set": 0, "add": 1}, transposed=False),
            _generate_product("Sums", head_dim, {"add": 1}, transposed=True),
        ),
        prefetchable_bytes=slot,
        dependent_bytes=slot,
        scratch_bytes=_ROWS * _PITCH_BYTES,
        overread_bytes=0,
        partial_elements=0,
    )


def _pack(op: Op, tensors: Mapping[str, Any], dtype: DType) -> bytes:
    """The operands of an op, given its tensors on the device by argument."""
    from interlace.kernels.cuda.launcher import encode_tensor_map

    def encoded(name: str, rows: int) -> bytes:
        value = tensors[name]
        shape, strides, box = tuple(value.shape), tuple(value.stride()), (rows, PANEL)
        return encode_tensor_map(
            value.data_ptr(), shape, strides, box, dtype, is_swizzled=True, l2_fetch_bytes=_ROW_BYTES
        ).descriptor

    return OPERANDS.pack(
        q=encoded("q", int(op.param("BM"))),
        k=encoded("k", int(op.param("BN"))),
        v=encoded("v", int(op.param("BN"))),
        first=tensors["first"],
        out=tensors["out"],
        rows=int(op.param("T")),
        window=int(op.param("WINDOW")),
        kv_heads=int(op.param("KV_HEADS")),
        group=int(op.param("GROUP")),
    )


MEGAKERNEL_BODY = MegakernelBody(
    _SOURCE, OPERANDS, (), _build_tile, _pack, _check, _count_warpgroups, is_chunked=False, pre_wait_inputs=("first",)
)

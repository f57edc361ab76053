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
_WIDEST = 2 * PANEL  # elements of a head: queries fill the two slots of a stage
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


def _generate_product(type_: str, width: int, names: Mapping[str, int], transposed: bool) -> str:
    """Return ``type_<width>``: accumulators += A (64 x 16, in registers) * B (16 x width, contiguous along k).

    ``names`` has its functions, and whether they add to the accumulators (else they set these); ``transposed``: B is
    contiguous along its columns.
    """
    count = width // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(accumulators[{i}])' for i in range(count))
    first = ", ".join(f"%{count + i}" for i in range(4))
    functions = "".join(
        f"  DEVICE static void {name}(float (&accumulators)[{count}], unsigned a, unsigned b, unsigned c, unsigned d, "
        "unsigned long long second) {\n"
        f'    asm volatile("wgmma.mma_async.sync.aligned.m64n{width}k16.f32." ELEMENT_PTX "." ELEMENT_PTX '
        f'" {{{registers}}}, {{{first}}}, %{count + 4}, {adds}, 1, 1, {int(transposed)};"\n'
        f'                 : {operands} : "r"(a), "r"(b), "r"(c), "r"(d), "l"(second));\n'
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
        head_dim in (PANEL, _WIDEST),
        f"op {op.name!r} has heads of {head_dim} elements, and its body in the megakernel takes {PANEL} or {_WIDEST}; "
        "use the persistent executor, whose Triton bodies take others too",
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
    """Return the operands of an op, given its tensors on the device by argument."""
    from interlace.kernels.cuda.launcher import encode_tensor_map

    def encode_map(name: str, rows: int) -> bytes:
        value = tensors[name]
        shape, strides, box = tuple(value.shape), tuple(value.stride()), (rows, PANEL)
        return encode_tensor_map(
            value.data_ptr(), shape, strides, box, dtype, is_swizzled=True, l2_fetch_bytes=_ROW_BYTES
        ).descriptor

    return OPERANDS.pack(
        q=encode_map("q", int(op.param("BM"))),
        k=encode_map("k", int(op.param("BN"))),
        v=encode_map("v", int(op.param("BN"))),
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

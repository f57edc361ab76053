"""Matmul in the megakernel: which tiles it computes, and the parameters of their code.

A tile becomes a type, Matmul or below 64 weight rows Skinny with its config (``csrc/ops/matmul``), and bytes of shared
memory. A gated tile of 16 tokens x 64 weight rows x 128, whose weights are the tensor core's operand of 64 rows:

    type            Matmul_BM16_BN64_BK128_GATES2_...     its parameters by name: csrc/ops/matmul/matmul.cuh
    prefetchable    2 * 64 * 128 * 2 = 32 KiB a stage     both weights, before the waits
    dependent       16 * 128 * 2 = 4 KiB a stage          tokens, after them
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from interlace.core.dtypes import DType
from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels import gelu
from interlace.kernels.base import require
from interlace.kernels.bodies import (
    MAX_BOX_ROWS,
    OPERAND_REGISTERS,
    PANEL,
    ROW_FLOATS,
    Cluster,
    LLTensors,
    MegakernelTile,
)
from interlace.kernels.cuda.config import Parameters, template_of
from interlace.kernels.matmul.megakernel_operands import (
    LL_INPUTS,
    OPERANDS,
    ROW_BYTES,
    check,
    is_ragged,
    pack,
    pack_ll,
)
from interlace.kernels.matmul.tilings import (
    MAX_ACCUMULATORS,
    MAX_WARPGROUPS,
    SKINNY_TOKENS,
    TALL,
    X_WHOLE,
    compute_token_bytes,
    count_loaded_rows,
    count_normalising_registers,
    count_partial_elements,
    count_shared_elements,
    count_weights,
    find_tensor,
    is_skinny,
    normalises,
)
from interlace.kernels.megakernel_body import (
    Clustering,
    LLSupport,
    MegakernelBody,
    MegakernelLoads,
    Tiling,
    Warpgroups,
)

_ACTIVATIONS = {"none": 0, "relu": 1, "gelu-tanh": 2, "silu": 3}
PITCH_BYTES = ROW_BYTES + 16
_STEP = 8
_SKINNY_WARPGROUP_COUNTS = 1, 2  # their threads divide evenly among 16 rows
_MAX_COOPERATIVE_REGISTERS = 128  # sums of a thread of three warpgroups: all of a part, and its share
_MAX_PREFETCHED_STAGES = 3  # stages of weights in registers; more were no faster (benchmarks/notes/decode.md)
_PARTS_AT_ONCE = 4  # parts of a tile whose sums a thread loads together
_LL_BITS = ("x", "out", "scaled")  # squares are LL words if their values are

#: Parameters of a tile that is not split and stores what it multiplies.
PLAIN: Parameters = {
    "ACTIVATION": 0,
    "BIAS": False,
    "RESIDUAL": False,
    "RELU_LAST": False,
    "RAGGED": False,
    "PARTS_AT_ONCE": 1,
    "SQUARED": 0,
    "STORES_SCALED": False,
    "NORM_K": 0,
    "EPS": 0.0,
    "SHARES": 1,
}

#: LL words of tokens that a lane of the loader polls at once.
POLLED_WORDS = 32
#: Most elements of a tile's LL tokens that a warpgroup of consumers polls. Of more, those of later stages had better
#: arrive while products of earlier ones run (benchmarks/notes).
POLLED_BY_CONSUMERS = 2048
#: Tiles of fewer stages have a config for each number; of more, one for even numbers and one for odd.
FEW_TURNS = 4

_HELD = f"\n#ifndef REGISTERS_TO_HOLD\n#define REGISTERS_TO_HOLD {OPERAND_REGISTERS[0]}\n#endif"
_PARTS = ("operands", "accumulators", "epilogue", "folded_norm", "fix_up", "output", "row_shares", "matmul")
MATMUL = gelu.CUDA + include("ops/mma.cuh") + _HELD + include(*(f"ops/matmul/{part}.cuh" for part in _PARTS))

_LIMITS = f"\nconstexpr int POLLED_WORDS = {POLLED_WORDS}, FEW_TURNS = {FEW_TURNS};"
#: After ``MATMUL``.
SKINNY = _LIMITS + include("ops/matmul/skinny.cuh")


def declare_product(width: int) -> str:
    """Declare ``Product<width>`` (``csrc/ops/matmul/operands.cuh``), whose instruction names all of its registers."""
    count = width // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(accumulators[{i}])' for i in range(count))
    mma = f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32"
    return (
        f"template <> struct Product<{width}> {{\n"
        f"  DEVICE static void add(float (&accumulators)[{count}], unsigned long long a, unsigned long long b) {{\n"
        f'    asm volatile("{mma}." ELEMENT_PTX "." ELEMENT_PTX " {{{registers}}}, '
        f'%{count}, %{count + 1}, 1, 1, 1, 0, 0;"\n'
        f'                 : {operands} : "l"(a), "l"(b));\n'
        "  }\n"
        f"  DEVICE static void add(float (&accumulators)[{count}], const unsigned (&a)[4], unsigned long long b) {{\n"
        f'    asm volatile("{mma}." ELEMENT_PTX "." ELEMENT_PTX " {{{registers}}}, '
        f'{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}, %{count + 4}, 1, 1, 1, 0;"\n'
        f'                 : {operands} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));\n'
        "  }\n"
        "};\n"
    )


def count_warpgroups(op: Op) -> int:
    """Return the consumer warpgroups of an op's tile: one for four warps."""
    return max(1, int(op.parameters.get("num_warps", 4)) // 4)


def build_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
    """Return the tile of a matmul whose tiles have at most ``parts`` parts.

    Raises:
        ShapeError: the tile does not fit the warpgroups, registers or bulk loads.
    """
    return _build_tile(op, parts, warpgroups)


def _build_tile(op: Op, parts: int, warpgroups: int, shares: int = 1) -> MegakernelTile:
    bm, bn, k = (int(op.param(name)) for name in ("BM", "BN", "BK"))
    gates, transposed = count_weights(op), bool(op.param("SWAP"))
    tall, wide = (bn, bm) if transposed else (bm, bn)
    if is_skinny(op):
        return _build_skinny_tile(op, parts, warpgroups)
    what = check_stage(op)
    check_sums(what, tall, count_partial_elements(op), warpgroups, "a taller one, fewer warps, or swap_ab")
    rows = count_loaded_rows(op)
    normalised, own = find_tensor(op, "x_squares") is not None, normalises(op)
    if own:
        _check_normalising(op, what, warpgroups)
    together = 1 if shares > 1 else min(parts, _PARTS_AT_ONCE)
    parameters: Parameters = {"BM": bm, "BN": bn, "BK": k, "ROWS": rows, "GATES": gates, "SWAP_AB": transposed}
    parameters |= {**_encode_epilogue(op), "PARTS_AT_ONCE": together, **_encode_norm(op), "SHARES": shares}
    type_, config = template_of("Matmul", parameters)
    factors = -(-4 * (bm if transposed else tall // warpgroups) // 16) * 16 if normalised else 0
    squares = ROW_FLOATS * warpgroups if own else 0
    return MegakernelTile(
        type_,
        (declare_product(wide), config),
        prefetchable_bytes=gates * bn * k * 2,
        dependent_bytes=compute_token_bytes(rows, k, own),
        scratch_bytes=(min(wide, TALL) if transposed else TALL) * PITCH_BYTES + factors,
        overread_bytes=0 if own else (bm - rows) * ROW_BYTES,
        partial_elements=count_partial_elements(op) + squares,
        shared_elements=count_shared_elements(op, shares) + squares * (shares > 1),
        has_register_operands=own,
    )


def _check_normalising(op: Op, what: str, warpgroups: int) -> None:
    """Raise ShapeError unless tokens of a tile, of 64 weight rows or more, can be normalised in registers."""
    require(
        not op.param("SWAP"),
        f"{what}: tiles of {TALL} weight rows or more normalise their rows only without swap_ab; leave it out, or use "
        "rms_norm before the op",
    )
    require(
        int(op.param("K")) % PANEL == 0,
        f"{what}: tiles normalise rows of a multiple of {PANEL} elements; use rms_norm before the op",
    )
    bm, bn, bk = (int(op.param(name)) for name in ("BM", "BN", "BK"))
    registers, most = count_normalising_registers(bm, bn * count_weights(op), bk, warpgroups)
    require(
        registers <= most,
        f"{what}: {registers} registers a thread for sums and for tokens that are normalised, and at most {most} fit; "
        "use a smaller tile or more warps",
    )


def check_stage(op: Op) -> str:
    """Return the tile of an op, for messages. Raises ShapeError unless bulk loads can fill its stages."""
    bm, bn, k = (int(op.param(name)) for name in ("BM", "BN", "BK"))
    what = f"op {op.name!r}: tile of {bm} tokens x {bn} weight rows x {k}"
    require(k % PANEL == 0, f"{what}: a stage is a multiple of {PANEL} deep; use k = {PANEL} or more")
    require(max(bm, bn) <= MAX_BOX_ROWS, f"{what}: a bulk load brings at most {MAX_BOX_ROWS} rows; use a smaller tile")
    return what


def check_sums(what: str, tall: int, floats: int, warpgroups: int, instead: str) -> None:
    """Raise ShapeError unless warpgroups share the rows of a tile evenly, and its sums fit their registers."""
    require(
        tall % (TALL * warpgroups) == 0,
        f"{what}: {warpgroups} warpgroups multiply {TALL} rows each at a time, and the tile has {tall}; use {instead}",
    )
    registers, most = floats // (128 * warpgroups), MAX_ACCUMULATORS[warpgroups]
    require(
        registers <= most,
        f"{what}: sums of {registers} registers a thread, and at most {most} fit; use a smaller tile or more warps",
    )


def build_cooperative_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile | None:
    """Return the tile of a cooperative fix-up, in which each part adds and finishes a share of the product.

    Returns None if there is one share, if shares were of rows that the tile normalises, and if three warpgroups have
    too few registers for a part's sums and its share.
    """
    shared = 0 if is_skinny(op) else count_shared_elements(op, parts)
    kept = (count_partial_elements(op) + shared) // (128 * warpgroups)
    if not shared or (warpgroups > 2 and kept > _MAX_COOPERATIVE_REGISTERS):
        return None
    return _build_tile(op, parts, warpgroups, parts)


def build_prefetching_tile(op: Op, tile: MegakernelTile, least: int) -> MegakernelTile:
    """Return the tile whose items hold weights while they wait for their tokens; ``least``: shortest extent along k.

    Tiles of few weight rows always do. Of the others, tiles of one warpgroup do: it has registers for weights, which
    are the 64-row operand. An item never holds all of its weights, because slots that are kept until their post delay
    further loads (``csrc/ring/ring.cuh``).
    """
    stages = min(-(-least // int(op.param("BK"))) - 1, _MAX_PREFETCHED_STAGES)
    if is_skinny(op) or not op.param("SWAP") or count_warpgroups(op) > 1 or stages < 1:
        return tile
    return replace(tile, type=f"{tile.type}::Ahead<{stages}>", has_register_operands=True)


def _build_skinny_tile(op: Op, parts: int, warpgroups: int, ll_bits: Collection[str] = ()) -> MegakernelTile:
    """Return a tile of few weight rows, as ``build_tile`` does; ``ll_bits``: arguments that are LL words."""
    what = check_stage(op)
    bm, bn, bk, k = (int(op.param(name)) for name in ("BM", "BN", "BK", "K"))
    rows, gates = count_loaded_rows(op), count_weights(op)
    require(
        bm <= SKINNY_TOKENS,
        f"{what}: tiles of fewer than {TALL} weight rows are for {SKINNY_TOKENS} tokens at most",
    )
    require(
        warpgroups in _SKINNY_WARPGROUP_COUNTS,
        f"{what}: tiles of fewer than {TALL} weight rows run in {4 * max(_SKINNY_WARPGROUP_COUNTS)} warps at most, "
        f"and an op of the launch is tiled for {4 * warpgroups}; give that fewer",
    )
    require(parts == 1, f"{what}: a tile of fewer than {TALL} weight rows is not split; use whole tiles")
    require(k % PANEL == 0, f"{what}: tiles of fewer than {TALL} weight rows need a k of a multiple of {PANEL}")
    normalised = find_tensor(op, "x_squares") is not None
    require(
        not normalised or k // int(op.param("SQUARED")) % 4 == 0,
        f"{what}: sums of squares of a row are loaded by four; use finer ones",
    )
    own = normalises(op)
    warps = 4 * warpgroups
    scratch = 4 * (warps * gates * rows * (bn + 4) + bm * (warps if own else 1))
    panels = bk // PANEL
    lines = panels * rows
    here = "x" in ll_bits and rows * k <= POLLED_BY_CONSUMERS * warpgroups
    stages = -(-k // bk)
    scratch += here * stages * lines * ROW_BYTES
    turns = stages if stages < FEW_TURNS else FEW_TURNS + stages % 2
    parameters: Parameters = {"BM": bm, "BN": bn, "BK": bk, "ROWS": rows, "GATES": gates, **_encode_epilogue(op)}
    parameters["TURNS"] = turns
    parameters |= {**_encode_norm(op), **{f"LL_{name.upper()}": name in ll_bits for name in _LL_BITS}}
    type_, config = template_of("Skinny", parameters | {"STAGES_OF_TILE": stages if here else 0})
    return MegakernelTile(
        type_,
        (SKINNY, config),
        prefetchable_bytes=gates * bn * bk * 2,
        dependent_bytes=0 if here else -(-(lines + panels * own) // _STEP) * _STEP * ROW_BYTES,
        scratch_bytes=-(-scratch // warpgroups // 16) * 16,
        overread_bytes=0,
        partial_elements=count_partial_elements(op),
        has_register_operands=True,
    )


def _encode_epilogue(op: Op) -> Parameters:
    """Return the parameters of an op's epilogue: activation, and whether it has bias, residual or ragged rows."""
    activation = _ACTIVATIONS["none" if count_weights(op) == 2 else str(op.param("ACTIVATION"))]
    added = {name.upper(): find_tensor(op, name) is not None for name in ("bias", "residual")}
    return {"ACTIVATION": activation, **added, "RELU_LAST": False, "RAGGED": is_ragged(op)}


def _encode_norm(op: Op) -> Parameters:
    """Return the parameters of the norms that are folded into an op, before and after it; zero if there are none."""
    scaled = find_tensor(op, "scale") is not None
    normalised = normalises(op) or find_tensor(op, "x_squares") is not None
    return {
        "SQUARED": int(op.parameters.get("SQUARED", 0)) if scaled or normalised else 0,
        "STORES_SCALED": scaled,
        "NORM_K": int(op.param("K")) if normalised else 0,
        "EPS": float(op.param("EPS")) if normalised else 0.0,
    }


def check_cluster(op: Op, cluster: Cluster) -> None:
    """Raise ShapeError unless each block of a cluster can load its share of the rows that several need.

    Tiles that ``mma`` multiplies cannot, nor can tiles whose rows have no equal shares.
    """
    bn, loaded = int(op.param("BN")), count_loaded_rows(op)
    what = f"op {op.name!r}: tile of {loaded} tokens x {bn} weight rows in a cluster of {cluster}"
    require(not is_skinny(op), f"{what}: tiles of fewer than {TALL} weight rows are loaded whole; use wider ones")
    for rows, of, shares in ((bn, "weights", cluster.rows), (loaded, "tokens", cluster.columns)):
        require(
            rows % (_STEP * shares) == 0,
            f"{what}: {shares} blocks load as many of its {rows} rows of {of} each, in steps of {_STEP}; use a "
            f"multiple of {_STEP * shares}, or no cluster",
        )


def _can_use_ll(op: Op, tensors: Mapping[str, Tensor], name: str) -> bool:
    """Return True if an argument of a skinny tile may use the LL protocol.

    Tokens may if a lane requests those of a stage at once and one tile has all of them, unless the tile normalises
    them. With a following norm, of the results only ``scaled`` and ``squares`` may, since x itself is needed later;
    otherwise ``out`` may.
    """
    if not is_skinny(op) or (name in LL_INPUTS and normalises(op)):
        return False
    if name in LL_INPUTS:
        one_tile = int(op.param("M")) <= int(op.param("BM"))
        return one_tile and int(op.param("BK")) // PANEL * count_loaded_rows(op) <= POLLED_WORDS
    leaves = find_tensor(op, "scale") is not None
    return leaves if name in ("scaled", "squares") else not leaves and not is_ragged(op)


def _build_ll_body(ll_tensors: LLTensors) -> MegakernelBody:
    """Return the body of an op some of whose arguments are LL words."""

    def pack(op: Op, tensors: Mapping[str, Any], dtype: DType) -> bytes:
        return pack_ll(op, tensors, dtype, ll_tensors)

    def build_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
        return _build_skinny_tile(op, parts, warpgroups, ll_tensors.epochs)

    tiling = replace(MEGAKERNEL_BODY.tiling, build_tile=build_tile)
    return replace(MEGAKERNEL_BODY, pack=pack, tiling=tiling)


def _count_ll_trips(op: Op) -> int:
    """Return the round trips in which the loading warp polls all tokens of a tile, two elements to a word."""
    return -(-count_loaded_rows(op) * int(op.param("K")) // (2 * 32 * POLLED_WORDS))


def _reads_before_ll_stores(op: Op) -> bool:
    """Return True without a residual: warps add their sums before they store words, but each loads its own residual."""
    return find_tensor(op, "residual") is None


MEGAKERNEL_BODY = MegakernelBody(
    MATMUL,
    OPERANDS,
    pack,
    Tiling(
        build_tile,
        Warpgroups(MAX_WARPGROUPS, count_required=count_warpgroups),
        build_cooperative_tile,
        build_prefetching_tile,
    ),
    MegakernelLoads(
        short_inputs=(("x", "x_rows"), (X_WHOLE, "x_rows"), ("residual", "residual_rows")),
        evict_first_inputs=("weight", "gate"),
        prefetchable_inputs=("weight", "gate", "bias", "scale", "x_scale"),
        is_chunked=True,
    ),
    LLSupport(
        inputs=LL_INPUTS,
        outputs=("out", "scaled", "squares"),
        can_use=_can_use_ll,
        has_tensor_copy=True,
        needs_reads=True,
        reads_before_stores=_reads_before_ll_stores,
        count_trips=_count_ll_trips,
        build_body=_build_ll_body,
    ),
    Clustering(check_cluster, pack),
    check,
)

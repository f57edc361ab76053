"""Matmul in the megakernel: which tiles it takes, what its text is told of them, and the operands of an op.

A tile becomes a type, Matmul or below 64 weight rows Skinny with its config (``csrc/ops/matmul``), and bytes of shared
memory. A gated tile of 16 tokens x 64 weight rows x 128, whose weights are the tensor core's operand of 64 rows:

    type           Matmul_BM16_BN64_BK128_GATES2_...     its parameters by name: csrc/ops/matmul/matmul.cuh
    independent    2 * 64 * 128 * 2 = 32 KiB a stage     both weights, before the waits
    dependent      16 * 128 * 2 = 4 KiB a stage          tokens, after them
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial as partial_of
from typing import Any

from interlace.core.dtypes import DType
from interlace.core.errors import DTypeError
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.abi import TENSOR_MAP, Struct
from interlace.kernels.base import require
from interlace.kernels.bodies import (
    LL_WORD,
    MAX_BOX_ROWS,
    NO_CLUSTER,
    PANEL,
    ROW_FLOATS,
    Cluster,
    LLTensors,
    MegakernelBody,
    MegakernelTile,
    check_alignment,
)
from interlace.kernels.cuda.config import Parameters, template_of
from interlace.kernels.matmul.cuda import FEW_TURNS, MATMUL, POLLED_BY_CONSUMERS, POLLED_WORDS, SKINNY, product
from interlace.kernels.matmul.tilings import (
    MAX_ACCUMULATORS,
    MAX_WARPGROUPS,
    SKINNY_TOKENS,
    X_WHOLE,
    compute_share,
    compute_token_bytes,
    count_normalising_registers,
    count_partial_elements,
    count_weights,
    find_tensor,
    normalises,
)

_ACTIVATIONS = {"none": 0, "relu": 1, "gelu-tanh": 2, "silu": 3}
ROW_BYTES = 2 * PANEL
PITCH_BYTES = ROW_BYTES + 16
_TALL, _STEP = 64, 8
#: L2 fetch granularity, one line of a box: weights stream 1 to 2 % faster than with 256 B (benchmarks/notes/ffn.md).
_L2_FETCH_BYTES = ROW_BYTES
_SKINNY_WARPGROUP_COUNTS = 1, 2  # of which threads are shared by 16 rows evenly
_MAX_COOPERATIVE_REGISTERS = 128  # sums of a thread of three warpgroups, those of its share beside all
_MAX_PREFETCHED_STAGES = 3  # stages of weights in registers; more were no faster (benchmarks/notes/decode.md)
_PARTS_AT_ONCE = 4  # parts of a tile whose sums are loaded at once
_LL_BITS = ("x", "out", "scaled")  # squares are words where what they are of is
_PIECE_BYTES = 16  # that bulk loads begin at a multiple of, and an epilogue loads and stores at once
_SUMS_OF_SQUARES = ("x_squares", "squares")
_VECTOR_OPERANDS = ("bias", "residual", "scale")  # beside which out is stored by 8 elements
_ROW_STEP = 8  # elements: bulk loads address rows in steps of 16 bytes

#: Parameters of a tile that is not split and stores what it multiplies.
PLAIN: Parameters = {
    "ACTIVATION": 0,
    "BIAS": False,
    "RESIDUAL": False,
    "RAGGED": False,
    "PARTS_AT_ONCE": 1,
    "SQUARED": 0,
    "STORES_SCALED": False,
    "NORM_K": 0,
    "EPS": 0.0,
    "SHARES": 1,
}
#: Arguments that an op may poll.
_LL_INPUTS = ("x", "x_squares")
#: Fields that operands have in addition to tensors if some tensors use the LL protocol.
LL_FIELDS = (
    *((f"{name}_words", f"const {LL_WORD}*") for name in _LL_INPUTS),
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


def check(op: Op, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the launch can load an op's tensors, whatever its tile is.

    Rows of out may begin anywhere where nothing else goes into them, so that a language model's head may have any
    vocabulary.

    Raises:
        DTypeError, ShapeError: it cannot.
    """
    anywhere = _SUMS_OF_SQUARES if any(name in tensors for name in _VECTOR_OPERANDS) else (*_SUMS_OF_SQUARES, "out")
    check_operands(op, {name: tensor for name, tensor in tensors.items() if name not in anywhere})


def _is_ragged(op: Op) -> bool:
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


def count_warpgroups(op: Op) -> int:
    """A consumer warpgroup for each four warps that an op is tiled for."""
    return max(1, int(op.parameters.get("num_warps", 4)) // 4)


def build_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
    """How the tiles of a matmul are computed, the most split of which have ``parts`` parts.

    Raises:
        ShapeError: its tile suits no warpgroups, registers or bulk loads.
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
        (product(wide), config),
        prefetchable_bytes=gates * bn * k * 2,
        dependent_bytes=compute_token_bytes(rows, k, own),
        scratch_bytes=(min(wide, _TALL) if transposed else _TALL) * PITCH_BYTES + factors,
        overread_bytes=0 if own else (bm - rows) * ROW_BYTES,
        partial_elements=count_partial_elements(op) + squares,
        shared_elements=count_partial_elements(op) // wide * compute_share(wide, shares) + squares * (shares > 1),
        has_register_operands=own,
    )


def _check_normalising(op: Op, what: str, warpgroups: int) -> None:
    """Raise ShapeError unless tokens of a tile, of 64 weight rows or more, can be normalised in registers."""
    require(
        not op.param("SWAP"),
        f"{what}: tiles of {_TALL} weight rows or more normalise their rows only without swap_ab; leave it out, or use "
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
    """The tile of an op, for messages. Raises ShapeError unless bulk loads bring what it takes of a stage."""
    bm, bn, k = (int(op.param(name)) for name in ("BM", "BN", "BK"))
    what = f"op {op.name!r}: tile of {bm} tokens x {bn} weight rows x {k}"
    require(k % PANEL == 0, f"{what}: a stage is a multiple of {PANEL} deep; use k = {PANEL} or more")
    require(max(bm, bn) <= MAX_BOX_ROWS, f"{what}: a bulk load brings at most {MAX_BOX_ROWS} rows; use a smaller tile")
    return what


def check_sums(what: str, tall: int, floats: int, warpgroups: int, instead: str) -> None:
    """Raise ShapeError unless warpgroups share the rows of a tile evenly, and its sums fit their registers."""
    require(
        tall % (_TALL * warpgroups) == 0,
        f"{what}: {warpgroups} warpgroups multiply {_TALL} rows each at a time, and the tile has {tall}; use {instead}",
    )
    registers, most = floats // (128 * warpgroups), MAX_ACCUMULATORS[warpgroups]
    require(
        registers <= most,
        f"{what}: sums of {registers} registers a thread, and at most {most} fit; use a smaller tile or more warps",
    )


def build_cooperative_tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile | None:
    """How tiles are computed of whose columns, of products, each of so many parts adds and finishes a share.

    None where a share would be empty, where rows are tokens and columns are scaled, which goes by 64 of them, and where
    three warpgroups have no registers for a part's sums and its share beside them.
    """
    wide = int(op.param("BM" if op.param("SWAP") else "BN"))
    scales = not op.param("SWAP") and find_tensor(op, "scale") is not None
    if is_skinny(op) or scales or not compute_share(wide, parts):
        return None
    kept = (count_partial_elements(op) + count_partial_elements(op) // wide * compute_share(wide, parts)) // (
        128 * warpgroups
    )
    return None if warpgroups > 2 and kept > _MAX_COOPERATIVE_REGISTERS else _build_tile(op, parts, warpgroups, parts)


def build_prefetching_tile(op: Op, tile: MegakernelTile, least: int) -> MegakernelTile:
    """A tile whose items have so much of k at least, and hold weights while they wait for their tokens.

    Of few weight rows all do; of others those of one warpgroup, which has registers for them, whose weights are the
    64-row operand, which may lie there. Not all of an item's: a slot that is kept until its post keeps further loads
    from being under way then (``csrc/ring/ring.cuh``).
    """
    stages = min(-(-least // int(op.param("BK"))) - 1, _MAX_PREFETCHED_STAGES)
    if is_skinny(op) or not op.param("SWAP") or count_warpgroups(op) > 1 or stages < 1:
        return tile
    return replace(tile, type=f"{tile.type}::Ahead<{stages}>", has_register_operands=True)


def is_skinny(op: Op) -> bool:
    """Return True if an op's tile has too few weight rows for ``wgmma``, so that it uses ``mma``."""
    params = op.parameters
    return bool(params["SWAP"]) and int(params["BN"]) < _TALL


def _build_skinny_tile(op: Op, parts: int, warpgroups: int, ll_bits: Collection[str] = ()) -> MegakernelTile:
    """As ``build_tile``, of few weight rows; ``ll_bits``: those of ``_LL_BITS`` that are words."""
    what = check_stage(op)
    bm, bn, bk, k = (int(op.param(name)) for name in ("BM", "BN", "BK", "K"))
    rows, gates = count_loaded_rows(op), count_weights(op)
    require(
        bm <= SKINNY_TOKENS,
        f"{what}: tiles of fewer than {_TALL} weight rows are for {SKINNY_TOKENS} tokens at most",
    )
    require(
        warpgroups in _SKINNY_WARPGROUP_COUNTS,
        f"{what}: tiles of fewer than {_TALL} weight rows run in {4 * max(_SKINNY_WARPGROUP_COUNTS)} warps at most, "
        f"and an op of the launch is tiled for {4 * warpgroups}; give that fewer",
    )
    require(parts == 1, f"{what}: a tile of fewer than {_TALL} weight rows is not split; use whole tiles")
    require(k % PANEL == 0, f"{what}: tiles of fewer than {_TALL} weight rows need a k of a multiple of {PANEL}")
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
    return {"ACTIVATION": activation, **added, "RAGGED": _is_ragged(op)}


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


def count_loaded_rows(op: Op) -> int:
    """Rows of tokens of a tile that are loaded: as many as there are, in steps of 8, if that is fewer.

    Where tokens are the columns of products of 64 weight rows all are, for the step from one panel to the next is the
    tile's.
    """
    params = op.parameters
    bm, m = int(params["BM"]), int(params["M"])
    if is_skinny(op):
        return min(bm, m)
    return bm if params["SWAP"] else min(bm, -(-m // _STEP) * _STEP)


def pack(op: Op, tensors: Mapping[str, Any], dtype: DType, cluster: Cluster = NO_CLUSTER) -> bytes:
    """The operands of an op, as ``_build_operands``."""
    return OPERANDS.pack(**_build_operands(op, tensors, dtype, cluster))


def _build_operands(op: Op, tensors: Mapping[str, Any], dtype: DType, cluster: Cluster = NO_CLUSTER) -> dict[str, Any]:
    """The operands of an op, given its tensors on the device by argument, all of one dtype but for sums of squares.

    Boxes are a block's share of what a tile needs.

    Raises:
        ShapeError: what bulk loads bring, or epilogues take by more than an element, does not begin at a multiple of
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
        **{name: 0 if kind == "unsigned" else None for name, kind in LL_FIELDS},
        "m": int(params["M"]),
        "n": columns,
        "k": int(params["K"]),
    }


def build_clustered_body(op: Op, cluster: Cluster) -> MegakernelBody:
    """The part of an op in a cluster, each block of which loads its share of the rows that several need.

    Raises:
        ShapeError: tiles that ``mma`` multiplies, or rows of which blocks have no equal shares.
    """
    bn, loaded = int(op.param("BN")), count_loaded_rows(op)
    what = f"op {op.name!r}: tile of {loaded} tokens x {bn} weight rows in a cluster of {cluster}"
    require(not is_skinny(op), f"{what}: tiles of fewer than {_TALL} weight rows are loaded whole; use wider ones")
    for rows, of, shares in ((bn, "weights", cluster.rows), (loaded, "tokens", cluster.columns)):
        require(
            rows % (_STEP * shares) == 0,
            f"{what}: {shares} blocks load as many of its {rows} rows of {of} each, in steps of {_STEP}; use a "
            f"multiple of {_STEP * shares}, or no cluster",
        )
    return replace(MEGAKERNEL_BODY, pack=partial_of(pack, cluster=cluster))


def _can_use_ll(op: Op, name: str) -> bool:
    """Return True if an argument of a skinny tile may use the LL protocol.

    Tokens may if a lane requests those of a stage at once and one tile has all of them, unless the tile normalises
    them. With a following norm, of the results only ``scaled`` and ``squares`` may, since x itself is needed later;
    otherwise ``out`` may.
    """
    if not is_skinny(op) or (name in _LL_INPUTS and normalises(op)):
        return False
    if name in _LL_INPUTS:
        one_tile = int(op.param("M")) <= int(op.param("BM"))
        return one_tile and int(op.param("BK")) // PANEL * count_loaded_rows(op) <= POLLED_WORDS
    leaves = find_tensor(op, "scale") is not None
    return leaves if name in ("scaled", "squares") else not leaves and not _is_ragged(op)


def _build_ll_body(ll_tensors: LLTensors) -> MegakernelBody:
    """The part of an op some of whose arguments are words."""
    numbers = ll_tensors.epochs
    own = next((number for name, number in numbers.items() if name not in _LL_INPUTS), 0)

    def pack(op: Op, tensors: Mapping[str, Any], dtype: DType) -> bytes:
        words = {name: tensors.get(name) for name, _ in LL_FIELDS if name.endswith("_words")}
        read = {f"{name}_number": numbers.get(name, 0) for name in _LL_INPUTS}
        of = {"number": own, "publications": ll_tensors.epochs_per_run}
        return OPERANDS.pack(**{**_build_operands(op, tensors, dtype), **words, **read, **of})

    def tile(op: Op, parts: int, warpgroups: int) -> MegakernelTile:
        return _build_skinny_tile(op, parts, warpgroups, numbers)

    return replace(MEGAKERNEL_BODY, pack=pack, tile=tile)


def _count_ll_trips(op: Op) -> int:
    """In which all tokens of a tile are asked for, two elements a word, where the warp that loads does it."""
    return -(-count_loaded_rows(op) * int(op.param("K")) // (2 * 32 * POLLED_WORDS))


def _reads_before_ll_stores(op: Op) -> bool:
    """Warps' sums meet before words are left, but not residuals, of which a thread has its own."""
    return find_tensor(op, "residual") is None


MEGAKERNEL_BODY = MegakernelBody(
    MATMUL,
    OPERANDS,
    ("weight", "gate", "bias", "scale", "x_scale"),
    build_tile,
    pack,
    check,
    count_warpgroups,
    max_warpgroups=MAX_WARPGROUPS,
    short_inputs=("x", X_WHOLE, "residual"),
    build_clustered_body=build_clustered_body,
    build_cooperative_tile=build_cooperative_tile,
    build_prefetching_tile=build_prefetching_tile,
    ll_inputs=_LL_INPUTS,
    ll_outputs=("out", "scaled", "squares"),
    has_tensor_copy=True,
    can_use_ll=_can_use_ll,
    count_ll_trips=_count_ll_trips,
    reads_before_ll_stores=_reads_before_ll_stores,
    ll_needs_reads=True,
    build_ll_body=_build_ll_body,
)

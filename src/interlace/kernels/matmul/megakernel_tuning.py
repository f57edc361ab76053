"""Tiling of the megakernel's matmuls: the default rule and candidates.

Up to 16 tokens, tiles have few weight rows and the whole k (skinny GEMM, ``csrc/ops/matmul/skinny.cuh``), so no split-K
reduction is needed. Their width minimises the rows of the busiest SM, over all ops that multiply the same tokens: 14336
rows on 132 SMs are two waves of 56, because one wave would need tiles of 109. In a chain of many short ops the time
from one op to the next dominates (benchmarks/notes/decode.md), so chains always use these tiles. Other graphs use them
in
three cases: an op normalises its rows itself, a stage has at least twice as many weight rows as tokens, or split-K
reductions would cost more than the tokens that so many tiles load.

Otherwise the weights are the tensor core's 64-row operand (swap-AB), in tiles of 64 weight rows and all tokens, in
steps of 8. The bytes of weights that the ring holds matter most, so stages are as large as the ring permits. In a
chain, whose ring has more to hold and whose consumers hold weights too, stages are small. An op of many waves, such as
the head of a language model, has tiles of 128 weight rows, which load tokens half as often. Reductions are split so
that the items of an op keep all SMs busy: in one wave, or up to 16 tokens in about two if the previous op had more than
one wave, whose blocks finish at different times. From 17 tokens on a split is one wave only, because only there do
parts reduce a tile together (``megakernel/fix_up``). An op that would be little of a wave, or little more than one, is
one wave of whole tiles then, as wide as necessary: 4864 rows are 122 tiles of 40, 11008 are 126 of 88. If few SMs have
a tile in the last of several waves, tiles are narrowed until it is full: 14336 rows are two waves of 56. A fix-up
between two ops costs more than one at the end. So if the first op would have to be split, each op is one wave of
unsplit tiles: 12288 rows on 132 SMs are 128 tiles of 96. Ops that multiply the same tokens (queries, keys and values)
form one wave together: the ring holds their weights by the time the tokens arrive, and every further item of a block
would be a round trip that all wait for.

In all other cases from 17 tokens on, tiles may have any width that is a multiple of 8 and any number of parts, per
op, and either operand may be the tensor core's 64-row one. The cheapest candidate by ``megakernel_cost`` is chosen. Ops
that multiply the same tokens share waves in this case, too. For ops that normalise their rows, tokens are then the
64-row operand, also in chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import get_kernel
from interlace.kernels.bodies import PANEL
from interlace.kernels.folded_norm import FINE
from interlace.kernels.matmul.megakernel_candidates import iter_cheapest
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.matmul.tilings import (
    SKINNY_TOKENS,
    count_weights,
    find_tensor,
    get_width_step,
    normalises,
    select_matmuls,
)
from interlace.kernels.tuning import Tuning, is_chain
from interlace.policies.tiling import OpTiling, Tilings

_FEW_TOKENS = 64  # upper bound of the tokens for which tiles of a chain have 64 weight rows
_MAX_SKINNY_ROWS = 56  # upper bound of the weight rows of a skinny tile
_ITEM_ROWS = 1  # cost of an item in addition to its loads, in weight rows
_CHEAP_FIX_UP_TOKENS = 16  # upper bound of the tokens for which a fix-up costs less than the imbalance it removes
_WIDEST, _STEP = 256, 8
_ROWS = 64  # rows of the tensor core's first operand: weights, or tokens in unsplit tiles
_MAX_PARTS = 8  # upper bound of the parts that a last part waits for, with few tokens
_MIN_WAVE, _WAVES = (0.8, 0.7), 1.6  # SM fraction that one wave must fill: cheap fix-ups, other; else waves
_UNEVEN_RATIO = 1.15  # weight rows of the busiest SM over the mean, above which tiles of 64 are narrowed
_MANY_WAVES = 8  # waves of 64-row tiles from which on tiles of 128 are as balanced, and load tokens half as often
_MAX_LIKELY, _MAX_TRIED = 6, 48  # candidates for a planner; for a search (more than few tokens)
_STAGE_BYTES = 28 << 10  # bytes of weights of a stage, in unsplit tiles: with few tokens eight stages fit
_DEEP_BYTES, _SHALLOW_BYTES = (
    32 << 10,
    16 << 10,
)  # bytes of weights of a stage of 64 rows; of weights and of tokens, in smaller stages
_STAGES = 5  # number of deep stages: three in flight saturate memory, one is multiplied, one is handed back
_SHARE = 1 / 3  # upper bound of tokens over weight rows of a tile, below which narrow tiles beat splitting
_LEAN_RATIO = 2  # weight rows of a stage per token, from which on narrow tiles are best
_FIX_UP_BYTES = 54 << 10  # bytes of tokens that load in the time of a split-K reduction (benchmarks/notes/norms.md)
_MIN_WHOLE_ROWS = 48  # lower bound of the weight rows of an unsplit tile: 32 was slower, also with few tokens


def select_default(graph: Graph, device: DeviceSpec) -> Tilings:
    """Return the tilings used without a search."""
    ops = select_matmuls(graph)
    if not ops:
        return {}
    m = _count_tokens(ops)
    if _is_few(ops, m):
        return next(_iter_normalising(ops, m, device))
    if _is_priced(graph, m):
        return next(iter_cheapest(ops, m, device, _get_max_warpgroups(graph)), {})
    narrow = _build_skinny_tilings(ops, m, device.sms)
    if narrow is not None and (is_chain(graph) or _is_lean(ops, m, narrow)):
        return narrow
    cut = _build_split_tilings(ops, m, device, shallow=is_chain(graph))
    if narrow is not None and _is_light(ops, m, narrow, cut, device.sms):
        return narrow
    whole = _build_one_wave(ops, m, device.sms)
    wide = all(_compute_wave_width(op, device.sms) * count_weights(op) >= _MIN_WHOLE_ROWS for op in ops)
    return whole if whole is not None and wide and cut[ops[0].name].parts > 1 else cut


def _iter_normalising(ops: Sequence[Op], m: int, device: DeviceSpec) -> Iterator[Tilings]:
    """Yield skinny tiles for all ops if supported, then only for ops that normalise their rows."""
    narrow = _build_skinny_tilings(ops, m, device.sms)
    if narrow is not None:
        yield narrow
    others = [op for op in ops if not normalises(op)]
    rest = _build_split_tilings(others, m, device) if others else {}
    few = {op.name: _build_skinny_op(op, int(op.param("N")), m, device.sms) for op in ops if normalises(op)}
    mixed = {op.name: few.get(op.name) or rest[op.name] for op in ops}
    if mixed != narrow:
        yield mixed


def _is_few(ops: Sequence[Op], m: int) -> bool:
    """Return True if ops normalise their rows in skinny tiles: from 17 tokens on they use other tiles."""
    return m <= SKINNY_TOKENS and any(map(normalises, ops))


def _is_priced(graph: Graph, m: int) -> bool:
    """Return True if estimated times decide; in a chain of short ops, hand-offs decide up to 64 tokens."""
    return m > (_FEW_TOKENS if is_chain(graph) else _CHEAP_FIX_UP_TOKENS)


def _get_max_warpgroups(graph: Graph) -> int:
    """Return the upper bound of a block's warpgroups, given the other ops of the launch."""
    bodies = (get_kernel(op).megakernel for op in graph.ops)
    return min(2 if body is None else body.max_warpgroups for body in bodies)


def _count_tokens(ops: Sequence[Op]) -> int:
    return max(int(op.param("M")) for op in ops)


def _build_split_tilings(
    ops: Sequence[Op], m: int, device: DeviceSpec, *, other: bool = False, shallow: bool = False
) -> Tilings:
    """Build the tilings for up to 64 tokens: tiles of 64 weight rows, split so that all SMs are busy.

    Args:
        other: True to choose, if both one wave and several are possible, the one that the rule rejects.
        shallow: True for stages of half the weights, if the rule's are deep.
    """
    tokens = _round_up(m, _STEP)
    longest = max(PANEL, _DEEP_BYTES // (_ROWS * 2 * min(count_weights(op) for op in ops)))
    deep = _STAGES * (_DEEP_BYTES + tokens * 2 * longest) + tokens * (2 * PANEL + _STEP * 2) <= device.smem_bytes
    nbytes = _DEEP_BYTES if deep and not shallow else _SHALLOW_BYTES
    cheap = (m <= _CHEAP_FIX_UP_TOKENS) != other
    together = _sum_over_siblings(ops, _count_tiles)
    each: dict[str, OpTiling] = {}
    one_wave = True
    for op in ops:
        if m > SKINNY_TOKENS and normalises(op):
            each[op.name] = next(iter_cheapest([op], m, device, 1), {}).get(op.name, OpTiling())
            continue
        rows = _ROWS if count_weights(op) > 1 or _count_tiles(op) < _MANY_WAVES * device.sms else 2 * _ROWS
        tile = MatmulTile(tokens, rows, nbytes // (rows * 2 * count_weights(op)), swap_ab=True)
        tiles, most = together[op.name], min(-(-int(op.param("K")) // tile.k), _MAX_PARTS)
        if tiles > _count_tiles(op):
            parts = min(most, max(1, device.sms // tiles))
        else:
            parts = _select_parts(tiles, most, device.sms, cheap, one_wave)
        one_wave = tiles * parts <= device.sms
        each[op.name] = OpTiling(tile.params, parts)
        if m > _CHEAP_FIX_UP_TOKENS and parts == 1 and tiles == _count_tiles(op):
            each[op.name] = _fill_waves(op, tile, m, device.sms)
    return each


def _fill_waves(op: Op, tile: MatmulTile, m: int, sms: int) -> OpTiling:
    """Return whole tiles of 64 weight rows, or of another width with 64 token rows if their waves are too empty.

    That is one wave where tiles of 64 rows are much less than one, or little more. Otherwise tiles are narrower, if an
    equal number of waves relieves the busiest SM by more than the repeated loads of tokens cost.
    """
    tiles, rows = _count_tiles(op), int(op.param("N"))
    waves = -(-tiles // sms)
    if tile.n != _ROWS or find_tensor(op, "scale") is not None:
        return OpTiling(tile.params)
    if not _is_full(tiles, sms) and tiles < _WAVES * sms:
        one = _build_one_wave_op(op, m, sms, 1, _ROWS * count_weights(op) * 2 * tile.k)
        if one is not None:
            return one
    if waves == 1 or waves * sms < _UNEVEN_RATIO * tiles:
        return OpTiling(tile.params)
    return OpTiling(MatmulTile(_ROWS, _round_up(-(-rows // (waves * sms)), _STEP), tile.k).params)


def _sum_over_siblings(ops: Sequence[Op], extent: Callable[[Op], int]) -> dict[str, int]:
    """Return for each op the sum over adjacent ops that multiply the same tokens; other ops may reuse that tensor."""
    found: dict[str, int] = {}
    for _, run in groupby(ops, lambda op: find_tensor(op, "x")):
        some = [*run]
        found |= dict.fromkeys((op.name for op in some), sum(map(extent, some)))
    return found


def _is_skinny(op: Op) -> bool:
    """Return True if an op can use skinny tiles: its sums of squares, if any, are fine enough."""
    return int(op.param("K")) % PANEL == 0 and op.parameters.get("SQUARED", FINE) == FINE


def _is_lean(ops: Sequence[Op], m: int, tilings: Tilings) -> bool:
    """Return True if tokens are at most a third of every stage."""
    return all(_LEAN_RATIO * m <= int(dict(tilings[op.name].params)["BN"]) * count_weights(op) for op in ops)


def _is_light(ops: Sequence[Op], m: int, narrow: Tilings, cut: Tilings, sms: int) -> bool:
    """Return True if narrow tiles' extra tokens cost no more than the split tiles' fix-ups.

    Tokens are those that the busiest SM loads.
    """
    fix_ups = sum(cut[op.name].parts > 1 for op in ops)
    return _count_token_bytes(ops, m, narrow, sms) - _count_token_bytes(ops, m, cut, sms) <= fix_ups * _FIX_UP_BYTES


def _count_token_bytes(ops: Sequence[Op], m: int, tilings: Tilings, sms: int) -> int:
    """Return the bytes of tokens that the busiest SM loads, over all ops."""
    total = 0
    for op in ops:
        own = tilings[op.name]
        items = -(-int(op.param("N")) // int(dict(own.params)["BN"])) * own.parts
        total += -(-items // sms) * m * -(-int(op.param("K")) // own.parts) * 2
    return total


def _build_skinny_tilings(ops: Sequence[Op], m: int, sms: int) -> Tilings | None:
    """Build tilings with skinny tiles, or return None if it is not supported."""
    if m > SKINNY_TOKENS or not all(_is_skinny(op) for op in ops):
        return None
    rows = _sum_over_siblings(ops, lambda op: int(op.param("N")))
    return {op.name: _build_skinny_op(op, rows[op.name], m, sms) for op in ops}


def _build_skinny_op(op: Op, rows: int, m: int, sms: int) -> OpTiling:
    """Build the skinny tile of an op, given the rows of all ops that multiply the same tokens."""
    width, m = _select_skinny_width(rows, get_width_step(op), sms), min(m, SKINNY_TOKENS)
    depth = min(_DEEP_BYTES // (2 * width * count_weights(op)), _SHALLOW_BYTES // (2 * m)) // PANEL * PANEL
    k = _round_up(int(op.param("K")), PANEL)
    depth = min(_round_up(-(-k // -(-k // depth)), PANEL), k)  # the same number of stages, all of equal depth
    return OpTiling(MatmulTile(_round_up(m, _STEP), width, depth, swap_ab=True).params)


def _select_skinny_width(rows: int, step: int, sms: int) -> int:
    """Return the width of skinny tiles that minimises the busiest SM's share of the rows; the wider one on ties."""

    def cost(width: int) -> tuple[int, int]:
        items = -(-rows // width)
        of_busiest = -(-items // sms)
        return of_busiest * (width + _ITEM_ROWS), -width

    return min(range(step, _MAX_SKINNY_ROWS + 1, step), key=cost)


def _count_tiles(op: Op) -> int:
    """Return the number of tiles of 64 weight rows."""
    return -(-int(op.param("N")) // _ROWS)


def _select_parts(tiles: int, most: int, sms: int, cheap: bool, one_wave: bool) -> int:
    """Return the number of parts per tile, at most ``most``, that keeps all SMs busy.

    If fix-ups are cheap, this is the smallest number that makes one wave (if the previous op had one) or about two.
    Otherwise it is one wave wherever possible, and never more than one: only there parts reduce a tile together.
    """
    waves = {parts: tiles * parts / sms for parts in range(1, most + 1)}
    one = [parts for parts in waves if _is_full(tiles * parts, sms, cheap)]
    some = [parts for parts, n in waves.items() if n >= _WAVES]
    if not cheap:
        return one[-1] if one else min(most, max(1, sms // tiles))
    good = some + (one if one_wave else [])
    return min(good) if good else (one or [min(most, max(1, sms // tiles))])[-1]


def _is_full(items: int, sms: int, cheap: bool = False) -> bool:
    """Return whether items are one wave that keeps enough SMs busy."""
    return _MIN_WAVE[not cheap] * sms <= items <= sms


def _build_one_wave(ops: Sequence[Op], m: int, sms: int) -> Tilings | None:
    """Build one wave of unsplit tiles per op; return None if a tile is so narrow that tokens outweigh its weights."""
    each = {}
    for op in ops:
        tiling = _build_one_wave_op(op, m, sms, _SHARE, _STAGE_BYTES)
        if tiling is None:
            return None
        each[op.name] = tiling
    return each


def _build_one_wave_op(op: Op, m: int, sms: int, share: float, nbytes: int) -> OpTiling | None:
    """Build one wave of unsplit tiles of an op, over up to 64 tokens.

    Args:
        share: upper bound of tokens over weight rows of a tile.
        nbytes: upper bound of the bytes of weights of a stage.

    Returns:
        None if tiles are too wide, or have too many tokens.
    """
    width = _compute_wave_width(op, sms)
    rows = width * count_weights(op)
    if rows > _WIDEST or _round_up(m, _STEP) > share * rows:
        return None
    panels = max(1, nbytes // (rows * 2 * PANEL))
    return OpTiling(MatmulTile(_ROWS, width, panels * PANEL).params)


def iter_likely(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    """Yield the rule for few tokens and close alternatives; for more tokens, the best for each combination of parts."""
    ops = select_matmuls(graph)
    if not ops:
        return
    m = _count_tokens(ops)
    if _is_few(ops, m):
        yield from _iter_normalising(ops, m, device)
        return
    if _is_priced(graph, m):
        best: dict[tuple[int, ...], Tilings] = {}
        for tilings in iter_cheapest(ops, m, device, _get_max_warpgroups(graph)):
            best.setdefault(tuple(own.parts for own in tilings.values()), tilings)
            if len(best) == _MAX_LIKELY:
                break
        yield from best.values()
        return
    yield from filter(None, (_build_skinny_tilings(ops, m, device.sms), _build_one_wave(ops, m, device.sms)))
    cut = _build_split_tilings(ops, m, device)
    yield cut
    yield _mix_one_wave(ops, m, device, cut)
    yield _build_split_tilings(ops, m, device, other=True)
    yield _build_split_tilings(ops, m, device, shallow=True)


def _compute_wave_width(op: Op, sms: int) -> int:
    """Return the weight rows of a tile with which an op is one wave."""
    return _round_up(-(-int(op.param("N")) // sms), get_width_step(op))


def _mix_one_wave(ops: Sequence[Op], m: int, device: DeviceSpec, cut: Tilings) -> Tilings:
    """Replace unsplit ops by one wave of tiles where possible, with the stages of the other ops."""
    each = {}
    for op in ops:
        own = cut[op.name]
        nbytes = _ROWS * count_weights(op) * 2 * int(dict(own.params)["BK"])
        level = _build_one_wave_op(op, m, device.sms, 1, nbytes) if own.parts == 1 and not normalises(op) else None
        each[op.name] = own if level is None or dict(level.params)["BN"] == _ROWS else level
    return each


def iter_candidates(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    """Yield the likely tilings and, for more than few tokens, those that take little more time than the best."""
    ops = select_matmuls(graph)
    yield from iter_likely(graph, device)
    if ops and _is_priced(graph, _count_tokens(ops)) and not _is_few(ops, _count_tokens(ops)):
        yield from islice(iter_cheapest(ops, _count_tokens(ops), device, _get_max_warpgroups(graph)), 1, _MAX_TRIED)


def _round_up(extent: int, step: int) -> int:
    return -(-extent // step) * step


MEGAKERNEL_TUNING = Tuning(select_default, iter_likely, iter_candidates)

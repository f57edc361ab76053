"""How matmuls of the one launch are tiled: by rule, and what else is worth trying.

Up to 16 tokens tiles have few weight rows and all of k (``skinny.cuh``), so that no parts meet: of all that multiply
the same tokens as many waves as leave the busiest SM the fewest rows. 14336 rows on 132 SMs are two waves of 56, as 109
would be one. In a chain of many short ops what counts is the time from one op to the next (benchmarks/notes/decode.md),
so there that is always so; elsewhere where an op normalises its rows itself, where a stage has at least twice as many
weight rows as tokens, and where parts that meet would cost more than the tokens do that so many tiles load.

Where it is not, weights are the tensor core's 64-row operand, in tiles of 64 of them and all tokens, in steps of 8.
What counts is how many weights the ring holds, in stages as large as leave it some; in a chain, whose ring has more to
hold and whose consumers hold weights too, in small ones. An op of many waves, such as the head of a language model, has
tiles of 128 weight rows, which load tokens half as often. From 17 tokens on, where few SMs have a tile in the last
wave, tiles are so narrow that it is full: 14336 rows are two waves of 56. Reductions are cut so that the items of an op
keep all SMs busy: in one wave of them, or in about two where the op before had more than one, whose blocks come at
different times. A fix-up between two ops is dearer than one at the end. So where the first op would have to be cut,
each op is one wave of tiles that are not, as wide as that makes them: 12288 rows on 132 SMs are 128 tiles of 96. Ops
that multiply the same tokens (queries, keys and values) are one wave together: the ring holds their weights by the time
the tokens are there, and then every further item of a block is a round trip that all wait for.

Elsewhere, from 17 tokens on, tiles may have any width that is a multiple of 8 and any parts, each op its own, and
either operand may be the tensor core's 64-row one: what takes least time by ``walk_cost`` is taken. There too ops that
multiply the same tokens are in waves together. Of ops that normalise their rows tokens are the 64-row operand then, in
chains, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import get_kernel
from interlace.kernels.bodies import PANEL
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.matmul.tilings import (
    SKINNY_TOKENS,
    count_weights,
    find_tensor,
    get_width_step,
    normalises,
    select_matmuls,
)
from interlace.kernels.matmul.walk_ways import iter_cheapest
from interlace.kernels.squares import FINE
from interlace.kernels.tuning import Tuning, is_chain
from interlace.policies.setting import OpSetting, Setting

_FEW_TOKENS = 64  # tokens up to which tiles of a chain have 64 weight rows
_MAX_SKINNY_ROWS = 56  # of weights, in tiles of few
_ITEM_ROWS = 1  # what an item costs beside its loads, in rows of weights
_CHEAP_FIX_UP_TOKENS = 16  # tokens up to which a fix-up costs less than what it levels
_WIDEST, _STEP = 256, 8
_ROWS = 64  # of the tensor core's first operand: weights, or tokens in tiles that are not split
_MAX_PARTS = 8  # that a last part waits for, with few tokens
_MIN_WAVE, _WAVES = (0.8, 0.7), 1.6  # of SMs that one wave keeps busy, where fix-ups are cheap and not; else waves
_UNEVEN_RATIO = 1.15  # weight rows of the busiest SM over the mean, from which on tiles of 64 are made narrower
_MANY_WAVES = 8  # of tiles of 64 weight rows: as many of 128 are as even, and load tokens half as often
_MAX_LIKELY, _MAX_TRIED = 6, 48  # ways of more than few tokens that a planner and a search look at
_STAGE_BYTES = 28 << 10  # of weights, in tiles that are not split: with few tokens eight stages fit
_DEEP_BYTES, _SHALLOW_BYTES = (
    32 << 10,
    16 << 10,
)  # bytes of weights of a stage of 64 rows; of weights and of tokens, of fewer
_STAGES = 5  # of deep ones: three under way saturate memory, one is multiplied, one is handed back
_SHARE = 1 / 3  # of the weight rows of a tile: tokens, before splitting beats narrow tiles
_LEAN_RATIO = 2  # weight rows of a stage for each token, from which on narrow tiles are best
_FIX_UP_BYTES = 54 << 10  # of tokens, which take as long as the parts of an op to meet (benchmarks/notes/norms.md)
_MIN_WHOLE_ROWS = 48  # weight rows of a tile that is not split: with 32 it was slower, with few tokens too


def select_default(graph: Graph, device: DeviceSpec) -> Setting:
    """The setting that is taken without a search."""
    ops = select_matmuls(graph)
    if not ops:
        return Setting()
    m = _count_tokens(ops)
    if _is_few(ops, m):
        return next(_iter_normalising(ops, m, device))
    if _is_priced(graph, m):
        return next(iter_cheapest(ops, m, device, _get_max_warpgroups(graph)), Setting())
    narrow = _build_skinny_setting(ops, m, device.sms)
    if narrow is not None and (is_chain(graph) or _is_lean(ops, m, narrow)):
        return narrow
    cut = _build_split_setting(ops, m, device, shallow=is_chain(graph))
    if narrow is not None and _is_light(ops, m, narrow, cut, device.sms):
        return narrow
    whole = _build_one_wave(ops, m, device.sms)
    wide = all(_compute_wave_width(op, device.sms) * count_weights(op) >= _MIN_WHOLE_ROWS for op in ops)
    return whole if whole is not None and wide and cut.op(ops[0].name).parts > 1 else cut


def _iter_normalising(ops: Sequence[Op], m: int, device: DeviceSpec) -> Iterator[Setting]:
    """Tiles of few weight rows, of all ops if they may be in such; and of those alone that normalise their rows."""
    narrow = _build_skinny_setting(ops, m, device.sms)
    if narrow is not None:
        yield narrow
    others = [op for op in ops if not normalises(op)]
    rest = _build_split_setting(others, m, device) if others else Setting()
    few = {op.name: _build_skinny_op(op, int(op.param("N")), m, device.sms) for op in ops if normalises(op)}
    mixed = Setting(tuple((op.name, few.get(op.name) or rest.op(op.name)) for op in ops))
    if mixed != narrow:
        yield mixed


def _is_few(ops: Sequence[Op], m: int) -> bool:
    """Whether some normalise their rows in tiles of few weight rows: from 17 tokens on they are in others."""
    return m <= SKINNY_TOKENS and any(map(normalises, ops))


def _is_priced(graph: Graph, m: int) -> bool:
    """Whether the time that ways take tells them apart; in a chain of short ops hand-offs do, up to 64 tokens."""
    return m > (_FEW_TOKENS if is_chain(graph) else _CHEAP_FIX_UP_TOKENS)


def _get_max_warpgroups(graph: Graph) -> int:
    """That a block may have at most, by what else is in a launch."""
    return min(getattr(get_kernel(op).megakernel, "max_warpgroups", 2) for op in graph.ops)


def _count_tokens(ops: Sequence[Op]) -> int:
    return max(int(op.param("M")) for op in ops)


def _build_split_setting(
    ops: Sequence[Op], m: int, device: DeviceSpec, *, other: bool = False, shallow: bool = False
) -> Setting:
    """Up to 64 tokens: tiles of 64 weight rows, in as many parts as keep all SMs busy.

    Args:
        other: where one wave and several do, take which the rule does not.
        shallow: stages of half the weights, if the rule's are deep.
    """
    tokens = _round_up(m, _STEP)
    longest = max(PANEL, _DEEP_BYTES // (_ROWS * 2 * min(count_weights(op) for op in ops)))
    deep = _STAGES * (_DEEP_BYTES + tokens * 2 * longest) + tokens * (2 * PANEL + _STEP * 2) <= device.smem_bytes
    nbytes = _DEEP_BYTES if deep and not shallow else _SHALLOW_BYTES
    cheap = (m <= _CHEAP_FIX_UP_TOKENS) != other
    together = _sum_over_siblings(ops, _count_tiles)
    each, one_wave = [], True
    for op in ops:
        if m > SKINNY_TOKENS and normalises(op):
            each.append((op.name, next(iter_cheapest([op], m, device, 1), Setting()).op(op.name)))
            continue
        rows = _ROWS if count_weights(op) > 1 or _count_tiles(op) < _MANY_WAVES * device.sms else 2 * _ROWS
        tile = MatmulTile(tokens, rows, nbytes // (rows * 2 * count_weights(op)), swap_ab=True)
        tiles, most = together[op.name], min(-(-int(op.param("K")) // tile.k), _MAX_PARTS)
        if tiles > _count_tiles(op):
            parts = min(most, max(1, device.sms // tiles))
        else:
            parts = _select_parts(tiles, most, device.sms, cheap, one_wave)
        one_wave = tiles * parts <= device.sms
        if m > _CHEAP_FIX_UP_TOKENS and parts == 1 and tiles == _count_tiles(op):
            tile = _even_tile(op, tile, device.sms)
        each.append((op.name, OpSetting(tile.params, parts)))
    return Setting(tuple(each))


def _even_tile(op: Op, tile: MatmulTile, sms: int) -> MatmulTile:
    """A tile of 64 weight rows, or narrower, with tokens as the 64 rows, where its last wave is so empty that as many
    waves of narrower ones spare the busiest SM more than tokens cost, which they load more often."""
    tiles, rows = _count_tiles(op), int(op.param("N"))
    waves = -(-tiles // sms)
    if tile.n != _ROWS or waves == 1 or waves * sms < _UNEVEN_RATIO * tiles or find_tensor(op, "scale") is not None:
        return tile
    return MatmulTile(_ROWS, _round_up(-(-rows // (waves * sms)), _STEP), tile.k)


def _sum_over_siblings(ops: Sequence[Op], extent: Callable[[Op], int]) -> dict[str, int]:
    """For each op, the sum of all next to it that multiply the same tokens; elsewhere others may lie in that tensor."""
    found: dict[str, int] = {}
    for _, run in groupby(ops, lambda op: find_tensor(op, "x")):
        some = [*run]
        found |= dict.fromkeys((op.name for op in some), sum(map(extent, some)))
    return found


def _is_skinny(op: Op) -> bool:
    """Whether an op can be in tiles of few weight rows: its sums of squares, if it has any, are fine enough."""
    return int(op.param("K")) % PANEL == 0 and op.parameters.get("SQUARED", FINE) == FINE


def _is_lean(ops: Sequence[Op], m: int, setting: Setting) -> bool:
    """Whether tokens take a third of a stage at most."""
    return all(_LEAN_RATIO * m <= int(dict(setting.op(op.name).params)["BN"]) * count_weights(op) for op in ops)


def _is_light(ops: Sequence[Op], m: int, narrow: Setting, cut: Setting, sms: int) -> bool:
    """Whether tokens that narrow tiles load beyond those of cut ones, on the busiest SM, cost no more than parts do."""
    fix_ups = sum(cut.op(op.name).parts > 1 for op in ops)
    return _count_token_bytes(ops, m, narrow, sms) - _count_token_bytes(ops, m, cut, sms) <= fix_ups * _FIX_UP_BYTES


def _count_token_bytes(ops: Sequence[Op], m: int, setting: Setting, sms: int) -> int:
    """Of the busiest SM, over all ops."""
    total = 0
    for op in ops:
        own = setting.op(op.name)
        items = -(-int(op.param("N")) // int(dict(own.params)["BN"])) * own.parts
        total += -(-items // sms) * m * -(-int(op.param("K")) // own.parts) * 2
    return total


def _build_skinny_setting(ops: Sequence[Op], m: int, sms: int) -> Setting | None:
    """Tiles of few weight rows, if there may be such."""
    if m > SKINNY_TOKENS or not all(_is_skinny(op) for op in ops):
        return None
    rows = _sum_over_siblings(ops, lambda op: int(op.param("N")))
    return Setting(tuple((op.name, _build_skinny_op(op, rows[op.name], m, sms)) for op in ops))


def _build_skinny_op(op: Op, rows: int, m: int, sms: int) -> OpSetting:
    """Tiles of few weight rows, where all ops that multiply the same tokens have so many."""
    width, m = _select_skinny_width(rows, get_width_step(op), sms), min(m, SKINNY_TOKENS)
    depth = min(_DEEP_BYTES // (2 * width * count_weights(op)), _SHALLOW_BYTES // (2 * m)) // PANEL * PANEL
    k = _round_up(int(op.param("K")), PANEL)
    depth = min(_round_up(-(-k // -(-k // depth)), PANEL), k)  # as many stages, all alike
    return OpSetting(MatmulTile(_round_up(m, _STEP), width, depth, swap_ab=True).params)


def _select_skinny_width(rows: int, step: int, sms: int) -> int:
    """Weight rows of tiles of few that make the busiest SM's share of some rows least; the wider where two do."""

    def cost(width: int) -> tuple[int, int]:
        items = -(-rows // width)
        of_busiest = -(-items // sms)
        return of_busiest * (width + _ITEM_ROWS), -width

    return min(range(step, _MAX_SKINNY_ROWS + 1, step), key=cost)


def _count_tiles(op: Op) -> int:
    """Of 64 weight rows."""
    return -(-int(op.param("N")) // _ROWS)


def _select_parts(tiles: int, most: int, sms: int, cheap: bool, one_wave: bool) -> int:
    """Parts of each of some tiles, at most so many, that keep all SMs busy.

    Where fix-ups are cheap the fewest that make one wave, if the op before had one, or about two; else one wave
    wherever that can be.
    """
    waves = {parts: tiles * parts / sms for parts in range(1, most + 1)}
    one = [parts for parts, n in waves.items() if _MIN_WAVE[not cheap] <= n <= 1]
    some = [parts for parts, n in waves.items() if n >= _WAVES]
    if not cheap and one:
        return one[-1]
    good = some + (one if one_wave else [])
    return min(good) if good else (one or [min(most, max(1, sms // tiles))])[-1]


def _build_one_wave(ops: Sequence[Op], m: int, sms: int) -> Setting | None:
    """One wave of whole tiles per op, as wide as that makes them, if none is so narrow that tokens weigh more."""
    each = []
    for op in ops:
        setting = _build_one_wave_op(op, m, sms, _SHARE, _STAGE_BYTES)
        if setting is None:
            return None
        each.append((op.name, setting))
    return Setting(tuple(each))


def _build_one_wave_op(op: Op, m: int, sms: int, share: float, nbytes: int) -> OpSetting | None:
    """One wave of tiles of an op that are not split, over up to 64 tokens.

    None where they are too wide, or tokens more than that share of their weight rows. A stage has so many bytes of
    weights, or fewer.
    """
    width = _compute_wave_width(op, sms)
    rows = width * count_weights(op)
    if rows > _WIDEST or _round_up(m, _STEP) > share * rows:
        return None
    panels = max(1, nbytes // (rows * 2 * PANEL))
    return OpSetting(MatmulTile(_ROWS, width, panels * PANEL).params)


def iter_likely(graph: Graph, device: DeviceSpec) -> Iterator[Setting]:
    """The rule for few tokens with what comes close; for more the best of each number of parts of each op."""
    ops = select_matmuls(graph)
    if not ops:
        return
    m = _count_tokens(ops)
    if _is_few(ops, m):
        yield from _iter_normalising(ops, m, device)
        return
    if _is_priced(graph, m):
        best: dict[tuple[int, ...], Setting] = {}
        for setting in iter_cheapest(ops, m, device, _get_max_warpgroups(graph)):
            best.setdefault(tuple(of.parts for _, of in setting.ops), setting)
        yield from islice(best.values(), _MAX_LIKELY)
        return
    yield from filter(None, (_build_skinny_setting(ops, m, device.sms), _build_one_wave(ops, m, device.sms)))
    cut = _build_split_setting(ops, m, device)
    yield cut
    yield _mix_one_wave(ops, m, device, cut)
    yield _build_split_setting(ops, m, device, other=True)
    yield _build_split_setting(ops, m, device, shallow=True)


def _compute_wave_width(op: Op, sms: int) -> int:
    """Weight rows of a tile with which one wave of them is an op."""
    return _round_up(-(-int(op.param("N")) // sms), get_width_step(op))


def _mix_one_wave(ops: Sequence[Op], m: int, device: DeviceSpec, cut: Setting) -> Setting:
    """Ops that are not cut as one wave of tiles, where that can be, with the others' stages."""
    each = []
    for op in ops:
        own = cut.op(op.name)
        nbytes = _ROWS * count_weights(op) * 2 * int(dict(own.params)["BK"])
        level = _build_one_wave_op(op, m, device.sms, 1, nbytes) if own.parts == 1 and not normalises(op) else None
        each.append((op.name, own if level is None or dict(level.params)["BN"] == _ROWS else level))
    return Setting(tuple(each))


def iter_settings(graph: Graph, device: DeviceSpec) -> Iterator[Setting]:
    """These, and for more than few tokens those that take little more time than the best."""
    ops = select_matmuls(graph)
    yield from iter_likely(graph, device)
    if ops and _is_priced(graph, _count_tokens(ops)) and not _is_few(ops, _count_tokens(ops)):
        yield from islice(iter_cheapest(ops, _count_tokens(ops), device, _get_max_warpgroups(graph)), 1, _MAX_TRIED)


def _round_up(extent: int, step: int) -> int:
    return -(-extent // step) * step


MEGAKERNEL_TUNING = Tuning(select_default, iter_likely, iter_settings)

"""Tiling candidates of the megakernel's matmuls from 17 tokens on, in order of their time by ``megakernel_cost``.

A candidate of one op is a tile and the number of parts per tile. All ops of a launch have the same number of
warpgroups: two from 65 tokens on and possibly three from 129 on. They share one ring, whose stages are as large as
the largest op requires. Ops therefore cannot be tiled independently: the best few candidates of each kind of op are
combined, and a combination is priced with the stages that its ring has.

    kinds           ops that multiply the same tokens count as one, and so do equal layers
    candidates      for each kind every tile and split, ranked as if it had the ring to itself; the best few are kept
    combinations    all of these, without those whose ring would have too few stages, ranked by the sum of times
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import groupby, islice, product
from math import inf

from interlace.core.devices import DeviceSpec
from interlace.graph.op import Op
from interlace.kernels.matmul.megakernel_cost import (
    MatmulExtents,
    TilingCandidate,
    count_loaded_bytes,
    count_ring_stages,
    estimate_norm_seconds,
    estimate_seconds,
)
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.matmul.tilings import (
    MAX_ACCUMULATORS,
    MAX_WARPGROUPS,
    can_normalise,
    count_weights,
    find_tensor,
    get_width_step,
    normalises,
)
from interlace.policies.tiling import Tilings

_ROWS = 64  # rows of the tensor core's first operand, per warpgroup
_NARROWEST, _WIDEST, _STEP = 32, 256, 8  # rows of the other operand, over all matrices; their step
_MAX_PARTS = 8  # upper bound of the parts that a last part waits for
_DEPTHS = (64, 128, 256)
_SHALLOW_FROM = 3  # warpgroups from which on stages are shallow: with their tokens, deep ones were 14 to 24 % slower
_MAX_STAGE_BYTES = 32 << 10  # upper bound of the bytes of weights of a stage
# Lower bounds of the stages of a ring: two that are multiplied and two in flight; or one in flight, if stages cannot
# be shallower.
_MIN_STAGES, _SHALLOW_STAGES = 4, 3
_TIE_TOLERANCE = 0.01  # relative: candidates this close count as equal, and least loads win (least power, too)
_LIGHT_TOKENS = 192  # upper bound of the tokens for which power is no limit
_MAX_TRIED = 512  # upper bound of the combinations of candidates of distinct kinds of ops
_MAX_PRICED = 64  # upper bound of the graphs whose combinations are kept
_FEW_TOKENS = 128  # upper bound of the tokens for which tiles form one row panel
_SMALL_GROUP, _LARGE_GROUP = 4, 8  # row panels of a group, up to ``_SMALL_GROUP_TOKENS`` and beyond
_SMALL_GROUP_TOKENS = 1024


def iter_cheapest(ops: Sequence[Op], m: int, device: DeviceSpec, warpgroups: int = MAX_WARPGROUPS) -> Iterator[Tilings]:
    """Yield tilings of matmuls over 17 or more tokens, by estimated time; none if no ring holds them.

    Beyond 192 tokens, the tilings that load least come first, among those within 1 % of the least time.

    Args:
        warpgroups: upper bound of the warpgroups of a block.
    """
    kinds = _group_ops(ops)
    unlike = tuple(dict.fromkeys(kinds.values()))
    rings, costs = _price_rings(unlike, device, warpgroups)
    alike = min(costs, default=0.0) * (1 + (_TIE_TOLERANCE if m > _LIGHT_TOKENS else 0.0))

    def cost(n: int) -> tuple[float, ...]:
        if costs[n] > alike:
            return (costs[n],)
        loads = sum(count_loaded_bytes(e, way) for (e, _), way in zip(unlike, rings[n], strict=True))
        return 0.0, loads, costs[n]

    group = 0 if m <= _FEW_TOKENS else _SMALL_GROUP if m <= _SMALL_GROUP_TOKENS else _LARGE_GROUP
    for n in sorted(range(len(rings)), key=cost):
        of = dict(zip(unlike, rings[n], strict=True))
        yield {op.name: of[kinds[op.name]].to_tiling(group) for op in ops}


def estimate_least_seconds(ops: Sequence[Op], device: DeviceSpec) -> float:
    """Estimate the least seconds of matmuls over 17 or more tokens; infinite if no ring holds them."""
    return _find_least_seconds(tuple(dict.fromkeys(_group_ops(ops).values())), device)


@cache
def is_fused_norm_faster(m: int, hidden: int, ffn: int, sums: int, device: DeviceSpec) -> bool:
    """Return True if an FFN whose up-projection normalises its rows is no slower than one after a separate norm op.

    Args:
        m: number of tokens, 17 or more.
        sums: number of up-projection matrices, which are ffn x hidden.
    """
    up, down = MatmulExtents(m, (ffn,), hidden, sums), MatmulExtents(m, (hidden,), ffn, 1)
    own, apart = (
        _find_least_seconds(((first, _STEP), (down, _STEP)), device) for first in (replace(up, has_own_norm=True), up)
    )
    return own <= estimate_norm_seconds(m, hidden, device) + apart


def _find_least_seconds(unlike: tuple[tuple[MatmulExtents, int], ...], device: DeviceSpec) -> float:
    _, costs = _price_rings(unlike, device, MAX_WARPGROUPS)
    return min(costs, default=inf)


@lru_cache(_MAX_PRICED)
def _price_rings(
    unlike: tuple[tuple[MatmulExtents, int], ...], device: DeviceSpec, warpgroups: int
) -> tuple[tuple[tuple[TilingCandidate, ...], ...], tuple[float, ...]]:
    """Return combinations of candidates of distinct kinds of ops that fit a ring, and the seconds of each.

    A search asks for the same combinations several times.

    Args:
        unlike: extents of ops, and the step of their widths.
        warpgroups: upper bound of the warpgroups of a block.
    """
    m = max(extents.m for extents, _ in unlike)
    # Two warpgroups from 65 tokens on, and also larger numbers that the tokens fill.
    counts = range(2, min(warpgroups, -(-m // _ROWS)) + 1) if m > _ROWS else (1,)
    rings: list[tuple[tuple[TilingCandidate, ...], int]] = []
    for count in counts:
        depths = _DEPTHS if count < _SHALLOW_FROM else _DEPTHS[:1]
        # With many distinct kinds, few candidates of each are combined, and the best may have depths that cannot
        # share a ring.
        rings += _combine_candidates(unlike, device, count, depths) or _combine_candidates(
            unlike, device, count, depths[:1]
        )

    @cache
    def price_tile(kind: int, way: TilingCandidate, stages: int) -> float:
        return estimate_seconds(unlike[kind][0], way, stages, device)

    costs = tuple(sum(price_tile(kind, way, stages) for kind, way in enumerate(each)) for each, stages in rings)
    return tuple(each for each, _ in rings), costs


def _combine_candidates(
    unlike: Sequence[tuple[MatmulExtents, int]], device: DeviceSpec, warpgroups: int, depths: Sequence[int]
) -> list[tuple[tuple[TilingCandidate, ...], int]]:
    """Return combinations of the best candidates of distinct kinds that fit a ring, with the stages of the ring."""
    most = max(1, int(_MAX_TRIED ** (1 / len(unlike))))
    ways = [_select_candidates(extents, narrowest, device, most, warpgroups, depths) for extents, narrowest in unlike]
    rings = ((each, count_ring_stages(each, device.smem_bytes)) for each in product(*ways))
    return [(each, n) for each, n in rings if n >= _MIN_STAGES or (n >= _SHALLOW_STAGES and _is_shallow(each))]


def _group_ops(ops: Sequence[Op]) -> dict[str, tuple[MatmulExtents, int]]:
    """Return for each op its extents and the step of its widths.

    Extents include adjacent ops that multiply the same tokens.
    """
    found: dict[str, tuple[MatmulExtents, int]] = {}
    for _, run in groupby(ops, lambda op: (find_tensor(op, "x"), count_weights(op), op.param("K"), normalises(op))):
        some = [*run]
        m, k = (int(some[0].param(name)) for name in "MK")
        widths = tuple(sorted(int(op.param("N")) for op in some))
        kind = MatmulExtents(m, widths, k, count_weights(some[0]), normalises(some[0])), max(map(get_width_step, some))
        found |= dict.fromkeys((op.name for op in some), kind)
    return found


def _is_shallow(ways: Sequence[TilingCandidate]) -> bool:
    return all(way.tile.k == _DEPTHS[0] for way in ways)


def _select_candidates(
    extents: MatmulExtents, narrowest: int, device: DeviceSpec, most: int, warpgroups: int, depths: Sequence[int]
) -> list[TilingCandidate]:
    """Return the best candidates of ops of some extents, at most ``most``, each with its own ring."""

    def cost(way: TilingCandidate) -> float:
        return estimate_seconds(extents, way, max(1, count_ring_stages([way], device.smem_bytes)), device)

    return list(islice(sorted(_iter_candidates(extents, narrowest, warpgroups, depths), key=cost), most))


def _iter_candidates(
    extents: MatmulExtents, width_step: int, warpgroups: int, depths: Sequence[int]
) -> Iterator[TilingCandidate]:
    m, gates = extents.m, extents.sums
    tall, warps, most_sums = _ROWS * warpgroups, 4 * warpgroups, 2 * MAX_ACCUMULATORS[warpgroups]
    least = -(-max(_NARROWEST // gates, 1) // width_step) * width_step
    for depth in depths:
        widest = min(_WIDEST, most_sums, _MAX_STAGE_BYTES // (depth * 2)) // gates
        widths = range(least, widest + 1, width_step)
        tiles = [(MatmulTile(tall, n, depth, num_warps=warps), min(_round_up(m), tall)) for n in widths]
        if extents.has_own_norm:
            tiles = [(tile, loaded) for tile, loaded in tiles if can_normalise(tile, gates)]
        elif tall % width_step == 0 and tall * gates * depth * 2 <= _MAX_STAGE_BYTES:
            for most in dict.fromkeys((min(_WIDEST, most_sums) // gates, min(_WIDEST, most_sums // gates))):
                tokens = _round_up(-(-m // -(-m // most)))
                tiles.append((MatmulTile(tokens, tall, depth, num_warps=warps, swap_ab=True), tokens))
        for tile, loaded in tiles:
            for parts in range(1, min(_MAX_PARTS, -(-extents.k // depth)) + 1):
                yield TilingCandidate(tile, parts, gates, loaded, extents.has_own_norm)


def _round_up(extent: int) -> int:
    return -(-extent // _STEP) * _STEP

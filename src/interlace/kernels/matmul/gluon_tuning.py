"""How matmuls that run in one Gluon launch are tiled: by rule, and what else is worth trying.

All matmuls of a launch share one ring of stages and the warpgroups of a block, so they share a tile too; one with a
gate takes half of k if that leaves a panel, and half of n if its two sums would not fit the registers. The rules are
from measurements of FFNs on an H200 (docs/performance.md), as formulas over extents and the number of SMs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import power_of_two
from interlace.kernels.bodies import PANEL
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.matmul.tilings import matmuls, sums
from interlace.kernels.tuning import Tuning
from interlace.policies.setting import OpSetting, Setting

_FEW, _SOME = 256, 1024  # rows up to which weights may be the 64-row operand; up to which splits may pay
_MANY = 4096  # from which on a prediction takes a tenth of a second, and only large tiles in groups come close
_IN_FLIGHT_BYTES = (64 << 10, 96 << 10)  # what it takes to saturate memory (docs/performance.md)
_PARTS = (1, 2, 3, 4, 6, 8)
_TILES = ((128, 128, 64), (128, 256, 64), (256, 128, 64))
_DEEP_TILES = ((128, 64, 128), (128, 128, 128))
_GROUPS, _WIDE_GROUPS = (0, 2, 4), (8, 16)


@dataclass(frozen=True)
class RingTile:
    """The tile that the matmuls of a launch share.

    Attributes:
        m, n, k: extents in tokens and weight rows, and of a stage along k.
        swap_ab: weights are the tensor core's 64-row operand.
        warpgroups: those that share a tile, 1 or 2.
    """

    m: int
    n: int
    k: int
    swap_ab: bool
    warpgroups: int

    def op(self, op: Op, parts: int = 1, split_tail: bool = False, group: int = 0) -> OpSetting:
        """An op in this tile."""
        n, k = self.n, self.k
        if sums(op) == 2:
            k = k // 2 if k > PANEL else k
            n = n // 2 if self.m * n * 2 > 128 * 128 * self.warpgroups else n
        tile = MatmulTile(self.m, n, k, num_warps=4 * self.warpgroups, swap_ab=self.swap_ab)
        return OpSetting(tile.params, parts, split_tail, group)

    def setting(self, ops: Sequence[Op], parts: Sequence[int] = (), in_flight: int = 0) -> Setting:
        """All ops in this tile, their reductions in so many parts, in row-major order."""
        each = zip(ops, parts or [1] * len(ops), strict=True)
        return Setting(tuple((op.name, self.op(op, count)) for op, count in each), in_flight)

    def grouped(self, ops: Sequence[Op], group: int, parts: Sequence[int], tails: Sequence[bool]) -> Setting:
        """The same in groups of row panels, some with the tiles of their last wave split."""
        each = zip(ops, parts, tails, strict=True)
        return Setting(tuple((op.name, self.op(op, count, tail, group)) for op, count, tail in each))


def _extents(ops: Sequence[Op]) -> tuple[int, list[int], list[int]]:
    """Rows of the activations, and of each op its weight rows and the length of its reduction."""
    rows = max(int(op.param("M")) for op in ops)
    return rows, [int(op.param("N")) for op in ops], [int(op.param("K")) for op in ops]


def default(graph: Graph, device: DeviceSpec) -> Setting:
    """The setting that is taken without a search."""
    ops = matmuls(graph)
    if not ops:
        return Setting()
    m, widths, _ = _extents(ops)
    tall = _tiles(widths[0], 128) >= 0.8 * device.sms
    gated = any(sums(op) == 2 for op in ops)

    def in_parts(tile: RingTile, in_flight: int, least: float = 0.8) -> Setting:
        return tile.setting(ops, _busy_parts([_tiles(n, tile.n) for n in widths], device.sms, least), in_flight)

    if m <= 32:
        return in_parts(RingTile(16 if m <= 16 else 32, 64, 256, True, 1), 3)
    if m <= 64 and tall:
        return in_parts(RingTile(64, 128, 64, True, 1), 4)
    if m <= 64:
        return in_parts(RingTile(64, 64, 128, True, 1), 4, 0.7)
    if m <= 128 and not tall and gated:
        return in_parts(RingTile(128, 64, 128, True, 1), 4)
    if m <= 128 or (m <= 256 and tall and not gated):
        return in_parts(RingTile(128 if m <= 128 else 256, 128, 64, True, 2), 4, 0.8 if tall else 0.7)
    return _large(ops, device.sms, gated)


def _large(ops: Sequence[Op], sms: int, gated: bool) -> Setting:
    """For many rows: a last wave is split where no other work can fill it.

    Behind one wave of an op there is none; behind several, the next op's first tiles fill the last, unless they are
    long.
    """
    m, widths, depths = _extents(ops)
    tile = RingTile(128, 128 if m <= 256 and not gated else 256, 64, False, 2)
    counts = [_tiles(m, tile.m) * _tiles(n, tile.n) for n in widths]

    def split_tail(o: int) -> bool:
        short_wave = counts[o] % sms <= sms // 2
        if o == len(ops) - 1:
            return m <= 512 and short_wave
        long_next = depths[o + 1] > widths[o + 1]
        return not gated and (counts[o] <= sms or (long_next and short_wave))

    tails = [split_tail(o) for o in range(len(ops))]
    setting = tile.grouped(ops, 4 if m <= 1024 else 8, [1] * len(ops), tails)
    return replace(setting, in_flight=4 if tile.n == 256 else 6)


def _tiles(extent: int, tile: int) -> int:
    return -(-extent // tile)


def _busy_parts(tiles: Sequence[int], sms: int, least: float) -> list[int]:
    """Parts of each tile where memory is the limit: one round of items that keeps most SMs busy, else about two.

    A round is one if it fills ``least`` of the SMs: the more rows, the more a fix-up costs.

    After an op of more than a round, blocks reach the next one at different times, and need items small enough to level
    that out.
    """
    found: list[int] = []
    one_round = True
    for count in tiles:
        rounds = [count * p / sms for p in range(1, 17)]
        good = [p for p, r in enumerate(rounds, 1) if r >= 1.6 or (one_round and least <= r <= 1)]
        found.append(good[0] if good else 16)
        one_round = count * found[-1] <= sms
    return found


def in_tile(graph: Graph, device: DeviceSpec, m: int, n: int, k: int) -> Iterator[Setting]:
    """Tiles of these extents in every way that operands and warpgroups can take, the rule's own first."""
    ops = matmuls(graph)
    params = dict(default(graph, device).op(ops[0].name).params)
    own = (bool(params["SWAP"]), int(params["num_warps"]) // 4)
    for swap_ab, warpgroups in dict.fromkeys([own, (False, 2), (True, 1), (True, 2)]):
        yield RingTile(m, n, k, swap_ab, warpgroups).setting(ops)


def likely(graph: Graph, device: DeviceSpec) -> Iterator[Setting]:
    """The default's tiles, then others for so many rows; of each size the first way that fits."""
    ops = matmuls(graph)
    if not ops:
        return
    m = _extents(ops)[0]
    padded = min(_FEW, max(16, power_of_two(m)))
    few = [(padded, 64, 256), (padded, 64, 128), (padded, 128, 64)] if m <= _FEW else []
    many = [(128, 256, 64), (128, 128, 64)] if m > _FEW // 4 else []
    for size in (*few, *many):
        yield from in_tile(graph, device, *size)


def settings(graph: Graph, device: DeviceSpec) -> Iterator[Setting]:
    """Broad grids, for prediction costs milliseconds each."""
    ops = matmuls(graph)
    if not ops:
        return
    m = _extents(ops)[0]
    if m <= _FEW:
        yield from _for_few_rows(ops, device.sms)
    if m >= _FEW:
        yield from _for_many_rows(ops)


def _for_few_rows(ops: Sequence[Op], sms: int) -> Iterator[Setting]:
    """Weights as the 64-row operand: shapes of stages, splits that keep every SM busy, bytes in flight."""
    m, widths, depths = _extents(ops)
    padded = min(_FEW, max(16, power_of_two(m)))
    for tokens, n, k in product((padded, padded // 2), (64, 128, 256), (64, 128, 256)):
        if tokens < 64 and (tokens < padded or n == 256):
            continue
        tile = RingTile(tokens, n, k, True, 2 if n > 64 and tokens * n > 64 * 128 else 1)
        rows = _tiles(m, tokens)
        parts = [
            _splits(rows * _tiles(width, n), _tiles(depth, k), sms)
            for width, depth in zip(widths, depths, strict=True)
        ]
        for *each, flying in product(*parts, _IN_FLIGHT_BYTES):
            yield tile.setting(ops, each, max(1, flying // (n * k * 2)))


def _splits(tiles: int, chunks: int, sms: int) -> list[int]:
    """Parts per tile that give each SM half an item to three items, or come closest to that."""
    possible = [parts for parts in _PARTS if parts <= chunks]
    busy = [parts for parts in possible if sms <= 2 * tiles * parts <= 6 * sms]
    return busy or [possible[0] if 2 * tiles > sms else possible[-1]]


def _for_many_rows(ops: Sequence[Op]) -> Iterator[Setting]:
    """Tokens as rows: shapes of tiles, which of them run close together, what becomes of the last wave."""
    m = _extents(ops)[0]
    tiles = _TILES if m >= _MANY else (*_TILES, *_DEEP_TILES)
    groups = _WIDE_GROUPS if m >= _MANY else (*_GROUPS, *_WIDE_GROUPS)
    whole, none = [1] * len(ops), [False] * len(ops)
    for size, group in product(tiles, groups):
        tile = RingTile(*size, False, 2)
        if group > _tiles(m, tile.m):
            continue
        for parts in product((1, 2), repeat=len(ops)) if m <= _SOME else (whole,):
            yield tile.grouped(ops, group, parts, none)
        for tails in product((False, True), repeat=len(ops)):
            yield tile.grouped(ops, group, whole, tails)


GLUON = Tuning(default, likely, settings)

"""Tiling of matmuls with Triton bodies: the default rule and candidates.

The tiles were the fastest in measurements on an H200 in bf16 (benchmarks/notes/triton.md). For another dtype a chunk
has as many bytes, and a GPU with less shared memory has fewer stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import bf16
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.matmul.tilings import MAX_THREAD_ACCUMULATORS, check_triton, count_weights, select_matmuls
from interlace.kernels.tuning import Tuning
from interlace.policies.tiling import OpTiling, Tilings

_MIN_CHUNK = 16
_NEIGHBOURS = (0.5, 1, 2)  # numbers of rows, relative to the actual one, whose tiles may also suit
_PREFETCH_BYTES = 65536
_MAX_SPLIT_ROWS = 512  # upper bound of the rows for which splits may pay off


def adapt_tile(tile: MatmulTile, graph: Graph, op: Op, device: DeviceSpec) -> MatmulTile:
    """Adapt a measured tile: chunks of as many bytes, and no more stages than shared memory holds."""
    itemsize = graph.tensor(op.writes[0].tensor).dtype.itemsize
    k = max(_MIN_CHUNK, tile.k * bf16.itemsize // itemsize)
    room = device.smem_bytes // (k * (tile.m + count_weights(op) * tile.n) * itemsize)
    return replace(tile, k=k, stages=max(1, min(tile.stages, room)))


def select_default(graph: Graph, device: DeviceSpec) -> Tilings:
    """Return the default tile of each op for its rows; half as wide for a gate if the two sums exceed the registers."""

    def one(op: Op) -> OpTiling:
        tile = MatmulTile.heuristic(int(op.param("M")))
        if count_weights(op) * tile.m * tile.n > MAX_THREAD_ACCUMULATORS * 32 * tile.num_warps:
            tile = replace(tile, n=tile.n // 2)
        return OpTiling(adapt_tile(tile, graph, op, device).params)

    return {op.name: one(op) for op in select_matmuls(graph)}


def _get_measured_tiles(rows: int, gated: bool) -> tuple[tuple[tuple[MatmulTile, MatmulTile], ...], tuple[int, ...]]:
    """Return measured tiles for ``rows`` rows, as (gated op, other op) pairs, and group sizes of item orders."""

    def make_tall(n: int, k: int, stages: int) -> MatmulTile:
        return MatmulTile(16 if rows <= 16 else 32 if rows <= 32 else 64, n, k, stages, 4, True, _PREFETCH_BYTES)

    def pair_same(*tiles: MatmulTile) -> tuple[tuple[MatmulTile, MatmulTile], ...]:
        return tuple((tile, tile) for tile in tiles)

    if rows <= 32:
        if not gated:
            return pair_same(make_tall(64, 128, 6), make_tall(64, 128, 8)), (0,)
        wide = make_tall(64, 128, 6)
        return (
            (make_tall(64, 128, 4), wide),
            (make_tall(64, 64, 7), make_tall(64, 128, 5)),
            (make_tall(128, 64, 5), wide),
        ), (0,)
    if rows <= 64:
        if not gated:
            return pair_same(make_tall(64, 128, 6), MatmulTile(64, 128, 64, 6, 4)), (0,)
        return (
            (MatmulTile(64, 128, 64, 4, 8), MatmulTile(64, 64, 128, 5, 8)),
            (MatmulTile(64, 128, 64, 4, 4), MatmulTile(64, 64, 128, 4, 4)),
            (make_tall(64, 64, 5), make_tall(64, 128, 4)),
        ), (0,)
    square, deep, wide = MatmulTile(128, 128, 64, 4, 8), MatmulTile(128, 128, 64, 6, 8), MatmulTile(128, 256, 64, 4, 8)
    if rows <= 128:
        return (((square, MatmulTile(128, 64, 128, 4, 8)),) if gated else pair_same(deep)), (0,)
    if rows <= 512:
        return (((square, deep),) if gated else pair_same(deep)), (2, 8)
    return (((square, square), (square, wide)) if gated else pair_same(square, wide)), (4, 8)


def _iter_arrangements(graph: Graph, device: DeviceSpec, rows: int) -> Iterator[Tilings]:
    """Yield the fastest tiles and orders for ``rows`` rows, unsplit, and split in two where SMs would be idle."""
    ops = select_matmuls(graph)
    pairs, groups = _get_measured_tiles(rows, any(count_weights(op) == 2 for op in ops))
    for group, (gated, plain) in product(groups, pairs):
        tiles = [gated if count_weights(op) == 2 else plain for op in ops]
        for parts in _iter_parts(ops, tiles, device.sms) if rows <= _MAX_SPLIT_ROWS else ([1] * len(ops),):
            each = zip(ops, tiles, parts, strict=True)
            yield {
                op.name: OpTiling(adapt_tile(tile, graph, op, device).params, count, group=group)
                for op, tile, count in each
            }


def _iter_parts(ops: Sequence[Op], tiles: Sequence[MatmulTile], sms: int) -> Iterator[Sequence[int]]:
    """Yield the parts of each op: one, or two if it has fewer tiles than two waves; equal extents have equal parts.

    With more than two distinct extents, as in a whole model, either all ops that may be split are, or none; otherwise
    there would be too many combinations.
    """
    extents = [(*(int(op.param(name)) for name in "MNK"), count_weights(op)) for op in ops]
    counts = [-(-m // tile.m) * -(-n // tile.n) for (m, n, _, _), tile in zip(extents, tiles, strict=True)]
    both = {extent: (1, 2) if count < 2 * sms else (1,) for extent, count in zip(extents, counts, strict=True)}
    ways = product(*both.values()) if len(both) <= 2 else [(1,) * len(both), tuple(max(each) for each in both.values())]
    for chosen in ways:
        parts = dict(zip(both, chosen, strict=True))
        yield [parts[extent] for extent in extents]


def iter_likely(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    """Yield the tilings that were fastest for some executor, for this number of rows."""
    ops = select_matmuls(graph)
    if ops:
        yield from _iter_arrangements(graph, device, max(int(op.param("M")) for op in ops))


def iter_candidates(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    """Yield the tilings that did well for similar numbers of rows."""
    ops = select_matmuls(graph)
    for share in _NEIGHBOURS if ops else ():
        yield from _iter_arrangements(graph, device, max(1, int(max(int(op.param("M")) for op in ops) * share)))


TRITON_TUNING = Tuning(select_default, iter_likely, iter_candidates, check_triton)

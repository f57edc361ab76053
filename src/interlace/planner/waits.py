"""Derive the waits that a graph requires of items, as few ranges of semaphores as possible.

Items of an op that touch the same box through a link need the same *set* of semaphores, each before some k.
Consider tiles of 2 x 2 with one semaphore per tile, and ``act = gate * up``, where ``gate`` posts 0..5 and ``up``
6..11. Tile (0, 0) of ``act`` needs set {0} through one link and {6} through the other:

    sets      {0}, {6}
    united    {0, 6}
    ranges    2 semaphores from 0, stride 6

Small sets are united item by item. Large ones stay the ranges that they were derived as. So an op of n tiles that each
read all of another op's n tiles, or all tiles up to their own, takes O(n) memory, not O(n * n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies, Hazard, Link
from interlace.graph.inverse import TileRuns
from interlace.graph.ragged import Groups, compute_offsets, expand_ranges, find_distinct, group_by, iter_batches
from interlace.plan.implied import ImpliedOrder
from interlace.plan.plan import Items, Waits
from interlace.plan.posts import PostIndex

_SMALL = 64  # maximum size of a set whose semaphores are united item by item
_ROW, _FIRST, _COUNT, _STRIDE, _THRESHOLD, _K = range(6)  # columns of a table of ranges


def derive_waits(dependencies: Dependencies, items: Items, post_of_tile: Ints, chunk_waits: bool) -> Waits:
    """Derive each item's waits: for all semaphores posted by tiles that it needs, except waits that others imply.

    Implied waits are dropped only for WAR and WAW hazards; a read is always awaited.

    ``post_of_tile`` is the semaphore of each tile, tiles of all ops numbered together, -1 for none. A wait stands at
    the item's start or, with ``chunk_waits``, before the chunk of the reduction that needs it first.
    """
    posts = PostIndex(dependencies, post_of_tile)
    of_op = group_by(items.op, len(dependencies.graph.ops))

    def tables(links: Sequence[Sequence[Link]]) -> list[tuple[Ints, Ints]]:
        return [
            _derive_op_needs(dependencies, items, of_op[c], into, posts, chunk_waits) for c, into in enumerate(links)
        ]

    def join_tables(tables: Sequence[tuple[Ints, Ints]]) -> tuple[Waits, ImpliedOrder]:
        waits = _join_waits(items, of_op, tables)
        return waits, ImpliedOrder(items, waits, post_of_tile, dependencies.base)

    links = [dependencies.find_links(c) for c in range(len(of_op))]
    reads = [[link for link in into if link.hazard is Hazard.RAW] for into in links]
    found = tables(reads)
    if reads == links:
        return _join_waits(items, of_op, found)
    _, implied = join_tables(found)
    needed = [[link for link in into if not _is_implied(implied, link)] for into in links]
    changed = [into != mine for into, mine in zip(needed, reads, strict=True)]
    more = tables([into if new else [] for into, new in zip(needed, changed, strict=True)])
    waits, implied = join_tables([b if new else a for a, b, new in zip(found, more, changed, strict=True)])
    # With more semaphores, ranges may be resolved less finely; check again that the dropped links are implied.
    if all(
        link in mine or _is_implied(implied, link) for into, mine in zip(links, needed, strict=True) for link in into
    ):
        return waits
    return _join_waits(items, of_op, tables(links))


def _is_implied(implied: ImpliedOrder, link: Link) -> bool:
    """Return True if all earlier accesses of a WAR or WAW link have ended, by other waits, when its consumer begins."""
    return link.hazard is not Hazard.RAW and bool(implied.is_before(np.array(link.producers), link.consumer).all())


def _derive_op_needs(
    dependencies: Dependencies, items: Items, mine: Ints, links: Sequence[Link], posts: PostIndex, chunk_waits: bool
) -> tuple[Ints, Ints]:
    """Return the needs of some items of an op through links: a table of ranges, and each item's row in it or -1."""
    if not links or not len(mine):
        return np.zeros((0, 6), np.int64), np.full(len(mine), -1, np.int64)
    needs = [_Need.for_link(dependencies, link, items, mine, posts, chunk_waits) for link in links]
    first, cls = find_distinct(*(need.of_item for need in needs))
    return _unite(needs, first, posts.threshold), cls


def _join_waits(items: Items, of_op: Groups, tables: Sequence[tuple[Ints, Ints]]) -> Waits:
    """Return the waits of all items."""
    per_item = np.zeros(len(items), np.int64)  # 0: no waits
    fresh, all_rows = 1, [np.zeros((0, 6), np.int64)]
    for c, (table, cls) in enumerate(tables):
        per_item[of_op[c]] = np.where(cls < 0, 0, cls + fresh)
        all_rows.append(table + fresh * (np.arange(6) == _ROW))
        fresh += int(cls.max(initial=-1)) + 1
    table = np.concatenate(all_rows)
    entries = np.arange(len(table), dtype=np.int64)
    taken = Groups(compute_offsets(np.bincount(table[:, _ROW], minlength=fresh)), entries).take(per_item)
    columns = (_FIRST, _COUNT, _STRIDE, _THRESHOLD, _K)
    return Waits(taken.ptr, *(np.ascontiguousarray(table[taken.values, column]) for column in columns))


@dataclass(frozen=True)
class _Need:
    """Semaphores that the items of an op need through one link.

    Attributes:
        of_item: index of each item's set.
        sizes: number of semaphores in each set.
        table: ranges of all sets; rows are set indices in ascending order.
    """

    of_item: Ints
    sizes: Ints
    table: Ints

    @staticmethod
    def for_link(
        dependencies: Dependencies,
        link: Link,
        items: Items,
        mine: Ints,
        posts: PostIndex,
        chunk_waits: bool,
    ) -> _Need:
        graph, target = dependencies.graph, link.target
        op = graph.ops[link.consumer]
        shape = graph.tensor(link.tensor).shape
        coords, k_lo, k_hi = op.compute_coords(items.tile[mine]), items.k_lo[mine], items.k_hi[mine]
        lo, hi = target.compute_bounds(shape, coords, k_lo, k_hi)
        key = [k_lo, k_hi, *lo.T, *hi.T]
        block = op.reduction.block if chunk_waits and target.uses_k and op.reduction else 0
        if block:  # boxes may differ by chunk although they are equal as a whole when clipped to the tensor
            moving = [span for span in target.spans if span.uses_k]
            key += [b.evaluate(coords, k_lo, k_hi) for span in moving for b in (span.lo, span.hi)]
        first, of_item = find_distinct(*key)
        coords, k_lo, k_hi = coords[first], k_lo[first], k_hi[first]
        tables = [np.zeros((0, 6), np.int64)]
        for a, b, runs in dependencies.iter_runs(link, lo[first], hi[first]):
            runs = runs.split_into_singles() if block else runs
            posted = posts.find_ranges(runs, b - a)
            which = posted.tiles.row + a
            k = k_lo[which]
            if block:
                k = _find_first_use(dependencies, link, posted.tiles, coords[which], k, k_hi[which], block)
            table = np.stack(
                [which, posted.first, posted.count, posted.stride, posts.threshold[posted.first], k], axis=1
            )
            table = table[posted.first >= 0]
            size = np.bincount(table[:, _ROW], table[:, _COUNT], minlength=len(first))
            listed = (size[table[:, _ROW]] <= _SMALL) | bool(block)
            singles = _make_singles(*_keep_earliest(*_list_semaphores(table[listed])), posts.threshold)
            tables.append(_compress_ranges(np.concatenate([singles, table[~listed]])))
        table = np.concatenate(tables)
        sizes = np.bincount(table[:, _ROW], table[:, _COUNT], minlength=len(first)).astype(np.int64)
        return _Need(of_item, sizes, table)

    def find_ranges(self, sets: Ints) -> Groups:
        """Return the positions in ``table`` of the ranges of the given sets."""
        at = np.arange(len(self.table), dtype=np.int64)
        return Groups(compute_offsets(np.bincount(self.table[:, _ROW], minlength=len(self.sizes))), at).take(sets)

    def waits_for(self, sets: Ints, semaphore: Ints, k: Ints) -> NDArray[np.bool_]:
        """Return True for each set that contains the semaphore, before this k or an earlier one."""
        out = np.zeros(len(sets), bool)
        for a, b in iter_batches(np.bincount(self.table[:, _ROW], minlength=len(self.sizes))[sets]):
            found = self.find_ranges(sets[a:b])
            _, first, count, stride, _, before = self.table[found.values].T
            step, rest = np.divmod(semaphore[a:b][found.rows] - first, stride)
            inside = (rest == 0) & (step >= 0) & (step < count) & (before <= k[a:b][found.rows])
            out[a + found.rows[inside]] = True
        return out


def _find_first_use(
    dependencies: Dependencies, link: Link, tiles: TileRuns, coords: Ints, k_lo: Ints, k_hi: Ints, block: int
) -> Ints:
    """Return the start of the first chunk by whose end the part ``k_lo:k_hi`` touches the producer's tile.

    Each run in ``tiles`` is one tile. The region that a part touches grows with its end (``Op`` ensures this), so
    bisection finds the chunk.
    """
    shape = dependencies.graph.tensor(link.tensor).shape
    low, high = np.zeros_like(k_lo), -(-(k_hi - k_lo) // block) - 1
    while (low < high).any():
        middle = (low + high) // 2
        until = np.minimum(k_lo + (middle + 1) * block, k_hi)
        met = dependencies.intersects(link, tiles, *link.target.compute_bounds(shape, coords, k_lo, until))
        low, high = np.where(met, low, middle + 1), np.where(met, middle, high)
    return k_lo + low * block


def _unite(needs: Sequence[_Need], first: Ints, threshold: Ints) -> Ints:
    """Return the united ranges of each of the items ``first``; rows of the table are positions in ``first``."""
    rows = np.arange(len(first), dtype=np.int64)
    if len(needs) == 1:
        return _select_rows(needs[0], rows, needs[0].of_item[first])
    large = [need.sizes[need.of_item[first]] > _SMALL for need in needs]
    small = np.concatenate(
        [
            _select_rows(n, rows[~is_large], n.of_item[first][~is_large])
            for n, is_large in zip(needs, large, strict=True)
        ]
    )
    row, semaphore, k = _keep_earliest(*_list_semaphores(small))
    tables = []
    for need, is_large in zip(needs, large, strict=True):
        tables.append(_select_rows(need, rows[is_large], need.of_item[first][is_large]))
        within = is_large[row]
        within[within] = need.waits_for(need.of_item[first][row[within]], semaphore[within], k[within])
        row, semaphore, k = row[~within], semaphore[~within], k[~within]
    return _compress_ranges(np.concatenate([_make_singles(row, semaphore, k, threshold), *tables]))


def _select_rows(need: _Need, rows: Ints, sets: Ints) -> Ints:
    """Return the ranges of set ``sets[i]`` as row ``rows[i]``, for each i."""
    taken = need.find_ranges(sets)
    out = need.table[taken.values]
    out[:, _ROW] = rows[taken.rows]
    return out


def _keep_earliest(row: Ints, semaphore: Ints, k: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the distinct (row, semaphore) pairs in order, each with its smallest k."""
    order = np.lexsort((k, semaphore, row))
    row, semaphore, k = row[order], semaphore[order], k[order]
    new = np.r_[True, (row[1:] != row[:-1]) | (semaphore[1:] != semaphore[:-1])][: len(row)]
    return row[new], semaphore[new], k[new]


def _list_semaphores(table: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (row, semaphore, k) of every semaphore in the ranges."""
    count = table[:, _COUNT]
    semaphore = expand_ranges(table[:, _FIRST], count, table[:, _STRIDE])
    return np.repeat(table[:, _ROW], count), semaphore, np.repeat(table[:, _K], count)


def _make_singles(row: Ints, semaphore: Ints, k: Ints, threshold: Ints) -> Ints:
    """Return a table of ranges of one semaphore each."""
    one = np.ones_like(row)
    return np.stack([row, semaphore, one, one, threshold[semaphore], k], axis=1)


def _compress_ranges(table: Ints) -> Ints:
    """Return the same semaphores in fewer ranges, ordered by row, then k.

    Ranges are joined if they are consecutive with one stride and have the same k and threshold. Ranges of stride 1 are
    also joined if they overlap.
    """
    order = np.lexsort((table[:, _K], table[:, _STRIDE], table[:, _COUNT], table[:, _FIRST], table[:, _ROW]))
    table = table[order]
    table = table[np.r_[True, (np.diff(table[:, : _STRIDE + 1], axis=0) != 0).any(axis=1)][: len(table)]]
    dense = (table[:, _STRIDE] == 1) | (table[:, _COUNT] == 1)
    table = np.concatenate([_join_ranges(table[dense]), table[~dense]])
    table = table[np.lexsort((table[:, _FIRST], table[:, _K], table[:, _ROW]))]
    changes = (np.diff(table[:, [_ROW, _K]], axis=0) != 0).any(axis=1)
    alone = np.r_[True, changes] & np.r_[changes, True] if len(table) else np.zeros(0, bool)
    alone_rows, table = table[alone], table[~alone]
    out: list[list[int]] = []
    for r, first, count, stride, t, k in table.tolist():
        if out and (out[-1][_ROW], out[-1][_THRESHOLD], out[-1][_K]) == (r, t, k):
            last = out[-1]
            gap = first - (last[_FIRST] + (last[_COUNT] - 1) * last[_STRIDE])
            if (count == 1 or stride == gap) and (last[_COUNT] == 1 or last[_STRIDE] == gap):
                last[_COUNT], last[_STRIDE] = last[_COUNT] + count, gap
                continue
        out.append([r, first, count, stride, t, k])
    table = np.concatenate([alone_rows, np.array(out, np.int64).reshape(-1, 6)])
    ordered: Ints = table[np.lexsort((table[:, _K], table[:, _ROW]))]
    return ordered


def _join_ranges(table: Ints) -> Ints:
    """Join dense ranges that touch or overlap; order them by row, k and first semaphore."""
    if not len(table):
        return table
    table = table[np.lexsort((table[:, _FIRST], table[:, _K], table[:, _ROW]))]
    changes = (np.diff(table[:, [_ROW, _THRESHOLD, _K]], axis=0) != 0).any(axis=1)
    # Shift ranges of different rows, thresholds or k apart, so that one running maximum serves all.
    apart = np.r_[0, np.cumsum(changes)] * (int((table[:, _FIRST] + table[:, _COUNT]).max()) + 1)
    first = table[:, _FIRST] + apart
    end = np.maximum.accumulate(first + table[:, _COUNT])
    opens = np.flatnonzero(np.r_[True, first[1:] > end[:-1]])
    out = table[opens]
    out[:, _COUNT] = np.maximum.reduceat(end, opens) - first[opens]
    out[:, _STRIDE] = 1
    return out

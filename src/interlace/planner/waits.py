"""The waits that a graph demands of items, as few ranges of semaphores as possible.

Items of an op that touch the same box through a link need the same *set* of semaphores, each before some k.
With tiles of 2 x 2 and one semaphore per tile, tile (0, 0) of ``act`` in ``act = gate * up``, where ``gate``
posts 0..5 and ``up`` 6..11, needs set {0} through one link and {6} through the other:

    sets      {0}, {6}
    united    {0, 6}
    ranges    2 semaphores from 0, stride 6

Small sets are united item by item. Large ones, which many items may share, become ranges first: an op of n
tiles that each read all of another's n tiles takes memory of n here, not of n * n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.dependencies import BoxIndex, Dependencies, Groups, Link, distinct, offsets
from interlace.plan.plan import Items, Waits

_SMALL = 64  # sets of up to so many semaphores are united item by item
_ROW, _FIRST, _COUNT, _STRIDE, _THRESHOLD, _K = range(6)  # columns of a table of ranges


def derive_waits(dependencies: Dependencies, items: Items, post_of_tile: Ints, chunk_waits: bool) -> Waits:
    """All semaphores that the tiles that each item needs post.

    ``post_of_tile`` numbers the tiles of all ops together, -1 for none. A wait stands at the item's start,
    or, with ``chunk_waits``, before the chunk of the reduction that needs it first.
    """
    graph = dependencies.graph
    base = offsets(np.array([op.tiles for op in graph.ops], np.int64))
    threshold = np.bincount(post_of_tile[post_of_tile >= 0], minlength=1)
    per_item = np.zeros(len(items), np.int64)  # 0 waits for nothing
    tables = [np.zeros((0, 6), np.int64)]
    fresh = 1
    for c in range(len(graph.ops)):
        links = dependencies.into(c)
        mine = np.flatnonzero(items.op == c)
        if not links or not len(mine):
            continue
        needs = []
        for link in links:
            posts = post_of_tile[base[link.producer] : base[link.producer + 1]]
            needs.append(_Need.through(dependencies, link, items, mine, posts, chunk_waits))
        first, cls = distinct(*(need.of_item for need in needs))
        table = _unite(needs, first, threshold)
        table[:, _ROW] += fresh
        tables.append(table)
        per_item[mine] = cls + fresh
        fresh += len(first)
    table = np.concatenate(tables)
    entries = np.arange(len(table), dtype=np.int64)
    taken = Groups(offsets(np.bincount(table[:, _ROW], minlength=fresh)), entries).take(per_item)
    columns = (_FIRST, _COUNT, _STRIDE, _THRESHOLD, _K)
    return Waits(taken.ptr, *(np.ascontiguousarray(table[taken.values, column]) for column in columns))


@dataclass(frozen=True)
class _Need:
    """What the items of an op need through one link.

    Attributes:
        of_item: set of each item.
        sets: semaphores of each set, ascending.
        k: for each of them, the k before which it is needed.
    """

    of_item: Ints
    sets: Groups
    k: Ints

    @staticmethod
    def through(
        dependencies: Dependencies, link: Link, items: Items, mine: Ints, post: Ints, chunk_waits: bool
    ) -> _Need:
        graph, target = dependencies.graph, link.target
        op = graph.ops[link.consumer]
        shape = graph.tensor(link.tensor).shape
        coords, k_lo, k_hi = op.coords(items.tile[mine]), items.k_lo[mine], items.k_hi[mine]
        lo, hi = target.bounds(shape, coords, k_lo, k_hi)
        key = [k_lo, k_hi, *lo.T, *hi.T]
        block = op.reduction.block if chunk_waits and target.uses_k and op.reduction else 0
        if block:  # boxes may differ by chunk although, clipped to the tensor, they are equal as a whole
            moving = [span for span in target.spans if span.uses_k]
            key += [b.evaluate(coords, k_lo, k_hi) for span in moving for b in (span.lo, span.hi)]
        first, of_item = distinct(*key)
        coords, k_lo, k_hi = coords[first], k_lo[first], k_hi[first]
        sources = dependencies.sources(link)
        none = np.zeros(0, np.int64)
        found: list[tuple[Ints, Ints, Ints]] = [(none, none, none)]
        for start, tiles in sources.batches(lo[first], hi[first]):
            which, tile = tiles.rows + start, tiles.values
            which, tile = which[post[tile] >= 0], tile[post[tile] >= 0]
            k = k_lo[which]
            if block:
                k = _first_use(sources, link, shape, tile, coords[which], k, k_hi[which], block)
            found.append(_earliest(which, post[tile], k))
        which, semaphore, k = (np.concatenate(column) for column in zip(*found, strict=True))
        return _Need(of_item, Groups(offsets(np.bincount(which, minlength=len(first))), semaphore), k)

    def entries(self, sets: Ints) -> Groups:
        """Positions in ``sets.values`` and ``k`` of what the given sets hold."""
        return Groups(self.sets.ptr, np.arange(len(self.k), dtype=np.int64)).take(sets)

    def asks(self, sets: Ints, semaphore: Ints, k: Ints) -> NDArray[np.bool_]:
        """True where the set holds the semaphore, before this k or an earlier one."""
        width = max(int(self.sets.values.max(initial=0)), int(semaphore.max(initial=0))) + 1
        key = self.sets.rows * width + self.sets.values
        wanted = sets * width + semaphore
        at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        asked: NDArray[np.bool_] = (key[at] == wanted) & (self.k[at] <= k)
        return asked


def _first_use(
    sources: BoxIndex,
    link: Link,
    shape: Sequence[int],
    tile: Ints,
    coords: Ints,
    k_lo: Ints,
    k_hi: Ints,
    block: int,
) -> Ints:
    """Start of the first chunk up to whose end the part ``k_lo:k_hi`` touches the producer's tile.

    What a part touches grows with its end (``Op`` sees to it), so the chunk is found by bisection.
    """
    low, high = np.zeros_like(k_lo), -(-(k_hi - k_lo) // block) - 1
    while (low < high).any():
        middle = (low + high) // 2
        until = np.minimum(k_lo + (middle + 1) * block, k_hi)
        met = sources.meet(tile, *link.target.bounds(shape, coords, k_lo, until))
        low, high = np.where(met, low, middle + 1), np.where(met, middle, high)
    return k_lo + low * block


def _unite(needs: Sequence[_Need], first: Ints, threshold: Ints) -> Ints:
    """Ranges for each of the items ``first``, as a table whose rows are positions in ``first``."""
    rows = np.arange(len(first), dtype=np.int64)
    small: list[tuple[Ints, Ints, Ints]] = []
    tables: list[Ints] = []
    large: list[tuple[_Need, NDArray[np.bool_]]] = []
    for need in needs:
        sets = need.of_item[first]
        is_large = need.sets.sizes[sets] > (_SMALL if len(needs) > 1 else 0)
        if is_large.any():
            used, which = np.unique(sets[is_large], return_inverse=True)
            entries = need.entries(used)
            semaphore, k = need.sets.values[entries.values], need.k[entries.values]
            table = _ranges(_singles(entries.rows, semaphore, k, threshold))
            large.append((need, is_large))
            tables.append(_take(table, which.astype(np.int64), rows[is_large]))
        entries = need.entries(sets[~is_large])
        semaphore, k = need.sets.values[entries.values], need.k[entries.values]
        small.append((rows[~is_large][entries.rows], semaphore, k))
    if len(needs) == 1:
        return np.concatenate([np.zeros((0, 6), np.int64), *tables])
    row, semaphore, k = _earliest(*(np.concatenate(column) for column in zip(*small, strict=True)))
    keep = np.ones(len(row), bool)
    for need, is_large in large:
        at = np.flatnonzero(is_large[row])
        keep[at[need.asks(need.of_item[first][row[at]], semaphore[at], k[at])]] = False
    return _ranges(np.concatenate([_singles(row[keep], semaphore[keep], k[keep], threshold), *tables]))


def _earliest(row: Ints, semaphore: Ints, k: Ints) -> tuple[Ints, Ints, Ints]:
    """Distinct (row, semaphore), in order, each with its smallest k."""
    order = np.lexsort((k, semaphore, row))
    row, semaphore, k = row[order], semaphore[order], k[order]
    new = np.r_[True, (row[1:] != row[:-1]) | (semaphore[1:] != semaphore[:-1])][: len(row)]
    return row[new], semaphore[new], k[new]


def _singles(row: Ints, semaphore: Ints, k: Ints, threshold: Ints) -> Ints:
    """A table of ranges of one semaphore each."""
    one = np.ones_like(row)
    return np.stack([row, semaphore, one, one, threshold[semaphore], k], axis=1)


def _take(table: Ints, groups: Ints, rows: Ints) -> Ints:
    """For each i, entries of row ``groups[i]`` of a table sorted by row, as row ``rows[i]``."""
    entries = np.arange(len(table), dtype=np.int64)
    taken = Groups(offsets(np.bincount(table[:, _ROW])), entries).take(groups)
    out = table[taken.values]
    out[:, _ROW] = rows[taken.rows]
    return out


def _ranges(table: Ints) -> Ints:
    """The same semaphores in fewer ranges, ordered by row, then k.

    Ranges join if they follow each other with one stride before one k at one threshold; those of stride 1
    also if they overlap.
    """
    order = np.lexsort((table[:, _K], table[:, _STRIDE], table[:, _COUNT], table[:, _FIRST], table[:, _ROW]))
    table = table[order]
    table = table[np.r_[True, (np.diff(table[:, : _STRIDE + 1], axis=0) != 0).any(axis=1)][: len(table)]]
    dense = (table[:, _STRIDE] == 1) | (table[:, _COUNT] == 1)
    table = np.concatenate([_join(table[dense]), table[~dense]])
    table = table[np.lexsort((table[:, _FIRST], table[:, _K], table[:, _ROW]))]
    out: list[list[int]] = []
    for r, first, count, stride, t, k in table.tolist():
        if out and (out[-1][_ROW], out[-1][_THRESHOLD], out[-1][_K]) == (r, t, k):
            last = out[-1]
            gap = first - (last[_FIRST] + (last[_COUNT] - 1) * last[_STRIDE])
            if (count == 1 or stride == gap) and (last[_COUNT] == 1 or last[_STRIDE] == gap):
                last[_COUNT], last[_STRIDE] = last[_COUNT] + count, gap
                continue
        out.append([r, first, count, stride, t, k])
    return np.array(out, np.int64).reshape(-1, 6)


def _join(table: Ints) -> Ints:
    """Dense ranges that touch or overlap, joined; ordered by row, k and first semaphore."""
    if not len(table):
        return table
    table = table[np.lexsort((table[:, _FIRST], table[:, _K], table[:, _ROW]))]
    changes = (np.diff(table[:, [_ROW, _THRESHOLD, _K]], axis=0) != 0).any(axis=1)
    # Numbers of different rows, thresholds or k are moved apart, so that one running maximum serves all.
    apart = np.r_[0, np.cumsum(changes)] * (int((table[:, _FIRST] + table[:, _COUNT]).max()) + 1)
    first = table[:, _FIRST] + apart
    end = np.maximum.accumulate(first + table[:, _COUNT])
    opens = np.flatnonzero(np.r_[True, first[1:] > end[:-1]])
    out = table[opens]
    out[:, _COUNT] = np.maximum.reduceat(end, opens) - first[opens]
    out[:, _STRIDE] = 1
    return out

"""Order between whole ops that follows from the waits of items in between.

A region that is overwritten need not be awaited again where such an order exists. With the ops of two layers, in which
z of one layer overwrites what b of the layer before has read,

    a -> b -> c -> z      every item of c awaits all tiles of b, and every item of z at least one tile of c

all tiles of b have ended before any tile of c has, and so before any item of z begins: a wait of z for b would be
redundant. Semaphores are released and acquired at device scope, so this order is transitive.

If some tiles of an op post nothing, because nothing waits for them, its end as a whole is unknown. Still, an item that
awaits one of the op's other tiles comes after everything that all tiles of the op await.

The analysis is conservative. It considers only ops whose semaphores are contiguous, with no semaphore of another op
between them. Of each wait for strided semaphores it considers only the first one if there are very many in all.
So it may miss orders, but every order that it finds holds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.ragged import BATCH_ENTRIES, compute_offsets, expand_ranges, find_distinct, group_by
from interlace.plan.plan import Items, Waits

Bools = NDArray[np.bool_]


class ImpliedOrder:
    """Order between whole ops.

    Args:
        items, waits: items and waits of a plan, with thresholds that wait for all posts.
        post_of_tile: semaphore that each tile of all ops posts, -1 for none.
        base: number of the first tile of each op, and of all tiles.
    """

    def __init__(self, items: Items, waits: Waits, post_of_tile: Ints, base: Ints) -> None:
        ops = len(base) - 1
        self._low, self._high, self._owner, post = _map_semaphores(post_of_tile, base)
        owner = waits.item
        of_op = group_by(items.op[owner], ops)
        sizes = np.bincount(items.op, minlength=ops)
        #: [p, c]: True if all of p has ended before any item of c begins; ``ended``: before any item of c ends.
        self._begun = np.zeros((ops, ops), bool)
        ended = np.zeros((ops, ops), bool)
        #: [p, c]: True if every tile of p is awaited by some item of c.
        each = np.zeros((ops, ops), bool)
        for c in range(ops):
            rows = of_op[c]
            # ``complete``: every item of c waits.
            item, count = np.unique(owner[rows], return_counts=True)
            complete = len(item) == sizes[c]
            rows = _drop_duplicates(rows, count, waits, items.k_lo[owner])
            item, first, last, opens = _densify(rows, owner[rows], items, waits)
            number = len(np.unique(item)) if complete else -1
            every_row = np.ones(len(opens), bool)
            for found, some in ((ended, every_row), (self._begun, opens)):
                if some is opens and opens.all():
                    self._begun[:, c] = ended[:, c]
                    break
                awaited = _AwaitedSpans(item[some], first[some], last[some], number)
                for p in awaited.find_owners(self._owner):
                    if p == c:
                        continue
                    every, any_of, all_together = awaited.check_range(int(self._low[p]), int(self._high[p]))
                    found[p, c] |= every and post[p]
                    if any_of:
                        found[:, c] |= ended[:, p]
                    each[p, c] |= all_together and post[p]
                more = found[:, c]
                while more.any():
                    more = each[:, more].any(axis=1) & ~found[:, c]
                    found[:, c] |= more

    def is_before(self, producers: Ints, consumer: int) -> Bools:
        """Return True where all tiles of a producer have ended when any item of the consumer begins."""
        found: Bools = self._begun[producers, consumer]
        return found


def _drop_duplicates(rows: Ints, count: Ints, waits: Waits, k_lo: Ints) -> Ints:
    """Keep the waits of one item of each group whose items wait alike, if all items have the same number of waits."""
    if not len(rows) or (count != count[0]).any():
        return rows
    columns = waits.first, waits.count, waits.stride, (waits.k <= k_lo).astype(np.int64)
    alike = [column[rows].reshape(-1, count[0]) for column in columns]
    first, _ = find_distinct(*np.concatenate(alike, axis=1).T)
    return rows.reshape(-1, count[0])[first].reshape(-1)


def _densify(rows: Ints, item: Ints, items: Items, waits: Waits) -> tuple[Ints, Ints, Ints, Bools]:
    """Convert waits to ranges without gaps: (item, first and last semaphore, True if the wait opens the item)."""
    first, count, opens = waits.first[rows], waits.count[rows], waits.k[rows] <= items.k_lo[item]
    gaps = (waits.stride[rows] > 1) & (count > 1)
    if int(count[gaps].sum()) > BATCH_ENTRIES:
        return item, first, first + np.where(gaps, 1, count) - 1, opens
    each = np.where(gaps, count, 1)
    place = expand_ranges(np.zeros_like(each), each)
    item, low, opens = np.repeat(item, each), np.repeat(first, each), np.repeat(opens, each)
    low = low + place * np.repeat(waits.stride[rows], each)
    return item, low, low + np.repeat(np.where(gaps, 1, count), each) - 1, opens


def _map_semaphores(post_of_tile: Ints, base: Ints) -> tuple[Ints, Ints, Ints, Bools]:
    """Return first and last semaphore of each op, the op of each semaphore, and True for each op whose tiles all post.

    The op of a semaphore is -1 if nothing posts it, or if another op posts a semaphore between the op's first and last.
    """
    ops = len(base) - 1
    op = np.repeat(np.arange(ops, dtype=np.int64), np.diff(base))
    count = int(post_of_tile.max(initial=-1)) + 1
    posts = np.flatnonzero(post_of_tile >= 0)
    least, most = np.full(count, ops, np.int64), np.full(count, -1, np.int64)
    np.minimum.at(least, post_of_tile[posts], op[posts])
    np.maximum.at(most, post_of_tile[posts], op[posts])
    owner = np.where(least == most, least, -1)
    low, high = np.full(ops, count, np.int64), np.full(ops, -1, np.int64)
    np.minimum.at(low, op[posts], post_of_tile[posts])
    np.maximum.at(high, op[posts], post_of_tile[posts])
    silent = np.bincount(op[post_of_tile < 0], minlength=ops)
    # Semaphores between an op's first and last exceed its own in number if some are shared or posted by other ops.
    posted = compute_offsets((most >= 0).astype(np.int64))
    between = posted[np.maximum(high + 1, 0)] - posted[np.minimum(low, count)]
    known = between == np.bincount(owner[owner >= 0], minlength=ops)
    return low, high, np.where((owner >= 0) & known[owner], owner, -1), silent == 0


class _AwaitedSpans:
    """Semaphores that the items of an op await, as ranges from ``first`` to ``last``, each of one item.

    Args:
        items: number of items of the op; -1 if some of them wait for nothing.
    """

    def __init__(self, item: Ints, first: Ints, last: Ints, items: int) -> None:
        _, local = np.unique(item, return_inverse=True)
        self._all_wait = bool(len(local)) and int(local.max()) + 1 == items
        order = np.lexsort((first, local))
        self._item, self._last = local[order], last[order]
        self._first = _trim_overlaps(self._item, first[order], self._last)
        whole = np.argsort(first, kind="stable")
        self._all_last = last[whole]
        self._all_first = _trim_overlaps(np.zeros_like(whole), first[whole], self._all_last)

    def find_owners(self, owner: Ints) -> list[int]:
        """Return the ops that own an awaited semaphore."""
        if not len(self._all_first):
            return []
        low, high = int(self._all_first.min()), int(self._all_last.max()) + 1
        some = self._all_first <= self._all_last
        steps = np.bincount(self._all_first[some] - low, minlength=high - low + 1)
        steps -= np.bincount(self._all_last[some] + 1 - low, minlength=high - low + 1)
        found = np.unique(owner[low:high][np.cumsum(steps)[:-1] > 0])
        return [int(op) for op in found if op >= 0]

    def check_range(self, low: int, high: int) -> tuple[bool, bool, bool]:
        """Test the semaphores from low to high: (each item awaits all, each awaits one, items together await all)."""
        size = high - low + 1
        shares = np.maximum(np.minimum(self._last, high) - np.maximum(self._first, low) + 1, 0)
        of_item = np.bincount(self._item, shares)
        together = np.maximum(np.minimum(self._all_last, high) - np.maximum(self._all_first, low) + 1, 0).sum()
        every, any_of = bool((of_item == size).all()), bool((of_item > 0).all())
        return self._all_wait and every, self._all_wait and any_of, int(together) == size


def _trim_overlaps(group: Ints, first: Ints, last: Ints) -> Ints:
    """Trim the start of each range, sorted by group and ``first``, to where no earlier range of its group reaches."""
    if not len(first):
        return first
    far = int(last.max()) + 2
    ends = np.maximum.accumulate(last + group * far) - group * far
    before = np.where(np.r_[True, group[1:] != group[:-1]], -1, np.r_[-1, ends[:-1]])
    begin: Ints = np.maximum(first, before + 1)
    return begin

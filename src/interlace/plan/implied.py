"""Which ops have ended before others begin, by waits of items in between.

What is overwritten need not be waited for again where that follows. With the ops of two layers, in which z of one layer
overwrites what b of the layer before has read,

    a -> b -> c -> z      every item of c awaits all tiles of b, and every item of z at least one tile of c

all tiles of b have ended before any of c has, and so before any item of z begins: a wait of z for b would change
nothing. Semaphores are released and acquired in the scope of the device, and that order is handed on from one to the
next.

Of an op some of whose tiles post nothing, as nobody waits for them, not all are known to have ended; but who awaits
one of the others comes behind whatever all of its tiles await. Only ops whose semaphores lie side by side, with none
that another op posts between them, are looked at; and of waits for semaphores that lie apart, where they are very many,
only the first of each. So some of what follows may not be found, and nothing else is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.ragged import BATCH, distinct, grouped, offsets, ranges
from interlace.plan.plan import Items, Waits

Bools = NDArray[np.bool_]


class Implied:
    """Order between whole ops.

    Args:
        items, waits: of a plan, with thresholds that wait for all posts.
        post_of_tile: the semaphore that each tile of all ops posts, -1 for none.
        base: number of the first tile of each op, and of all tiles.
    """

    def __init__(self, items: Items, waits: Waits, post_of_tile: Ints, base: Ints) -> None:
        ops = len(base) - 1
        self._low, self._high, self._owner, post = _posted(post_of_tile, base)
        owner = waits.item
        of_op = grouped(items.op[owner], ops)
        sizes = np.bincount(items.op, minlength=ops)
        #: [p, c]: all of p has ended before any item of c has begun, or has ended.
        self._begun = np.zeros((ops, ops), bool)
        ended = np.zeros((ops, ops), bool)
        #: [p, c]: every tile of p is awaited by an item of c.
        each = np.zeros((ops, ops), bool)
        for c in range(ops):
            rows = of_op[c]
            # All items, if each of them waits.
            item, count = np.unique(owner[rows], return_counts=True)
            complete = len(item) == sizes[c]
            rows = _unlike(rows, count, waits, items.k_lo[owner])
            item, first, last, opens = _dense(rows, owner[rows], items, waits)
            number = len(np.unique(item)) if complete else -1
            every_row = np.ones(len(opens), bool)
            for found, some in ((ended, every_row), (self._begun, opens)):
                if some is opens and opens.all():
                    self._begun[:, c] = ended[:, c]
                    break
                awaited = _Awaited(item[some], first[some], last[some], number)
                for p in awaited.owners(self._owner):
                    if p == c:
                        continue
                    every, any_of, all_together = awaited.of(int(self._low[p]), int(self._high[p]))
                    found[p, c] |= every and post[p]
                    if any_of:
                        found[:, c] |= ended[:, p]
                    each[p, c] |= all_together and post[p]
                more = found[:, c]
                while more.any():
                    more = each[:, more].any(axis=1) & ~found[:, c]
                    found[:, c] |= more

    def before(self, producers: Ints, consumer: int) -> Bools:
        """True where all tiles of an op have ended when any item of the consumer begins."""
        found: Bools = self._begun[producers, consumer]
        return found


def _unlike(rows: Ints, count: Ints, waits: Waits, k_lo: Ints) -> Ints:
    """Of waits of items, ``count`` each, those of one item for all that wait alike, where that is easily seen."""
    if not len(rows) or (count != count[0]).any():
        return rows
    columns = waits.first, waits.count, waits.stride, (waits.k <= k_lo).astype(np.int64)
    alike = [column[rows].reshape(-1, count[0]) for column in columns]
    first, _ = distinct(*np.concatenate(alike, axis=1).T)
    return rows.reshape(-1, count[0])[first].reshape(-1)


def _dense(rows: Ints, item: Ints, items: Items, waits: Waits) -> tuple[Ints, Ints, Ints, Bools]:
    """Waits as ranges without gaps: item, first and last semaphore, and whether it opens the item."""
    first, count, opens = waits.first[rows], waits.count[rows], waits.k[rows] <= items.k_lo[item]
    gaps = (waits.stride[rows] > 1) & (count > 1)
    if int(count[gaps].sum()) > BATCH:
        return item, first, first + np.where(gaps, 1, count) - 1, opens
    each = np.where(gaps, count, 1)
    place = ranges(np.zeros_like(each), each)
    item, low, opens = np.repeat(item, each), np.repeat(first, each), np.repeat(opens, each)
    low = low + place * np.repeat(waits.stride[rows], each)
    return item, low, low + np.repeat(np.where(gaps, 1, count), each) - 1, opens


def _posted(post_of_tile: Ints, base: Ints) -> tuple[Ints, Ints, Ints, Bools]:
    """First and last semaphore of each op, the op of each semaphore, and whether all tiles of an op post.

    The op is -1 where another posts a semaphore between the op's first and last, or nobody posts it.
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
    # Others' semaphores and shared ones that lie between an op's first and last make their number more than its own.
    posted = offsets((most >= 0).astype(np.int64))
    between = posted[np.maximum(high + 1, 0)] - posted[np.minimum(low, count)]
    known = between == np.bincount(owner[owner >= 0], minlength=ops)
    return low, high, np.where((owner >= 0) & known[owner], owner, -1), silent == 0


class _Awaited:
    """The semaphores that the items of an op await, as ranges ``first`` to ``last``, each of an item.

    Args:
        items: how many there are; -1 if others of the op wait for nothing.
    """

    def __init__(self, item: Ints, first: Ints, last: Ints, items: int) -> None:
        _, local = np.unique(item, return_inverse=True)
        self._all_wait = bool(len(local)) and int(local.max()) + 1 == items
        order = np.lexsort((first, local))
        self._item, self._last = local[order], last[order]
        self._first = _apart(self._item, first[order], self._last)
        whole = np.argsort(first, kind="stable")
        self._all_last = last[whole]
        self._all_first = _apart(np.zeros_like(whole), first[whole], self._all_last)

    def owners(self, owner: Ints) -> list[int]:
        """Ops of which something is awaited."""
        if not len(self._all_first):
            return []
        low, high = int(self._all_first.min()), int(self._all_last.max()) + 1
        some = self._all_first <= self._all_last
        steps = np.bincount(self._all_first[some] - low, minlength=high - low + 1)
        steps -= np.bincount(self._all_last[some] + 1 - low, minlength=high - low + 1)
        found = np.unique(owner[low:high][np.cumsum(steps)[:-1] > 0])
        return [int(op) for op in found if op >= 0]

    def of(self, low: int, high: int) -> tuple[bool, bool, bool]:
        """Of the semaphores from low to high: does every item await all, does every item one, do all together all."""
        size = high - low + 1
        shares = np.maximum(np.minimum(self._last, high) - np.maximum(self._first, low) + 1, 0)
        of_item = np.bincount(self._item, shares)
        together = np.maximum(np.minimum(self._all_last, high) - np.maximum(self._all_first, low) + 1, 0).sum()
        every, any_of = bool((of_item == size).all()), bool((of_item > 0).all())
        return self._all_wait and every, self._all_wait and any_of, int(together) == size


def _apart(group: Ints, first: Ints, last: Ints) -> Ints:
    """Where ranges, in order of group and then of ``first``, begin to hold what no earlier one of their group does."""
    if not len(first):
        return first
    far = int(last.max()) + 2
    ends = np.maximum.accumulate(last + group * far) - group * far
    before = np.where(np.r_[True, group[1:] != group[:-1]], -1, np.r_[-1, ends[:-1]])
    begin: Ints = np.maximum(first, before + 1)
    return begin

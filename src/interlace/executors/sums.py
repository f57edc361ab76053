"""Where the one launch keeps what parts of split tiles leave for each other.

A row is 16 bytes of each thread of a warpgroup. Each op takes as many of them as its sums need, one after another; of a
tile the part that adds the others to its own takes none. Rows of an op lie where those of ops lay that have ended by
then, as waits of items in between imply (``plan/implied``):

    a -> b -> c -> z, split but for c    a 0..7   b 8..11: a tile of a may still read   z 0..3: a has ended before it

Where parts of a tile share its sums (``executors/shares``), the tile has rows for each share, side by side, of all
parts but the one that adds them; every part knows where those of the tile begin.

A sum is a word that says itself whether it is there (``kernels/primitives/words_cuda``), so no wait stands between the
parts of a tile. A part stores its sums behind all waits of its item, and whoever adds them has emptied their words
before it posts. So what orders an op behind another orders its stores behind those of empty words. The next run begins
behind the end of this one.

Under static lists and tickets nobody else asks whether sums are there. Where items are taken when they are ready, the
parts that leave sums also post a semaphore of their tile, behind those of the plan, and the part that adds is ready
with it. Under hybrid and stealing dispatch they post it as well: there column ``split`` tells who waits for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from interlace.executors.table import Table
from interlace.graph.access import Ints
from interlace.kernels.bodies import ROW_FLOATS
from interlace.launch.compose import LEAVES_SUMS
from interlace.plan.implied import Implied
from interlace.plan.plan import Dispatch, Plan

#: Dispatches under which nobody asks whether sums are there but who adds them.
_SILENT = (Dispatch.STATIC, Dispatch.TICKET)


def with_sums(table: Table, sums: Sequence[int], shares: Sequence[int], plan: Plan) -> Table:
    """The same with rows for slots, and of items the first of those in which sums lie.

    Of a part that leaves its sums they are its own, of the last part in the plan's sequence those of all others, in the
    order of k. Of parts that share sums they are the tile's. Which parts leave all of their sums, column ``code`` says;
    where nobody asks for them, they post nothing, and column ``split`` has the number of the tile with all bits
    inverted in every part.

    Args:
        table: whose parts wait for each other, and have their codes.
        sums: float32 elements of a partial sum of each op; 0 where none is split.
        shares: of them those that one part adds, where parts of a tile share its sums; else 0.
        plan: of the table, with the waits and posts that are launched.
    """
    items = table.items
    rows = np.flatnonzero(items["parts"] > 1)
    if not len(rows):
        return replace(table, slots=0)
    closes = items["split"][rows] < 0
    tile = np.where(closes, ~items["split"][rows], items["split"][rows])
    by_tile = np.lexsort((items["part"][rows], closes, tile))
    rows, closes = rows[by_tile], closes[by_tile]
    op, parts = items["op"][rows], items["parts"][rows]
    size = (np.array(sums, np.int64) // ROW_FLOATS)[op]
    # What a part that shares leaves is counted as its own, a share for each other part.
    share = (np.array(shares, np.int64) // ROW_FLOATS)[op] * (parts - 1)
    taken = np.where(share > 0, share, np.where(closes, 0, size))
    ends = np.cumsum(taken)
    of_op = np.bincount(op, taken, minlength=len(sums)).astype(np.int64)
    starts = _starts(of_op, _ended(plan))
    # Tiles are numbered op after op, so rows of an op lie together.
    moved = starts - (np.cumsum(of_op) - of_op)
    before = np.where(share > 0, (items["part"][rows] + 1) * share, np.where(closes, parts - 1, 1) * size)
    items["slot"][rows] = ends - before + moved[op]
    leave = rows[~closes]
    items["code"][leave] |= LEAVES_SUMS
    table = replace(table, slots=int((starts + of_op).max()))
    if plan.dispatch not in _SILENT:
        return table
    items["post"][leave], items["split"][leave] = -1, ~items["split"][leave]
    return replace(table, semaphores=plan.semaphores)


def _ended(plan: Plan) -> Callable[[Ints, int], NDArray[np.bool_]]:
    """(ops, later op) -> which of them have ended before any item of the later one begins."""
    base = plan.tile_base()
    posts = np.full(base[-1], -1, np.int64)
    posts[plan.tile_of_item] = plan.items.post
    return Implied(plan.items, plan.waits, posts, base).before


def _starts(sizes: Ints, ended: Callable[[Ints, int], NDArray[np.bool_]]) -> Ints:
    """For each op the first of its rows: the lowest from which on none belong to an earlier op that may still run."""
    starts = np.zeros_like(sizes)
    split = np.flatnonzero(sizes)
    for n, op in enumerate(split):
        before = split[:n]
        running = before[~ended(before, int(op))]
        for other in running[np.argsort(starts[running])]:
            if starts[op] + sizes[op] <= starts[other]:
                break
            starts[op] = max(starts[op], starts[other] + sizes[other])
    return starts

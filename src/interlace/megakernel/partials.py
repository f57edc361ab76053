"""The workspace of the megakernel: where split-K partials lie.

A row is 16 bytes of each thread of a warpgroup. Each op takes as many consecutive rows as its partials need; the part
of a tile that reduces the others takes none. An op reuses the rows of ops that have ended by then, as the waits of
items in between imply (``plan/implied``):

    a -> b -> c -> z, all split but c    a 0..7   b 8..11: a tile of a may still read   z 0..3: a has ended before it

With cooperative fix-up (``megakernel/fix_up``), a tile has adjacent rows for each share, with the partials of all parts
except the one that reduces it. Every part has the first row of the tile.

A partial shows by itself whether it has arrived, because an empty word has a pattern of its own
(``csrc/sentinel.cuh``). So parts of a tile need no wait between them. A part stores its partials after all
waits of its item, and the part that reduces them empties their words before it posts. So whatever orders one op after
another also orders its stores after the words are emptied. The next run begins after the end of this one.

Under static and ticket dispatch, only the part that reduces asks whether partials have arrived. Where items are taken
when they are ready, parts that store partials also post a semaphore of their tile, numbered after the plan's, which
makes the reducing part ready. Under hybrid and stealing dispatch they post it, too, and column ``split`` shows
which part waits for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.kernels.bodies import ROW_FLOATS
from interlace.megakernel.constants import LEAVES_SUMS
from interlace.megakernel.table import DeviceTables
from interlace.plan.implied import ImpliedOrder
from interlace.plan.plan import Dispatch, Plan

#: Dispatches under which only the part that reduces asks whether partials have arrived.
_POLLED_DISPATCHES = (Dispatch.STATIC, Dispatch.TICKET)


def place_partials(
    table: DeviceTables, partial_elements: Sequence[int], shared_elements: Sequence[int], plan: Plan
) -> DeviceTables:
    """Return the table with rows as slots: column ``slot`` holds the first row of each item's partials.

    For a part that stores partials, these are its own; for the last part in the plan's sequence, those of all others in
    the order of k; with cooperative fix-up, those of the tile. Column ``code`` marks the parts that store all of their
    partials. Where only the reducing part asks for partials, such parts post nothing, and column ``split`` holds the
    tile's number with all bits inverted in every part.

    Args:
        table: table whose parts wait for each other, with codes.
        partial_elements: float32 elements of one partial of each op; 0 where none is split.
        shared_elements: float32 elements of them that one part reduces, with cooperative fix-up; else 0.
        plan: plan of the table, with the waits and posts that are launched.
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
    size = (np.array(partial_elements, np.int64) // ROW_FLOATS)[op]
    # The partials that a part stores under cooperative fix-up count as its own: one share for each other part.
    share = (np.array(shared_elements, np.int64) // ROW_FLOATS)[op] * (parts - 1)
    taken = np.where(share > 0, share, np.where(closes, 0, size))
    ends = np.cumsum(taken)
    of_op = np.bincount(op, taken, minlength=len(partial_elements)).astype(np.int64)
    starts = _place_rows(of_op, _build_order_test(plan))
    # Tiles are numbered op by op, so rows of an op are consecutive.
    moved = starts - (np.cumsum(of_op) - of_op)
    before = np.where(share > 0, (items["part"][rows] + 1) * share, np.where(closes, parts - 1, 1) * size)
    items["slot"][rows] = ends - before + moved[op]
    leave = rows[~closes]
    items["code"][leave] |= LEAVES_SUMS
    table = replace(table, slots=int((starts + of_op).max()))
    if plan.dispatch not in _POLLED_DISPATCHES:
        return table
    items["post"][leave], items["split"][leave] = -1, ~items["split"][leave]
    return replace(table, semaphores=plan.semaphores)


def _build_order_test(plan: Plan) -> Callable[[Ints, int], NDArray[np.bool_]]:
    """Return a function (ops, later op) -> mask of the ops that have ended before any item of the later one begins."""
    base = plan.compute_tile_base()
    posts = np.full(base[-1], -1, np.int64)
    posts[plan.tile_of_item] = plan.items.post
    return ImpliedOrder(plan.items, plan.waits, posts, base).is_before


def _place_rows(sizes: Ints, ended: Callable[[Ints, int], NDArray[np.bool_]]) -> Ints:
    """Return the first row of each op: the lowest that shares no rows with an earlier op that may still run."""
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

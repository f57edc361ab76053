"""What the watchdog left behind, as the error that names who never posted."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import HangError
from interlace.graph.access import Ints
from interlace.graph.ragged import distinct, fold, held
from interlace.launch.dispatch import EMPTY
from interlace.plan.plan import Dispatch, Plan


def hang_error(
    plan: Plan,
    item: int,
    semaphore: int,
    expected: int,
    seen: int,
    done: np.ndarray,
    came: np.ndarray | None = None,
    shared: Collection[int] = (),
) -> HangError:
    """The error for a wait that the watchdog ended.

    Args:
        done: which items have posted, and in which run.
        came: which items came to a queue of ready items.
        shared: ops whose parts of a tile all post.
    """
    if came is not None and semaphore == EMPTY:
        lost = _lost(plan, done, came)
        name = plan.item_name(lost)
        what = f"place {item} of the queue of ready items, to which"
        if plan.dispatch is Dispatch.DISPATCHER:
            what, seen = "an item of the dispatcher, for which", int(came.sum())
        return HangError(
            f"a worker waited for {what} {seen} of {expected} items came before the watchdog fired; "
            f"{name} (item {lost}) never came, though all that it waits for was posted. The "
            "outputs of this run are undefined; counters were reset, the next run starts afresh",
            item=lost,
            semaphore=-1,
            expected=expected,
            seen=seen,
            producer=plan.graph.ops[int(plan.items.op[lost])].tile_name(int(plan.items.tile[lost])),
        )
    if item < 0:
        op = plan.graph.ops[-1 - item].name
        return HangError(
            f"the gate behind op {op!r} saw {seen} of {expected} thread blocks begin before the watchdog fired; "
            "another kernel holds the device",
            item=item,
            semaphore=-1,
            expected=expected,
            seen=seen,
            producer=op,
        )
    if semaphore >= plan.semaphores:
        name = plan.item_name(item)
        return HangError(
            f"{name} (item {item}) waited for {expected} posts of sums of its tile and saw {seen} before the watchdog "
            "fired. The outputs of this run are undefined; counters were reset, the next run starts afresh",
            item=item,
            semaphore=semaphore,
            expected=expected,
            seen=seen,
            producer=plan.graph.ops[int(plan.items.op[item])].tile_name(int(plan.items.tile[item])),
        )
    missing = _origin(plan, _silent(plan, done, shared), semaphore)
    late = not len(missing)
    some = np.flatnonzero(plan.items.post == semaphore) if late else missing
    tiles = [*dict.fromkeys(zip(plan.items.op[some].tolist(), plan.items.tile[some].tolist(), strict=True))]
    named = plan.graph.ops[tiles[0][0]].tile_name(tiles[0][1])
    more = f" and {len(tiles) - 1} more" if len(tiles) > 1 else ""
    what = "posted too late, or only when this wait had ended" if late else "never posted"
    behind = "" if plan.items.post[some[0]] == semaphore else "behind what posts it, "
    return HangError(
        f"{plan.item_name(item)} (item {item}) waited for semaphore {semaphore} to reach {expected} posts and saw "
        f"{seen} before the watchdog fired; {behind}{named}{more} {what}. The outputs of this run are undefined; "
        "counters were reset, the next run starts afresh",
        item=item,
        semaphore=semaphore,
        expected=expected,
        seen=seen,
        producer=None if late else named,
    )


def _silent(plan: Plan, done: np.ndarray, shared: Collection[int] = ()) -> NDArray[np.bool_]:
    """Items that should have posted in the last run and did not, with the other parts of their tiles.

    Of the parts of a split tile only the last to arrive posts, so a tile is done when one of its parts is.
    """
    items = plan.items
    _, tile = distinct(items.op, items.tile, np.where(np.isin(items.op, [*shared]), items.k_lo, 0))
    last_run = np.zeros(len(items), np.int64)
    np.maximum.at(last_run, tile, done)
    asked = np.array([not op.when for op in plan.graph.ops])[items.op]  # others may rightly not run
    found: NDArray[np.bool_] = asked & (items.post >= 0) & (last_run[tile] < max(int(done.max()), 1))
    return found


def _origin(plan: Plan, silent: NDArray[np.bool_], semaphore: int) -> Ints:
    """Of silent items those that a wait for a semaphore is nearest to: that post it, or what these wait for, or so on.

    The wait that failed first is any of those behind a missing post. All others end with it, and their items post.
    """
    items, waits = plan.items, plan.waits
    known, reached = np.zeros((2, plan.semaphores), bool)
    reached[semaphore] = True
    while reached.any():
        posters = (items.post >= 0) & reached[items.post]
        if (posters & silent).any():
            return np.flatnonzero(posters & silent)
        known |= reached
        rows = posters[waits.item]
        reached = held(waits.first[rows], waits.count[rows], waits.stride[rows], plan.semaphores) & ~known
    return np.zeros(0, np.int64)


def _lost(plan: Plan, done: np.ndarray, came: np.ndarray) -> int:
    """The first item that did not come to the queue although all that it waits for was posted in the last run."""
    items, waits = plan.items, plan.waits
    short = np.bincount(items.post[_silent(plan, done)], minlength=plan.semaphores)
    ready = ~came
    ready[waits.item[fold(np.maximum, short, waits.first, waits.count, waits.stride) > 0]] = False
    lost = np.flatnonzero(ready) if ready.any() else np.flatnonzero(~came)
    return int(lost[0]) if len(lost) else 0

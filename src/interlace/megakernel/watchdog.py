"""Errors built from the watchdog's records; they name the tiles that never posted."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import HangError, LaunchEndedError, StageCountError
from interlace.graph.access import Ints
from interlace.graph.ragged import find_distinct, fold, mark_covered
from interlace.megakernel.constants import AWAITED, EMPTY, MISCOUNTED, UNFINISHED
from interlace.plan.plan import Dispatch, Plan

OUTPUTS_UNDEFINED = "The outputs of this run are undefined; counters were reset, the next run starts afresh"
_CONTEXT_ENDED = "The launch was ended, and the CUDA context of the process with it; go on in a new process"


def make_launch_ended_error(plan: Plan, item: int, why: int, expected: int, seen: int) -> LaunchEndedError | None:
    """Return the error for a launch that ended itself by a trap (``csrc/roles.cuh``), or None if it did not."""
    who = f"{plan.format_item(item)} (item {item})" if item >= 0 else "a worker's first item"
    if why == MISCOUNTED:
        role = "its loads after waits" if expected else "its consumers"
        count = f"{abs(seen)} {'stage' if abs(seen) == 1 else 'stages'} {'more' if seen > 0 else 'fewer'}"
        return StageCountError(
            f"{who}: {role} took {count} of the ring than its loads ahead of waits; make all roles of its body "
            f"count the same for an item. {_CONTEXT_ENDED}",
            item=item,
            extra_stages=seen,
        )
    if why != UNFINISHED:
        return None
    if expected:
        what = f"{who} did not end"
    else:
        what = f"nothing was loaded after {who}" if item >= 0 else f"{who} never began"
    return LaunchEndedError(
        f"{what} before the watchdog fired: a role of its body waits for a stage that no other fills or hands back, or "
        f"at a barrier which not all of its threads reach, or runs without end. {_CONTEXT_ENDED}",
        item=item,
    )


def make_hang_error(
    plan: Plan,
    item: int,
    semaphore: int,
    expected: int,
    seen: int,
    done: np.ndarray,
    enqueued: np.ndarray | None = None,
    cooperative: Collection[int] = (),
) -> HangError:
    """Return the error for a wait that the watchdog ended.

    Args:
        plan: plan of the run.
        item, semaphore, expected, seen: the record.
        done: for each item, the run in which it last posted, from 1, modulo 2^32; 0 if it never did.
        enqueued: mask of the items that entered the ready queue.
        cooperative: ops in which all parts of a tile post.
    """
    done = _unwrap_runs(done)
    if enqueued is not None and semaphore == EMPTY:
        return _make_never_ready_error(plan, item, expected, seen, done, enqueued)
    if item < 0:
        op = plan.graph.ops[-1 - item].name
        return HangError(
            f"the gate after op {op!r} saw {seen} of {expected} thread blocks begin before the watchdog fired; "
            "another kernel holds the device",
            item=item,
            semaphore=-1,
            expected=expected,
            seen=seen,
            producer=op,
        )
    words, sums = semaphore == AWAITED, semaphore >= plan.semaphores
    posters = np.flatnonzero(plan.items.post == semaphore)
    if words:
        awaited = _describe_ll_wait(plan, item, expected)
        writes = plan.items.post[plan.items.op == expected - 1]
        reached = _find_awaited(plan, np.arange(len(plan.items)) == item) & np.isin(np.arange(plan.semaphores), writes)
        posters = np.flatnonzero((plan.items.post >= 0) & reached[plan.items.post])
    elif sums:
        others = f"{expected} other {'part' if expected == 1 else 'parts'}"
        awaited = f"the sums of {others} of its tile and saw not all of them"
        reached = _find_awaited(plan, plan.tile_of_item == plan.tile_of_item[item])
    else:
        awaited = f"semaphore {semaphore} to reach {expected} posts and saw {seen}"
        reached = np.arange(plan.semaphores) == semaphore
    missing, between = _trace_origin(plan, _find_silent(plan, done, cooperative), reached)
    # An item continues after its wait has failed, and if it posts, it notes the run. If it does not post, the notes of
    # other items may be of the run before.
    noted = plan.items.post[item] >= 0 and done[item] == done.max()
    producer: str | None
    if len(missing):
        behind = "after what posts it, " if sums or between else ""
        told, producer = f"; {behind}{_describe_tiles(plan, missing)} never posted", plan.format_tile(int(missing[0]))
    elif sums:
        told, producer = "", plan.format_tile(item)
    elif noted:
        told, producer = f"; {_describe_tiles(plan, posters)} posted too late, or only when this wait had ended", None
    else:
        told, producer = (
            f"; {_describe_tiles(plan, posters)} never posted, or too late",
            plan.format_tile(int(posters[0])),
        )
    return HangError(
        f"{plan.format_item(item)} (item {item}) waited for {awaited} before the watchdog fired{told}. "
        f"{OUTPUTS_UNDEFINED}",
        item=item,
        semaphore=-1 if words else semaphore,
        expected=expected,
        seen=seen,
        producer=producer,
    )


def _unwrap_runs(done: np.ndarray) -> Ints:
    """Return numbers that increase from run to run, given run numbers as a device counts them; 0 stays 0.

    Two numbers are wrong: that of run 0 itself, and that of a part of a split tile that last noted its run 2^31 ago.
    """
    runs = done.astype(np.uint32)
    some = runs != 0
    since = (runs - runs[some.argmax()]).astype(np.int32).astype(np.int64)
    return np.where(some, since - since.min(initial=0, where=some) + 1, 0)


def _describe_ll_wait(plan: Plan, item: int, number: int) -> str:
    """Return a description of the LL words that an item waited for, given their number in a run."""
    ops = plan.graph.ops
    written = {access.tensor for access in ops[number - 1].writes}
    names = [access.tensor for access in ops[int(plan.items.op[item])].reads if access.tensor in written]
    return f"words of {' and '.join(map(repr, dict.fromkeys(names)))}"


def _describe_tiles(plan: Plan, items: Ints) -> str:
    """Return the name of the first item's tile, and the number of other tiles."""
    more = len(np.unique(plan.tile_of_item[items])) - 1
    return plan.format_tile(int(items[0])) + (f" and {more} more" if more else "")


def _find_silent(plan: Plan, done: np.ndarray, shared: Collection[int] = ()) -> NDArray[np.bool_]:
    """Return a mask of the items that should have posted in the last run and did not, with other parts of their tiles.

    Of the parts of a split tile only the last to arrive posts, so a tile is done when one of its parts is.
    """
    items = plan.items
    _, tile = find_distinct(items.op, items.tile, np.where(np.isin(items.op, [*shared]), items.k_lo, 0))
    last_run = np.zeros(len(items), np.int64)
    np.maximum.at(last_run, tile, done)
    found: NDArray[np.bool_] = (items.post >= 0) & (last_run[tile] < max(int(done.max()), 1))
    if plan.dispatch is Dispatch.SPAWN:  # under all other dispatches, items that are not requested post, too
        found &= np.array([not op.when for op in plan.graph.ops])[items.op]
    return found


def _trace_origin(plan: Plan, silent: NDArray[np.bool_], awaited: NDArray[np.bool_]) -> tuple[Ints, int]:
    """Return the silent items nearest to a wait for some semaphores, and the number of waits in between.

    They post one of these semaphores, or one that the posters of these wait for, and so on. The wait that failed first
    may be any that follows a missing post. All others end with it, and their items post.
    """
    items = plan.items
    known, between = np.zeros_like(awaited), 0
    while awaited.any():
        posters = (items.post >= 0) & awaited[items.post]
        if (posters & silent).any():
            return np.flatnonzero(posters & silent), between
        known |= awaited
        awaited, between = _find_awaited(plan, posters) & ~known, between + 1
    return np.zeros(0, np.int64), between


def _find_awaited(plan: Plan, items: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the semaphores that some items wait for."""
    waits = plan.waits
    rows = items[waits.item]
    return mark_covered(waits.first[rows], waits.count[rows], waits.stride[rows], plan.semaphores)


def _make_never_ready_error(
    plan: Plan, place: int, expected: int, seen: int, done: np.ndarray, came: np.ndarray
) -> HangError:
    """Return the error for a wait for an item that should have become ready."""
    what = f"place {place} of the queue of ready items, to which"
    if plan.dispatch is Dispatch.DISPATCHER:
        what, seen = "an item of the dispatcher, for which", int(came.sum())
    if came.all():
        return HangError(
            f"a worker waited for {what} all of {expected} items came, and was not told that none is left before the "
            f"watchdog fired. {OUTPUTS_UNDEFINED}",
            item=-1,
            semaphore=-1,
            expected=expected,
            seen=expected,
            producer=None,
        )
    lost = _find_lost_item(plan, done, came)
    return HangError(
        f"a worker waited for {what} {seen} of {expected} items came before the watchdog fired; "
        f"{plan.format_item(lost)} (item {lost}) never came, though all that it waits for was posted. "
        f"{OUTPUTS_UNDEFINED}",
        item=lost,
        semaphore=-1,
        expected=expected,
        seen=seen,
        producer=plan.format_tile(lost),
    )


def _find_lost_item(plan: Plan, done: np.ndarray, came: np.ndarray) -> int:
    """Return the first item with no open waits that never entered the queue; some item must be missing."""
    items, waits = plan.items, plan.waits
    short = np.bincount(items.post[_find_silent(plan, done)], minlength=plan.semaphores)
    ready = ~came
    ready[waits.item[fold(np.maximum, short, waits.first, waits.count, waits.stride) > 0]] = False
    lost = np.flatnonzero(ready) if ready.any() else np.flatnonzero(~came)
    return int(lost[0])

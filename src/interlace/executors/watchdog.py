"""What the watchdog left behind, as the error that names who never posted."""

from __future__ import annotations

import numpy as np

from interlace.core.errors import HangError
from interlace.launch.dispatch import EMPTY
from interlace.plan.plan import Dispatch, Plan


def hang_error(
    plan: Plan, item: int, semaphore: int, expected: int, seen: int, done: np.ndarray, came: np.ndarray | None = None
) -> HangError:
    """The error for a wait that the watchdog ended.

    Args:
        done: which items have posted, and in which run.
        came: which items came to a queue of ready items.
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
    posters = np.flatnonzero(plan.items.post == semaphore)
    mine = np.stack([plan.items.op[posters], plan.items.tile[posters]])
    # Of the parts of a split tile only the last to arrive posts, so a tile is done when one of its parts is.
    tiles, group = np.unique(mine, axis=1, return_inverse=True)
    last_run = np.zeros(tiles.shape[1], np.int64)
    np.maximum.at(last_run, group.ravel(), done[posters])
    silent = np.flatnonzero(last_run < last_run.max(initial=0))
    if not len(silent):
        silent = np.arange(tiles.shape[1])
    o, t = tiles[:, silent[0]].tolist() if len(silent) else (0, 0)
    producer = plan.graph.ops[o].tile_name(t) if len(silent) else None
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    return HangError(
        f"{plan.item_name(item)} (item {item}) waited for semaphore {semaphore} to reach {expected} posts and saw "
        f"{seen} before the watchdog fired; {producer}{more} never posted. The outputs of this run are undefined; "
        "counters were reset, the next run starts afresh",
        item=item,
        semaphore=semaphore,
        expected=expected,
        seen=seen,
        producer=producer,
    )


def _lost(plan: Plan, done: np.ndarray, came: np.ndarray) -> int:
    """The first item that did not come to the queue although all that it waits for was posted in the last run."""
    items, waits = plan.items, plan.waits
    tiles, tile = np.unique(np.stack([items.op, items.tile]), axis=1, return_inverse=True)
    last_run = np.zeros(tiles.shape[1], np.int64)  # of each tile: its last part alone notes that it posted
    np.maximum.at(last_run, tile.ravel(), done)
    silent = (items.post >= 0) & (last_run[tile.ravel()] < max(int(done.max(initial=0)), 1))
    short = np.bincount(items.post[silent], minlength=plan.semaphores) > 0
    missing = np.flatnonzero(~came)
    for item in map(int, missing):
        rows = range(int(waits.ptr[item]), int(waits.ptr[item + 1]))
        awaited = (waits.first[row] + waits.stride[row] * np.arange(waits.count[row]) for row in rows)
        if not any(short[some].any() for some in awaited):
            return item
    return int(missing[0]) if len(missing) else 0

"""What the watchdog left behind, as the error that names who never posted."""

from __future__ import annotations

import numpy as np

from interlace.core.errors import HangError
from interlace.plan.plan import Plan


def hang_error(
    plan: Plan, item: int, semaphore: int, expected: int, seen: int, done: np.ndarray
) -> HangError:
    """The error for a wait that the watchdog ended; ``done`` tells which items have posted, and in which run."""
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
            f"{name} (item {item}) waited for {expected} other parts of its tile and saw {seen} before the watchdog "
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

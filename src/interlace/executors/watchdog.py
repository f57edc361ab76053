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
    posters = np.flatnonzero(plan.items.post == semaphore)
    silent = posters[done[posters] < done[posters].max(initial=0)] if len(posters) else posters
    if not len(silent):
        silent = posters
    producer = plan.item_name(int(silent[0])) if len(silent) else None
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

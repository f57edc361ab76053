"""Spawn dispatch as CUDA C++: a queue to which items come when others spawn them, and how workers find that it ended.

A worker draws a place in the queue. The first places are those of the items that run in any case and wait for none that
may not; a further one is a slot, which the warp that posts fills for each item that the one which it posts wants: it
reads the elements that the item wrote (``plan/spawns``). Which are drawn and not filled nobody knows, so a worker polls
its slot, and whether anything is outstanding. When nothing is, it draws the items behind, by ticket and in sequence.

    count         items that came to the queue and are not done: counted before they are put there, counted off behind
                  all that they put. A worker polls the count, too; it never rises again from 0
    done items    the same count; but who counts the last off puts an item for each worker that says so, and a worker
                  polls its slot alone
    votes         no count: a worker that has nothing, whose items are all posted, votes with the number of items that
                  ever came. When all have voted with the same number, no item is held, and none that came is left

What a spawned item reads of those that it descends from, and what items behind read of spawned ones, is ordered by the
queue itself: who puts an item releases, who takes it acquires; whoever is done releases to the count, a done item or a
vote, and who sees the end acquires. Spawned items post no semaphore.

A run uses one of two sets of counters, and clears the other for the next; who takes an item clears its slot. A vote has
the run's number beside its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from interlace.csrc import read_header
from interlace.kernels.abi import Struct

#: Behind the first items' rows those that run behind; of each item (by its number) its children, of these the rows, the
#: element that says whether each is wanted, and the number of that tensor among the addresses behind the operands, of
#: which there are ``ops`` rows; two sets of counters; a slot for each item that may come and for each block; each
#: block's vote, then how many items it has posted; how many items are first, behind, and may come; semaphores.
SPAWN = Struct(
    "Queue",
    (
        *((name, "const int*") for name in ("first", "behind", "children", "rows", "elements", "tensors")),
        ("counters", "unsigned*"),
        ("slots", "unsigned long long*"),
        ("votes", "unsigned long long*"),
        *((name, "int") for name in ("ready", "later", "capacity", "ops", "semaphores")),
    ),
)
#: Counters of a set, and unsigned words from one to the next: each has a line of its own.
COUNTERS, SPREAD = 4, 32
#: What is recorded in place of a semaphore: a place of the queue that nobody fills; an item that found no place; an
#: item that ran, or came, when workers had taken all to be done.
LOST, OVERFLOW, EARLY_END = -3, -4, -5


class Termination(Enum):
    """How workers find under spawn dispatch that nothing is outstanding."""

    COUNT = "count"
    """A count of what is outstanding, which all poll who have nothing to do."""
    DONE_ITEMS = "done items"
    """The same, but who counts the last off puts an item for each worker that says so."""
    VOTES = "votes"
    """Each worker that has nothing to do votes, and looks at all votes; all must be resident."""


_QUEUE = read_header("dispatch/spawn/queue.cuh")

_SPAWN_COUNT = read_header("dispatch/spawn/counted.cuh")

_COUNT = read_header("dispatch/spawn/count.cuh")

_DONE_ITEMS = read_header("dispatch/spawn/done_items.cuh")

_VOTES = read_header("dispatch/spawn/votes.cuh")

_TICKETS = read_header("dispatch/spawn/tickets.cuh")

_PUBLISH = read_header("dispatch/spawn/publish.cuh")

_ENDS = {
    Termination.COUNT: _SPAWN_COUNT + _COUNT,
    Termination.DONE_ITEMS: _SPAWN_COUNT + _DONE_ITEMS,
    Termination.VOTES: _VOTES,
}
_CONSTANTS = f"""
constexpr int COUNTERS = {COUNTERS}, SPREAD = {SPREAD}, LOST = {LOST}, OVERFLOW = {OVERFLOW}, EARLY = {EARLY_END};
constexpr unsigned DONE = 0xffffffffu;  // in place of an item's row and 1
"""

#: What stands behind how tickets are drawn, and how a warp waits until what it sent is finished.
SPAWNING: Mapping[Termination, str] = {
    kind: _CONSTANTS + _QUEUE + text + _TICKETS + _PUBLISH for kind, text in _ENDS.items()
}

"""Who takes which item when, as CUDA C++: what the warp that draws asks for its next item.

A text has a struct ``Tickets``, which that warp holds:

    begin(launch)        once a run; returns the number of the run
    take(launch, sent)   the row of the next item, -1 if none is left; so many are sent already
    known()              the row that it will be, -1 if that is not known yet
    look(launch)         between two loads of an item

and ``publish(launch, item, semaphore)``, by which the warp that posts does so, with ``finish`` behind it, and
``serve(launch)`` for the warp that has no other role, both of which are a dispatcher's (``megakernel/dispatcher``).

``starts`` counts without end and tells the runs apart: each run adds ``programs`` to it, whoever gets which number.

    ticket      items in sequence by one counter. Items wait for smaller tickets only, and a block takes its own in
                order: whoever holds the smallest unfinished ticket never waits, for any number of blocks
    static      a block's list, from front to back
    hybrid      the same; then items of one list for all, by a counter of tickets, in sequence and behind all others
    stealing    a block's list; then items of other blocks' lists, each from its front, too: the first of them runs
                next, others are the block's list now. A block that is done with its list finishes what it holds before
                it takes from another's, so that it never waits in front of an item that others wait for: the smallest
                unfinished item is at the front of a list, and that block is free to take it, or its holder has
                finished all before it

    queue       tickets, but they are places in a queue of items whose waits are met, in the order in which they are: an
                item taken never waits. It is filled by whoever makes the last post that a group of items waits for
                (``megakernel/ready``). In some order without cycles the first unfinished item is in the queue or taken
                already, so there is progress for any number of blocks

    dispatcher  what the dispatcher gives: items whose waits are met, each to one block
    spawn       a queue to which items come when others spawn them (``megakernel/spawn``)

The words that tell who takes what, of lists (``megakernel/stealing``) and of the queue of ready items, order nothing
else: what items read is ordered by their own waits. The queue has a slot for each item that is not ready from the
start, and a run fills each slot once, so it is never too full. A slot has the run's number beside the item's row, and
counters of semaphores met only grow, so nothing is ever cleared.

Where items are not all a block's own, it takes them late, so that another may have them: two are held at most, one that
is computed and one that loads. Tickets are drawn as early as the ring has room, but where no op has anything to load
ahead, and none behind an item that has nothing to load before that item begins: there is room for several such, and the
block that starts first would have them all (``CLAIMS_AHEAD``). Nor is one drawn so behind an item that waits, of the
last ones, one for each block (``compose.LAST``), before what is left of it fits the ring: who is done early would have
two, one behind the other, and who comes later none. That none is left such a block hears some stages before the end, so
the next launch is not held up. Under the queue a block holds one alone unless another is there; a thief, too, unless
what it holds waits for nothing, so that it ends whatever stands behind it, and lists have more than an item for each
block. Where no op has anything to load ahead, the last items, one for each block, go to blocks that hold nothing, if
they wait for nothing: behind a long item one begins later than where whoever is free first takes it, by up to all of an
item, and the way to it, which is then not hidden, takes 1 or 2 us.
"""

from __future__ import annotations

from collections.abc import Mapping

from interlace.csrc import read_header
from interlace.kernels.abi import Struct
from interlace.kernels.bodies import NO_CLUSTER, Cluster
from interlace.megakernel.cluster import CLUSTER_TICKETS
from interlace.megakernel.dispatcher import DISPATCHER, NO_DISPATCHER
from interlace.megakernel.spawn import SPAWN, SPAWNING, Termination
from interlace.megakernel.stealing import ROW_BITS, STEALING
from interlace.plan.plan import Dispatch
from interlace.plan.stealing import Stealing, Victim

#: A queue of ready items: ``megakernel/ready`` in memory, groups by where they begin; of each group the semaphores that
#: were complete, in all runs; how many items came to the queue, in all runs; the slots, run + 1 and a row in each; how
#: many items are ready from the start. A dispatcher has in place of the tail the number of the run, and of each
#: semaphore the posts that it was told of.
QUEUE = Struct(
    "Queue",
    (
        *((name, "const int*") for name in ("first", "posts", "wakes", "groups", "members", "rows", "missing")),
        ("met", "unsigned*"),
        ("tail", "unsigned*"),
        ("slots", "unsigned long long*"),
        ("ready", "int"),
    ),
)
#: What a worker that finds nothing in the queue records in place of a semaphore.
EMPTY = -2
#: Items that a block holds at most where it takes them late.
MAX_HELD_ITEMS = 2

_CLAIM = read_header("dispatch/claim.cuh")

_PUBLISH = read_header("dispatch/publish.cuh")

_COUNTER = read_header("dispatch/counter.cuh")

_TICKET = read_header("dispatch/ticket.cuh")

_LATE_TICKET = read_header("dispatch/late_ticket.cuh")

_STATIC = read_header("dispatch/static.cuh")

_HYBRID = read_header("dispatch/hybrid.cuh")

_EMPTY = f"\nenum {{ EMPTY = {EMPTY} }};"
_HELD_ITEMS = f"\nconstexpr int HELD = {MAX_HELD_ITEMS};\nconstexpr bool LAST_ALONE = PREFETCH_BYTES == 0;\n"

_WAITS = read_header("dispatch/waits.cuh")

_QUEUE = read_header("dispatch/queue.cuh")

_SOURCES: Mapping[Dispatch, str] = {
    Dispatch.TICKET: _CLAIM + _PUBLISH + NO_DISPATCHER + _COUNTER + _TICKET,
    Dispatch.STATIC: _CLAIM + _PUBLISH + NO_DISPATCHER + _STATIC,
    Dispatch.HYBRID: _CLAIM + _PUBLISH + NO_DISPATCHER + _HELD_ITEMS + _WAITS + _HYBRID,
    Dispatch.STEALING: _CLAIM + _PUBLISH + NO_DISPATCHER + _HELD_ITEMS + _WAITS + STEALING,
    Dispatch.QUEUE: _CLAIM + NO_DISPATCHER + _COUNTER + _HELD_ITEMS + _EMPTY + _QUEUE,
    Dispatch.DISPATCHER: _CLAIM + _PUBLISH + _HELD_ITEMS + _EMPTY + DISPATCHER,
    Dispatch.SPAWN: _CLAIM + NO_DISPATCHER + _HELD_ITEMS,
}


def generate_source(
    dispatch: Dispatch,
    termination: Termination = Termination.COUNT,
    loads_ahead: bool = True,
    cluster: Cluster = NO_CLUSTER,
) -> str:
    """What stands behind the walk, of a launch in which some op has something to load ahead or none has."""
    if dispatch is Dispatch.TICKET and cluster != NO_CLUSTER:
        return _CLAIM + _PUBLISH + NO_DISPATCHER + _COUNTER + CLUSTER_TICKETS
    if dispatch is Dispatch.TICKET and not loads_ahead:
        return _CLAIM + _PUBLISH + NO_DISPATCHER + _COUNTER + _HELD_ITEMS + _WAITS + _LATE_TICKET
    return _SOURCES[dispatch] + (SPAWNING[termination] if dispatch is Dispatch.SPAWN else "")


def claims_ahead(dispatch: Dispatch, loads_ahead: bool) -> bool:
    """Whether blocks draw items as early as the ring has room, which others might begin sooner."""
    return dispatch is Dispatch.TICKET and loads_ahead


def select_queue_struct(dispatch: Dispatch) -> Struct:
    """The struct of the queue that a launch has."""
    return SPAWN if dispatch is Dispatch.SPAWN else QUEUE


def generate_constants(dispatch: Dispatch, stealing: Stealing, blocks: int) -> dict[str, int]:
    """What a text is compiled with, for at most so many blocks."""
    if dispatch is Dispatch.DISPATCHER:
        return {"LOOKS": -(-blocks // 32)}
    if dispatch is not Dispatch.STEALING:
        return {}
    most = (1 << ROW_BITS) - 1 if stealing.most is None else min(stealing.most, (1 << ROW_BITS) - 1)
    return {
        "MOST_STOLEN": most,
        "RANDOM_VICTIMS": int(stealing.victim is Victim.RANDOM),
        "ROW_BITS": ROW_BITS,
    }

"""Input, state and outcome of the event loop of the simulated machine.

All of them are tuples of arrays, so that compiled code accepts them. NumPy allocates the arrays: numba would compile
each kind of allocation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.sim.memory import Floats

Mask = NDArray[np.bool_]

FREE, AHEAD, READY, WORK, DONE, IDLE = range(6)
NEVER = np.inf


class MachineModel(NamedTuple):
    """Workers and their speeds; see ``Latencies`` and ``Mode``.

    Attributes:
        workers: number of workers.
        gate: a ``Gate``.
        ahead: True if loads run ahead of waits.
        max_stolen: maximum number of items that a worker with an empty queue steals from another queue at once, at a
            cost of ``steal_ns``; 0 if nothing is stolen.
        random_victims: True if the victim is any other queue; otherwise it is the next one.
        shared: True if the last queue serves all workers whose own is empty; only its items then cost a ticket.
        in_turn: True if an item enters the single queue once the semaphores that it waits for have all posts.
        dram, worker_dram, worker_l2: bandwidth of the memory, and the most that one worker draws from memory and from
            the L2, in bytes/ns.
    """

    workers: int
    gate: int
    ahead: bool
    dram: float
    worker_dram: float
    worker_l2: float
    post_ns: float
    wait_ns: float
    ticket_ns: float
    max_stolen: int
    random_victims: bool
    steal_ns: float
    shared: bool
    in_turn: bool
    launch_ns: float


class Work(NamedTuple):
    """Items to run and their costs. Item i has the waits ``wait_ptr[i]:wait_ptr[i + 1]`` of the columns after it (CSR).

    Attributes:
        items, queue_ptr: as in ``Queues``.
        op_ptr, before, next_ptr, next: as in ``Launches``, where ``op_ptr`` is called ``ptr``.
        op, tile, post: op, tile and posted semaphore of each item; tiles of all ops are numbered together.
        parts: number of items of each tile.
        first, semaphores, stride, threshold: as in ``Waits``, where ``semaphores`` is called ``count``.
        hand_off_ns: time from a post to the end of the wait.
        share: fraction of the item's work that precedes the wait; 0 if the wait precedes all work.
        post_ns, fill_ns: duration of the item's post and of its first loads.
        compute_ns: minimum duration of the item's FLOPs.
        l2_bytes: all bytes that the item moves.
        extra_ns: time in addition to the longer of compute and L2 transfers.
        dram_bytes: part of ``l2_bytes`` that comes from memory.
        ahead_bytes: part of ``dram_bytes`` that may be loaded ahead of the item's waits.
    """

    items: Ints
    queue_ptr: Ints
    op_ptr: Ints
    before: Ints
    next_ptr: Ints
    next: Ints
    op: Ints
    tile: Ints
    post: Ints
    parts: Ints
    wait_ptr: Ints
    first: Ints
    semaphores: Ints
    stride: Ints
    threshold: Ints
    hand_off_ns: Floats
    share: Floats
    post_ns: Floats
    fill_ns: Floats
    compute_ns: Floats
    l2_bytes: Floats
    extra_ns: Floats
    dram_bytes: Floats
    ahead_bytes: Floats


class Outcome(NamedTuple):
    """Times of each item, NEVER for an event that did not happen, and the posts of each semaphore."""

    worker: Ints
    wait_ns: Floats
    start_ns: Floats
    end_ns: Floats
    posts: Ints


class State(NamedTuple):
    """State of a run.

    Attributes:
        state, when, limit: next action of each worker, the time of that action, and the latest time for it.
        when_bits: ``when`` as integers, see ``lowest``.
        held, share, arrived, latest: current or last item of each worker, share of its work that is done, arrival at
            that point, and end of its last wait.
        cold, stolen, pays: True for a worker that loaded nothing ahead for its item, that stole it, and that pays for
            a ticket.
        row, place, next_blocked: row and semaphore index of the wait that each worker polls, and the next worker
            blocked on the same semaphore.
        left, demand, slowness, loaded: ns of work left at full speed for each worker, bytes/ns that full speed demands,
            the inverse, and bytes loaded ahead.
        thefts: number of thefts of each worker.
        posted, blocked: time of the last post of each semaphore, and the first worker blocked on it.
        following, ends: next position and end of each queue.
        missing: number of parts of each tile that have not ended.
        next_row, next_place: if items enter when they are ready, the wait and semaphore that each item lacks.
        watched, next_watched: if items enter when they are ready, the first item that lacks posts of each semaphore,
            and the next such item. At first, ``next_watched`` links all items in sequence order.
        ready, first_item: items in the order in which they became ready, and the first item of the sequence.
        cursor, unended, closed: if ops open one by one, the next item of each op, the number of its items that have not
            ended, and the number of ops that must open or end before it.
        opens, begun: time when each op opens, and the earliest possible time as far as is known.
    """

    state: Ints
    when: Floats
    when_bits: Ints
    limit: Floats
    held: Ints
    share: Floats
    arrived: Floats
    latest: Floats
    cold: Mask
    stolen: Mask
    pays: Mask
    row: Ints
    place: Ints
    next_blocked: Ints
    left: Floats
    demand: Floats
    slowness: Floats
    loaded: Floats
    thefts: Ints
    posted: Floats
    blocked: Ints
    following: Ints
    ends: Ints
    missing: Ints
    next_row: Ints
    next_place: Ints
    watched: Ints
    next_watched: Ints
    ready: Ints
    first_item: int
    cursor: Ints
    unended: Ints
    closed: Ints
    opens: Floats
    begun: Floats

    @staticmethod
    def allocate(work: Work, machine: MachineModel, posts: Ints) -> State:
        """Return the state before the first action."""
        n, semaphores, closed, when = machine.workers, len(posts), work.before.copy(), np.zeros(machine.workers)
        all_items, items = (len(work.wait_ptr) - 1, np.sort(work.items)) if machine.in_turn else (0, work.items[:0])
        next_watched = np.full(all_items, -1)
        next_watched[items[:-1]] = items[1:]
        return State(
            state=np.full(n, FREE),
            when=when,
            when_bits=when.view(np.int64),
            limit=np.full(n, NEVER),
            held=np.full(n, -1),
            share=np.zeros(n),
            arrived=np.zeros(n),
            latest=np.zeros(n),
            cold=np.ones(n, np.bool_),
            stolen=np.zeros(n, np.bool_),
            pays=np.ones(n, np.bool_),
            row=np.zeros(n, np.int64),
            place=np.zeros(n, np.int64),
            next_blocked=np.full(n, -1),
            left=np.zeros(n),
            demand=np.zeros(n),
            slowness=np.zeros(n),
            loaded=np.zeros(n),
            thefts=np.zeros(n, np.int64),
            posted=np.full(semaphores, -NEVER),
            blocked=np.full(semaphores, -1),
            following=work.queue_ptr[:-1].copy(),
            ends=work.queue_ptr[1:].copy(),
            missing=work.parts.copy(),
            next_row=work.wait_ptr[:all_items].copy(),
            next_place=np.zeros(all_items, np.int64),
            watched=np.full(semaphores, -1),
            next_watched=next_watched,
            ready=np.full(len(items), -1),
            first_item=int(items[0]) if len(items) else -1,
            cursor=work.op_ptr[:-1].copy(),
            unended=work.op_ptr[1:] - work.op_ptr[:-1],
            closed=closed,
            opens=np.where(closed > 0, NEVER, 0.0),
            begun=np.zeros(len(closed)),
        )

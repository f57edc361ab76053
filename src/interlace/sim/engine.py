"""The event loop of the simulated machine, compiled.

A worker is always about to do one thing, at a time that is known, or known as long as memory is shared as it is,
or unknown because it waits for a post:

    FREE     take the next item                        when the item before has ended
    IDLE     the same, which was not there yet         when the first launch opens that has items, or items are ready
    AHEAD    have loaded what runs ahead of a wait     when that is complete, or when the wait has ended
    READY    begin or resume work                      when the wait has ended
    WORK     come to the next wait or the end          when the work up to there is done
    DONE     nothing                                   never

The loop takes the earliest of these times (of equal ones that of the lowest worker) and lets that worker act.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from interlace.core.jit import cached_njit
from interlace.graph.access import Ints
from interlace.sim.memory import UNLIMITED, Floats, count_work, find_level, foresee
from interlace.sim.modes import Gate
from interlace.sim.steal import victim

FREE, AHEAD, READY, WORK, DONE, IDLE = range(6)
NEVER = np.inf


class Machine(NamedTuple):
    """Who works, and how fast; see ``Latencies`` and ``Mode``.

    Attributes:
        workers: how many.
        gate: a ``Gate``.
        ahead: loads run ahead of waits.
        most_stolen: items that a worker whose queue is empty takes from another's at once, at ``steal_ns``; 0 if none.
        random_victims: from any other; else from the next.
        shared: the last queue is for all workers whose own is empty, and only its items cost a ticket.
        in_turn: items come to the one queue when the semaphores that they wait for have all posts.
        dram, worker_dram, worker_l2: bytes/ns of the memory, and at most of one worker.
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
    most_stolen: int
    random_victims: bool
    steal_ns: float
    shared: bool
    in_turn: bool
    launch_ns: float


class Work(NamedTuple):
    """What is to be done. Waits of item i are rows ``wait_ptr[i]:wait_ptr[i + 1]`` of the columns behind it.

    Attributes:
        items, queue_ptr: as in ``Queues``.
        op_ptr, before, next_ptr, next: as in ``Launches``, where ``op_ptr`` is called ``ptr``.
        op, tile, post, parts: of each item; tiles of all ops are numbered together, and each has so many items.
        first, semaphores, stride, threshold: as in ``Waits``, where ``semaphores`` is called ``count``.
        hand_over_ns, share: from a post to the wait's end; how much of the item's work stands before it, 0 for none.
        post_ns, fill_ns: what the item's post takes, and its first loads.
        compute_ns: what its FLOPs take at least.
        l2_bytes: all bytes that it moves.
        extra_ns: what it takes on top of the longer of both.
        dram_bytes: those of them that come from memory.
        ahead_bytes: those of them that may be loaded ahead of its waits.
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
    hand_over_ns: Floats
    share: Floats
    post_ns: Floats
    fill_ns: Floats
    compute_ns: Floats
    l2_bytes: Floats
    extra_ns: Floats
    dram_bytes: Floats
    ahead_bytes: Floats


class Outcome(NamedTuple):
    """What came of it: times of each item, NEVER where it did not come to that, and posts of each semaphore."""

    worker: Ints
    wait_ns: Floats
    start_ns: Floats
    end_ns: Floats
    posts: Ints


@cached_njit
def lowest(bits: Ints) -> int:
    """The worker of the earliest time, the first of several.

    Times that are not negative compare as their bits do, and the least of integers, unlike that of floats, is found by
    vectors.
    """
    least = bits[0]
    for w in range(1, len(bits)):
        least = min(least, bits[w])
    at = 0
    while bits[at] != least:
        at += 1
    return at


@cached_njit
def run(work: Work, machine: Machine, out: Outcome) -> None:
    """Run until nothing happens any more, which is also so when all items left wait for ever."""
    # Arrays in tuples would be counted as references at each use, so everything has a name of its own here, and
    # what a worker does is told by functions within this one.
    items, queue_ptr, op_of, tile_of, post_of = work.items, work.queue_ptr, work.op, work.tile, work.post
    wait_ptr, first, count, stride = work.wait_ptr, work.first, work.semaphores, work.stride
    threshold, share_before, parts, hand_over_ns = work.threshold, work.share, work.parts, work.hand_over_ns
    compute_ns, l2_bytes, extra_ns = work.compute_ns, work.l2_bytes, work.extra_ns
    dram_bytes, ahead_bytes, post_ns, fill_ns = work.dram_bytes, work.ahead_bytes, work.post_ns, work.fill_ns
    op_ptr, next_ptr, next_op = work.op_ptr, work.next_ptr, work.next
    out_worker, out_wait, out_start, out_end, posts = out.worker, out.wait_ns, out.start_ns, out.end_ns, out.posts

    workers = machine.workers
    # Of each worker: what it does next and when, and by when in any case.
    state, when, limit = np.full(workers, FREE), np.zeros(workers), np.full(workers, NEVER)
    # What it holds, or held last; where in the item it stands, when it came there, and when the last wait ended.
    held, share, arrived, latest = np.full(workers, -1), np.zeros(workers), np.zeros(workers), np.zeros(workers)
    cold, stolen, pays = np.ones(workers, np.bool_), np.zeros(workers, np.bool_), np.ones(workers, np.bool_)
    # Wait and semaphore of the wait that it looks at, and who waits for the same semaphore.
    row, place, next_blocked = np.zeros(workers, np.int64), np.zeros(workers, np.int64), np.full(workers, -1)
    # Nanoseconds of work left at full speed, bytes/ns that it then wants, the inverse, and bytes loaded ahead.
    left, demand, slowness, loaded = np.zeros(workers), np.zeros(workers), np.zeros(workers), np.zeros(workers)
    # Of each semaphore: the last post, and the first who waits.
    posted, blocked = np.full(len(posts), -NEVER), np.full(len(posts), -1)
    # Of each queue, the next and where it ends; of each tile, parts to end; of each worker, how often it stole.
    following, ends, missing = queue_ptr[:-1].copy(), queue_ptr[1:].copy(), parts.copy()
    thefts = np.zeros(workers, np.int64)
    # Of each item, if items come when they are ready: the wait and the semaphore that it lacks, and who lacks it, too.
    all_items, ready_items = (len(wait_ptr) - 1, len(items)) if machine.in_turn else (0, 0)
    next_row, next_place = wait_ptr[:all_items].copy(), np.zeros(all_items, np.int64)
    watched, next_watched = np.full(len(posts), -1), np.full(all_items, -1)
    ready, head, tail = np.full(ready_items, -1), np.zeros(1, np.int64), np.zeros(1, np.int64)
    # Of each op, if ops open one by one: its next item, how many have not ended, how many ops must open or end before
    # it opens, and when it does, or when it could as far as is known.
    cursor, unended, closed = op_ptr[:-1].copy(), op_ptr[1:] - op_ptr[:-1], work.before.copy()
    opens, begun = np.where(closed > 0, NEVER, 0.0), np.zeros(len(closed))
    earliest = np.zeros(1, np.int64)  # op with items left
    # Of the machine: the level of memory, and up to when work is counted.
    level, since = np.full(1, UNLIMITED), np.zeros(1)

    def change(w: int, t: float, wanted: float) -> None:
        """From t on the worker wants so much of memory; what all have done is counted up to t."""
        count_work(left, slowness, level[0], t - since[0])
        since[0] = t
        demand[w] = wanted
        slowness[w] = 1.0 / wanted if wanted > 0.0 else 0.0

    def share_out(t: float) -> None:
        """Share memory anew, and tell when everybody who loads acts."""
        level[0] = find_level(demand, machine.dram)
        foresee(when, limit, demand, left, 1.0 / level[0], t)

    def met(w: int) -> bool:
        """Look at semaphore after semaphore; False at one that lacks posts, in whose list the worker then is."""
        end = wait_ptr[held[w] + 1]
        while row[w] < end and share_before[row[w]] <= share[w]:
            r = row[w]
            while place[w] < count[r]:
                semaphore = first[r] + place[w] * stride[r]
                if posts[semaphore] < threshold[r]:
                    next_blocked[w], blocked[semaphore] = blocked[semaphore], w
                    return False
                latest[w] = max(latest[w], posted[semaphore] + hand_over_ns[r])
                place[w] += 1
            row[w] += 1
            place[w] = 0
        return True

    def release(w: int) -> None:
        """The waits are met: when does the worker know, and when can it multiply?"""
        start = max(arrived[w], latest[w])
        ready = start
        if share[w] == 0.0:
            out_start[held[w]] = start
            if not machine.ahead or cold[w] or start > arrived[w]:
                ready += fill_ns[held[w]]
        limit[w] = ready
        when[w] = min(when[w], ready)

    def stand(w: int, t: float) -> None:
        """Stand before the waits that come at this share of the work, if any do."""
        r = row[w]
        waits = r < wait_ptr[held[w] + 1] and share_before[r] <= share[w]
        arrived[w] = t + machine.wait_ns if waits and not machine.ahead else t
        latest[w], place[w], state[w] = -NEVER, 0, READY
        when[w] = limit[w] = NEVER
        if met(w):
            release(w)

    def open_next(o: int, t: float) -> None:
        """An op opened or ended at t, as what comes after it waited for."""
        for n in range(next_ptr[o], next_ptr[o + 1]):
            behind = next_op[n]
            begun[behind] = max(begun[behind], t)
            closed[behind] -= 1
            if closed[behind] == 0:
                opens[behind] = begun[behind] + machine.launch_ns
                for v in range(workers):
                    if state[v] == IDLE:
                        when[v] = min(when[v], opens[behind])

    def from_launch(w: int, t: float) -> int:
        """The next item of the first op that is open, or -1; then the worker comes back when one opens, or retires."""
        o, opening = earliest[0], NEVER
        while o < len(cursor) and cursor[o] == op_ptr[o + 1]:
            o += 1
        earliest[0] = o
        if o == len(cursor):
            state[w], when[w] = DONE, NEVER
            return -1
        while o < len(cursor):
            if cursor[o] < op_ptr[o + 1]:
                if opens[o] <= t:
                    cursor[o] += 1
                    if machine.gate == Gate.TAKEN and cursor[o] == op_ptr[o + 1]:
                        open_next(o, t)
                    return int(items[cursor[o] - 1])
                opening = min(opening, opens[o])
            o += 1
        state[w], when[w] = IDLE, opening
        return -1

    def come(item: int) -> bool:
        """Look at all that the item waits for; False at a semaphore that lacks posts, by which it then is watched."""
        while next_row[item] < wait_ptr[item + 1]:
            r = next_row[item]
            while next_place[item] < count[r]:
                semaphore = first[r] + next_place[item] * stride[r]
                if posts[semaphore] < threshold[r]:
                    next_watched[item], watched[semaphore] = watched[semaphore], item
                    return False
                next_place[item] += 1
            next_row[item] += 1
            next_place[item] = 0
        ready[tail[0]] = item
        tail[0] += 1
        return True

    def wake(semaphore: int, t: float) -> None:
        """A post was made: items that wait for nothing more come to the queue, in sequence, and workers for them."""
        before, item = tail[0], watched[semaphore]
        watched[semaphore] = -1
        while item >= 0:
            following_item = next_watched[item]
            come(item)
            item = following_item
        if tail[0] > before:
            ready[before : tail[0]].sort()
            for v in range(workers):
                if state[v] == IDLE:
                    when[v] = min(when[v], t)

    def from_ready(w: int) -> int:
        """The next item whose waits are met, or -1; then the worker comes back when there is one, or retires."""
        if head[0] < tail[0]:
            head[0] += 1
            return int(ready[head[0] - 1])
        state[w], when[w] = IDLE if head[0] < len(ready) else DONE, NEVER
        return -1

    def from_queue(w: int) -> int:
        """The next item of the worker's queue, or of one that it may take from, or -1; then it retires."""
        own = w if len(ends) > 1 else 0
        queue = len(ends) - 1 if machine.shared and following[own] == ends[own] else own
        if machine.most_stolen > 0 and following[own] == ends[own]:
            queue = victim(following, ends, own, machine.random_victims, thefts[w])
            thefts[w] += 1
        at, rest = following[queue], ends[queue] - following[queue]
        if rest == 0:
            state[w], when[w] = DONE, NEVER
            return -1
        stolen[w], pays[w] = queue != own and not machine.shared, queue != own or not machine.shared
        some = min(machine.most_stolen, (rest + 1) // 2) if stolen[w] else 1
        following[queue] += some
        if some > 1:
            following[own], ends[own] = at + 1, at + some
        return int(items[at])

    def take(w: int, t: float) -> None:
        """Take the next item if there is one."""
        launched = machine.gate != Gate.OPEN
        item = from_launch(w, t) if launched else from_ready(w) if machine.in_turn else from_queue(w)
        if item >= 0:
            cold[w] = held[w] < 0 or stolen[w] or (launched and op_of[held[w]] != op_of[item])
            held[w], row[w] = item, wait_ptr[item]
            share[w] = loaded[w] = 0.0
            arrives = t + (machine.steal_ns if stolen[w] else machine.ticket_ns if pays[w] else 0.0)
            out_worker[item], out_wait[item] = w, arrives
            stand(w, arrives)
            if machine.ahead and ahead_bytes[item] > 0.0 and out_start[item] > out_wait[item]:
                state[w] = AHEAD
                change(w, t, machine.worker_dram)
                left[w] = ahead_bytes[item] / machine.worker_dram
                share_out(t)

    def resume(w: int, t: float) -> None:
        """Work up to the next wait or to the end."""
        item, r = held[w], row[w]
        until = share_before[r] if r < wait_ptr[item + 1] else 1.0
        dram = dram_bytes[item] - loaded[w]
        l2_ns = (l2_bytes[item] - loaded[w]) / machine.worker_l2
        whole_ns = max(max(compute_ns[item], l2_ns) + extra_ns[item], dram / machine.worker_dram)
        ns = whole_ns * (until - share[w])
        limit[w] = NEVER
        state[w], share[w], when[w] = WORK, until, t + ns
        if dram > 0.0:
            change(w, t, dram / whole_ns)
            left[w] = ns
            share_out(t)

    def end(w: int, t: float) -> None:
        """Arrive, if a part of a tile; post, if the last of its tile; let launches open, if the last of its op."""
        item = held[w]
        tile = tile_of[item]
        ends = t + machine.post_ns if parts[tile] > 1 else t
        missing[tile] -= 1
        if missing[tile] == 0 and post_of[item] >= 0:
            semaphore = post_of[item]
            posts[semaphore] += 1
            posted[semaphore] = max(posted[semaphore], ends)
            ends += post_ns[item]
            v = blocked[semaphore]
            blocked[semaphore] = -1
            while v >= 0:
                following_v = next_blocked[v]
                if met(v):
                    release(v)
                v = following_v
            if machine.in_turn:
                wake(semaphore, t)
        out_end[item] = ends
        state[w], when[w] = FREE, ends
        if machine.gate == Gate.ENDED:
            o = op_of[item]
            unended[o] -= 1
            begun[o] = max(begun[o], ends)
            if unended[o] == 0:
                open_next(o, begun[o])

    if machine.in_turn:
        for item in np.sort(items):
            come(item)
    when_bits = when.view(np.int64)
    while True:
        w = lowest(when_bits)
        t = when[w]
        if t == NEVER:
            return
        if demand[w] > 0.0:
            wanted = demand[w]
            change(w, t, 0.0)
            if state[w] == AHEAD:
                loaded[w] = ahead_bytes[held[w]] - left[w] * wanted
            share_out(t)
        if state[w] == FREE or state[w] == IDLE:
            take(w, t)
        elif state[w] == READY:
            resume(w, t)
        elif state[w] == AHEAD:
            state[w], when[w] = READY, limit[w]
        elif row[w] < wait_ptr[held[w] + 1]:
            stand(w, t)
        else:
            end(w, t)

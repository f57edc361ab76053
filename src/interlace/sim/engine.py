"""Event loop of the simulated machine, compiled.

Each worker has one next action. The time of that action is known, known as long as the shares of memory do not change,
or unknown because the worker waits for a post:

    FREE     take the next item                        when the previous item has ended
    IDLE     take the next item; none was available    when the first launch with items opens, or items become ready
    AHEAD    finish the loads that run ahead           when they are complete, or when the wait has ended
    READY    begin or resume work                      when the wait has ended
    WORK     reach the next wait or the end            when the work up to that point is done
    DONE     nothing                                   never

The loop takes the earliest of these times (of equal ones that of the lowest worker) and lets that worker act.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from interlace.core.jit import cached_njit
from interlace.graph.access import Ints
from interlace.sim.memory import UNLIMITED, Floats, count_work, find_level, schedule_next_actions
from interlace.sim.modes import Gate
from interlace.sim.steal import choose_victim

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


@cached_njit
def find_earliest(bits: Ints) -> int:
    """Return the worker with the earliest time, the lowest of several.

    Non-negative floats compare like their bits, and the minimum of integers vectorises while that of floats does not.
    """
    least = bits[0]
    for w in range(1, len(bits)):
        least = min(least, bits[w])
    at = 0
    while bits[at] != least:
        at += 1
    return at


@cached_njit
def run_engine(work: Work, machine: MachineModel, out: Outcome) -> None:
    """Run until nothing happens any more, which includes the case that all remaining items wait for ever."""
    # Arrays in tuples would be reference-counted at each use. Each array therefore has a local name, and the actions
    # of a worker are closures of this function.
    items, queue_ptr, op_of, tile_of, post_of = work.items, work.queue_ptr, work.op, work.tile, work.post
    wait_ptr, first, count, stride = work.wait_ptr, work.first, work.semaphores, work.stride
    threshold, share_before, parts, hand_over_ns = work.threshold, work.share, work.parts, work.hand_off_ns
    compute_ns, l2_bytes, extra_ns = work.compute_ns, work.l2_bytes, work.extra_ns
    dram_bytes, ahead_bytes, post_ns, fill_ns = work.dram_bytes, work.ahead_bytes, work.post_ns, work.fill_ns
    op_ptr, next_ptr, next_op = work.op_ptr, work.next_ptr, work.next
    out_worker, out_wait, out_start, out_end, posts = out.worker, out.wait_ns, out.start_ns, out.end_ns, out.posts

    workers = machine.workers
    # Per worker: its next action, the time of that action, and the latest time for it.
    state, when, limit = np.full(workers, FREE), np.zeros(workers), np.full(workers, NEVER)
    # Per worker: current or last item, share of its work that is done, arrival at that point, end of the last wait.
    held, share, arrived, latest = np.full(workers, -1), np.zeros(workers), np.zeros(workers), np.zeros(workers)
    cold, stolen, pays = np.ones(workers, np.bool_), np.zeros(workers, np.bool_), np.ones(workers, np.bool_)
    # Per worker: row and semaphore index of the wait that it polls, and the next worker blocked on the same semaphore.
    row, place, next_blocked = np.zeros(workers, np.int64), np.zeros(workers, np.int64), np.full(workers, -1)
    # Per worker: ns of work left at full speed, bytes/ns that full speed demands, the inverse, and bytes loaded ahead.
    left, demand, slowness, loaded = np.zeros(workers), np.zeros(workers), np.zeros(workers), np.zeros(workers)
    # Per semaphore: time of the last post, and the first blocked worker.
    posted, blocked = np.full(len(posts), -NEVER), np.full(len(posts), -1)
    # Per queue: next position and end. Per tile: parts that have not ended. Per worker: number of thefts.
    following, ends, missing = queue_ptr[:-1].copy(), queue_ptr[1:].copy(), parts.copy()
    thefts = np.zeros(workers, np.int64)
    # Per item, if items enter when they are ready: the wait and semaphore that it lacks, and the next item that does.
    all_items, ready_items = (len(wait_ptr) - 1, len(items)) if machine.in_turn else (0, 0)
    next_row, next_place = wait_ptr[:all_items].copy(), np.zeros(all_items, np.int64)
    watched, next_watched = np.full(len(posts), -1), np.full(all_items, -1)
    ready, head, tail = np.full(ready_items, -1), np.zeros(1, np.int64), np.zeros(1, np.int64)
    # Per op, if ops open one by one: its next item, the number of items that have not ended, the number of ops that
    # must open or end before it, the time when it opens, and the earliest possible time as far as is known.
    cursor, unended, closed = op_ptr[:-1].copy(), op_ptr[1:] - op_ptr[:-1], work.before.copy()
    opens, begun = np.where(closed > 0, NEVER, 0.0), np.zeros(len(closed))
    earliest = np.zeros(1, np.int64)  # op with items left
    # Memory level, and the time up to which work is counted.
    level, since = np.full(1, UNLIMITED), np.zeros(1)

    def change(w: int, t: float, wanted: float) -> None:
        """Set the worker's demand for memory from t on, and count the work of all workers up to t."""
        count_work(left, slowness, level[0], t - since[0])
        since[0] = t
        demand[w] = wanted
        slowness[w] = 1.0 / wanted if wanted > 0.0 else 0.0

    def share_out(t: float) -> None:
        """Share memory anew, and update when each worker that loads acts next."""
        level[0] = find_level(demand, machine.dram)
        schedule_next_actions(when, limit, demand, left, 1.0 / level[0], t)

    def met(w: int) -> bool:
        """Poll the semaphores in order; at one that lacks posts, add the worker to its list and return False."""
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
        """Set the time at which a worker whose waits are met observes that and can multiply."""
        start = max(arrived[w], latest[w])
        ready = start
        if share[w] == 0.0:
            out_start[held[w]] = start
            if not machine.ahead or cold[w] or start > arrived[w]:
                ready += fill_ns[held[w]]
        limit[w] = ready
        when[w] = min(when[w], ready)

    def stand(w: int, t: float) -> None:
        """Start the waits, if any, at this share of the work."""
        r = row[w]
        waits = r < wait_ptr[held[w] + 1] and share_before[r] <= share[w]
        arrived[w] = t + machine.wait_ns if waits and not machine.ahead else t
        latest[w], place[w], state[w] = -NEVER, 0, READY
        when[w] = limit[w] = NEVER
        if met(w):
            release(w)

    def open_next(o: int, t: float) -> None:
        """Count an op that opened or ended at t towards the ops that come after it."""
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
        """Return the next item of the first open op, or -1 and let the worker idle until an op opens, or retire."""
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
                    if machine.gate == Gate.CLAIMED and cursor[o] == op_ptr[o + 1]:
                        open_next(o, t)
                    return int(items[cursor[o] - 1])
                opening = min(opening, opens[o])
            o += 1
        state[w], when[w] = IDLE, opening
        return -1

    def come(item: int) -> bool:
        """Poll all semaphores of an item; at one that lacks posts, add it to the watch list and return False."""
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
        """Queue the items that a post made ready, in sequence order, and wake idle workers."""
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
        """Return the next item whose waits are met, or -1; the worker then idles until there is one, or retires."""
        if head[0] < tail[0]:
            head[0] += 1
            return int(ready[head[0] - 1])
        state[w], when[w] = IDLE if head[0] < len(ready) else DONE, NEVER
        return -1

    def from_queue(w: int) -> int:
        """Return the next item of the worker's queue, or of one that it may take from, or -1; it then retires."""
        own = w if len(ends) > 1 else 0
        queue = len(ends) - 1 if machine.shared and following[own] == ends[own] else own
        if machine.max_stolen > 0 and following[own] == ends[own]:
            queue = choose_victim(following, ends, own, machine.random_victims, thefts[w])
            thefts[w] += 1
        at, rest = following[queue], ends[queue] - following[queue]
        if rest == 0:
            state[w], when[w] = DONE, NEVER
            return -1
        stolen[w], pays[w] = queue != own and not machine.shared, queue != own or not machine.shared
        some = min(machine.max_stolen, (rest + 1) // 2) if stolen[w] else 1
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
        """End an item: arrive if a tile part, post if the last of its tile, open launches if the last of its op."""
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
        w = find_earliest(when_bits)
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

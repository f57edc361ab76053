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

from typing import Any

import numpy as np

from interlace.core.jit import cached_njit, inner_njit
from interlace.graph.access import Ints
from interlace.sim.memory import UNLIMITED, count_work, find_level, schedule_next_actions
from interlace.sim.modes import Gate
from interlace.sim.state import AHEAD, DONE, FREE, IDLE, NEVER, READY, WORK, MachineModel, Outcome, State, Work
from interlace.sim.steal import choose_victim

_ZERO: Any = np.int64(0)  # a literal 0 would compile ``sort`` twice


@inner_njit
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


@inner_njit
def sort(column: Ints, first: int, end: int) -> None:
    """Sort ``column[first:end]`` (heapsort); numba would compile five functions for NumPy's sort."""
    root, last = first + (end - first) // 2, end
    while last > first + 1:
        if root > first:
            root -= 1
        else:
            last -= 1
            column[first], column[last] = column[last], column[first]
        parent = root
        child = 2 * parent - first + 1
        while child < last:
            if child + 1 < last and column[child] < column[child + 1]:
                child += 1
            if column[parent] < column[child]:
                column[parent], column[child] = column[child], column[parent]
            parent = child
            child = 2 * parent - first + 1


@cached_njit(allocates=False)
def run_engine(work: Work, machine: MachineModel, begin: State, out: Outcome) -> None:
    """Run until nothing happens any more, which includes the case that all remaining items wait for ever."""
    # Each array has a local name, and the actions of a worker are closures of this function: a function of its own
    # would take longer to compile, because an array in a tuple is seven arguments. numba inlines a closure at each
    # call, so that each is called once if possible.
    items, op_of, tile_of, post_of = work.items, work.op, work.tile, work.post
    wait_ptr, first, count, stride = work.wait_ptr, work.first, work.semaphores, work.stride
    threshold, share_before, parts, hand_off_ns = work.threshold, work.share, work.parts, work.hand_off_ns
    compute_ns, l2_bytes, extra_ns = work.compute_ns, work.l2_bytes, work.extra_ns
    dram_bytes, ahead_bytes, post_ns, fill_ns = work.dram_bytes, work.ahead_bytes, work.post_ns, work.fill_ns
    op_ptr, next_ptr, next_op = work.op_ptr, work.next_ptr, work.next
    out_worker, out_wait, out_start, out_end, posts = out.worker, out.wait_ns, out.start_ns, out.end_ns, out.posts

    state, when, when_bits, limit = begin.state, begin.when, begin.when_bits, begin.limit
    held, share, arrived, latest = begin.held, begin.share, begin.arrived, begin.latest
    cold, stolen, pays, thefts = begin.cold, begin.stolen, begin.pays, begin.thefts
    row, place, next_blocked = begin.row, begin.place, begin.next_blocked
    left, demand, slowness, loaded = begin.left, begin.demand, begin.slowness, begin.loaded
    posted, blocked, missing = begin.posted, begin.blocked, begin.missing
    following, ends = begin.following, begin.ends
    next_row, next_place, watched, next_watched = begin.next_row, begin.next_place, begin.watched, begin.next_watched
    ready, cursor, unended = begin.ready, begin.cursor, begin.unended
    closed, opens, begun = begin.closed, begin.opens, begin.begun

    def is_met(w: int) -> bool:
        """Poll the semaphores in order; at one that lacks posts, add the worker to its list and return False."""
        end = wait_ptr[held[w] + 1]
        while row[w] < end and share_before[row[w]] <= share[w]:
            r = row[w]
            while place[w] < count[r]:
                semaphore = first[r] + place[w] * stride[r]
                if posts[semaphore] < threshold[r]:
                    next_blocked[w], blocked[semaphore] = blocked[semaphore], w
                    return False
                latest[w] = max(latest[w], posted[semaphore] + hand_off_ns[r])
                place[w] += 1
            row[w] += 1
            place[w] = 0
        return True

    def release(w: int) -> None:
        """Set the time at which a worker whose waits are met observes that and can multiply."""
        start = max(arrived[w], latest[w])
        ready_ns = start
        if share[w] == 0.0:
            out_start[held[w]] = start
            if not machine.ahead or cold[w] or start > arrived[w]:
                ready_ns += fill_ns[held[w]]
        limit[w] = ready_ns
        when[w] = min(when[w], ready_ns)

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
        return True

    def from_launch(w: int, o: int, t: float) -> int:
        """Return the first open op from op o on, or -1 and let the worker idle until an op opens, or retire."""
        idle, opening = False, NEVER
        while o < len(cursor):
            if cursor[o] < op_ptr[o + 1]:
                if opens[o] <= t:
                    return o
                idle, opening = True, min(opening, opens[o])
            o += 1
        state[w], when[w] = IDLE if idle else DONE, opening
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
        first_item: int = items[at]
        return first_item

    launched = machine.gate != Gate.OPEN
    level, since, earliest = UNLIMITED, 0.0, 0  # memory level, time up to which work is counted, first op with items
    head = tail = _ZERO  # of the items that are ready
    waking, t = begin.first_item if len(ready) else -1, 0.0
    while True:
        # Queue the items that are ready after a post, in sequence order, and wake idle workers.
        before = tail
        while waking >= 0:
            item, waking = waking, next_watched[waking]
            if come(item):
                ready[tail] = item
                tail += 1
        if tail > before:
            sort(ready, before, tail)
            for v in range(machine.workers):
                if state[v] == IDLE:
                    when[v] = min(when[v], t)

        w = find_earliest(when_bits)
        t = when[w]
        if t == NEVER:
            return
        item, wanted, work_ns = held[w], 0.0, 0.0  # demand for memory from now on, and ns of work at full speed
        taken, stands, stood_ns = False, False, t
        checked, opened, opened_ns = -1, -1, t  # first of the workers to poll again, and op that opened or ended
        shares = demand[w] > 0.0
        if shares:
            count_work(left, slowness, level, t - since)
            since = t
            if state[w] == AHEAD:
                loaded[w] = ahead_bytes[item] - left[w] * demand[w]
            demand[w] = slowness[w] = 0.0
        if state[w] == FREE or state[w] == IDLE:
            item = -1
            if launched:
                while earliest < len(cursor) and cursor[earliest] == op_ptr[earliest + 1]:
                    earliest += 1
                o = from_launch(w, earliest, t)
                if o >= 0:
                    item = items[cursor[o]]
                    cursor[o] += 1
                    if machine.gate == Gate.CLAIMED and cursor[o] == op_ptr[o + 1]:
                        opened = o
            elif not machine.in_turn:
                item = from_queue(w)
            elif head < tail:
                item = ready[head]
                head += 1
            else:
                state[w], when[w] = IDLE if head < len(ready) else DONE, NEVER
            if item >= 0:
                cold[w] = held[w] < 0 or stolen[w] or (launched and op_of[held[w]] != op_of[item])
                held[w], row[w] = item, wait_ptr[item]
                share[w] = loaded[w] = 0.0
                stood_ns = t + (machine.steal_ns if stolen[w] else machine.ticket_ns if pays[w] else 0.0)
                out_worker[item], out_wait[item] = w, stood_ns
                taken = stands = True
        elif state[w] == READY:
            # Work up to the next wait or to the end.
            until = share_before[row[w]] if row[w] < wait_ptr[item + 1] else 1.0
            dram = dram_bytes[item] - loaded[w]
            l2_ns = (l2_bytes[item] - loaded[w]) / machine.worker_l2
            whole_ns = max(max(compute_ns[item], l2_ns) + extra_ns[item], dram / machine.worker_dram)
            work_ns = whole_ns * (until - share[w])
            limit[w] = NEVER
            state[w], share[w], when[w] = WORK, until, t + work_ns
            if dram > 0.0:
                wanted = dram / whole_ns
        elif state[w] == AHEAD:
            state[w], when[w] = READY, limit[w]
        elif row[w] < wait_ptr[item + 1]:
            stands = True
        else:
            # End the item: arrive if a tile part, post if the last of its tile, open launches if the last of its op.
            tile = tile_of[item]
            ended_ns = t + machine.post_ns if parts[tile] > 1 else t
            missing[tile] -= 1
            if missing[tile] == 0 and post_of[item] >= 0:
                semaphore = post_of[item]
                posts[semaphore] += 1
                posted[semaphore] = max(posted[semaphore], ended_ns)
                ended_ns += post_ns[item]
                checked, blocked[semaphore] = blocked[semaphore], -1
                if machine.in_turn:
                    waking, watched[semaphore] = watched[semaphore], -1
            out_end[item] = ended_ns
            state[w], when[w] = FREE, ended_ns
            if machine.gate == Gate.ENDED:
                o = op_of[item]
                unended[o] -= 1
                begun[o] = max(begun[o], ended_ns)
                if unended[o] == 0:
                    opened, opened_ns = o, begun[o]

        if stands:
            # Start the waits, if any, at this share of the work.
            r = row[w]
            waits = r < wait_ptr[item + 1] and share_before[r] <= share[w]
            arrived[w] = stood_ns + machine.wait_ns if waits and not machine.ahead else stood_ns
            latest[w], place[w], state[w] = -NEVER, 0, READY
            when[w] = limit[w] = NEVER
            checked, next_blocked[w] = w, -1
        while checked >= 0:
            following_worker = next_blocked[checked]
            if is_met(checked):
                release(checked)
            checked = following_worker
        if taken and machine.ahead and ahead_bytes[item] > 0.0 and out_start[item] > out_wait[item]:
            state[w] = AHEAD
            wanted = machine.worker_dram
            work_ns = ahead_bytes[item] / machine.worker_dram
        if opened >= 0:
            # Count the op towards the ops that come after it.
            for n in range(next_ptr[opened], next_ptr[opened + 1]):
                after = next_op[n]
                begun[after] = max(begun[after], opened_ns)
                closed[after] -= 1
                if closed[after] == 0:
                    opens[after] = begun[after] + machine.launch_ns
                    for v in range(machine.workers):
                        if state[v] == IDLE:
                            when[v] = min(when[v], opens[after])
        if wanted > 0.0:
            if not shares:
                count_work(left, slowness, level, t - since)
                since = t
            demand[w], slowness[w], left[w] = wanted, 1.0 / wanted, work_ns
            shares = True
        if shares:
            # Share the memory anew, and update when each worker that loads acts next.
            level = find_level(demand, machine.dram)
            schedule_next_actions(when, limit, demand, left, 1.0 / level, t)

"""The simulated machine once more, slowly: every worker is a coroutine that says what it waits for.

Written from the docstrings of ``sim/machine.py`` and ``sim/memory.py``; it shares no code with them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.stealing import Victim
from interlace.sim.machine import Costs
from interlace.sim.modes import Gate, LLHandOffs, Mode
from interlace.sim.steal import hash_queue

#: A semaphore, how many posts it must have, and from the last of them to the wait's end.
Need = tuple[int, int, float]


@dataclass
class Until:
    """Go on at a time, or when one has been set."""

    ns: float | None


@dataclass
class Posts:
    """Go on when all of these semaphores have so many posts."""

    needs: list[Need]


@dataclass
class Loading:
    """So much to do at full speed, and what it wants of memory meanwhile."""

    ns: float
    demand: float


@dataclass
class Ahead:
    """Load ahead until told to stop; ``stop_ns`` is found by ``needs`` and ``ready``."""

    loading: Loading
    needs: list[Need]
    ready_ns: float | None = None


Request = Until | Posts | Loading | Ahead


@dataclass
class SlowMachine:
    """Runs a plan; ``rows`` are (worker, wait, start, end) of each item that ended."""

    plan: Plan
    costs: Costs
    device: DeviceSpec
    mode: Mode
    now: float = 0.0
    rows: dict[int, list[float]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def run(self) -> None:
        plan, n = self.plan, len(self.plan.items)
        nothing = LLHandOffs(np.zeros(len(plan.waits), np.bool_), np.zeros(n, np.bool_))
        able = self.mode.ll_hand_offs is not None and self.mode.waits and self.mode.gate is Gate.OPEN
        self.words = self.mode.ll_hand_offs(plan) if able else nothing
        self.order = list(range(n))
        self.by_op = self.mode.gate is not Gate.OPEN
        if self.by_op:
            self.order.sort(key=lambda i: plan.items.op[i])
        self.lists = not self.by_op and plan.dispatch.has_queues
        self.steals = plan.dispatch is Dispatch.STEALING
        self.owner = plan.items.worker.tolist()
        self.thefts, self.held = [0] * plan.workers, dict[int, int]()
        self.in_turn = not self.by_op and (plan.dispatch.can_reorder or plan.dispatch is Dispatch.SPAWN)
        self.ready: list[int] = []
        self.taken: list[int] = []
        self.take_times: dict[int, float] = {}
        self.post_times: dict[int, list[float]] = {}
        self.come(self.order)
        workers = [self.worker(w) for w in range(plan.workers)]
        requests: dict[int, Request] = {w: Until(0.0) for w in range(plan.workers)}
        while True:
            times = {w: t for w, r in requests.items() if (t := self.when(r, requests)) is not None}
            if not times:
                return
            w = min(times, key=lambda v: (times[v], v))
            self.advance(requests, times[w])
            try:
                requests[w] = workers[w].send(None)
            except StopIteration:
                del requests[w]

    # -------------------------------------------------------- time

    def speeds(self, requests: dict[int, Request]) -> dict[int, float]:
        """Speed of each worker that loads: smallest demand first, each gets at most its part of what is left."""
        loads = {w: load for w, r in requests.items() if (load := self.load(r)) and load.demand > 0}
        left, speeds = self.device.dram_bytes_per_s * 1e-9, {}
        for n, w in enumerate(sorted(loads, key=lambda v: loads[v].demand)):
            granted = min(loads[w].demand, left / (len(loads) - n))
            left -= granted
            speeds[w] = granted / loads[w].demand
        return speeds

    @staticmethod
    def load(request: Request) -> Loading | None:
        if isinstance(request, Ahead):
            return request.loading if request.loading.ns > 0 else None
        return request if isinstance(request, Loading) else None

    def when(self, request: Request, requests: dict[int, Request]) -> float | None:
        if isinstance(request, Until):
            return request.ns if request.ns is not None else self.opening()
        if isinstance(request, Posts):
            return self.now if self.is_met(request.needs) else None
        w = next(w for w, r in requests.items() if r is request)
        load = self.load(request)
        done = self.now + load.ns / self.speeds(requests).get(w, 1.0) if load else None
        if isinstance(request, Ahead):
            if request.ready_ns is None and self.is_met(request.needs):
                return self.now
            ready = request.ready_ns
            return min((t for t in (done, ready) if t is not None), default=None)
        return done

    def is_met(self, needs: list[Need]) -> bool:
        return all(len(self.post_times.get(s, [])) >= n for s, n, _ in needs)

    def advance(self, requests: dict[int, Request], t: float) -> None:
        speeds = self.speeds(requests)
        for w, r in requests.items():
            load = self.load(r)
            if load:
                load.ns = max(load.ns - (t - self.now) * speeds.get(w, 1.0), 0.0)
                if load.ns < 1e-9:
                    load.ns = 0.0
        self.now = max(self.now, t)

    # -------------------------------------------------------- what a worker does

    def list_available(self, w: int) -> list[int]:
        """Items that the worker could take, now or once their op opens."""
        left, owner = [i for i in self.order if i not in self.taken], self.owner
        if not self.lists:
            return left
        if self.plan.dispatch is Dispatch.HYBRID:
            return [i for i in left if owner[i] == w] or [i for i in left if owner[i] < 0]
        count = int(self.plan.items.worker.max()) + 1  # of lists; a thief looks at the next ones first, or at any
        rank = {(w + n) % count: hash_queue(w, self.thefts[w], n) if self.random else n for n in range(count)} | {w: -1}
        return sorted((i for i in left if self.steals or owner[i] == w), key=lambda i: rank[owner[i]])

    @property
    def random(self) -> bool:
        return self.plan.stealing.victim is Victim.RANDOM

    def steal(self, item: int, w: int) -> bool:
        """Move a share of the rest of another worker's list to the thief; return False if the item is its own."""
        if not (self.steals and self.lists and self.owner[item] != w):
            return False
        rest = [i for i in self.order if self.owner[i] == self.owner[item] and i not in self.taken[:-1]]
        half = (len(rest) + 1) // 2
        most = half if self.plan.stealing.most is None else min(half, self.plan.stealing.most)
        for i in rest[:most]:
            self.owner[i] = w
        self.thefts[w] += 1
        return True

    def opens(self, op: int) -> float | None:
        """When the items of an op may be taken; None if nobody knows yet."""
        of = self.plan.items.op
        earlier = sorted({int(o) for o in of if o < op})
        if not self.by_op or not earlier:
            return 0.0
        if self.mode.gate is Gate.CLAIMED:
            taken = [self.take_times.get(i) for i in self.order if of[i] == earlier[-1]]
            return None if None in taken else max(t for t in taken if t is not None) + self.launch_ns
        after = earlier[-1:] if self.mode.after is None else self.mode.after[op]
        before = [i for i in self.order if of[i] in after]
        if not self.ended.issuperset(before):
            return None
        return max(self.rows[i][-1] for i in before) + self.launch_ns if before else 0.0

    def opening(self) -> float | None:
        """When the first of the ops with items left opens, or now if an item is ready."""
        if self.in_turn:
            return None if self.next_item(-1) is None else self.now
        ops = {int(self.plan.items.op[i]) for i in self.order if i not in self.taken}
        return min((t for op in ops if (t := self.opens(op)) is not None), default=None)

    @property
    def launch_ns(self) -> float:
        return self.device.latencies.launch_ns

    def come(self, items: list[int]) -> None:
        """Append the items that wait for nothing more to the queue."""
        self.ready += [i for i in items if i not in self.ready and self.is_met(self.needs(i, -1, 1 << 62))]

    def next_item(self, w: int) -> int | None:
        if self.in_turn:
            return next((i for i in self.ready if i not in self.taken), None)
        for item in self.list_available(w):
            opens = self.opens(int(self.plan.items.op[item]))
            if opens is not None and opens <= self.now:
                return item
        return None

    def needs(self, item: int, lo: float, hi: float) -> list[Need]:
        """Return the item's waits at k in (lo, hi]."""
        waits, ns = self.plan.waits, self.device.latencies
        if not self.mode.waits:
            return []
        return [
            (
                int(waits.first[r] + n * waits.stride[r]),
                int(waits.threshold[r]),
                ns.ll_ns if self.words.waits[r] else ns.hand_off_ns,
            )
            for r in range(int(waits.ptr[item]), int(waits.ptr[item + 1]))
            if lo < waits.k[r] <= hi
            for n in range(int(waits.count[r]))
        ]

    def compute_known_ns(self, needs: list[Need], arrived: float) -> float:
        ring = self.mode.ring_bytes > 0
        poll = self.device.latencies.wait_ns if needs and not ring else 0.0
        posts = [max(self.post_times[s]) + ns for s, _, ns in needs]
        return max([arrived + poll, *posts])

    def worker(self, w: int) -> Generator[Request, None, None]:
        ns, items, ring = self.device.latencies, self.plan.items, self.mode.ring_bytes > 0
        draws = self.mode.gate is Gate.OPEN and self.plan.dispatch is not Dispatch.STATIC and not ring
        first = True
        while True:
            if not self.list_available(w):
                return
            item = self.next_item(w)
            if item is None:
                yield Until(None)
                continue
            self.taken.append(item)
            self.take_times[item] = self.now
            stolen = self.steal(item, w)
            own = self.plan.dispatch is Dispatch.HYBRID and items.worker[item] == w
            draws_this = draws and not own
            arrived = self.now + (ns.wait_ns + ns.ticket_ns if stolen else ns.ticket_ns if draws_this else 0.0)
            launched = self.mode.gate is not Gate.OPEN and self.held.get(w) not in (None, int(items.op[item]))
            first |= stolen or launched
            self.held[w] = int(items.op[item])
            self.rows[item] = [w, arrived]
            needs, loaded = self.needs(item, -1, int(items.k_lo[item])), 0.0
            rows = self.plan.waits.item == item
            fill_ns = 0.0 if rows.any() and self.words.waits[rows].all() else ns.fill_ns
            ahead = min(float(self.costs.ahead_bytes[item]), self.mode.ring_bytes)
            sm_dram = self.per_worker(self.device.sm_dram_bytes_per_s)
            if ring and ahead > 0 and (not self.is_met(needs) or self.compute_known_ns(needs, arrived) > arrived):
                request = Ahead(Loading(ahead / sm_dram, sm_dram), needs)
                while request.ready_ns is None or self.now < request.ready_ns:
                    if request.ready_ns is None and self.is_met(needs):
                        request.ready_ns = self.compute_known_ns(needs, arrived) + fill_ns
                    yield request
                start = self.compute_known_ns(needs, arrived)
                loaded = ahead - request.loading.ns * sm_dram
            else:
                if not self.is_met(needs):
                    yield Posts(needs)
                start = self.compute_known_ns(needs, arrived)
                yield Until(start + (0.0 if ring and not first and start <= arrived else fill_ns))
            self.rows[item].append(start)
            first = False
            yield from self.work(item, loaded)
            yield from self.finish(item)

    def per_worker(self, per_s: float) -> float:
        """Bytes or FLOPs per ns of a worker, of what an SM has per s."""
        return per_s * 1e-9 / -(-self.plan.workers // self.device.sms)

    def work(self, item: int, loaded: float) -> Generator[Request, None, None]:
        k_lo, k_hi = int(self.plan.items.k_lo[item]), int(self.plan.items.k_hi[item])
        dram = float(self.costs.dram_bytes[item]) - loaded
        l2 = float(self.costs.l2_bytes[item]) + dram
        besides = float(self.costs.dram_bytes[item]) / self.per_worker(self.device.sm_miss_bytes_per_s)
        besides += float(self.costs.sum_bytes[item]) / self.per_worker(self.device.sm_sum_bytes_per_s)
        op = self.plan.graph.ops[int(self.plan.items.op[item])]
        dtype = self.plan.graph.tensor(op.accesses[0].tensor).dtype
        multiplied = float(self.costs.flops[item]) / self.per_worker(self.device.flops_per_s(dtype) / self.device.sms)
        passed = l2 / self.per_worker(self.device.sm_l2_bytes_per_s)
        whole = max(max(multiplied, passed) + besides, dram / self.per_worker(self.device.sm_dram_bytes_per_s))
        waits = self.plan.waits
        rows = range(int(waits.ptr[item]), int(waits.ptr[item + 1])) if self.mode.waits else ()
        stops = sorted({int(waits.k[r]) for r in rows if waits.k[r] > k_lo} | {k_hi})
        at = k_lo
        for k in stops:
            yield Loading(whole * (k - at) / (k_hi - k_lo), dram / whole if whole else 0.0)
            if k < k_hi:
                arrived, needs = self.now, self.needs(item, at, k)
                if not self.is_met(needs):
                    yield Posts(needs)
                yield Until(self.compute_known_ns(needs, arrived))
            at = k

    def finish(self, item: int) -> Generator[Request, None, None]:
        items, post_ns = self.plan.items, self.device.latencies.post_ns
        parts = [i for i in self.order if (items.op[i], items.tile[i]) == (items.op[item], items.tile[item])]
        end = self.now + (post_ns if len(parts) > 1 else 0.0)
        self.ended.add(item)
        if self.ended.issuperset(parts) and items.post[item] >= 0 and self.mode.waits:
            self.post_times.setdefault(int(items.post[item]), []).append(end)
            end += 0.0 if self.words.silent[item] else post_ns
            self.come(self.order)
        self.rows[item].append(end)
        yield Until(end)

"""The reference executor: NumPy in float64. It defines the meaning of a plan.

W workers execute the plan as on a device: wait, read, compute, write and post are separate steps. Workers step in turn,
or in a random order from a seed. Every element that no item has written yet is NaN, so a race shows as a NaN in the
results. A deadlock raises DeadlockError. So does an LL word that is overwritten before its last reader has it
(``numbered``), because the epoch that the reader polls for never comes.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.core.errors import DeadlockError, DeviceError
from interlace.executors.arrays import check_arrays, check_results
from interlace.executors.base import Executor, check_named_tensors, reject_concurrent_calls
from interlace.executors.reference_calls import accumulate, check_parts, complete, reference_of
from interlace.graph.access import Access, Ints
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Region
from interlace.kernels.bodies import Array, BodyKind
from interlace.megakernel.ll_memory import LLMemory
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan, Waits
from interlace.plan.spawns import Spawns, find_cleared_tensors, find_when_tensor
from interlace.plan.stealing import Victim
from interlace.plan.verify import Proof
from interlace.sim.modes import PERSISTENT, Mode
from interlace.trace.events import Trace

_WRAP = 1 << 32


class ReferenceExecutor(Executor):
    """Executor that runs a plan on NumPy arrays.

    Args:
        plan: a plan, which is verified here, or its proof.
        seed: seed of a random interleaving of the plan's workers; None to let workers step in turn.
        first_run: number of the first run, to start counters near their wrap-around.
        ll_tensors: tensors to hand off by the LL protocol as the megakernel does (``RunOptions.ll_tensors``), with the
            waits and posts that then remain. By default there are none; None selects those of the megakernel.

    Raises:
        PlanError: the plan is not safe, or a tensor cannot use the LL protocol.
        GraphError: an op has no reference, or, where LL words are possible, no body for the megakernel.
        ReferenceBodyError: a function of a reference takes other arguments.
        DeviceError: ``seed`` or ``first_run`` is not an int, or ``words`` is not a tuple of names.
    """

    name = title = "reference"
    description = "NumPy in float64, workers in turn"
    enforced_orderings = frozenset({Ordering.WORKER, Ordering.WAIT})
    dispatches = (Dispatch.TICKET, *(d for d in Dispatch if d is not Dispatch.TICKET))
    body_kinds = (BodyKind.REFERENCE,)
    is_interpretable = True
    has_trace_times = True

    def __init__(
        self,
        plan: Plan | Proof,
        *,
        seed: int | None = None,
        first_run: int = 0,
        ll_tensors: tuple[str, ...] | None = (),
    ) -> None:
        self.proof = self.prove(plan)
        self.plan = self.proof.plan
        self._numbered = None if type(ll_tensors) is tuple and not ll_tensors else LLMemory(self.proof, ll_tensors)
        for what, number in (("seed", seed), ("first_run", first_run)):
            if type(number) is not int and (what, number) != ("seed", None):
                raise DeviceError(f"{what} is {number!r}; give an int")
        self._references = [reference_of(op) for op in self.plan.graph.ops]
        self._random = None if seed is None else random.Random(seed)
        self._run = first_run
        self._reset_state()
        #: Trace of the last run; its clock counts steps.
        self.trace: Trace | None = None

    def _reset_state(self) -> None:
        """Set semaphores and LL words to the state that the runs before this one produce."""
        posts = np.bincount(self._posts[(self.plan.items.k_lo == 0) & (self._posts >= 0)])
        self._semaphores = [int(p) * self._run % _WRAP for p in np.pad(posts, (0, self.plan.semaphores - len(posts)))]
        if self._numbered:
            self._numbered.reset_epochs(self._run)

    @classmethod
    def check(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise GraphError if an op has no reference, or a reference that does not match its reduction."""
        for op in graph.ops:
            reference_of(op)

    @classmethod
    def build_mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """Return the model of the persistent executor: workers execute the whole sequence."""
        return PERSISTENT

    @reject_concurrent_calls
    def run(self, tensors: Mapping[str, np.ndarray]) -> dict[str, Array]:
        """Run once on the inputs and return every output in float64, as an array of its own.

        The run works on copies, so inputs may share memory.

        Raises:
            GraphError: an input is missing or not an array, or something else is passed; or a kernel's reference
                returns other regions than its op writes.
            ReferenceBodyError: a kernel's reference raises an error.
            ShapeError: an input, or a region that a reference returns, has another shape.
            DTypeError: an array, or a region that a reference returns, does not hold real numbers.
            ConcurrentRunError: another thread runs this executor.
        """
        graph = self.plan.graph
        arrays = check_named_tensors(tensors)
        check_arrays(graph, arrays)
        self._memory = {t.name: np.full(t.shape, np.nan) for t in graph.tensors}
        for name in graph.inputs:
            self._memory[name][...] = arrays[name]
        self._partial: dict[tuple[int, int], dict[int, Array]] = {}
        self._parts = Counter(zip(self.plan.items.op.tolist(), self.plan.items.tile.tolist(), strict=True))
        self._ticket = 0
        self._untaken = list(range(len(self.plan.items)))
        self._reset_spawns()
        owner = self.plan.items.worker
        self._lists = {w: deque(np.flatnonzero(owner == w).tolist()) for w in np.unique(owner).tolist()}
        self._clock = 0
        n = len(self.plan.items)
        self._times = np.zeros((n, 4), np.int64)  # worker, wait, start, end
        try:
            self._run_workers()
        except BaseException:
            self._reset_state()
            raise
        self._run += 1
        items = self.plan.items
        worker, wait, start, end = self._times.T
        self.trace = Trace(
            items.op,
            items.tile,
            worker,
            worker,
            wait,
            start,
            end,
            tuple(op.name for op in graph.ops),
            "steps",
        ).select(np.flatnonzero(end))
        return {name: self._memory[name] for name in graph.outputs}

    def _run_workers(self) -> None:
        """Let workers step until all are done; blocked workers retry after each post."""
        # More workers than items would find nothing to run.
        lists = self.plan.dispatch.has_queues
        anybody = range(min(self.plan.workers, len(self.plan.items)))
        busy = sorted(w for w in self._lists if w >= 0) if lists else anybody
        workers = [self._run_worker(int(w)) for w in busy]
        running = list(range(len(workers)))
        blocked: list[int] = []
        while running or blocked:
            if not running:
                raise DeadlockError(
                    f"workers {blocked[:8]} wait for posts or words that never come; the plan passed "
                    "verification, so a kernel or the verification is wrong"
                )
            at = self._random.randrange(len(running)) if self._random else self._clock % len(running)
            worker = running[at]
            self._clock += 1
            state = next(workers[worker], "done")
            if state == "done":
                running.pop(at)
            elif state == "blocked":
                blocked.append(running.pop(at))
            elif state == "posted":
                running = sorted(running + blocked)
                blocked = []

    def _run_worker(self, worker: int) -> Iterator[str]:
        """Run the steps of one worker and yield the outcome of each."""
        for item in self._iter_items(worker):
            if item < 0:
                yield "blocked"
                continue
            self._times[item, :2] = worker, self._clock
            yield from self._run_item(item)
            self._times[item, 3] = self._clock

    def _iter_items(self, worker: int) -> Iterator[int]:
        """Yield the items that a worker takes in turn, and -1 while it can take none."""
        if self.plan.dispatch.has_queues:
            yield from self._iter_queued_items(worker)
            return
        if self.plan.dispatch.can_reorder:
            yield from self._iter_ready_items()
            return
        if self._spawns is not None:
            yield from self._iter_spawned_items(self._spawns)
            return
        while self._ticket < len(self.plan.items):
            self._ticket += 1
            yield self._ticket - 1

    def _iter_queued_items(self, worker: int) -> Iterator[int]:
        """Yield a worker's own items; then items of other workers (stealing) or items in no worker's queue (hybrid)."""
        mine = self._lists[worker]
        while mine or self.plan.dispatch is Dispatch.STEALING:
            if not mine:
                mine.extend(self._steal_items(worker))
            if not mine:
                break
            yield mine.popleft()
        while self.plan.dispatch is Dispatch.HYBRID and self._lists.get(-1):
            yield self._lists[-1].popleft()

    def _steal_items(self, worker: int) -> list[int]:
        """Return the items that a worker steals from another worker's queue, or none if all queues are empty."""
        victims = sorted((w for w in self._lists if self._lists[w]), key=lambda w: (w < worker, w))
        if not victims:
            return []
        stealing = self.plan.stealing
        at = self._random.randrange(len(victims)) if self._random and stealing.victim is Victim.RANDOM else 0
        rest = self._lists[victims[at]]
        half = (len(rest) + 1) // 2
        return [rest.popleft() for _ in range(half if stealing.most is None else min(half, stealing.most))]

    def _iter_ready_items(self) -> Iterator[int]:
        """Yield the first unclaimed item whose waits are met, or -1 while there is none."""
        while self._untaken:
            ready = next((item for item in self._untaken if self._is_ready(item)), -1)
            if ready >= 0:
                self._untaken.remove(ready)
            yield ready

    def _reset_spawns(self) -> None:
        """Set up the spawn queue and clear what items that never run would write."""
        self._spawns = Spawns.from_plan(self.plan) if self.plan.dispatch is Dispatch.SPAWN else None
        if self._spawns is None:
            return
        self._queued = deque(self._spawns.before.tolist())
        self._behind = deque(self._spawns.after.tolist())
        self._outstanding = len(self._queued)
        self._unspawned = {*np.flatnonzero(self._spawns.spawner >= 0).tolist()}
        for name in find_cleared_tensors(self.plan.graph):
            self._memory[name][...] = 0.0

    def _iter_spawned_items(self, spawns: Spawns) -> Iterator[int]:
        """Yield items of the spawn queue until none is outstanding and the unspawned have posted, then later items."""
        while self._outstanding:
            yield self._queued.popleft() if self._queued else -1
        while self._behind:
            yield self._behind.popleft()

    def _queue_children(self, item: int) -> None:
        """Queue the requested children of a finished item; after the last outstanding item, post for the unspawned."""
        if self._spawns is None or self._outstanding == 0:
            return  # items that run after the queue spawn none (``plan/spawns``, rule 2)
        items, ops = self.plan.items, self.plan.graph.ops
        for child in self._spawns.children[item].tolist():
            wanted = self._memory[find_when_tensor(ops[int(items.op[child])])].reshape(-1)
            if wanted[self._spawns.element[child]]:
                self._queued.append(child)
                self._unspawned.remove(child)
                self._outstanding += 1
        self._outstanding -= 1
        if not self._outstanding:
            for never in self._unspawned:
                self._post(never)

    def _is_ready(self, item: int) -> bool:
        rows = range(int(self._waits.ptr[item]), int(self._waits.ptr[item + 1]))
        return all(next(self._wait(row), None) is None for row in rows)

    def _run_item(self, item: int) -> Iterator[str]:
        items, waits = self.plan.items, self._waits
        number = int(items.op[item])
        op, reference = self.plan.graph.ops[number], self._references[number]
        tile, k_lo, k_hi = int(items.tile[item]), int(items.k_lo[item]), int(items.k_hi[item])
        row, end = int(waits.ptr[item]), int(waits.ptr[item + 1])
        while row < end and waits.k[row] <= k_lo:
            yield from self._wait(row)
            row += 1
        self._times[item, 2] = self._clock
        acc: Array | None = None
        lo = k_lo
        while reference.accumulate and lo < k_hi:
            hi = int(waits.k[row]) if row < end else k_hi
            if lo < hi:
                regions = self._compute_regions(op, [a for a in op.reads if a.uses_k], tile, lo, hi)
                yield from self._poll(number, regions)
                moving = self._read(number, regions)
                yield "read"
                acc = accumulate(op, tile, reference, moving, acc)
            if row < end:
                yield from self._wait(row)
                row += 1
            lo = hi
        while row < end:
            yield from self._wait(row)
            row += 1
        if (k_lo, k_hi) != (0, op.k_extent):
            assert acc is not None
            parts = self._partial.setdefault((number, tile), {})
            parts[k_lo] = acc
            if len(parts) < self._parts[number, tile]:
                yield "partial"
                return
            check_parts(op, tile, parts.values())
            acc = np.sum([parts[k] for k in sorted(parts)], axis=0)
        regions = self._compute_regions(op, [a for a in op.reads if not a.uses_k], tile, 0, op.k_extent)
        yield from self._poll(number, regions)
        fixed = self._read(number, regions)
        yield "read"
        regions = self._compute_regions(op, op.writes, tile, 0, op.k_extent)
        if op.when and not fixed[op.when].any():
            values: object = {arg: np.zeros(np.subtract(r.hi, r.lo)) for arg, r in regions.items()}
        else:
            values = complete(op, tile, reference, acc, fixed)
        yield from self._write(number, regions, check_results(op, tile, regions, values))
        self._post(item)
        self._queue_children(item)
        yield "posted"

    @property
    def _waits(self) -> Waits:
        return self.plan.waits if self._numbered is None else self._numbered.waits

    @property
    def _posts(self) -> Ints:
        return self.plan.items.post if self._numbered is None else self._numbered.posts

    def _post(self, item: int) -> None:
        post = int(self._posts[item])
        if post >= 0:
            self._semaphores[post] = (self._semaphores[post] + 1) % _WRAP

    def _wait(self, row: int) -> Iterator[str]:
        waits = self._waits
        first, count, stride = int(waits.first[row]), int(waits.count[row]), int(waits.stride[row])
        target = (self._run + 1) * int(waits.threshold[row])
        for s in range(first, first + count * stride, stride):
            while 0 < (target - self._semaphores[s]) % _WRAP < _WRAP // 2:
                yield "blocked"

    def _poll(self, op: int, regions: Mapping[str, Region]) -> Iterator[str]:
        """Wait until the LL words of these regions have the expected epochs."""
        while self._numbered and not self._numbered.has_arrived(op, self._run, regions):
            yield "blocked"

    def _read(self, op: int, regions: Mapping[str, Region]) -> dict[str, Array]:
        """Return copies of regions, by argument."""
        found = {arg: self._memory[region.tensor][region.slices].copy() for arg, region in regions.items()}
        return found | (self._numbered.read(op, regions) if self._numbered else {})

    def _compute_regions(
        self, op: Op, accesses: Iterable[Access], tile: int, k_lo: int, k_hi: int
    ) -> dict[str, Region]:
        return {a.arg: self.plan.graph.compute_region(op, a, tile, k_lo, k_hi) for a in accesses}

    def _write(self, op: int, regions: Mapping[str, Region], values: Mapping[str, Array]) -> Iterator[str]:
        """Store what a tile computed: LL words first, after which their readers may proceed, then tensors."""
        numbered = self._numbered
        words = numbered.filter_ll_arguments(op, regions) if numbered else []
        for arg in words:
            assert numbered
            numbered.store(op, self._run, arg, regions[arg], values[arg])
            yield "posted"
        for arg, region in regions.items():
            if numbered is None or arg not in words or numbered.has_tensor_copy(op):
                self._memory[region.tensor][region.slices] = values[arg]
        yield "wrote"


class RandomReferenceExecutor(ReferenceExecutor):
    """The reference executor with steps in random order; the default seed is 0."""

    name = "reference-random"
    title = "reference (random interleaving)"
    description = "NumPy in float64, steps drawn at random"
    has_trace_times = False

    def __init__(
        self,
        plan: Plan | Proof,
        *,
        seed: int | None = 0,
        first_run: int = 0,
        ll_tensors: tuple[str, ...] | None = (),
    ) -> None:
        super().__init__(plan, seed=seed, first_run=first_run, ll_tensors=ll_tensors)

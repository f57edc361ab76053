"""Which tensors of the one launch are handed over word by word, and what becomes of waits and posts then.

A word has the number of its publication beside its data (``primitives/tagged_cuda``), and who reads it polls it. Of two
layers, whose attention leaves ``parts`` for ``combine``:

    plan                                               what is launched
    combine 0 waits for semaphore 3 of attend 0        polls words of number 5 in parts; no wait
    append 0 waits for 3, and overwrites a cache       waits for combine 0, which has what attend 0 made of the cache
    attend 0 posts 3                                   posts nothing: nobody waits for it

The plan is proved with its waits. What is launched is proved again (``words_proof``): there polls wait for words, which
order nothing else. For words do what these waits do:

- *Who reads* has a wait for each tile that writes what it reads (``verify``), and takes no word that has another number
  than that tile gives it in this run. It polls all that its access maps say, of tiles of one op each, and a wait is
  left out only where it covers these and no others. So whatever follows from the wait follows from the words.
- *Who overwrites* words is a later op that writes the tensor, which the plan orders behind all who read it, as for any
  tensor. So nobody finds a later number where it wants an earlier one. Each word that is published anew was polled
  before (``publications``), so its two stores come in order, too.
- *What the run before left* has another number, though numbers wrap: they count on from run to run modulo 2^32, readers
  want theirs exactly, and every word that is polled is stored in every run, whatever the tensors hold. Which these are
  follows from access maps and shapes of the graph alone: ops that run only ``when`` something all run under these
  dispatches, and missing rows of ``Options.short`` are computed as zeros. So what a reader finds is at most a run old,
  fewer than twice the ops of the graph; or 0 since allocation, but only in the first run, whose numbers are from 1.
- *Who writes a tensor beside its words*, for those who read it as such, is awaited by them. Words do not order its
  stores. So where somebody stores over them, another has awaited them all and read them before, and whoever overwrites
  what that one reads comes behind it; or nobody reads the tensor later.
- *What a tile read* is over for who polls its words as ``publications`` says: any of them, or all. Where it leaves
  nothing but words, its end may be awaited through those who have polled all of them.
- *Progress* is that of the plan: a worker's items begin in order, and one that polls keeps nobody waiting who would not
  wait for it in the plan. Under dispatches in which items are taken when they no longer wait, none is handed over so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.executors.options import Options
from interlace.executors.publications import find_unpolled, shows_reads
from interlace.executors.words_refused import DISPATCHES, words_refused
from interlace.graph.access import Access, Ints
from interlace.graph.dependencies import Dependencies, Hazard, Link
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.ragged import Groups, distinct, fold, grouped, held
from interlace.graph.uses import boxes
from interlace.kernels.bodies import ALONE, AS_TENSORS, WalkBody, Worded
from interlace.plan.plan import Plan, Waits
from interlace.sim.modes import ByWords

#: Most trips to the L2 for words, of all items of an op on a worker: each brings twice the bytes of tensors, and a
#: semaphore with a bulk load takes some four (docs/tried.md).
_TRIPS = 4


@dataclass(frozen=True)
class HandedOver:
    """Tensors of a plan that are words.

    Attributes:
        sizes: words of each.
        ops: which arguments of each op are words, those of ``Worded({})`` left out.
        polled: of each op that polls, the ops whose words it does.
        ended_with: of each op whose end nobody sees but by its words, the one op that polls them.
    """

    sizes: Mapping[str, int]
    ops: Mapping[int, Worded]
    polled: Mapping[int, frozenset[int]]
    ended_with: Mapping[int, int]

    def of(self, op: int) -> Worded:
        """Which arguments of an op are words."""
        return self.ops.get(op, AS_TENSORS)

    def memory(self, torch: Any, device: Any) -> dict[str, Any]:
        """Where the words of each tensor lie, none of which has the number of a publication."""
        return {name: torch.zeros(size, dtype=torch.int64, device=device) for name, size in self.sizes.items()}

    def arguments(self, number: int, op: Op, body: WalkBody, memory: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the op of a number that are words, by the names under which its body takes them."""
        tensors = {access.arg: access.tensor for access in op.accesses}
        beside = "_words" if body.keeps else ""
        return {f"{arg}{beside}": memory[tensors[arg]] for arg in self.of(number).numbers}

    def without(self, waits: Waits, plan: Plan) -> Waits:
        """The waits that are left: of all ops but those that poll, and for the end of none that is seen by words."""
        if not self.ops:
            return waits
        owner = _owners(plan)
        keep = ~self._polled(waits, plan, owner)
        first, count, stride, threshold = (
            column.copy() for column in (waits.first, waits.count, waits.stride, waits.threshold)
        )
        for op, last in self.ended_with.items():
            mine = np.flatnonzero(plan.items.op == last)
            post, posts = np.unique(plan.items.post[mine], return_counts=True)
            dense = post[0] >= 0 and post[-1] - post[0] + 1 == len(post) and (posts == posts[0]).all()
            if dense and (owner[post] == last).all():
                later = _for_some(waits, np.flatnonzero(keep & (waits.item > mine.max())), owner, (op,))
                first[later], count[later], stride[later], threshold[later] = post[0], len(post), 1, posts[0]
        ptr = np.r_[0, np.cumsum(keep)][waits.ptr]
        return Waits(ptr, *(column[keep] for column in (first, count, stride, threshold, waits.k)))

    def _polled(self, waits: Waits, plan: Plan, owner: Ints) -> NDArray[np.bool_]:
        """Whether each wait is for tiles alone whose words are polled."""
        op_of_wait, found = plan.items.op[waits.item], np.zeros(len(waits), np.bool_)
        for op, sources in self.polled.items():
            found[_for_some(waits, np.flatnonzero(op_of_wait == op), owner, sources)] = True
        return found

    def by_words(self, plan: Plan) -> ByWords:
        """As the simulated machine takes it. Waits for the end of what leaves words alone stay where they were."""
        if not self.ops:
            return ByWords.nothing(plan)
        posts = self.posts(self.without(plan.waits, plan), plan)
        return ByWords(self._polled(plan.waits, plan, _owners(plan)), (plan.items.post >= 0) & (posts < 0))

    def posts(self, waits: Waits, plan: Plan) -> Ints:
        """What each item posts, given the waits that are left: nothing where it leaves words and nobody waits."""
        post = plan.items.post
        if not self.ops:
            return post
        awaited = held(waits.first, waits.count, waits.stride, plan.semaphores + 1)  # the last is that of -1
        silent = np.isin(plan.items.op, [*self.ops]) & ~awaited[post]
        posts: Ints = np.where(silent, -1, post)
        return posts


#: Nothing is words.
NONE = HandedOver({}, {}, {}, {})


def handed_over(
    plan: Plan, bodies: Sequence[WalkBody], options: Options, dependencies: Dependencies | None = None
) -> HandedOver:
    """The tensors that are words, of a plan that is proved where it is run.

    Those that options name; or all that can be of ops whose tiles all run at once, as who polls keeps the consumers of
    its block from other items, and of those that load weights meanwhile, if all their items on a worker take few trips
    for words.

    Args:
        bodies: of each op.
        dependencies: those of the plan's graph, if they are at hand.

    Raises:
        PlanError: one of those named cannot be.
    """
    wanted = options.words
    able = any(body.publishes for body in bodies) and any(body.polls for body in bodies)
    able &= plan.dispatch in DISPATCHES and options.cluster == ALONE
    found = NONE
    if able and wanted != ():
        found = _Search(plan, bodies, wanted, dependencies or Dependencies(plan.graph)).found()
    missing = {*(wanted or ())} - found.sizes.keys()
    if missing:
        raise words_refused(plan, options, missing)
    return found


class _Search:
    """Leaves out what cannot be, until nothing more follows."""

    def __init__(
        self, plan: Plan, bodies: Sequence[WalkBody], wanted: tuple[str, ...] | None, dependencies: Dependencies
    ) -> None:
        self.plan, self.graph, self.bodies, self.dependencies = plan, plan.graph, bodies, dependencies
        self._suited: dict[tuple[int, frozenset[str]], bool] = {}  # as found before, by op and arguments
        items, ops = plan.items, plan.graph.ops
        extent = np.array([op.k_extent for op in ops], np.int64)[items.op]
        cut = {*items.op[items.k_hi - items.k_lo < extent].tolist()}
        inner, self._outside = {*plan.graph.intermediates}, {*plan.graph.inputs, *plan.graph.outputs}
        #: Of each op its arguments that can be words, by what they are: tensors.
        self.writes: dict[int, dict[str, str]] = {}
        self.reads: dict[int, dict[str, str]] = {}
        for o, (op, body) in enumerate(zip(ops, bodies, strict=True)):
            waves = 1 if wanted is not None else -(-op.tiles // plan.workers)
            if o in cut or (waves > 1 and not body.independent):
                continue
            trips = 1 if wanted is not None or body.trips is None else body.trips(op)
            polls = body.polls if waves * trips <= _TRIPS else ()
            for names, accesses, of in ((body.publishes, op.writes, self.writes), (polls, op.reads, self.reads)):
                able = [name for name in names if body.by_words is None or body.by_words(op, name)]
                some = {a.arg: a.tensor for a in accesses if a.arg in able}
                if some and {*some.values()} <= inner and (wanted is None or {*some.values()} <= {*wanted}):
                    of[o] = some

    def found(self) -> HandedOver:
        """What is left."""
        steps = (
            *(self._without_readers, self._without_writers, self._without_words),
            *(self._without_order, self._without_unpolled),
        )
        while sum(step() for step in steps):
            pass
        names = {name for args in self.writes.values() for name in args.values()}
        sizes = {name: _words_of(self.graph, name) for name in sorted(names)}
        numbers: dict[int, dict[str, int]] = {}
        for o, args in self.writes.items():
            numbers.setdefault(o, {}).update(dict.fromkeys(args, o + 1))
        for o, args in self.reads.items():
            numbers.setdefault(o, {}).update({arg: self._source(o, arg) + 1 for arg in args})
        ops = {o: Worded(args, len(self.graph.ops)) for o, args in sorted(numbers.items())}
        polled = {o: frozenset(self._source(o, arg) for arg in args) for o, args in self.reads.items()}
        return HandedOver(sizes, ops, polled, self._ended_with(polled))

    def _source(self, op: int, arg: str) -> int:
        """The op that writes all that an op reads through an argument; -1 if there are several."""
        links = [link for link in self._links(op) if link.target.arg == arg and link.hazard is Hazard.RAW]
        found = {producer for link in links for producer in link.producers}
        return found.pop() if len(found) == 1 else -1

    def _links(self, op: int) -> list[Link]:
        return self.dependencies.into(op)

    def _without_readers(self) -> bool:
        """Leave out what an op writes that others read as a tensor, where there is none, or nobody reads as words."""
        polled = {name for args in self.reads.values() for name in args.values()}
        wrong = set()
        for o, args in self.writes.items():
            readers = [(r, a) for r, op in enumerate(self.graph.ops) for a in op.reads if a.tensor in args.values()]
            plain = any(a.arg not in self.reads.get(r, {}) for r, a in readers)
            if not {*args.values()} <= polled or (plain and not self.bodies[o].keeps):
                wrong.add(o)
        return self._leave_out(self.writes, wrong)

    def _without_writers(self) -> bool:
        """Leave out readers of what some op writes as a tensor, and writers beside such."""
        names = [
            a.tensor for o, op in enumerate(self.graph.ops) for a in op.writes if a.arg not in self.writes.get(o, {})
        ]
        wrong = {o for o, args in self.reads.items() if {*args.values()} & {*names}}
        beside = {o for o, args in self.writes.items() if {*args.values()} & {*names}}
        return self._leave_out(self.reads, wrong) | self._leave_out(self.writes, beside)

    def _without_words(self) -> bool:
        """Leave out readers whose waits are for other tiles too than those whose words they poll."""
        return self._leave_out(self.reads, {o for o, args in self.reads.items() if not self._suits(o, frozenset(args))})

    def _without_order(self) -> bool:
        """Leave out what ops write whose stores beside their words another op could store over before them."""
        wrong = {o for o in self.writes if any(self._may_come_late(o, name) for name in self._stored(o))}
        return self._leave_out(self.writes, wrong)

    def _without_unpolled(self) -> bool:
        """Leave out what an op publishes that is published anew before anybody polled it."""
        found = find_unpolled(self.graph, self.writes, self.reads)
        return self._leave_out(self.writes, set() if found is None else {found.op})

    def _stored(self, op: int) -> set[str]:
        """What an op that leaves words stores as tensors, with them or beside them."""
        accesses, words = self.graph.ops[op].writes, self.writes[op]
        return {a.tensor for a in accesses if self.bodies[op].keeps or a.arg not in words}

    def _may_come_late(self, op: int, tensor: str) -> bool:
        """Whether stores of an op to a tensor may come behind those of the next who writes it, as words order neither.

        Not where nobody reads the tensor later. Nor where an op between has awaited them all to read them: whoever
        overwrites what that one reads comes behind it. A tile's other stores are awaited with those that are read, and
        come before those of the same tile of the next who writes, if both ops cut these tensors alike; or before all
        of them, if these begin when all of the op that awaited has ended.
        """
        ops = self.graph.ops
        later = [o for o in range(op + 1, len(ops)) if _writes(ops[o], tensor)]
        if not later or not (self._plain(op + 1, len(ops), tensor) or tensor in self._outside):
            return False
        alike = {name for name in self._stored(op) if _cut(ops[op], name) == _cut(ops[later[0]], name)}
        for name in {tensor, *self._stored(op)}:
            next_written = next((o for o in range(op + 1, later[0]) if _writes(ops[o], name)), later[0])
            readers = [o for o, a in self._plain(op + 1, next_written, name) if self._reads_all(ops[o], a)]
            behind = name == tensor or {name, tensor} <= alike
            if any(behind or self._ends_before(o, later[0]) for o in readers):
                return False
        return True

    def _ends_before(self, op: int, other: int) -> bool:
        """Whether one op between two, or the second itself, needs all of the first, and the second some of that one."""
        needed = {p for link in self._links(other) if link.hazard is Hazard.RAW for p in link.producers}
        return any(self._needs_all(between, op) for between in {other, *needed} if between > op)

    def _needs_all(self, op: int, of: int) -> bool:
        tiles = self.graph.ops[of].tiles
        links = [k for k in self._links(op) if k.hazard is Hazard.RAW and k.producers == (of,)]
        needed = (self.dependencies.of_tiles(link).rows for link in links)
        return any(bool((np.bincount(rows, minlength=self.graph.ops[op].tiles) == tiles).all()) for rows in needed)

    def _plain(self, first: int, end: int, tensor: str) -> list[tuple[int, Access]]:
        """Which of some ops read a tensor as such, and by which access."""
        return [
            (o, access)
            for o in range(first, end)
            for access in self.graph.ops[o].reads
            if access.tensor == tensor and access.arg not in self.reads.get(o, {})
        ]

    def _reads_all(self, op: Op, access: Access) -> bool:
        """Whether tiles of an op read every element of a tensor, in boxes that are equal or apart."""
        lo, hi = np.split(np.unique(np.hstack(boxes(self.graph, op, access)), axis=0), 2, axis=1)
        elements = int(np.prod(hi - lo, axis=1, dtype=np.int64).sum())
        return elements == int(np.prod(self.graph.tensor(access.tensor).shape, dtype=np.int64))

    def _suits(self, op: int, args: frozenset[str]) -> bool:
        """Whether an op that polls these arguments waits for the tiles behind them alone."""
        if (op, args) not in self._suited:
            self._suited[op, args] = self._waits_for_those_alone(op, args)
        return self._suited[op, args]

    def _waits_for_those_alone(self, op: int, args: frozenset[str]) -> bool:
        plan = self.plan
        sources = {self._source(op, arg) for arg in args}
        polling = [k for k in self._links(op) if k.target.arg in args and k.hazard is Hazard.RAW]
        for source in sources - {-1}:
            links = [link for link in polling if link.producers[0] == source]
            words = self.writes.get(source, {})
            if not shows_reads(self.graph, self.bodies[source], source, op, links, self.dependencies, words):
                return False
        others = {p for link in self._links(op) if link not in polling for p in link.producers}
        if -1 in sources or sources & others:
            return False
        needed = [self.dependencies.of_tiles(link) for link in polling]
        row, tile = (np.concatenate([getattr(groups, name) for groups in needed]) for name in ("rows", "values"))
        tiles = np.bincount(row[distinct(row, tile)[0]], minlength=self.graph.ops[op].tiles)
        mine, waits = self._items_of_op[op], plan.waits
        of = _for_some(waits, self._waits_of_op[op], self._owners, sources)
        awaited = np.bincount(waits.item[of], (waits.count * waits.threshold)[of], minlength=len(plan.items))
        return bool((awaited[mine] == tiles[plan.items.tile[mine]]).all())

    @cached_property
    def _items_of_op(self) -> Groups:
        return grouped(self.plan.items.op, len(self.graph.ops))

    @cached_property
    def _waits_of_op(self) -> Groups:
        return grouped(self.plan.items.op[self.plan.waits.item], len(self.graph.ops))

    @cached_property
    def _owners(self) -> Ints:
        return _owners(self.plan)

    def _ended_with(self, polled: Mapping[int, frozenset[int]]) -> dict[int, int]:
        """Ops that leave words alone, all of which one op polls, with that op."""
        found = {}
        for o, args in self.writes.items():
            pollers = [c for c, sources in polled.items() if o in sources]
            if self.bodies[o].keeps or len(pollers) != 1 or len(args) < len(self.graph.ops[o].writes):
                continue
            links = [k for k in self._links(pollers[0]) if o in k.producers and k.hazard is Hazard.RAW]
            seen = {int(t) for link in links for t in self.dependencies.of_tiles(link).values}
            if len(seen) == self.graph.ops[o].tiles:
                found[o] = pollers[0]
        return found

    @staticmethod
    def _leave_out(of: dict[int, dict[str, str]], wrong: set[int]) -> bool:
        for op in wrong:
            del of[op]
        return bool(wrong)


def _writes(op: Op, tensor: str) -> bool:
    return any(access.tensor == tensor for access in op.writes)


def _cut(op: Op, tensor: str) -> tuple[object, ...]:
    """Which tile of an op writes what of a tensor, equal for ops that cut it alike; of one that writes none nothing."""
    return op.grid, *(access.spans for access in op.writes if access.tensor == tensor)


def _owners(plan: Plan) -> Ints:
    """The op whose tiles post each semaphore; -1 where several ops' do, or none."""
    ops = len(plan.graph.ops)
    least, most = np.full(plan.semaphores, ops, np.int64), np.full(plan.semaphores, -1, np.int64)
    posts = plan.items.post >= 0
    np.minimum.at(least, plan.items.post[posts], plan.items.op[posts])
    np.maximum.at(most, plan.items.post[posts], plan.items.op[posts])
    owners: Ints = np.where(least == most, least, -1)
    return owners


def _for_some(waits: Waits, rows: Ints, owner: Ints, ops: Collection[int]) -> Ints:
    """Those of some waits that are for tiles of these ops alone."""
    among = np.isin(owner, [*ops]).astype(np.int64)
    all_among = fold(np.minimum, among, waits.first[rows], waits.count[rows], waits.stride[rows])
    found: Ints = rows[all_among == 1]
    return found


def _words_of(graph: Graph, name: str) -> int:
    tensor = graph.tensor(name)
    count = int(np.prod(tensor.shape, dtype=np.int64))
    return -(-count * tensor.dtype.itemsize // 4)

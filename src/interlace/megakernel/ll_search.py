"""Selection of the tensors that the megakernel hands off by the LL protocol (``megakernel/ll_edges``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import numpy as np

from interlace.core.errors import PlanError
from interlace.graph.access import Access, Ints
from interlace.graph.dependencies import Dependencies, Hazard, Link
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.ragged import Groups, find_distinct, group_by
from interlace.kernels.bodies import NO_CLUSTER, LLTensors
from interlace.kernels.megakernel_body import MegakernelBody
from interlace.megakernel.ll_edges import NO_LL_EDGES, LLEdges, WaitOwners
from interlace.megakernel.ll_epochs import find_unpolled, proves_reads_done
from interlace.megakernel.options import RunOptions
from interlace.plan.plan import Dispatch, Plan

#: Maximum number of round trips to the L2 for LL words, for all items of an op on a worker. Each moves twice the bytes
#: of a tensor load; a semaphore followed by a bulk load takes about four trips (benchmarks/notes/decode.md).
_MAX_TRIPS = 4
#: Dispatches that allow LL hand-off: items are taken in the plan's order, whether or not they wait.
_DISPATCHES = (Dispatch.STATIC, Dispatch.TICKET)


def select_ll_tensors(
    plan: Plan, bodies: Sequence[MegakernelBody], options: RunOptions, dependencies: Dependencies | None = None
) -> LLEdges:
    """Select the tensors to hand off by the LL protocol, for a plan that is proved where it is run.

    The options name the tensors; by default all that qualify are selected. An op then qualifies if all of its tiles run
    at once, or if it loads weights meanwhile, because an item that polls keeps the consumers of its block from other
    items. It polls only if all of its items on a worker take few trips for words.

    Args:
        bodies: body of each op.
        dependencies: dependencies of the plan's graph, if already computed.

    Raises:
        PlanError: a named tensor cannot use the LL protocol.
    """
    wanted = options.ll_tensors
    able = any(body.ll.outputs for body in bodies) and any(body.ll.inputs for body in bodies)
    able &= plan.dispatch in _DISPATCHES and options.cluster == NO_CLUSTER
    found = NO_LL_EDGES
    if able and wanted != ():
        found = _Search(plan, bodies, wanted, dependencies or Dependencies(plan.graph)).search()
    missing = {*(wanted or ())} - found.sizes.keys()
    if missing:
        raise _make_refusal(plan, options, missing)
    return found


class _Search:
    """Fixed-point search that drops what cannot use the LL protocol until nothing more follows."""

    def __init__(
        self, plan: Plan, bodies: Sequence[MegakernelBody], wanted: tuple[str, ...] | None, dependencies: Dependencies
    ) -> None:
        self.plan, self.graph, self.bodies, self.dependencies = plan, plan.graph, bodies, dependencies
        self._poll_cache: dict[tuple[int, frozenset[str]], bool] = {}  # cached results, by op and arguments
        items, ops = plan.items, plan.graph.ops
        #: Accesses of each tensor, in program order: (op, access).
        self._readers: dict[str, list[tuple[int, Access]]] = {}
        self._writers: dict[str, list[tuple[int, Access]]] = {}
        for o, op in enumerate(ops):
            for accesses, users in ((op.reads, self._readers), (op.writes, self._writers)):
                for access in accesses:
                    users.setdefault(access.tensor, []).append((o, access))
        #: Ops that write what each op reads through an argument.
        self._sources: dict[tuple[int, str], set[int]] = {}
        for link in dependencies.links:
            if link.hazard is Hazard.RAW:
                self._sources.setdefault((link.consumer, link.target.arg), set()).update(link.producers)
        extent = np.array([op.k_extent for op in ops], np.int64)[items.op]
        cut = {*items.op[items.k_hi - items.k_lo < extent].tolist()}
        inner, self._graph_io = {*plan.graph.intermediates}, {*plan.graph.inputs, *plan.graph.outputs}
        #: LL candidates of each op: argument -> tensor.
        self.writes: dict[int, dict[str, str]] = {}
        self.reads: dict[int, dict[str, str]] = {}
        for o, (op, body) in enumerate(zip(ops, bodies, strict=True)):
            waves = 1 if wanted is not None else -(-op.tiles // plan.workers)
            if o in cut or (waves > 1 and not body.loads.prefetchable_inputs):
                continue
            trips = 1 if wanted is not None or body.ll.count_trips is None else body.ll.count_trips(op)
            polls = body.ll.inputs if waves * trips <= _MAX_TRIPS else ()
            tensors = {a.arg: self.graph.tensor(a.tensor) for a in op.accesses}
            for names, accesses, of in ((body.ll.outputs, op.writes, self.writes), (polls, op.reads, self.reads)):
                able = body.ll.select(names, op, tensors)
                some = {a.arg: a.tensor for a in accesses if a.arg in able}
                if some and {*some.values()} <= inner and (wanted is None or {*some.values()} <= {*wanted}):
                    of[o] = some

    def search(self) -> LLEdges:
        """Run the search and return what remains."""
        steps = (
            *(self._drop_unread, self._drop_mixed_writers, self._drop_wide_waits),
            *(self._drop_unordered, self._drop_unpolled),
        )
        while sum(step() for step in steps):
            pass
        names = {name for args in self.writes.values() for name in args.values()}
        sizes = {name: _count_ll_words(self.graph, name) for name in sorted(names)}
        numbers: dict[int, dict[str, int]] = {}
        for o, args in self.writes.items():
            numbers.setdefault(o, {}).update(dict.fromkeys(args, o + 1))
        for o, args in self.reads.items():
            numbers.setdefault(o, {}).update({arg: self._find_source(o, arg) + 1 for arg in args})
        ops = {o: LLTensors(args, len(self.graph.ops)) for o, args in sorted(numbers.items())}
        polled = {o: frozenset(self._find_source(o, arg) for arg in args) for o, args in self.reads.items()}
        return LLEdges(sizes, ops, polled, self._find_end_pollers(polled))

    def _find_source(self, op: int, arg: str) -> int:
        """Return the op that writes all that an op reads through an argument; -1 if there are several."""
        found = self._sources.get((op, arg), ())
        return min(found) if len(found) == 1 else -1

    def _get_links(self, op: int) -> list[Link]:
        return self.dependencies.find_links(op)

    def _drop_unread(self) -> bool:
        """Drop an op's words if no op polls them, or if some op reads them as a tensor that the body does not store."""
        polled = {name for args in self.reads.values() for name in args.values()}
        wrong = set()
        for o, args in self.writes.items():
            if not {*args.values()} <= polled:
                wrong.add(o)
            elif not self.bodies[o].ll.has_tensor_copy:
                readers = [user for name in args.values() for user in self._readers.get(name, ())]
                if any(a.arg not in self.reads.get(r, {}) for r, a in readers):
                    wrong.add(o)
        return self._remove_ops(self.writes, wrong)

    def _drop_mixed_writers(self) -> bool:
        """Drop readers of tensors that some op writes without words, and other writers' words of such tensors."""
        none: dict[str, str] = {}
        plain = {
            name
            for name, users in self._writers.items()
            for o, access in users
            if access.arg not in self.writes.get(o, none)
        }
        readers = {o for o, args in self.reads.items() if not plain.isdisjoint(args.values())}
        writers = {o for o, args in self.writes.items() if not plain.isdisjoint(args.values())}
        return self._remove_ops(self.reads, readers) | self._remove_ops(self.writes, writers)

    def _drop_wide_waits(self) -> bool:
        """Drop readers whose waits cover more tiles than those whose words they poll."""
        return self._remove_ops(
            self.reads, {o for o, args in self.reads.items() if not self._can_poll(o, frozenset(args))}
        )

    def _drop_unordered(self) -> bool:
        """Drop words of ops whose tensor stores could come after those of another op that overwrites them."""
        wrong = {o for o in self.writes if any(self._may_store_late(o, name) for name in self._find_stored(o))}
        return self._remove_ops(self.writes, wrong)

    def _drop_unpolled(self) -> bool:
        """Drop words of an op that are published again before any op polls them."""
        found = find_unpolled(self.dependencies, self.writes, self.reads)
        return self._remove_ops(self.writes, set() if found is None else {found.op})

    def _find_stored(self, op: int) -> set[str]:
        """Return the tensors that an op with LL outputs stores: its other outputs, and copies of its words if any."""
        accesses, words = self.graph.ops[op].writes, self.writes[op]
        return {a.tensor for a in accesses if self.bodies[op].ll.has_tensor_copy or a.arg not in words}

    def _may_store_late(self, op: int, tensor: str) -> bool:
        """Return whether an op's stores to a tensor may come after those of the next writer; words order neither.

        They may not if no op reads the tensor later. Nor if an op in between has waited for all of them in order to
        read them, because whatever overwrites what that op reads comes after it. A tile's other stores are awaited
        together with those that are read. They come before the next writer's stores of the same tile if both ops cut
        these tensors alike, and before all its stores if these begin after all of the op that waited has ended.
        """
        ops = self.graph.ops
        later = self._find_next_writer(op, tensor)
        if later == len(ops) or not (self._find_plain_readers(op + 1, len(ops), tensor) or tensor in self._graph_io):
            return False
        alike = {
            name for name in self._find_stored(op) if _describe_cut(ops[op], name) == _describe_cut(ops[later], name)
        }
        for name in {tensor, *self._find_stored(op)}:
            end = min(self._find_next_writer(op, name), later)
            readers = [o for o, a in self._find_plain_readers(op + 1, end, name) if self._reads_all(o, a)]
            behind = name == tensor or {name, tensor} <= alike
            if any(behind or self._ends_before(o, later) for o in readers):
                return False
        return True

    def _find_next_writer(self, op: int, tensor: str) -> int:
        """Return the first op after ``op`` that writes a tensor; the number of ops if none does."""
        return next((o for o, _ in self._writers.get(tensor, ()) if o > op), len(self.graph.ops))

    def _ends_before(self, op: int, other: int) -> bool:
        """Return whether ``other``, or an op that it reads from, needs all tiles of ``op``."""
        needed = {p for link in self._get_links(other) if link.hazard is Hazard.RAW for p in link.producers}
        return any(self._needs_all(between, op) for between in {other, *needed} if between > op)

    def _needs_all(self, op: int, of: int) -> bool:
        tiles = self.graph.ops[of].tiles
        links = [k for k in self._get_links(op) if k.hazard is Hazard.RAW and k.producers == (of,)]
        needed = (self.dependencies.find_tile_producers(link).rows for link in links)
        return any(bool((np.bincount(rows, minlength=self.graph.ops[op].tiles) == tiles).all()) for rows in needed)

    def _find_plain_readers(self, first: int, end: int, tensor: str) -> list[tuple[int, Access]]:
        """Return the ops in a range that read a tensor as such and not as words, each with its access."""
        return [
            (o, access)
            for o, access in self._readers.get(tensor, ())
            if first <= o < end and access.arg not in self.reads.get(o, {})
        ]

    def _reads_all(self, op: int, access: Access) -> bool:
        """Return whether tiles of an op read every element of a tensor, in boxes that are equal or disjoint."""
        bounds = self.dependencies.find_tile_boxes(self.dependencies.find_use(op, access.arg, writes=False))
        lo, hi = np.split(np.unique(np.hstack(bounds), axis=0), 2, axis=1)
        elements = int(np.prod(hi - lo, axis=1, dtype=np.int64).sum())
        return elements == int(np.prod(self.graph.tensor(access.tensor).shape, dtype=np.int64))

    def _can_poll(self, op: int, args: frozenset[str]) -> bool:
        """Return whether an op that polls these arguments waits only for the tiles that write them."""
        if (op, args) not in self._poll_cache:
            self._poll_cache[op, args] = self._waits_only_for_sources(op, args)
        return self._poll_cache[op, args]

    def _waits_only_for_sources(self, op: int, args: frozenset[str]) -> bool:
        plan = self.plan
        sources = {self._find_source(op, arg) for arg in args}
        polling = [k for k in self._get_links(op) if k.target.arg in args and k.hazard is Hazard.RAW]
        for source in sources - {-1}:
            links = [link for link in polling if link.producers[0] == source]
            words = self.writes.get(source, {})
            if not proves_reads_done(self.bodies[source], source, links, self.dependencies, words):
                return False
        others = {p for link in self._get_links(op) if link not in polling for p in link.producers}
        if -1 in sources or sources & others:
            return False
        needed = [self.dependencies.find_tile_producers(link) for link in polling]
        row, tile = (np.concatenate([getattr(groups, name) for groups in needed]) for name in ("rows", "values"))
        tiles = np.bincount(row[find_distinct(row, tile)[0]], minlength=self.graph.ops[op].tiles)
        mine = self._items_of_op[op]
        of = self._owners.select(self._waits_of_op[op], sources)
        awaited = np.bincount(self._wait_item[of], self._awaited_posts[of], minlength=len(plan.items))
        return bool((awaited[mine] == tiles[plan.items.tile[mine]]).all())

    @cached_property
    def _items_of_op(self) -> Groups:
        return group_by(self.plan.items.op, len(self.graph.ops))

    @cached_property
    def _waits_of_op(self) -> Groups:
        return group_by(self.plan.items.op[self._wait_item], len(self.graph.ops))

    @cached_property
    def _owners(self) -> WaitOwners:
        return WaitOwners.from_waits(self.plan.waits, self.plan)

    @cached_property
    def _wait_item(self) -> Ints:
        return self.plan.waits.item

    @cached_property
    def _awaited_posts(self) -> Ints:
        return self.plan.waits.count * self.plan.waits.threshold

    def _find_end_pollers(self, polled: Mapping[int, frozenset[int]]) -> dict[int, int]:
        """Return the ops that write only words, all of which one op polls, with that op."""
        found = {}
        for o, args in self.writes.items():
            pollers = [c for c, sources in polled.items() if o in sources]
            if self.bodies[o].ll.has_tensor_copy or len(pollers) != 1 or len(args) < len(self.graph.ops[o].writes):
                continue
            links = [k for k in self._get_links(pollers[0]) if o in k.producers and k.hazard is Hazard.RAW]
            seen = np.concatenate([self.dependencies.find_tile_producers(link).values for link in links])
            if len(np.unique(seen)) == self.graph.ops[o].tiles:
                found[o] = pollers[0]
        return found

    @staticmethod
    def _remove_ops(of: dict[int, dict[str, str]], wrong: set[int]) -> bool:
        for op in wrong:
            del of[op]
        return bool(wrong)


def _describe_cut(op: Op, tensor: str) -> tuple[object, ...]:
    """Return the region of a tensor that each tile of an op writes, equal for ops with equal cuts; the grid if none."""
    return op.grid, *(access.spans for access in op.writes if access.tensor == tensor)


def _count_ll_words(graph: Graph, name: str) -> int:
    tensor = graph.tensor(name)
    count = int(np.prod(tensor.shape, dtype=np.int64))
    return -(-count * tensor.dtype.itemsize // 4)


def _make_refusal(plan: Plan, options: RunOptions, missing: Collection[str]) -> PlanError:
    """Return the error for named tensors that cannot be LL words: the first reason, and the tensors it applies to."""
    graph, names = plan.graph, sorted(missing)
    unknown = [name for name in names if name not in {tensor.name for tensor in graph.tensors}]
    outside = [name for name in names if name in {*graph.inputs, *graph.outputs}]
    if unknown:
        names, why = unknown, f"graph {graph.name!r} has none of these names; leave them out of RunOptions.ll_tensors"
    elif outside:
        names, why = (
            outside,
            "inputs and outputs are seen from outside, as tensors; leave them out of RunOptions.ll_tensors",
        )
    elif plan.dispatch not in _DISPATCHES:
        name = plan.dispatch.value
        why = f"it has {name} dispatch; plan for static or ticket dispatch, or leave out RunOptions.ll_tensors"
    elif options.cluster != NO_CLUSTER:
        why = "blocks that load for one another take no words; leave out RunOptions.cluster or RunOptions.ll_tensors"
    else:
        why = (
            "who writes one and who reads it must be able to, whole tiles of one op each; leave them out of "
            "RunOptions.ll_tensors"
        )
    return PlanError(f"tensors {names} cannot be words of this plan: {why}")

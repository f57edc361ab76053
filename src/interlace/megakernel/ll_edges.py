"""LL hand-off: which tensors of the megakernel are handed off by the LL protocol, and which waits and posts remain.

The LL protocol is NCCL's (nccl/src/device/prims_ll.h): data with an inline epoch, which readers poll
(``csrc/ll.cuh``). The code calls LL words ``words``, and an epoch the number of a publication. Example, with
two layers whose attention writes ``parts`` for ``combine``:

    plan                                               megakernel
    combine 0 waits for semaphore 3 of attend 0        polls LL words of epoch 5 in parts; no wait
    append 0 waits for 3, and overwrites a cache       waits for combine 0, which has polled all words of attend 0
    attend 0 posts 3                                   posts nothing, because no item waits for it

The plan is proved with its waits. The form that is launched is proved again (``ll_proof``), with polls as waits for
LL words, which order nothing else. A poll guarantees what the wait that it replaces guarantees:

- *Readers* have a wait for each tile that writes what they read (``verify``), and accept no word with another epoch
  than that tile gives it in this run. A reader polls all that its access maps declare, from tiles of one op each, and
  its wait is dropped only if it covers these tiles and no others. So polls imply everything that the wait implies.
- *Ops that overwrite words* are later ops that write the tensor. The plan orders them after all readers, as for any
  tensor, so no reader finds a later epoch where it expects an earlier one. Each word is polled before it is published
  again (``ll_epochs``), so its two stores are ordered, too.
- *Words of the previous run* have other epochs, although epochs wrap: they increase from run to run modulo 2^32,
  readers compare for equality, and every polled word is stored in every run, whatever the tensors hold. The set of
  polled words follows from access maps and shapes alone: ops with a ``when`` all run under these dispatches, and
  missing rows of ``RunOptions.short_inputs`` are computed as zeros. So a reader finds a word of at most one run ago,
  with an epoch that is less than twice the number of ops back. In the first run it may find the 0 of the allocation,
  but the epochs of that run start at 1.
- *Tensor stores of an op that also writes words* are for ops that read the tensor as such, and these wait for them.
  Words do not order such stores. So before they are overwritten, another op has waited for all of them and read them,
  and any op that overwrites what that op reads comes after it; or no op reads the tensor later.
- *Reads of a tile* are known to be over to ops that poll its words, as ``ll_epochs`` explains: any one word, or all. If
  a tile writes only words, other ops may await its end through the ops that have polled all of them.
- *Progress* is that of the plan: a worker's items begin in order, and an item that polls delays only items that would
  wait for it in the plan. Dispatches that take items once their waits are met do not use LL hand-off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Access, Ints
from interlace.graph.dependencies import Dependencies, Hazard, Link
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.ragged import Groups, find_distinct, fold, group_by, mark_covered
from interlace.graph.uses import compute_boxes
from interlace.kernels.bodies import NO_CLUSTER, NO_LL, LLTensors, MegakernelBody
from interlace.megakernel.ll_epochs import find_unpolled, proves_reads_done
from interlace.megakernel.ll_refusal import LL_DISPATCHES, make_ll_refusal
from interlace.megakernel.options import RunOptions
from interlace.plan.plan import Plan, Waits
from interlace.sim.modes import LLHandOffs

#: Maximum number of round trips to the L2 for LL words, for all items of an op on a worker. Each moves twice the bytes
#: of a tensor load; a semaphore followed by a bulk load takes about four trips (benchmarks/notes/decode.md).
_MAX_TRIPS = 4


@dataclass(frozen=True)
class LLEdges:
    """The tensors of a plan that use the LL protocol.

    Attributes:
        sizes: number of words of each tensor.
        ops: LL arguments of each op; ops without any (``LLTensors({})``) are absent.
        poll_sources: for each op that polls, the ops whose words it polls.
        end_pollers: for each op whose end shows only in its words, the one op that polls all of them.
    """

    sizes: Mapping[str, int]
    ops: Mapping[int, LLTensors]
    poll_sources: Mapping[int, frozenset[int]]
    end_pollers: Mapping[int, int]

    def get_ll(self, op: int) -> LLTensors:
        """Return the LL arguments of an op."""
        return self.ops.get(op, NO_LL)

    def allocate_words(self, torch: Any, device: Any) -> dict[str, Any]:
        """Allocate the words of each tensor with epoch 0, which no publication has."""
        return {name: torch.zeros(size, dtype=torch.int64, device=device) for name, size in self.sizes.items()}

    def bind_arguments(self, number: int, op: Op, body: MegakernelBody, memory: Mapping[str, Any]) -> dict[str, Any]:
        """Return the words of an op's LL arguments, by the names that its body uses; ``number`` is the op's index."""
        tensors = {access.arg: access.tensor for access in op.accesses}
        beside = "_words" if body.has_tensor_copy else ""
        return {f"{arg}{beside}": memory[tensors[arg]] for arg in self.get_ll(number).epochs}

    def drop_polled_waits(self, waits: Waits, plan: Plan) -> Waits:
        """Return the waits that remain: polls replace some; waits for an op in ``end_pollers`` move to its poller."""
        if not self.ops:
            return waits
        owner = _find_owners(plan)
        keep = ~self._mask_polled_waits(waits, plan, owner)
        first, count, stride, threshold = (
            column.copy() for column in (waits.first, waits.count, waits.stride, waits.threshold)
        )
        for op, last in self.end_pollers.items():
            mine = np.flatnonzero(plan.items.op == last)
            post, posts = np.unique(plan.items.post[mine], return_counts=True)
            dense = post[0] >= 0 and post[-1] - post[0] + 1 == len(post) and (posts == posts[0]).all()
            if dense and (owner[post] == last).all():
                later = _select_waits(waits, np.flatnonzero(keep & (waits.item > mine.max())), owner, (op,))
                first[later], count[later], stride[later], threshold[later] = post[0], len(post), 1, posts[0]
        ptr = np.r_[0, np.cumsum(keep)][waits.ptr]
        return Waits(ptr, *(column[keep] for column in (first, count, stride, threshold, waits.k)))

    def _mask_polled_waits(self, waits: Waits, plan: Plan, owner: Ints) -> NDArray[np.bool_]:
        """Return a mask of the waits that are only for tiles whose words the waiting op polls."""
        op_of_wait, found = plan.items.op[waits.item], np.zeros(len(waits), np.bool_)
        for op, sources in self.poll_sources.items():
            found[_select_waits(waits, np.flatnonzero(op_of_wait == op), owner, sources)] = True
        return found

    def build_hand_offs(self, plan: Plan) -> LLHandOffs:
        """Return the LL hand-offs for the simulated machine, where waits for ops in ``end_pollers`` do not move."""
        if not self.ops:
            return LLHandOffs.without_ll(plan)
        posts = self.compute_posts(self.drop_polled_waits(plan.waits, plan), plan)
        return LLHandOffs(
            self._mask_polled_waits(plan.waits, plan, _find_owners(plan)), (plan.items.post >= 0) & (posts < 0)
        )

    def compute_posts(self, waits: Waits, plan: Plan) -> Ints:
        """Return what each item posts, given the remaining waits: -1 for items of LL ops that no item waits for."""
        post = plan.items.post
        if not self.ops:
            return post
        awaited = mark_covered(waits.first, waits.count, waits.stride, plan.semaphores + 1)  # the last entry is for -1
        silent = np.isin(plan.items.op, [*self.ops]) & ~awaited[post]
        posts: Ints = np.where(silent, -1, post)
        return posts


#: No tensor uses the LL protocol.
NO_LL_EDGES = LLEdges({}, {}, {}, {})


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
    able = any(body.ll_outputs for body in bodies) and any(body.ll_inputs for body in bodies)
    able &= plan.dispatch in LL_DISPATCHES and options.cluster == NO_CLUSTER
    found = NO_LL_EDGES
    if able and wanted != ():
        found = _Search(plan, bodies, wanted, dependencies or Dependencies(plan.graph)).search()
    missing = {*(wanted or ())} - found.sizes.keys()
    if missing:
        raise make_ll_refusal(plan, options, missing)
    return found


class _Search:
    """Fixed-point search that drops what cannot use the LL protocol until nothing more follows."""

    def __init__(
        self, plan: Plan, bodies: Sequence[MegakernelBody], wanted: tuple[str, ...] | None, dependencies: Dependencies
    ) -> None:
        self.plan, self.graph, self.bodies, self.dependencies = plan, plan.graph, bodies, dependencies
        self._poll_cache: dict[tuple[int, frozenset[str]], bool] = {}  # cached results, by op and arguments
        items, ops = plan.items, plan.graph.ops
        extent = np.array([op.k_extent for op in ops], np.int64)[items.op]
        cut = {*items.op[items.k_hi - items.k_lo < extent].tolist()}
        inner, self._graph_io = {*plan.graph.intermediates}, {*plan.graph.inputs, *plan.graph.outputs}
        #: LL candidates of each op: argument -> tensor.
        self.writes: dict[int, dict[str, str]] = {}
        self.reads: dict[int, dict[str, str]] = {}
        for o, (op, body) in enumerate(zip(ops, bodies, strict=True)):
            waves = 1 if wanted is not None else -(-op.tiles // plan.workers)
            if o in cut or (waves > 1 and not body.prefetchable_inputs):
                continue
            trips = 1 if wanted is not None or body.count_ll_trips is None else body.count_ll_trips(op)
            polls = body.ll_inputs if waves * trips <= _MAX_TRIPS else ()
            for names, accesses, of in ((body.ll_outputs, op.writes, self.writes), (polls, op.reads, self.reads)):
                able = [name for name in names if body.can_use_ll is None or body.can_use_ll(op, name)]
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
        links = [link for link in self._get_links(op) if link.target.arg == arg and link.hazard is Hazard.RAW]
        found = {producer for link in links for producer in link.producers}
        return found.pop() if len(found) == 1 else -1

    def _get_links(self, op: int) -> list[Link]:
        return self.dependencies.find_links(op)

    def _drop_unread(self) -> bool:
        """Drop an op's words if no op polls them, or if some op reads them as a tensor that the body does not store."""
        polled = {name for args in self.reads.values() for name in args.values()}
        wrong = set()
        for o, args in self.writes.items():
            readers = [(r, a) for r, op in enumerate(self.graph.ops) for a in op.reads if a.tensor in args.values()]
            plain = any(a.arg not in self.reads.get(r, {}) for r, a in readers)
            if not {*args.values()} <= polled or (plain and not self.bodies[o].has_tensor_copy):
                wrong.add(o)
        return self._remove_ops(self.writes, wrong)

    def _drop_mixed_writers(self) -> bool:
        """Drop readers of tensors that some op writes without words, and other writers' words of such tensors."""
        names = [
            a.tensor for o, op in enumerate(self.graph.ops) for a in op.writes if a.arg not in self.writes.get(o, {})
        ]
        wrong = {o for o, args in self.reads.items() if {*args.values()} & {*names}}
        beside = {o for o, args in self.writes.items() if {*args.values()} & {*names}}
        return self._remove_ops(self.reads, wrong) | self._remove_ops(self.writes, beside)

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
        found = find_unpolled(self.graph, self.writes, self.reads)
        return self._remove_ops(self.writes, set() if found is None else {found.op})

    def _find_stored(self, op: int) -> set[str]:
        """Return the tensors that an op with LL outputs stores: its other outputs, and copies of its words if any."""
        accesses, words = self.graph.ops[op].writes, self.writes[op]
        return {a.tensor for a in accesses if self.bodies[op].has_tensor_copy or a.arg not in words}

    def _may_store_late(self, op: int, tensor: str) -> bool:
        """Return whether an op's stores to a tensor may come after those of the next writer; words order neither.

        They may not if no op reads the tensor later. Nor if an op in between has waited for all of them in order to
        read them, because whatever overwrites what that op reads comes after it. A tile's other stores are awaited
        together with those that are read. They come before the next writer's stores of the same tile if both ops cut
        these tensors alike, and before all its stores if these begin after all of the op that waited has ended.
        """
        ops = self.graph.ops
        later = [o for o in range(op + 1, len(ops)) if _writes_tensor(ops[o], tensor)]
        if not later or not (self._find_plain_readers(op + 1, len(ops), tensor) or tensor in self._graph_io):
            return False
        alike = {
            name for name in self._find_stored(op) if _describe_cut(ops[op], name) == _describe_cut(ops[later[0]], name)
        }
        for name in {tensor, *self._find_stored(op)}:
            next_written = next((o for o in range(op + 1, later[0]) if _writes_tensor(ops[o], name)), later[0])
            readers = [o for o, a in self._find_plain_readers(op + 1, next_written, name) if self._reads_all(ops[o], a)]
            behind = name == tensor or {name, tensor} <= alike
            if any(behind or self._ends_before(o, later[0]) for o in readers):
                return False
        return True

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
            for o in range(first, end)
            for access in self.graph.ops[o].reads
            if access.tensor == tensor and access.arg not in self.reads.get(o, {})
        ]

    def _reads_all(self, op: Op, access: Access) -> bool:
        """Return whether tiles of an op read every element of a tensor, in boxes that are equal or disjoint."""
        lo, hi = np.split(np.unique(np.hstack(compute_boxes(self.graph, op, access)), axis=0), 2, axis=1)
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
            if not proves_reads_done(self.graph, self.bodies[source], source, op, links, self.dependencies, words):
                return False
        others = {p for link in self._get_links(op) if link not in polling for p in link.producers}
        if -1 in sources or sources & others:
            return False
        needed = [self.dependencies.find_tile_producers(link) for link in polling]
        row, tile = (np.concatenate([getattr(groups, name) for groups in needed]) for name in ("rows", "values"))
        tiles = np.bincount(row[find_distinct(row, tile)[0]], minlength=self.graph.ops[op].tiles)
        mine, waits = self._items_of_op[op], plan.waits
        of = _select_waits(waits, self._waits_of_op[op], self._owners, sources)
        awaited = np.bincount(waits.item[of], (waits.count * waits.threshold)[of], minlength=len(plan.items))
        return bool((awaited[mine] == tiles[plan.items.tile[mine]]).all())

    @cached_property
    def _items_of_op(self) -> Groups:
        return group_by(self.plan.items.op, len(self.graph.ops))

    @cached_property
    def _waits_of_op(self) -> Groups:
        return group_by(self.plan.items.op[self.plan.waits.item], len(self.graph.ops))

    @cached_property
    def _owners(self) -> Ints:
        return _find_owners(self.plan)

    def _find_end_pollers(self, polled: Mapping[int, frozenset[int]]) -> dict[int, int]:
        """Return the ops that write only words, all of which one op polls, with that op."""
        found = {}
        for o, args in self.writes.items():
            pollers = [c for c, sources in polled.items() if o in sources]
            if self.bodies[o].has_tensor_copy or len(pollers) != 1 or len(args) < len(self.graph.ops[o].writes):
                continue
            links = [k for k in self._get_links(pollers[0]) if o in k.producers and k.hazard is Hazard.RAW]
            seen = {int(t) for link in links for t in self.dependencies.find_tile_producers(link).values}
            if len(seen) == self.graph.ops[o].tiles:
                found[o] = pollers[0]
        return found

    @staticmethod
    def _remove_ops(of: dict[int, dict[str, str]], wrong: set[int]) -> bool:
        for op in wrong:
            del of[op]
        return bool(wrong)


def _writes_tensor(op: Op, tensor: str) -> bool:
    return any(access.tensor == tensor for access in op.writes)


def _describe_cut(op: Op, tensor: str) -> tuple[object, ...]:
    """Return the region of a tensor that each tile of an op writes, equal for ops with equal cuts; the grid if none."""
    return op.grid, *(access.spans for access in op.writes if access.tensor == tensor)


def _find_owners(plan: Plan) -> Ints:
    """Return the op whose tiles post each semaphore; -1 where none or several ops do."""
    ops = len(plan.graph.ops)
    least, most = np.full(plan.semaphores, ops, np.int64), np.full(plan.semaphores, -1, np.int64)
    posts = plan.items.post >= 0
    np.minimum.at(least, plan.items.post[posts], plan.items.op[posts])
    np.maximum.at(most, plan.items.post[posts], plan.items.op[posts])
    owners: Ints = np.where(least == most, least, -1)
    return owners


def _select_waits(waits: Waits, rows: Ints, owner: Ints, ops: Collection[int]) -> Ints:
    """Return those of some waits that are only for tiles of these ops."""
    among = np.isin(owner, [*ops]).astype(np.int64)
    all_among = fold(np.minimum, among, waits.first[rows], waits.count[rows], waits.stride[rows])
    found: Ints = rows[all_among == 1]
    return found


def _count_ll_words(graph: Graph, name: str) -> int:
    tensor = graph.tensor(name)
    count = int(np.prod(tensor.shape, dtype=np.int64))
    return -(-count * tensor.dtype.itemsize // 4)

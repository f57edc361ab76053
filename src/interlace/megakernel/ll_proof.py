"""The proof of LL hand-off: the launched form as a plan for ``verify``, with LL words as tensors of their own.

An LL word orders only itself. So a tile that polls or writes words is divided into parts, each an op of its own:

    reads     reads the tile's tensor inputs, after the waits that remain, and writes a mark
    words     from that mark and the polled words, writes the tile's words
    stores    from the same, stores the tile's tensors, including its words if its body keeps them; it posts as the tile

In this plan all words of a tile are one op. So what polls of some of them prove is checked first (``ll_epochs``): each
word was polled before it is published again, and reads that a poll is assumed to follow are over.

In this plan an op that polls waits for the words of each tile whose data it reads, and for nothing else of that tile.
An item that waits for a tile's post also waits for its words and its reads, because the tile posts after them. Stores
to a tensor that nothing in or outside the graph reads as such are omitted, because the order of two such stores does
not matter. ``verify`` then shows what it shows of any plan: nothing is read before it is written, no word is
overwritten before all that poll its last publication have it, and no two items wait for each other. The proof may rest
on waits alone, because the parts of a worker's items overlap.

``ll_edges`` explains why a poll is as good as such a wait, although epochs wrap and only some of a tile's words may be
polled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import fp32
from interlace.core.errors import CoverageError, IntraOpRaceError, PlanError, UnwrittenError
from interlace.graph.access import Access, Ints, Span, axes
from interlace.graph.dependencies import Dependencies, Hazard, Link
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.ragged import compute_offsets, expand_ranges, group_by
from interlace.graph.tensor import Tensor
from interlace.kernels.megakernel_body import MegakernelBody
from interlace.megakernel.ll_edges import NO_LL_EDGES, LLEdges
from interlace.megakernel.ll_epochs import find_unpolled, proves_reads_done
from interlace.megakernel.ll_search import select_ll_tensors
from interlace.megakernel.options import RunOptions
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Items, Plan, Waits
from interlace.planner.proof_cache import prove_plan

_PART_KERNEL = "part of an op"  # no body: parts are proved, not run
_WHOLE, _READS, _LL, _STORES = range(4)


def prove_ll(plan: Plan, bodies: Sequence[MegakernelBody], options: RunOptions) -> LLEdges:
    """Select tensors as ``select_ll_tensors`` does and prove the launched form; without a proof, use no LL hand-off.

    Raises:
        PlanError: as ``select_ll_tensors``; or the launch is not safe with the tensors that the options name.
    """
    dependencies = Dependencies(plan.graph)
    found = select_ll_tensors(plan, bodies, options, dependencies)
    if not found.ops:
        return found
    launched = build_ll_plan(plan, bodies, found, dependencies)
    try:
        _check_polls(bodies, found, dependencies)
        for ordering, edge in prove_plan(launched).rests_on:
            if ordering is not Ordering.WAIT:
                raise CoverageError(f"{edge}, but words order no items of one worker")
    except (PlanError, IntraOpRaceError, UnwrittenError) as error:  # what verify raises
        if options.ll_tensors is None:
            return NO_LL_EDGES
        raise PlanError(
            f"with {', '.join(options.ll_tensors)} as words the launch is not safe: {error}; name fewer in "
            "RunOptions.ll_tensors, or () for none"
        ) from error
    return found


def _check_polls(bodies: Sequence[MegakernelBody], words: LLEdges, dependencies: Dependencies) -> None:
    """Raise CoverageError if polls prove less than the plan assumes (``ll_epochs``)."""
    graph = dependencies.graph
    numbers = {o: words.get_ll(o).epochs for o in words.ops}
    unpolled = find_unpolled(dependencies, numbers, numbers)
    if unpolled is not None:
        raise CoverageError(unpolled.describe(graph))
    for o, args in numbers.items():
        polled: dict[int, list[Link]] = {}
        for link in dependencies.find_links(o):
            if link.hazard is Hazard.RAW and link.target.arg in args:
                polled.setdefault(link.producers[0], []).append(link)
        for source, links in polled.items():
            if not proves_reads_done(bodies[source], source, links, dependencies, words.get_ll(source).epochs):
                raise CoverageError(
                    f"op {graph.ops[o].name!r} polls some words of op {graph.ops[source].name!r}, which does not show "
                    "that its reads are over"
                )


def build_ll_plan(
    plan: Plan, bodies: Sequence[MegakernelBody], words: LLEdges, dependencies: Dependencies | None = None
) -> Plan:
    """Return the plan in which LL words are tensors of their own."""
    return _LLPlanBuilder(plan, bodies, words, dependencies or Dependencies(plan.graph)).build()


class _LLPlanBuilder:
    def __init__(
        self, plan: Plan, bodies: Sequence[MegakernelBody], words: LLEdges, dependencies: Dependencies
    ) -> None:
        self.source_plan, self.ll_edges, self.bodies, self.dependencies = plan, words, bodies, dependencies
        self.waits = words.drop_polled_waits(plan.waits, plan)
        self.ops: list[Op] = []
        self.marks: list[Tensor] = []
        self._used_names = {t.name for t in plan.graph.tensors} | {op.name for op in plan.graph.ops}
        #: Parts of each op: role -> index of the part's op.
        self.parts: list[dict[int, int]] = []
        #: First semaphores of tiles, numbered through all ops: for a tile's reads, and for its words.
        self.read_at = plan.semaphores
        self.ll_at = plan.semaphores + int(self.dependencies.base[-1])

    def build(self) -> Plan:
        graph = self._build_graph()
        items = self._build_items()
        rows = np.concatenate(
            [self._build_remaining_waits(), self._build_mark_waits(), self._build_poll_waits()], axis=1
        )
        item, first, count, stride, threshold, k = rows[:, np.lexsort((rows[5], rows[0]))]
        # Drop semaphores that are no longer posted. Those of a row are all posted, so they stay consecutive.
        posted = np.zeros(self.ll_at + self.dependencies.base[-1] + 1, np.bool_)
        posted[items.post[items.post >= 0]] = True
        number = np.cumsum(posted) - 1
        ptr = np.searchsorted(item, np.arange(len(items) + 1))
        return replace(
            self.source_plan,
            graph=graph,
            items=replace(items, post=np.where(items.post >= 0, number[items.post], -1)),
            waits=Waits(ptr, number[first], count, stride, threshold, k),
            semaphores=int(posted.sum()),
        )

    def _build_graph(self) -> Graph:
        graph = self.source_plan.graph
        plain = {
            a.tensor for o, op in enumerate(graph.ops) for a in op.reads if a.arg not in self.ll_edges.get_ll(o).epochs
        }
        kept = plain | {*graph.inputs} | {*graph.outputs}
        for o, op in enumerate(graph.ops):
            self.parts.append(self._split_op(o, op, kept))
        names = {access.tensor for op in self.ops for access in op.accesses} | {*graph.inputs} | {*graph.outputs}
        mine = [replace(graph.tensor(name), name=self._name_ll_tensor(name)) for name in self.ll_edges.sizes]
        tensors = [t for t in (*graph.tensors, *mine, *self.marks) if t.name in names]
        return Graph(graph.name, tuple(tensors), tuple(self.ops), graph.inputs, graph.outputs)

    def _split_op(self, o: int, op: Op, kept: set[str]) -> dict[int, int]:
        """Add the parts of an op, which store only tensors in ``kept``, and return them by role."""
        numbers = self.ll_edges.get_ll(o).epochs
        if not numbers:
            self.ops.append(op)
            return {_WHOLE: len(self.ops) - 1}
        found = {}

        def part(role: int, name: str, reads: Sequence[Access], writes: Sequence[Access]) -> None:
            own = self._make_unique_name(f"{op.name} {name}")
            self.ops.append(Op(own, _PART_KERNEL, op.grid, tuple(reads), tuple(writes), op.reduction))
            found[role] = len(self.ops) - 1

        polled = [Access(a.arg, self._name_ll_tensor(a.tensor), a.spans) for a in op.reads if a.arg in numbers]
        if read := [a for a in op.reads if a.arg not in numbers]:
            self.marks.append(Tensor(self._make_unique_name(f"{op.name} has read"), op.grid, fp32))
            mark = Access("read", self.marks[-1].name, _mark_spans(len(op.grid)))
            part(_READS, "reads", read, [mark])
            polled.append(mark)
        if left := [Access(a.arg, self._name_ll_tensor(a.tensor), a.spans) for a in op.writes if a.arg in numbers]:
            part(_LL, "words", polled, left)
        stored = [a for a in op.writes if a.arg not in numbers or self.bodies[o].ll.has_tensor_copy]
        if some := [a for a in stored if a.tensor in kept] or (not left and stored):
            part(_STORES, "stores", polled, some)
        return found

    def _name_ll_tensor(self, tensor: str) -> str:
        return self._make_unique_name(f"{tensor} as words")

    def _make_unique_name(self, name: str) -> str:
        """Return a variant of a name that no tensor or op of the graph has."""
        while name in self._used_names:
            name += "'"
        return name

    def _mask_role(self, role: int) -> NDArray[np.bool_]:
        """Return a mask of the items that have a part of a role."""
        return np.array([role in parts for parts in self.parts])[self.source_plan.items.op]

    def _count_parts(self) -> Ints:
        """Return the number of parts of each item."""
        return np.array([len(parts) for parts in self.parts], np.int64)[self.source_plan.items.op]

    def _build_items(self) -> Items:
        """Return the items of the plan: the parts of each item in turn."""
        items, count = self.source_plan.items, self._count_parts()
        of, which = np.repeat(np.arange(len(items)), count), expand_ranges(np.zeros_like(count), count)
        roles, ops = np.zeros((2, len(self.parts), 3), np.int64)
        for o, parts in enumerate(self.parts):
            roles[o, : len(parts)], ops[o, : len(parts)] = [*parts], [*parts.values()]
        op, tile, posts = (
            items.op[of],
            self.source_plan.tile_of_item[of],
            self.ll_edges.compute_posts(self.waits, self.source_plan),
        )
        own = {_READS: self.read_at + tile, _LL: self.ll_at + tile}
        post = np.select([roles[op, which] == role for role in own], [*own.values()], posts[of])
        return Items(ops[op, which], items.tile[of], items.k_lo[of], items.k_hi[of], items.worker[of], post)

    def _build_remaining_waits(self) -> Ints:
        """Return the remaining waits of each part of an item: for posts, and for what precedes these in their tiles."""
        post, waits = self.source_plan.items.post, self.waits
        stored = np.zeros(self.source_plan.semaphores, np.bool_)
        stored[post[(self._mask_role(_STORES) | ~self._mask_role(_LL)) & (post >= 0)]] = True
        row, semaphore = (
            np.repeat(np.arange(len(waits)), waits.count),
            expand_ranges(waits.first, waits.count, waits.stride),
        )
        keep = stored[semaphore]
        found = [_merge_runs(row[keep], semaphore[keep], waits.threshold[row[keep]])]
        for role, own in ((_READS, self.read_at), (_LL, self.ll_at)):
            mine = np.flatnonzero(self._mask_role(role) & (post >= 0))
            before = group_by(post[mine], self.source_plan.semaphores).take(semaphore)
            tile = self.source_plan.tile_of_item[mine[before.values]]
            found.append(_merge_runs(row[before.rows], own + tile, np.ones_like(tile)))
        at, first, count, threshold = np.concatenate(found, axis=1)
        return self._expand_waits(waits.item[at], first, count, threshold, waits.k[at], reads=True)

    def _build_mark_waits(self) -> Ints:
        """Return the waits of parts that poll or write words for the reads of their own tile."""
        some = np.flatnonzero(self._mask_role(_READS))
        tile, one = self.source_plan.tile_of_item[some], np.ones_like(some)
        return self._expand_waits(some, self.read_at + tile, one, one, self.source_plan.items.k_lo[some], reads=False)

    def _build_poll_waits(self) -> Ints:
        items, base = self.source_plan.items, self.dependencies.base
        item_of = np.zeros(base[-1], np.int64)
        item_of[self.source_plan.tile_of_item] = np.arange(len(items))
        polls = [
            link
            for o, words in self.ll_edges.ops.items()
            for link in self.dependencies.find_links(o)
            if link.hazard is Hazard.RAW and link.target.arg in words.epochs
        ]
        needed = [self.dependencies.find_tile_producers(link) for link in polls]
        none = np.zeros(0, np.int64)
        tile = np.concatenate([none, *(groups.values for groups in needed)])
        own = np.concatenate([none, *(base[link.consumer] + of.rows for link, of in zip(polls, needed, strict=True))])
        # Number rows by link, too, so that no run goes through several links.
        link_of = np.repeat(np.arange(len(polls)), [len(groups.values) for groups in needed])
        row, first, count, threshold = _merge_runs(
            link_of * len(items) + item_of[own], self.ll_at + tile, np.ones_like(tile)
        )
        item = row % len(items)
        return self._expand_waits(item, first, count, threshold, items.k_lo[item], reads=False)

    def _expand_waits(self, item: Ints, first: Ints, count: Ints, threshold: Ints, k: Ints, *, reads: bool) -> Ints:
        """Return waits of items as waits of their parts, with or without the part that reads."""
        skipped = 0 if reads else self._mask_role(_READS)[item]
        parts = self._count_parts()
        mine = expand_ranges(compute_offsets(parts)[item] + skipped, parts[item] - skipped)
        of = np.repeat(np.arange(len(item)), parts[item] - skipped)
        found: Ints = np.stack([mine, first[of], count[of], np.ones_like(of), threshold[of], k[of]])
        return found


@cache
def _mark_spans(rank: int) -> tuple[Span, ...]:
    """Return the element of its mark that a tile of a grid writes."""
    return tuple(axis.block(1) for axis in axes(rank))


def _merge_runs(row: Ints, semaphore: Ints, threshold: Ints) -> Ints:
    """Merge consecutive semaphores of a row with one threshold into runs: row, first, count, threshold."""
    apart = (np.diff(row) != 0) | (np.diff(semaphore) != 1) | (np.diff(threshold) != 0)
    begin = np.flatnonzero(np.r_[True, apart]) if len(row) else np.zeros(0, np.int64)
    found: Ints = np.stack([row[begin], semaphore[begin], np.diff(np.r_[begin, len(row)]), threshold[begin]])
    return found

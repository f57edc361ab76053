"""The proof of LL hand-off: the launched form as a plan for ``verify``, with LL words as tensors of their own.

An LL word orders only itself. So a tile that polls or writes words is divided into parts, each an op of its own:

    reads     reads the tile's tensor inputs, after the waits that remain, and writes a mark
    words     from that mark and the polled words, writes the tile's words
    stores    from the same, stores the tile's tensors, including its words if its body keeps them; it posts as the tile

All words of a tile are one op here. So what polls of some of them show is checked first (``publications``): each word
was polled before it is published again, and reads that a poll is taken to follow are over.

In this plan an op that polls waits for the words of each tile whose data it reads, and for nothing else of that tile.
An item that waits for a tile's post also waits for its words and its reads, because the tile posts after them. Stores
to a tensor that nothing in or outside the graph reads as such are omitted, because the order of two such stores does
not matter. ``verify`` then shows what it shows of any plan: nothing is read before it is written, no word is
overwritten before all that poll its last publication have it, and no two items wait for each other. The proof may rest
on waits alone, because the parts of a worker's items overlap.

``words`` explains why a poll is as good as such a wait, although epochs wrap and only some of a tile's words may be
polled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import fp32
from interlace.core.errors import CoverageError, IntraOpRaceError, PlanError, UnwrittenError
from interlace.graph.access import Access, Ints, axes
from interlace.graph.dependencies import Dependencies, Hazard, Link
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.ragged import grouped, offsets, ranges
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel
from interlace.kernels.bodies import WalkBody
from interlace.megakernel.ll_edges import NONE, HandedOver, handed_over
from interlace.megakernel.ll_epochs import find_unpolled, shows_reads
from interlace.megakernel.options import Options
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Items, Plan, Waits
from interlace.planner.kept import proof_of

_PART = Kernel("part of an op")
_WHOLE, _READS, _WORDS, _STORES = range(4)


def proved_words(plan: Plan, bodies: Sequence[WalkBody], options: Options) -> HandedOver:
    """Select tensors as ``handed_over`` does and prove the launched form; without a proof, use no LL hand-off.

    Raises:
        PlanError: as ``handed_over``; or the launch is not safe with the tensors that the options name.
    """
    dependencies = Dependencies(plan.graph)
    found = handed_over(plan, bodies, options, dependencies)
    if not found.ops:
        return found
    launched = in_parts(plan, bodies, found, dependencies)
    try:
        _check_polls(plan.graph, bodies, found, dependencies)
        for ordering, edge in proof_of(launched).rests_on:
            if ordering is not Ordering.WAIT:
                raise CoverageError(f"{edge}, but words order no items of one worker")
    except (PlanError, IntraOpRaceError, UnwrittenError) as error:  # what verify raises
        if options.words is None:
            return NONE
        raise PlanError(
            f"with {', '.join(options.words)} as words the launch is not safe: {error}; name fewer in Options.words, "
            "or () for none"
        ) from error
    return found


def _check_polls(graph: Graph, bodies: Sequence[WalkBody], words: HandedOver, dependencies: Dependencies) -> None:
    """Raise CoverageError where polls show less than the plan takes them to show (``publications``)."""
    numbers = {o: words.of(o).numbers for o in words.ops}
    unpolled = find_unpolled(graph, numbers, numbers)
    if unpolled is not None:
        raise CoverageError(unpolled.describe(graph))
    for o, args in numbers.items():
        polled: dict[int, list[Link]] = {}
        for link in dependencies.into(o):
            if link.hazard is Hazard.RAW and link.target.arg in args:
                polled.setdefault(link.producers[0], []).append(link)
        for source, links in polled.items():
            if not shows_reads(graph, bodies[source], source, o, links, dependencies, words.of(source).numbers):
                raise CoverageError(
                    f"op {graph.ops[o].name!r} polls some words of op {graph.ops[source].name!r}, which does not show "
                    "that its reads are over"
                )


def in_parts(
    plan: Plan, bodies: Sequence[WalkBody], words: HandedOver, dependencies: Dependencies | None = None
) -> Plan:
    """Return the plan in which LL words are tensors of their own."""
    return _Parts(plan, bodies, words, dependencies or Dependencies(plan.graph)).plan()


class _Parts:
    def __init__(self, plan: Plan, bodies: Sequence[WalkBody], words: HandedOver, dependencies: Dependencies) -> None:
        self.whole, self.words, self.bodies, self.dependencies = plan, words, bodies, dependencies
        self.waits = words.without(plan.waits, plan)
        self.ops: list[Op] = []
        self.marks: list[Tensor] = []
        self._taken = {t.name for t in plan.graph.tensors} | {op.name for op in plan.graph.ops}
        #: Parts of each op: role -> index of the part's op.
        self.parts: list[dict[int, int]] = []
        #: First semaphores of tiles, numbered through all ops: for a tile's reads, and for its words.
        self.read_at = plan.semaphores
        self.left_at = plan.semaphores + int(self.dependencies.base[-1])

    def plan(self) -> Plan:
        graph = self._graph()
        items = self._items()
        rows = np.concatenate([self._left(), self._marks(), self._polls()], axis=1)
        item, first, count, stride, threshold, k = rows[:, np.lexsort((rows[5], rows[0]))]
        # Drop semaphores that are no longer posted. Those of a row are all posted, so they stay consecutive.
        posted = np.zeros(self.left_at + self.dependencies.base[-1] + 1, np.bool_)
        posted[items.post[items.post >= 0]] = True
        number = np.cumsum(posted) - 1
        ptr = np.searchsorted(item, np.arange(len(items) + 1))
        return replace(
            self.whole,
            graph=graph,
            items=replace(items, post=np.where(items.post >= 0, number[items.post], -1)),
            waits=Waits(ptr, number[first], count, stride, threshold, k),
            semaphores=int(posted.sum()),
        )

    def _graph(self) -> Graph:
        graph = self.whole.graph
        plain = {a.tensor for o, op in enumerate(graph.ops) for a in op.reads if a.arg not in self.words.of(o).numbers}
        kept = plain | {*graph.inputs} | {*graph.outputs}
        for o, op in enumerate(graph.ops):
            self.parts.append(self._apart(o, op, kept))
        names = {access.tensor for op in self.ops for access in op.accesses} | {*graph.inputs} | {*graph.outputs}
        mine = [replace(graph.tensor(name), name=self._words(name)) for name in self.words.sizes]
        tensors = [t for t in (*graph.tensors, *mine, *self.marks) if t.name in names]
        return Graph(graph.name, tuple(tensors), tuple(self.ops), graph.inputs, graph.outputs)

    def _apart(self, o: int, op: Op, kept: set[str]) -> dict[int, int]:
        """Add the parts of an op, which store only tensors in ``kept``, and return them by role."""
        numbers = self.words.of(o).numbers
        if not numbers:
            self.ops.append(op)
            return {_WHOLE: len(self.ops) - 1}
        found = {}

        def part(role: int, name: str, reads: Sequence[Access], writes: Sequence[Access]) -> None:
            of = replace(op, name=self._called(f"{op.name} {name}"), kernel=_PART.name, body=_PART, when="")
            self.ops.append(replace(of, reads=tuple(reads), writes=tuple(writes)))
            found[role] = len(self.ops) - 1

        polled = [replace(a, tensor=self._words(a.tensor)) for a in op.reads if a.arg in numbers]
        if read := [a for a in op.reads if a.arg not in numbers]:
            self.marks.append(Tensor(self._called(f"{op.name} has read"), op.grid, fp32))
            mark = Access("read", self.marks[-1].name, tuple(axis.block(1) for axis in axes(len(op.grid))))
            part(_READS, "reads", read, [mark])
            polled.append(mark)
        if left := [replace(a, tensor=self._words(a.tensor)) for a in op.writes if a.arg in numbers]:
            part(_WORDS, "words", polled, left)
        stored = [a for a in op.writes if a.arg not in numbers or self.bodies[o].keeps]
        if some := [a for a in stored if a.tensor in kept] or (not left and stored):
            part(_STORES, "stores", polled, some)
        return found

    def _words(self, tensor: str) -> str:
        return self._called(f"{tensor} as words")

    def _called(self, name: str) -> str:
        """Return a variant of a name that no tensor or op of the graph has."""
        while name in self._taken:
            name += "'"
        return name

    def _has(self, role: int) -> NDArray[np.bool_]:
        """Return a mask of the items that have a part of a role."""
        return np.array([role in parts for parts in self.parts])[self.whole.items.op]

    def _counts(self) -> Ints:
        """Return the number of parts of each item."""
        return np.array([len(parts) for parts in self.parts], np.int64)[self.whole.items.op]

    def _items(self) -> Items:
        """Return the items of the plan: the parts of each item in turn."""
        items, count = self.whole.items, self._counts()
        of, which = np.repeat(np.arange(len(items)), count), ranges(np.zeros_like(count), count)
        roles, ops = np.zeros((2, len(self.parts), 3), np.int64)
        for o, parts in enumerate(self.parts):
            roles[o, : len(parts)], ops[o, : len(parts)] = [*parts], [*parts.values()]
        op, tile, posts = items.op[of], self.whole.tile_of_item[of], self.words.posts(self.waits, self.whole)
        own = {_READS: self.read_at + tile, _WORDS: self.left_at + tile}
        post = np.select([roles[op, which] == role for role in own], [*own.values()], posts[of])
        return Items(ops[op, which], items.tile[of], items.k_lo[of], items.k_hi[of], items.worker[of], post)

    def _left(self) -> Ints:
        """Return the remaining waits of each part of an item: for posts, and for what precedes these in their tiles."""
        post, waits = self.whole.items.post, self.waits
        stored = np.zeros(self.whole.semaphores, np.bool_)
        stored[post[(self._has(_STORES) | ~self._has(_WORDS)) & (post >= 0)]] = True
        row, semaphore = np.repeat(np.arange(len(waits)), waits.count), ranges(waits.first, waits.count, waits.stride)
        keep = stored[semaphore]
        found = [_runs(row[keep], semaphore[keep], waits.threshold[row[keep]])]
        for role, own in ((_READS, self.read_at), (_WORDS, self.left_at)):
            mine = np.flatnonzero(self._has(role) & (post >= 0))
            before = grouped(post[mine], self.whole.semaphores).take(semaphore)
            tile = self.whole.tile_of_item[mine[before.values]]
            found.append(_runs(row[before.rows], own + tile, np.ones_like(tile)))
        at, first, count, threshold = np.concatenate(found, axis=1)
        return self._of_parts(waits.item[at], first, count, threshold, waits.k[at], reads=True)

    def _marks(self) -> Ints:
        """Return the waits of parts that poll or write words for the reads of their own tile."""
        some = np.flatnonzero(self._has(_READS))
        tile, one = self.whole.tile_of_item[some], np.ones_like(some)
        return self._of_parts(some, self.read_at + tile, one, one, self.whole.items.k_lo[some], reads=False)

    def _polls(self) -> Ints:
        items, base = self.whole.items, self.dependencies.base
        item_of = np.zeros(base[-1], np.int64)
        item_of[self.whole.tile_of_item] = np.arange(len(items))
        found = [np.zeros((4, 0), np.int64)]
        for o in range(len(self.parts)):
            for link in self.dependencies.into(o):
                if link.hazard is Hazard.RAW and link.target.arg in self.words.of(o).numbers:
                    needed = self.dependencies.of_tiles(link)
                    one = np.ones_like(needed.values)
                    found.append(_runs(item_of[base[o] + needed.rows], self.left_at + needed.values, one))
        item, first, count, threshold = np.concatenate(found, axis=1)
        return self._of_parts(item, first, count, threshold, items.k_lo[item], reads=False)

    def _of_parts(self, item: Ints, first: Ints, count: Ints, threshold: Ints, k: Ints, *, reads: bool) -> Ints:
        """Return waits of items as waits of their parts, with or without the part that reads."""
        skipped = 0 if reads else self._has(_READS)[item]
        parts = self._counts()
        mine = ranges(offsets(parts)[item] + skipped, parts[item] - skipped)
        of = np.repeat(np.arange(len(item)), parts[item] - skipped)
        found: Ints = np.stack([mine, first[of], count[of], np.ones_like(of), threshold[of], k[of]])
        return found


def _runs(row: Ints, semaphore: Ints, threshold: Ints) -> Ints:
    """Merge consecutive semaphores of a row with one threshold into runs: row, first, count, threshold."""
    apart = (np.diff(row) != 0) | (np.diff(semaphore) != 1) | (np.diff(threshold) != 0)
    begin = np.flatnonzero(np.r_[True, apart]) if len(row) else np.zeros(0, np.int64)
    found: Ints = np.stack([row[begin], semaphore[begin], np.diff(np.r_[begin, len(row)]), threshold[begin]])
    return found

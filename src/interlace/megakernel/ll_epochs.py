"""The order that polls of LL words establish: in NCCL's LL protocol, a word orders itself and nothing else.

A *publication* is the part of a tensor that one op writes as LL words in one run. Every proof of words
(``ll_proof``), where all words of a tile are one op, rests on two facts about publications:

- *Every word is polled before it is published again.* An op that polls a word knows that this word was stored, and
  nothing about the tile's other words. So two stores of one word are ordered through its readers alone: store, poll,
  and the later store, which ``verify`` orders after all polls. A word that no op polls has no such reader.

      A publishes p and q, M polls p, B overwrites q      q: no poll between A and B    rejected
      A publishes p and q, M polls p and q, B as before   accepted

- *An op that polls knows which reads are over.* If a tile stores no word before all of its inputs have arrived, any
  word shows that its reads are over. Otherwise only all of its words together do, because each read goes into one of
  them. If the tile also stores other outputs, they do only where its body declares it
  (``MegakernelBody.ll_needs_reads``), because a read may serve the other outputs alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from interlace.graph.access import Ints
from interlace.graph.dependencies import Dependencies, Link
from interlace.graph.graph import Graph
from interlace.kernels.megakernel_body import MegakernelBody

#: Names of the arguments that are LL words, by op index.
Arguments = Mapping[int, Collection[str]]


@dataclass(frozen=True)
class UnpolledLL:
    """LL words that are overwritten although no op polled them.

    Attributes:
        tensor: name of their tensor.
        op: index of the op that publishes them.
        later: index of the op that overwrites them.
    """

    tensor: str
    op: int
    later: int

    def describe(self, graph: Graph) -> str:
        """Return the fault as one sentence."""
        op, later = graph.ops[self.op].name, graph.ops[self.later].name
        return (
            f"op {later!r} overwrites words of {self.tensor!r} that op {op!r} publishes and no op between polls, so "
            "nothing orders the two stores"
        )


def find_unpolled(dependencies: Dependencies, writes: Arguments, reads: Arguments) -> UnpolledLL | None:
    """Return the first words that are published again before any op polls them, or None.

    An array per tensor holds, for each element, the op whose publication of it no op has polled yet.
    """
    uses = [
        (use, cover)
        for use, cover in zip(dependencies.uses, dependencies.covers, strict=True)
        if use.access.arg in (writes if use.writes else reads).get(use.op, ())
    ]
    publishers: dict[str, set[int]] = {}
    for use, _ in uses:
        if use.writes:
            publishers.setdefault(use.access.tensor, set()).add(use.op)
    several = [name for name, ops in publishers.items() if len(ops) > 1]
    unpolled = {name: np.full(dependencies.graph.tensor(name).shape, -1, np.int64) for name in several}
    for use, cover in uses:
        left = unpolled.get(use.access.tensor)
        if left is None:
            continue
        boxes = _slice_boxes(*cover)
        if use.writes:
            for box in boxes:
                before = int(left[box].max(initial=-1))
                if before >= 0:
                    return UnpolledLL(use.access.tensor, before, use.op)
        for box in boxes:
            left[box] = use.op if use.writes else -1
    return None


def proves_reads_done(
    body: MegakernelBody,
    source: int,
    links: Sequence[Link],
    dependencies: Dependencies,
    words: Collection[str],
) -> bool:
    """Return whether polling words of a source shows that all reads of the polled tiles are over.

    Args:
        body: body of the source.
        source: index of the op that publishes.
        links: dependencies through which an op polls what the source publishes.
        dependencies: dependencies of the graph.
        words: arguments of the source that are LL words.
    """
    publisher = dependencies.graph.ops[source]
    if body.ll.reads_before_stores is not None and body.ll.reads_before_stores(publisher):
        return True
    wanted = [a for a in publisher.writes if a.arg in words] if body.ll.needs_reads else publisher.writes
    polled = {link.target.tensor for link in links}
    return {a.tensor for a in wanted} <= polled and all(
        _polls_whole_tiles(source, link, dependencies) for link in links
    )


def _polls_whole_tiles(source: int, link: Link, dependencies: Dependencies) -> bool:
    """Return whether the consumer's tiles poll everything that their producer tiles write to the link's tensor."""
    lo, hi = dependencies.find_tile_boxes(link.target_use)
    if (lo == 0).all() and (hi >= dependencies.graph.tensor(link.tensor).shape).all():
        return True
    written = next(a for a in dependencies.graph.ops[source].writes if a.tensor == link.tensor)
    begin, end = dependencies.find_tile_boxes(dependencies.find_use(source, written.arg, writes=True))
    needed = dependencies.find_tile_producers(link)
    tile, row = needed.values - dependencies.base[source], needed.rows
    return bool(((lo[row] <= begin[tile]) & (hi[row] >= end[tile])).all())


def _slice_boxes(lo: Ints, hi: Ints) -> list[tuple[slice, ...]]:
    return [tuple(map(slice, a, b)) for a, b in zip(lo.tolist(), hi.tolist(), strict=True)]

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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from interlace.graph.access import Access
from interlace.graph.dependencies import Dependencies, Link
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.uses import compute_boxes
from interlace.kernels.bodies import MegakernelBody

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


def find_unpolled(graph: Graph, writes: Arguments, reads: Arguments) -> UnpolledLL | None:
    """Return the first words that are published again before any op polls them, or None.

    An array per tensor holds, for each element, the op whose publication of it no op has polled yet.
    """
    publishers: dict[str, set[int]] = {}
    for o in writes:
        for access in _select_accesses(graph.ops[o].writes, writes[o]):
            publishers.setdefault(access.tensor, set()).add(o)
    several = [name for name, ops in publishers.items() if len(ops) > 1]
    unpolled = {name: np.full(graph.tensor(name).shape, -1, np.int64) for name in several}
    for o, op in enumerate(graph.ops):
        for access in _select_accesses(op.reads, reads.get(o, ())):
            if access.tensor in unpolled:
                for box in _list_distinct_boxes(graph, op, access):
                    unpolled[access.tensor][box] = -1
        for access in _select_accesses(op.writes, writes.get(o, ())):
            if access.tensor not in unpolled:
                continue
            left, mine = unpolled[access.tensor], _list_distinct_boxes(graph, op, access)
            for box in mine:
                before = int(left[box].max(initial=-1))
                if before >= 0:
                    return UnpolledLL(access.tensor, before, o)
            for box in mine:
                left[box] = o
    return None


def proves_reads_done(
    graph: Graph,
    body: MegakernelBody,
    source: int,
    op: int,
    links: Sequence[Link],
    dependencies: Dependencies,
    words: Collection[str],
) -> bool:
    """Return whether polling words of a source shows that all reads of the polled tiles are over.

    Args:
        body: body of the source.
        source, op: indices of the op that publishes and of the op that polls.
        links: dependencies through which the op polls what the source publishes.
        words: arguments of the source that are LL words.
    """
    publisher = graph.ops[source]
    if body.reads_before_ll_stores is not None and body.reads_before_ll_stores(publisher):
        return True
    wanted = publisher.writes if not body.ll_needs_reads else _select_accesses(publisher.writes, words)
    polled = {link.target.tensor for link in links}
    return {a.tensor for a in wanted} <= polled and all(
        _polls_whole_tiles(graph, publisher, source, graph.ops[op], link, dependencies) for link in links
    )


def _polls_whole_tiles(
    graph: Graph, publisher: Op, source: int, op: Op, link: Link, dependencies: Dependencies
) -> bool:
    """Return whether tiles of an op poll everything that the producer tiles of a link write to its tensor."""
    lo, hi = compute_boxes(graph, op, link.target)
    if (lo == 0).all() and (hi >= graph.tensor(link.target.tensor).shape).all():
        return True
    written = next(a for a in publisher.writes if a.tensor == link.target.tensor)
    begin, end = compute_boxes(graph, publisher, written)
    needed = dependencies.find_tile_producers(link)
    tile = needed.values - dependencies.base[source]
    return bool(((lo[needed.rows] <= begin[tile]) & (hi[needed.rows] >= end[tile])).all())


def _select_accesses(accesses: Iterable[Access], names: Collection[str]) -> list[Access]:
    return [access for access in accesses if access.arg in names]


def _list_distinct_boxes(graph: Graph, op: Op, access: Access) -> list[tuple[slice, ...]]:
    lo, hi = np.split(np.unique(np.hstack(compute_boxes(graph, op, access)), axis=0), 2, axis=1)
    return [tuple(map(slice, a, b)) for a, b in zip(lo.tolist(), hi.tolist(), strict=True)]

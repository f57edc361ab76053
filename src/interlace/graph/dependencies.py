"""Which tile needs which: RAW, WAR and WAW between tiles, by exact intersection of regions.

Worked example, an FFN with M = 256, tiles of 128 x 128 and F = 512: tile (1, 0) of ``down`` reads
hidden[128:256, 0:512]. The tiles of ``up`` whose written regions meet that box are (1, 0) .. (1, 3):
four RAW dependencies, found by intersection and declared nowhere.

Tiles that read the same region share one query, so an FFN of 18,432 tiles has 128 of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import IntraOpRaceError
from interlace.graph.access import Access, Ints
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Region

CANDIDATES = 1 << 20  # pairs looked at together, which bounds memory


class Hazard(Enum):
    """Why one tile must wait for another."""

    RAW = "read after write"
    WAR = "write after read"
    WAW = "write after write"


@dataclass(frozen=True)
class Link:
    """Dependencies between the tiles of two ops through one tensor.

    Attributes:
        hazard: which kind.
        producer, consumer: positions of the ops in the graph; ``producer < consumer``.
        source: the producer's access (its write for RAW and WAW, its read for WAR).
        target: the consumer's access (its read for RAW, its write for WAR and WAW).
    """

    hazard: Hazard
    producer: int
    consumer: int
    source: Access
    target: Access

    @property
    def tensor(self) -> str:
        """The tensor through which the ops depend."""
        return self.source.tensor


@dataclass(frozen=True)
class Groups:
    """Ragged rows: row ``i`` holds ``values[ptr[i]:ptr[i + 1]]``."""

    ptr: Ints
    values: Ints

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, row: int) -> Ints:
        return self.values[self.ptr[row] : self.ptr[row + 1]]

    @property
    def sizes(self) -> Ints:
        """Length of each row."""
        return np.diff(self.ptr)

    @property
    def rows(self) -> Ints:
        """For each value, its row."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.sizes)

    def take(self, rows: Ints) -> Groups:
        """The given rows, in the given order, possibly repeated."""
        sizes = self.sizes[rows]
        return Groups(offsets(sizes), self.values[ranges(self.ptr[rows], sizes)])


def offsets(sizes: Ints) -> Ints:
    """``[0, s0, s0 + s1, ...]``: where each ragged row begins."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def ranges(first: Ints, sizes: Ints, stride: Ints | int = 1) -> Ints:
    """``first[i] + stride[i] * (0 .. sizes[i])``, concatenated."""
    ptr = offsets(sizes)
    step = np.arange(ptr[-1], dtype=np.int64) - np.repeat(ptr[:-1], sizes)
    return np.repeat(first, sizes) + step * (stride if isinstance(stride, int) else np.repeat(stride, sizes))


def distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """Distinct rows of parallel integer columns: (index of a first occurrence, row -> class).

    Classes are numbered in sorted order of the rows, without ever forming a key that could overflow.
    """
    _, first, cls = np.unique(columns[0], return_index=True, return_inverse=True)
    for column in columns[1:]:
        _, value = np.unique(column, return_inverse=True)
        key = cls * (int(value.max(initial=0)) + 1) + value
        _, first, cls = np.unique(key, return_index=True, return_inverse=True)
    return first.astype(np.int64), cls.astype(np.int64)


def batches(size: Ints) -> Iterator[tuple[int, int]]:
    """Slices ``a:b`` of rows of these sizes, each of about ``CANDIDATES`` entries or of one row."""
    total = offsets(size)
    a = 0
    while a < len(size):
        b = max(a + 1, int(np.searchsorted(total, total[a] + CANDIDATES, side="right")) - 1)
        yield a, b
        a = b


class BoxIndex:
    """Integer boxes, to be asked which of them meet a box.

    Along each dimension boxes are sorted by lower bound; with the running maximum of upper bounds the
    possible partners of a query are one slice of that order. The dimension with the fewest candidates
    is taken, the rest compared exactly.
    """

    def __init__(self, lo: Ints, hi: Ints) -> None:
        self.lo, self.hi = lo, hi
        self._orders = [np.argsort(lo[:, d], kind="stable") for d in range(lo.shape[1])]
        self._starts = [lo[order, d] for d, order in enumerate(self._orders)]
        self._ends = [np.maximum.accumulate(hi[order, d]) for d, order in enumerate(self._orders)]

    def query(self, lo: Ints, hi: Ints) -> Groups:
        """For each query box, the indexed boxes that share at least one element with it, ascending."""
        found = [groups for _, groups in self.batches(lo, hi)]
        none = np.zeros(0, np.int64)
        return Groups(
            offsets(np.concatenate([none, *(groups.sizes for groups in found)])),
            np.concatenate([none, *(groups.values for groups in found)]),
        )

    def batches(self, lo: Ints, hi: Ints) -> Iterator[tuple[int, Groups]]:
        """``query`` in slices of bounded memory: (first query box of the slice, its answers)."""
        best: tuple[int, int, Ints, Ints] | None = None
        for d in range(lo.shape[1]):
            begin = np.searchsorted(self._ends[d], lo[:, d], side="right").astype(np.int64)
            end = np.searchsorted(self._starts[d], hi[:, d], side="left").astype(np.int64)
            size = np.maximum(end - begin, 0)
            total = int(size.sum())
            if best is None or total < best[0]:
                best = (total, d, begin, size)
        assert best is not None
        _, d, begin, size = best
        for a, b in batches(size):
            query = np.repeat(np.arange(a, b, dtype=np.int64), size[a:b])
            box = self._orders[d][ranges(begin[a:b], size[a:b])]
            meet = self.meet(box, lo[query], hi[query])
            query, box = query[meet], box[meet]
            counts = np.bincount(query - a, minlength=b - a)
            yield a, Groups(offsets(counts), box[np.lexsort((box, query))])

    def meet(self, box: Ints, lo: Ints, hi: Ints) -> NDArray[np.bool_]:
        """True where indexed box ``box[i]`` shares an element with the box from ``lo[i]`` to ``hi[i]``."""
        common = np.maximum(self.lo[box], lo) < np.minimum(self.hi[box], hi)
        met: NDArray[np.bool_] = np.logical_and.reduce(common, axis=1)
        return met


def boxes(graph: Graph, op: Op, access: Access, tiles: Ints | None = None) -> tuple[Ints, Ints]:
    """Bounds, each (n, rank), of the region that whole tiles touch through ``access``."""
    coords = op.coords(tiles)
    k = np.zeros(len(coords), np.int64)
    return access.bounds(graph.tensor(access.tensor).shape, coords, k, k + op.k_extent)


class Dependencies:
    """All dependencies between the tiles of a graph, in compressed form.

    Raises:
        IntraOpRaceError: two tiles of one op conflict, which no schedule can order.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        _check_races(graph)
        self.links: tuple[Link, ...] = tuple(_links(graph))
        self._indices: dict[tuple[int, Access], BoxIndex] = {}

    def into(self, consumer: int) -> list[Link]:
        """Links whose consumer is the op at this position."""
        return [link for link in self.links if link.consumer == consumer]

    def sources(self, link: Link) -> BoxIndex:
        """Regions of the producer's tiles, by tile number."""
        key = (link.producer, link.source)
        if key not in self._indices:
            self._indices[key] = BoxIndex(*boxes(self.graph, self.graph.ops[link.producer], link.source))
        return self._indices[key]

    def producers(self, link: Link, lo: Ints, hi: Ints) -> Groups:
        """For each box of the consumer's access, the producer's tiles that it depends on."""
        return self.sources(link).query(lo, hi)

    def of_tiles(self, link: Link) -> Groups:
        """For each whole tile of the consumer, the producer's tiles that it depends on."""
        lo, hi, cls = self._by_box(link)
        return self.producers(link, lo, hi).take(cls)

    def edge_count(self) -> int:
        """Number of (producer tile, consumer tile, tensor, hazard) dependencies."""
        total = 0
        for link in self.links:
            lo, hi, cls = self._by_box(link)
            tiles = np.bincount(cls)
            for start, producers in self.sources(link).batches(lo, hi):
                total += int((producers.sizes * tiles[start : start + len(producers)]).sum())
        return total

    def _by_box(self, link: Link) -> tuple[Ints, Ints, Ints]:
        """Bounds of the distinct boxes that the consumer's tiles touch, and which of them each tile does."""
        lo, hi = boxes(self.graph, self.graph.ops[link.consumer], link.target)
        first, cls = distinct(*lo.T, *hi.T)
        return lo[first], hi[first], cls


def _links(graph: Graph) -> Iterator[Link]:
    """Pairs of ops that share a tensor, walking back until an op has written all of it.

    What such an op hides is ordered through it: an earlier access comes before its write (WAR or WAW),
    and its write comes before the later access (RAW or WAW), element for element.
    """
    covers = [
        {t for t in {a.tensor for a in op.writes} if _writes_all(graph, op, t)} for op in graph.ops
    ]
    for c, op in enumerate(graph.ops):
        for target, reads in [(a, True) for a in op.reads] + [(a, False) for a in op.writes]:
            for p in range(c - 1, -1, -1):
                earlier = graph.ops[p]
                for source in earlier.writes:
                    if source.tensor == target.tensor:
                        yield Link(Hazard.RAW if reads else Hazard.WAW, p, c, source, target)
                if not reads:
                    for source in earlier.reads:
                        if source.tensor == target.tensor:
                            yield Link(Hazard.WAR, p, c, source, target)
                if target.tensor in covers[p]:
                    break


def _writes_all(graph: Graph, op: Op, tensor: str) -> bool:
    """True if the op's tiles, whose writes are disjoint, together write the whole tensor.

    Accesses of one tile may overlap; then they are not added up, and one of them has to write it all.
    """
    accesses = {a.spans: a for a in op.writes if a.tensor == tensor}.values()
    regions = [boxes(graph, op, access) for access in accesses]
    written = [int(np.maximum(hi - lo, 0).prod(axis=1).sum()) for lo, hi in regions]
    overlap = any(
        bool((np.maximum(a_lo, b_lo) < np.minimum(a_hi, b_hi)).all(axis=1).any())
        for (a_lo, a_hi), (b_lo, b_hi) in combinations(regions, 2)
    )
    return prod(graph.tensor(tensor).shape) in (written if overlap else [*written, sum(written)])


def _check_races(graph: Graph) -> None:
    """No tile writes what another tile of the same op writes or reads."""
    for op in graph.ops:
        for source in op.writes:
            index = BoxIndex(*boxes(graph, op, source))
            for target in op.accesses:
                if target.tensor == source.tensor:
                    _check_race(graph, op, index, target)


def _check_race(graph: Graph, op: Op, written: BoxIndex, target: Access) -> None:
    lo, hi = boxes(graph, op, target)
    for start, found in written.batches(lo, hi):
        clash = found.values != found.rows + start
        if clash.any():
            a, b = int(found.rows[clash][0]) + start, int(found.values[clash][0])
            region = _region(target.tensor, written.lo[b], written.hi[b]).intersect(
                _region(target.tensor, lo[a], hi[a])
            )
            verb = "writes" if target in op.writes else "reads"
            raise IntraOpRaceError(
                f"{op.tile_name(b)} writes {region}, which {op.tile_name(a)} {verb} too; tiles of one op run "
                "in any order, so shrink the access map or write to another tensor"
            )


def _region(tensor: str, lo: Ints, hi: Ints) -> Region:
    return Region(tensor, tuple(map(int, lo)), tuple(map(int, hi)))

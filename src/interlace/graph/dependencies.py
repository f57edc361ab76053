"""Dependencies between tiles: RAW, WAR and WAW hazards, found by exact intersection of regions.

Worked example, an FFN with M = 256, tiles of 128 x 128 and F = 512: tile (1, 0) of ``down`` reads
hidden[128:256, 0:512]. The tiles of ``up`` whose written regions intersect that box are (1, 0) .. (1, 3).
These are four RAW dependencies that follow from the access maps; nobody declares them.

They are found in two steps. First, the regions that whole ops touch decide which accesses depend on which
(``visible``). Then, on demand, access maps are inverted to find the tiles that reach a box (``inverse``). Tiles that
touch the same box share one answer, and answers are runs of tiles: an FFN of 18,432 tiles has 128 answers, causal
attention one per tile. An answer for an op of one layer is reused for equal ops of other layers, whose tile numbers
differ by an offset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import IntraOpRaceError
from interlace.graph.access import Access, Ints
from interlace.graph.boxes import BoxIndex, intersects
from interlace.graph.graph import Graph
from interlace.graph.inverse import LAYOUTS, Inverse, Runs
from interlace.graph.op import Op
from interlace.graph.ragged import Groups, distinct, fold, grouped, offsets, slices
from interlace.graph.tensor import Region
from interlace.graph.uses import boxes, covered, dependent, uses_of, where
from interlace.graph.visible import Seen

_WIDTH = 8  # integers of memory per (box, access) pair, to size slices
_KEPT = 1 << 21  # maximum number of integers cached in ``Dependencies._found``


class Hazard(Enum):
    """Reason why one tile must wait for another."""

    RAW = "read after write"
    WAR = "write after read"
    WAW = "write after write"


@dataclass(frozen=True, eq=False)
class Link:
    """Dependencies of an op's tiles through one of their accesses, for one hazard.

    Attributes:
        hazard: kind of the dependencies.
        consumer: position of the op in the graph.
        target: access of that op (its read for RAW, its write for WAR and WAW).
        sources: (position of an earlier op, access of that op): writes for RAW and WAW, reads for WAR.
        uses: positions of the sources in ``uses_of(graph)``.
    """

    hazard: Hazard
    consumer: int
    target: Access
    sources: tuple[tuple[int, Access], ...]
    uses: Ints

    @property
    def tensor(self) -> str:
        """Name of the tensor through which the ops depend."""
        return self.target.tensor

    @property
    def producers(self) -> tuple[int, ...]:
        """Positions of the earlier ops, ascending."""
        return tuple(sorted({producer for producer, _ in self.sources}))


class Dependencies:
    """All dependencies between the tiles of a graph, in compressed form.

    Tiles are numbered across the whole graph: the tile's number in its op plus the op's ``base``.

    Attributes:
        graph: the graph.
        base: prefix sum of the ops' tile counts: the number of each op's first tile, then the total number of tiles.
        links: links in program order of their consumers.

    Raises:
        IntraOpRaceError: two tiles of one op conflict, so that no schedule can order them.
        UnwrittenError: an element is read before anything writes it, or an output is not written completely.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.base = offsets(np.array([op.tiles for op in graph.ops], np.int64))
        self._uses = uses_of(graph)
        self._inverses, self._row = self._read_backwards()
        self._check_races()
        self._covers = covered(graph, self._uses)
        seen = dependent(graph, self._uses, self._covers)
        self._looked_at = seen.looked_at
        self.links: tuple[Link, ...] = tuple(self._links_of(seen))
        self._into: dict[int, list[Link]] = {}
        for link in self.links:
            self._into.setdefault(link.consumer, []).append(link)
        self._indices: dict[Link, BoxIndex] = {}
        kinds: dict[Hashable, int] = {}
        of_use = [kinds.setdefault(where(graph, use), len(kinds)) for use in self._uses]
        #: Class of each access; equal for accesses whose tiles touch the same elements.
        self._kinds = np.array(of_use, np.int64)
        self._alike = Counter(map(self._kind, self.links))
        self._found: dict[Hashable, list[tuple[int, int, Runs]]] = {}
        self._kept = 0
        self._order: dict[int, Ints] = {}

    @property
    def looked_at(self) -> int:
        """Number of boxes examined so far, of ops, tiles and tile coordinates: a deterministic measure of work."""
        in_tiles = sum(inverse.looked_at for inverse in self._inverses.values())
        return self._looked_at + in_tiles + sum(index.looked_at for index in self._indices.values())

    def into(self, consumer: int) -> list[Link]:
        """Return the links whose consumer is the op at this position."""
        return self._into.get(consumer, [])

    def op_of(self, tile: int) -> int:
        """Return the position of the op that a tile belongs to."""
        return int(np.searchsorted(self.base, tile, side="right")) - 1

    def runs(self, link: Link, lo: Ints, hi: Ints) -> Iterator[tuple[int, int, Runs]]:
        """Yield the tiles that each box of the consumer's access depends on, in slices ``a:b`` of bounded memory.

        Each slice is (a, b, the producers' tiles for these boxes, with rows counted from a).
        """
        kind, rows = self._kind(link), self._row[link.uses]
        if self._alike[kind] == 1:
            yield from self._reached(link, lo, hi)
            return
        # Cached as offsets from the first tile of each source, the only values in which equal links differ.
        key, base = (kind, lo.tobytes(), hi.tobytes()), self._inverses[link.tensor].base[rows]
        if key in self._found:
            for a, b, runs in self._found[key]:
                first = base[runs.source] + runs.first
                yield a, b, Runs(runs.row, rows[runs.source], runs.layout, first, runs.count)
            return
        found: list[tuple[int, int, Runs]] = []
        numbers = self._kept + lo.size + hi.size
        for a, b, runs in self._reached(link, lo, hi):
            numbers += 5 * len(runs)
            if numbers <= _KEPT:
                source = np.searchsorted(rows, runs.source)
                found.append((a, b, Runs(runs.row, source, runs.layout, runs.first - base[source], runs.count)))
            yield a, b, runs
        if numbers <= _KEPT:
            self._kept, self._found[key] = numbers, found

    def _kind(self, link: Link) -> bytes:
        """Return a key that is equal for links whose sources touch the same elements, tile by tile."""
        return self._kinds[link.uses].tobytes()

    def _reached(self, link: Link, lo: Ints, hi: Ints) -> Iterator[tuple[int, int, Runs]]:
        """Compute the result of ``runs`` without the cache."""
        rows = self._row[link.uses]
        for start, stop in slices(len(lo), _WIDTH * len(rows)):
            found = list(self._index(link).batches(lo[start:stop], hi[start:stop]))
            box = np.concatenate([groups.rows + a for a, groups in found])
            source = rows[np.concatenate([groups.values for _, groups in found])]
            inverse = self._inverses[link.tensor]
            pair, begin, end = inverse.coordinates(source, lo[start + box], hi[start + box])
            for a, b, runs in inverse.runs(source[pair], box[pair], stop - start, begin, end):
                yield start + a, start + b, runs

    def order(self, layout: int) -> Ints:
        """Return the tile at each position of a layout of all ops."""
        if layout not in self._order:
            grids = [op.grid + (1,) * (len(LAYOUTS[0]) - len(op.grid)) for op in self.graph.ops]
            tiles = [np.arange(a, b).reshape(g) for a, b, g in zip(self.base, self.base[1:], grids, strict=False)]
            self._order[layout] = np.concatenate([t.transpose(LAYOUTS[layout]).reshape(-1) for t in tiles])
        return self._order[layout]

    def tiles(self, runs: Runs) -> Ints:
        """Return the first tile of each run."""
        out = np.empty(len(runs), np.int64)
        for layout, some in runs.by_layout():
            out[some] = self.order(layout)[runs.first[some]]
        return out

    def fold(self, ufunc: np.ufunc, of_tile: Ints, runs: Runs) -> Ints:
        """Reduce ``of_tile``, one number per tile, over the tiles of each run with ``ufunc`` (minimum or maximum)."""
        out = np.empty(len(runs), np.int64)
        for layout, some in runs.by_layout():
            first, count = runs.first[some], runs.count[some]
            begin = int(first.min())
            tiles = self.order(layout)[begin : int((first + count).max())]
            out[some] = fold(ufunc, of_tile[tiles], first - begin, count, 1)
        return out

    def producers(self, link: Link, lo: Ints, hi: Ints) -> Groups:
        """Return, for each box of the consumer's access, the tiles that it depends on, ascending."""
        none = np.zeros(0, np.int64)
        rows, tiles = [none], [none]
        for a, _, runs in self.runs(link, lo, hi):
            single = runs.singles()
            rows.append(single.row + a)
            tiles.append(self.tiles(single))
        row, tile = np.concatenate(rows), np.concatenate(tiles)
        which, _ = distinct(row, tile)
        return Groups(offsets(np.bincount(row[which], minlength=len(lo))), tile[which])

    def of_tiles(self, link: Link) -> Groups:
        """Return, for each whole tile of the consumer, the tiles that it depends on, ascending."""
        lo, hi, cls = self._by_box(link)
        return self.producers(link, lo, hi).take(cls)

    def intersects(self, link: Link, runs: Runs, lo: Ints, hi: Ints) -> NDArray[np.bool_]:
        """Return True where the tile of run ``i``, a run of one tile, touches box ``i``."""
        return self._inverses[link.tensor].intersects(runs.source, self.tiles(runs), lo, hi)

    def edge_count(self) -> int:
        """Count the triples (producer tile, consumer tile, pair of accesses) with a dependency."""
        total = 0
        for link in self.links:
            lo, hi, cls = self._by_box(link)
            tiles = np.bincount(cls)
            for a, _, runs in self.runs(link, lo, hi):
                total += int((runs.count * tiles[runs.row + a]).sum())
        return total

    def _by_box(self, link: Link) -> tuple[Ints, Ints, Ints]:
        """Return the bounds of the distinct boxes that the consumer's tiles touch, and the box of each tile."""
        lo, hi = boxes(self.graph, self.graph.ops[link.consumer], link.target)
        first, cls = distinct(*lo.T, *hi.T)
        return lo[first], hi[first], cls

    def _read_backwards(self) -> tuple[dict[str, Inverse], Ints]:
        """Invert the accesses of each tensor; also return the position of each access among those of its tensor."""
        of: dict[str, list[tuple[Op, int, Access]]] = {}
        row = np.empty(len(self._uses), np.int64)
        for n, use in enumerate(self._uses):
            accesses = of.setdefault(use.access.tensor, [])
            row[n] = len(accesses)
            accesses.append((self.graph.ops[use.op], int(self.base[use.op]), use.access))
        return {name: Inverse(self.graph.tensor(name).shape, accesses) for name, accesses in of.items()}, row

    def _index(self, link: Link) -> BoxIndex:
        """Return an index of one bounding box per source of the link."""
        if link not in self._indices:
            around = [self._covers[use] for use in link.uses.tolist()]
            lo = np.stack([lo.min(axis=0) for lo, _ in around])
            hi = np.stack([hi.max(axis=0) for _, hi in around])
            self._indices[link] = BoxIndex(lo, hi)
        return self._indices[link]

    def _links_of(self, seen: Seen) -> Iterator[Link]:
        wrote = np.array([use.writes for use in self._uses], bool)[seen.source]
        first, cls = distinct(seen.target, ~wrote)
        sources = grouped(cls, len(first))
        for n, at in enumerate(first.tolist()):
            target = self._uses[int(seen.target[at])]
            mine = np.sort(seen.source[sources[n]])
            hazard = Hazard.WAR if not wrote[at] else Hazard.WAW if target.writes else Hazard.RAW
            accesses = tuple((self._uses[use].op, self._uses[use].access) for use in mine.tolist())
            yield Link(hazard, target.op, target.access, accesses, mine)

    def _check_races(self) -> None:
        """Check that no tile writes an element that another tile of the same op writes or reads."""
        of_op = grouped(np.array([use.op for use in self._uses], np.int64), len(self.graph.ops))
        seen = set()
        for o in range(len(of_op)):
            for source, target in product(of_op[o].tolist(), repeat=2):
                first, second = self._uses[source], self._uses[target]
                key = (where(self.graph, first), second.access.spans)
                if first.writes and first.access.tensor == second.access.tensor and key not in seen:
                    seen.add(key)
                    self._check_race(source, target)

    def _check_race(self, source: int, target: int) -> None:
        use = self._uses[target]
        op, inverse = self.graph.ops[use.op], self._inverses[use.access.tensor]
        for start, stop in slices(op.tiles, _WIDTH):
            tiles = np.arange(start, stop, dtype=np.int64)
            lo, hi = boxes(self.graph, op, use.access, tiles)
            written = np.full(len(tiles), self._row[source])
            query, begin, end = inverse.coordinates(written, lo, hi)
            grid = inverse.grid[self._row[source]]
            tile = (begin[:, 0] * grid[1] + begin[:, 1]) * grid[2] + begin[:, 2]
            clash = (tile != tiles[query]) | (end - begin > 1).any(axis=1)
            if clash.any():
                raise self._race(source, target, int(tiles[query[clash][0]]))

    def _race(self, source: int, target: int, tile: int) -> IntraOpRaceError:
        """Return the error that names the first other tile that writes an element of this tile's region."""
        use = self._uses[target]
        op = self.graph.ops[use.op]
        lo, hi = boxes(self.graph, op, use.access, np.array([tile]))
        written_lo, written_hi = boxes(self.graph, op, self._uses[source].access)
        met = intersects(written_lo, written_hi, lo, hi)
        met[tile] = False
        other = int(np.flatnonzero(met)[0])
        region = Region(
            use.access.tensor,
            tuple(map(int, np.maximum(lo[0], written_lo[other]))),
            tuple(map(int, np.minimum(hi[0], written_hi[other]))),
        )
        return IntraOpRaceError(
            f"{op.tile_name(other)} writes {region}, which {op.tile_name(tile)} {'writes' if use.writes else 'reads'} "
            "too; tiles of one op run in any order, so shrink the access map or write to another tensor",
            use.op,
            (other, tile),
        )

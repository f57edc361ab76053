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
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import IntraOpRaceError
from interlace.graph.access import Access, Ints
from interlace.graph.boxes import BoxIndex, intersects
from interlace.graph.graph import Graph
from interlace.graph.inverse import LAYOUTS, InverseAccess, TileRuns, build_inequalities
from interlace.graph.op import Op
from interlace.graph.ragged import Groups, compute_offsets, find_distinct, fold, group_by, iter_slices
from interlace.graph.tensor import Region
from interlace.graph.uses import classify_uses, compute_boxes, cover_accesses, find_dependencies, list_uses
from interlace.graph.visible import SweepResult

_WIDTH = 8  # integers of memory per (box, access) pair, to size slices
_MAX_CACHED = 1 << 21  # maximum number of integers that ``Dependencies`` caches


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
        uses: positions of the sources in ``list_uses(graph)``.
        target_use: position of the target there.
    """

    hazard: Hazard
    consumer: int
    target: Access
    sources: tuple[tuple[int, Access], ...]
    uses: Ints
    target_use: int

    @property
    def tensor(self) -> str:
        """Name of the tensor through which the ops depend."""
        return self.target.tensor

    @cached_property
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
        uses: accesses of the graph, as ``list_uses`` orders them.
        covers: for each of them, boxes that cover exactly the elements that all tiles of its op touch.

    Raises:
        IntraOpRaceError: two tiles of one op conflict, so that no schedule can order them.
        UnwrittenError: an element is read before anything writes it, or an output is not written completely.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.base = compute_offsets(np.array([op.tiles for op in graph.ops], np.int64))
        self.uses = list_uses(graph)
        #: Class of each access; equal for accesses whose tiles touch the same elements.
        self._kinds = classify_uses(graph, self.uses)
        self._inverses, self._row = self._invert_accesses()
        self._check_races()
        self.covers = cover_accesses(graph, self.uses, self._kinds)
        seen = find_dependencies(graph, self.uses, self.covers)
        self._looked_at = seen.examined_boxes
        self.links: tuple[Link, ...] = tuple(self._iter_links(seen))
        self._into: dict[int, list[Link]] = {}
        for link in self.links:
            self._into.setdefault(link.consumer, []).append(link)
        self._indices: dict[Link, BoxIndex] = {}
        self._alike = Counter(map(self._make_link_key, self.links))
        self._found: dict[Hashable, list[tuple[int, int, TileRuns]]] = {}
        self._positions = {(use.op, use.access.arg, use.writes): n for n, use in enumerate(self.uses)}
        self._boxes: dict[int, tuple[Ints, Ints]] = {}
        self._producers: dict[Hashable, Groups] = {}
        self._kept = 0
        self._order: dict[int, Ints] = {}

    @property
    def examined_boxes(self) -> int:
        """Number of boxes examined so far, of ops, tiles and tile coordinates: a deterministic measure of work."""
        in_tiles = sum(inverse.examined_boxes for inverse in self._inverses.values())
        return self._looked_at + in_tiles + sum(index.examined_boxes for index in self._indices.values())

    def find_links(self, consumer: int) -> list[Link]:
        """Return the links whose consumer is the op at this position."""
        return self._into.get(consumer, [])

    def find_op(self, tile: int) -> int:
        """Return the position of the op that a tile belongs to."""
        return int(np.searchsorted(self.base, tile, side="right")) - 1

    def iter_runs(self, link: Link, lo: Ints, hi: Ints) -> Iterator[tuple[int, int, TileRuns]]:
        """Yield the tiles that each box of the consumer's access depends on, in slices ``a:b`` of bounded memory.

        Each slice is (a, b, the producers' tiles for these boxes, with rows counted from a).
        """
        kind, rows = self._make_link_key(link), self._row[link.uses]
        if self._alike[kind] == 1:
            yield from self._compute_runs(link, lo, hi)
            return
        # Cached as offsets from the first tile of each source, the only values in which equal links differ.
        key, base = (kind, lo.tobytes(), hi.tobytes()), self._inverses[link.tensor].base[rows]
        if key in self._found:
            for a, b, runs in self._found[key]:
                first = base[runs.source] + runs.first
                yield a, b, TileRuns(runs.row, rows[runs.source], runs.layout, first, runs.count)
            return
        found: list[tuple[int, int, TileRuns]] = []
        numbers = self._kept + lo.size + hi.size
        for a, b, runs in self._compute_runs(link, lo, hi):
            numbers += 5 * len(runs)
            if numbers <= _MAX_CACHED:
                source = np.searchsorted(rows, runs.source)
                found.append((a, b, TileRuns(runs.row, source, runs.layout, runs.first - base[source], runs.count)))
            yield a, b, runs
        if numbers <= _MAX_CACHED:
            self._kept, self._found[key] = numbers, found

    def _make_link_key(self, link: Link) -> bytes:
        """Return a key that is equal for links whose sources touch the same elements, tile by tile."""
        return self._kinds[link.uses].tobytes()

    def _compute_runs(self, link: Link, lo: Ints, hi: Ints) -> Iterator[tuple[int, int, TileRuns]]:
        """Compute the result of ``runs`` without the cache."""
        rows = self._row[link.uses]
        for start, stop in iter_slices(len(lo), _WIDTH * len(rows)):
            found = list(self._build_index(link).iter_intersections(lo[start:stop], hi[start:stop]))
            box = np.concatenate([groups.rows + a for a, groups in found])
            source = rows[np.concatenate([groups.values for _, groups in found])]
            inverse = self._inverses[link.tensor]
            pair, begin, end = inverse.find_coordinates(source, lo[start + box], hi[start + box])
            for a, b, runs in inverse.iter_runs(source[pair], box[pair], stop - start, begin, end):
                yield start + a, start + b, runs

    def compute_layout(self, layout: int) -> Ints:
        """Return the tile at each position of a layout of all ops."""
        if layout not in self._order:
            grids = [op.grid + (1,) * (len(LAYOUTS[0]) - len(op.grid)) for op in self.graph.ops]
            tiles = [np.arange(a, b).reshape(g) for a, b, g in zip(self.base, self.base[1:], grids, strict=False)]
            self._order[layout] = np.concatenate([t.transpose(LAYOUTS[layout]).reshape(-1) for t in tiles])
        return self._order[layout]

    def find_first_tiles(self, runs: TileRuns) -> Ints:
        """Return the first tile of each run."""
        out = np.empty(len(runs), np.int64)
        for layout, some in runs.iter_layouts():
            out[some] = self.compute_layout(layout)[runs.first[some]]
        return out

    def fold(self, ufunc: np.ufunc, of_tile: Ints, runs: TileRuns) -> Ints:
        """Reduce ``of_tile``, one number per tile, over the tiles of each run with ``ufunc`` (minimum or maximum)."""
        out = np.empty(len(runs), np.int64)
        for layout, some in runs.iter_layouts():
            first, count = runs.first[some], runs.count[some]
            begin = int(first.min())
            tiles = self.compute_layout(layout)[begin : int((first + count).max())]
            out[some] = fold(ufunc, of_tile[tiles], first - begin, count, 1)
        return out

    def find_producers(self, link: Link, lo: Ints, hi: Ints) -> Groups:
        """Return, for each box of the consumer's access, the tiles that it depends on, ascending."""
        none = np.zeros(0, np.int64)
        rows, tiles = [none], [none]
        for a, _, runs in self.iter_runs(link, lo, hi):
            single = runs.split_into_singles()
            rows.append(single.row + a)
            tiles.append(self.find_first_tiles(single))
        row, tile = np.concatenate(rows), np.concatenate(tiles)
        which, _ = find_distinct(row, tile)
        return Groups(compute_offsets(np.bincount(row[which], minlength=len(lo))), tile[which])

    def find_tile_producers(self, link: Link) -> Groups:
        """Return, for each whole tile of the consumer, the tiles that it depends on, ascending."""
        first = self.base[[producer for producer, _ in link.sources]]
        key = self._make_link_key(link), int(self._kinds[link.target_use]), (first - first[0]).tobytes()
        if key not in self._producers:
            lo, hi, cls = self._group_by_box(link)
            found = self.find_producers(link, lo, hi).take(cls)
            if not self._reserve(len(found.ptr) + len(found.values)):
                return found
            # Cached as offsets from a first tile, because equal links of other layers differ in it alone.
            self._producers[key] = Groups(found.ptr, found.values - first[0])
        found = self._producers[key]
        return Groups(found.ptr, found.values + first[0])

    def find_use(self, op: int, arg: str, *, writes: bool) -> int:
        """Return the position in ``uses`` of an op's access through an argument that it reads or writes."""
        return self._positions[op, arg, writes]

    def find_tile_boxes(self, use: int) -> tuple[Ints, Ints]:
        """Return bounds, each (tiles, rank), of the regions that whole tiles touch through an access in ``uses``."""
        kind = int(self._kinds[use])
        if kind not in self._boxes:
            op, access = self.graph.ops[self.uses[use].op], self.uses[use].access
            found = compute_boxes(self.graph, op, access)
            if not self._reserve(2 * found[0].size):
                return found
            self._boxes[kind] = found
        return self._boxes[kind]

    def _reserve(self, numbers: int) -> bool:
        """Count integers that are to be cached, unless there would be too many."""
        fits = self._kept + numbers <= _MAX_CACHED
        self._kept += numbers if fits else 0
        return fits

    def intersects(self, link: Link, runs: TileRuns, lo: Ints, hi: Ints) -> NDArray[np.bool_]:
        """Return True where the tile of run ``i``, a run of one tile, touches box ``i``."""
        return self._inverses[link.tensor].intersects(runs.source, self.find_first_tiles(runs), lo, hi)

    def count_edges(self) -> int:
        """Count the triples (producer tile, consumer tile, pair of accesses) with a dependency."""
        total = 0
        for link in self.links:
            lo, hi, cls = self._group_by_box(link)
            tiles = np.bincount(cls)
            for a, _, runs in self.iter_runs(link, lo, hi):
                total += int((runs.count * tiles[runs.row + a]).sum())
        return total

    def _group_by_box(self, link: Link) -> tuple[Ints, Ints, Ints]:
        """Return the bounds of the distinct boxes that the consumer's tiles touch, and the box of each tile."""
        lo, hi = self.find_tile_boxes(link.target_use)
        first, cls = find_distinct(*lo.T, *hi.T)
        return lo[first], hi[first], cls

    def _invert_accesses(self) -> tuple[dict[str, InverseAccess], Ints]:
        """Invert the accesses of each tensor; also return the position of each access among those of its tensor."""
        of: dict[str, list[tuple[Op, int, Access]]] = {}
        found: dict[int, tuple[Ints, Ints]] = {}
        inequalities: dict[str, list[tuple[Ints, Ints]]] = {}
        row = np.empty(len(self.uses), np.int64)
        for n, (use, kind) in enumerate(zip(self.uses, self._kinds.tolist(), strict=True)):
            op, name = self.graph.ops[use.op], use.access.tensor
            if kind not in found:
                found[kind] = build_inequalities(self.graph.tensor(name).shape, op, use.access)
            accesses = of.setdefault(name, [])
            row[n] = len(accesses)
            accesses.append((op, int(self.base[use.op]), use.access))
            inequalities.setdefault(name, []).append(found[kind])
        tensor = self.graph.tensor
        return {name: InverseAccess(tensor(name).shape, of[name], inequalities[name]) for name in of}, row

    def _build_index(self, link: Link) -> BoxIndex:
        """Return an index of one bounding box per source of the link."""
        if link not in self._indices:
            around = [self.covers[use] for use in link.uses.tolist()]
            lo = np.stack([lo.min(axis=0) for lo, _ in around])
            hi = np.stack([hi.max(axis=0) for _, hi in around])
            self._indices[link] = BoxIndex(lo, hi)
        return self._indices[link]

    def _iter_links(self, seen: SweepResult) -> Iterator[Link]:
        wrote = np.array([use.writes for use in self.uses], bool)[seen.source]
        first, cls = find_distinct(seen.target, ~wrote)
        sources = group_by(cls, len(first))
        for n, at in enumerate(first.tolist()):
            target = self.uses[int(seen.target[at])]
            mine = np.sort(seen.source[sources[n]])
            hazard = Hazard.WAR if not wrote[at] else Hazard.WAW if target.writes else Hazard.RAW
            accesses = tuple((self.uses[use].op, self.uses[use].access) for use in mine.tolist())
            yield Link(hazard, target.op, target.access, accesses, mine, int(seen.target[at]))

    def _check_races(self) -> None:
        """Check that no tile writes an element that another tile of the same op writes or reads."""
        of_op = group_by(np.array([use.op for use in self.uses], np.int64), len(self.graph.ops))
        seen, kinds = set(), self._kinds.tolist()
        for o in range(len(of_op)):
            for source, target in product(of_op[o].tolist(), repeat=2):
                first, second = self.uses[source], self.uses[target]
                key = kinds[source], kinds[target]
                if first.writes and first.access.tensor == second.access.tensor and key not in seen:
                    seen.add(key)
                    self._check_race(source, target)

    def _check_race(self, source: int, target: int) -> None:
        use = self.uses[target]
        op, inverse = self.graph.ops[use.op], self._inverses[use.access.tensor]
        for start, stop in iter_slices(op.tiles, _WIDTH):
            tiles = np.arange(start, stop, dtype=np.int64)
            lo, hi = compute_boxes(self.graph, op, use.access, tiles)
            written = np.full(len(tiles), self._row[source])
            query, begin, end = inverse.find_coordinates(written, lo, hi)
            grid = inverse.grid[self._row[source]]
            tile = (begin[:, 0] * grid[1] + begin[:, 1]) * grid[2] + begin[:, 2]
            clash = (tile != tiles[query]) | (end - begin > 1).any(axis=1)
            if clash.any():
                raise self._build_race_error(source, target, int(tiles[query[clash][0]]))

    def _build_race_error(self, source: int, target: int, tile: int) -> IntraOpRaceError:
        """Return the error that names the first other tile that writes an element of this tile's region."""
        use = self.uses[target]
        op = self.graph.ops[use.op]
        lo, hi = compute_boxes(self.graph, op, use.access, np.array([tile]))
        written_lo, written_hi = compute_boxes(self.graph, op, self.uses[source].access)
        met = intersects(written_lo, written_hi, lo, hi)
        met[tile] = False
        other = int(np.flatnonzero(met)[0])
        region = Region(
            use.access.tensor,
            tuple(map(int, np.maximum(lo[0], written_lo[other]))),
            tuple(map(int, np.minimum(hi[0], written_hi[other]))),
        )
        return IntraOpRaceError(
            f"{op.format_tile(other)} writes {region}, which {op.format_tile(tile)} "
            f"{'writes' if use.writes else 'reads'} too; tiles of one op run in any order, so shrink the access map "
            "or write to another tensor",
            use.op,
            (other, tile),
        )

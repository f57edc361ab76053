"""Inverse access maps: the tiles that touch a box.

The bounds of a region are affine in the tile coordinates, so each bound is an inequality that says for which
coordinates a tile reaches a box. With ``y: (i.block(64), j.block(128))`` on a grid of 8 x 4, the tiles that intersect
y[100:300, 0:128] satisfy

    64 i < 300,  64 i + 64 > 100   ->   1 <= i < 5
    128 j < 128, 128 j + 128 > 0   ->   0 <= j < 1

This is the box [1:5, 0:1] of coordinates, found without examining a single tile. In row-major order it is four *runs*
of one tile each; with the first coordinate innermost it is one run of four. Only where a bound mixes coordinates
(``4 * i + j``) are values enumerated: those of all but one of the mixed coordinates, within their narrowed ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Access, Affine, Ints
from interlace.graph.op import Op
from interlace.graph.ragged import compute_offsets, expand_ranges, iter_batches

_AXES = 3
#: Orders of the tiles of a grid, outermost coordinate first; the first one is row-major.
LAYOUTS = tuple(permutations(range(_AXES)))


@dataclass(frozen=True)
class TileRuns:
    """Sets of tiles, as ranges of consecutive positions in layouts of their ops' grids.

    Attributes:
        row: set that each run belongs to, ascending.
        source: access through which the tiles of the run touch the queried box.
        layout: position in ``LAYOUTS``.
        first: position of the first tile in that layout, with all ops laid out one after another.
        count: number of tiles, at least one.
    """

    row: Ints
    source: Ints
    layout: Ints
    first: Ints
    count: Ints

    def __len__(self) -> int:
        return len(self.row)

    @property
    def last(self) -> Ints:
        """Position of the last tile of each run."""
        return self.first + self.count - 1

    def take(self, which: Ints | NDArray[np.bool_], row: Ints | None = None) -> TileRuns:
        """Select some of the runs, with their own rows or with those in ``row``."""
        own = self.row[which] if row is None else row
        return TileRuns(own, self.source[which], self.layout[which], self.first[which], self.count[which])

    def iter_layouts(self) -> Iterator[tuple[int, Ints]]:
        """Yield each layout that occurs, and the indices of its runs."""
        if len(self) and (self.layout == self.layout[0]).all():
            yield int(self.layout[0]), np.arange(len(self), dtype=np.int64)
            return
        for layout in np.unique(self.layout).tolist():
            yield layout, np.flatnonzero(self.layout == layout).astype(np.int64)

    def split_into_singles(self) -> TileRuns:
        """Return the same sets with one tile per run."""
        row, source, layout = (np.repeat(column, self.count) for column in (self.row, self.source, self.layout))
        return TileRuns(row, source, layout, expand_ranges(self.first, self.count), np.ones_like(row))


class InverseAccess:
    """Accesses of several ops to one tensor, inverted to find the whole tiles that touch a box.

    Attributes:
        examined_boxes: number of boxes of tile coordinates examined so far.
    """

    def __init__(
        self,
        shape: Sequence[int],
        accesses: Sequence[tuple[Op, int, Access]],
        inequalities: Sequence[tuple[Ints, Ints]] | None = None,
    ) -> None:
        """Invert ``accesses``, each given as (op, number of the op's first tile in the graph, access).

        Args:
            shape: shape of the tensor.
            accesses: the accesses, at least one.
            inequalities: ``build_inequalities`` of each, if already computed.
        """
        self.examined_boxes = 0
        n = len(accesses)
        self.base = np.array([base for _, base, _ in accesses], np.int64)
        self.grid = np.array([_pad(op.grid, 1) for op, _, _ in accesses], np.int64).reshape(n, _AXES)
        rows = inequalities or [build_inequalities(shape, op, access) for op, _, access in accesses]
        self._factor, self._const = np.stack([factor for factor, _ in rows]), np.stack([const for _, const in rows])
        self._constant = (self._factor == 0).all(axis=3)
        #: Rows with a nonzero factor in some access: (dimension, row), and the coordinates of those factors.
        used = (self._factor != 0).any(axis=0)
        rows = np.argwhere(used.any(axis=2)).tolist()
        self._used = [(d, kind, np.flatnonzero(used[d, kind]).tolist()) for d, kind in rows]
        mixing = np.count_nonzero(self._factor, axis=3) > 1
        #: Coordinates that occur in a row together with other coordinates.
        self._mixed = (mixing[..., None] & (self._factor != 0)).any(axis=(1, 2))

    def iter_runs(
        self, source: Ints, row: Ints, rows: int, begin: Ints, end: Ints
    ) -> Iterator[tuple[int, int, TileRuns]]:
        """Yield boxes of coordinates as runs, in slices ``a:b`` of rows with bounded memory: (a, b, runs of these).

        Box ``i`` belongs to access ``source[i]`` and to row ``row[i]``, ascending, of ``rows``. Each access uses the
        layout in which its tiles form the fewest runs.
        """
        grid, width = self.grid[source], end - begin
        outer, count = _split_outer(width, grid)
        layout = np.zeros_like(source)
        if (outer > 1).any():
            number = [_split_outer(width[:, order], grid[:, order])[0].prod(axis=1) for order in LAYOUTS]
            total = [np.bincount(source, weights=n, minlength=len(self.base)) for n in number]
            layout = np.stack(total).argmin(axis=0)[source]
            order = np.array(LAYOUTS, np.int64)[layout]
            begin, width, grid = (np.take_along_axis(x, order, axis=1) for x in (begin, width, grid))
            outer, count = _split_outer(width, grid)
        number = outer.prod(axis=1)
        ptr = compute_offsets(np.bincount(row, minlength=rows))
        for a, b in iter_batches(np.diff(compute_offsets(number)[ptr])):
            which = np.arange(ptr[a], ptr[b], dtype=np.int64)
            of = np.repeat(which, number[which])
            i, j = np.divmod(expand_ranges(np.zeros_like(which), number[which]), outer[of, 1])
            first = ((begin[of, 0] + i) * grid[of, 1] + begin[of, 1] + j) * grid[of, 2] + begin[of, 2]
            yield a, b, TileRuns(row[of] - a, source[of], layout[of], self.base[source[of]] + first, count[of])

    def find_coordinates(self, access: Ints, lo: Ints, hi: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the coordinates of the tiles that touch box ``i`` through ``access[i]``.

        The result is a set of disjoint, non-empty boxes of coordinates: (i of each, ascending; begin; end), where begin
        and end have shape (n, 3).
        """
        pair = np.flatnonzero((lo < hi).all(axis=1)).astype(np.int64)
        begin, end = np.zeros((len(pair), _AXES), np.int64), self.grid[access[pair]]
        done = [(np.zeros(0, np.int64), begin[:0], end[:0])]
        while len(pair):
            self.examined_boxes += len(pair)
            # A row is exact for a coordinate if the row's other coordinates were fixed when it was evaluated.
            exact = _find_wide(self._mixed[access[pair]], begin, end).sum(axis=1) <= 1
            begin, end = self._propagate_bounds(access[pair], lo[pair], hi[pair], begin, end)
            some = (begin < end).all(axis=1)
            done.append((pair[some & exact], begin[some & exact], end[some & exact]))
            some &= ~exact
            pair, begin, end = pair[some], begin[some], end[some]
            if not len(pair):
                break
            wide = _find_wide(self._mixed[access[pair]], begin, end)
            axis = np.where(wide, end - begin, np.iinfo(np.int64).max).argmin(axis=1)
            tried = wide.sum(axis=1) > 1
            each = np.arange(len(pair))
            number = np.where(tried, (end - begin)[each, axis], 1)
            value = expand_ranges(begin[each, axis], number)
            pair, begin, end, axis, tried = (np.repeat(x, number, axis=0) for x in (pair, begin, end, axis, tried))
            each = np.flatnonzero(tried)
            begin[each, axis[each]], end[each, axis[each]] = value[each], value[each] + 1
        pair, begin, end = (np.concatenate(parts) for parts in zip(*done, strict=True))
        order = np.argsort(pair, kind="stable")
        return pair[order], begin[order], end[order]

    def intersects(self, access: Ints, tile: Ints, lo: Ints, hi: Ints) -> NDArray[np.bool_]:
        """Return True where tile ``tile[i]`` of the graph touches box ``i`` through ``access[i]``."""
        coords = np.stack(_unravel(tile - self.base[access], self.grid[access]), axis=1)
        reached = (self._factor[access] * coords[:, None, None, :]).sum(axis=3)
        moved = np.stack([lo, -hi, np.zeros_like(lo)], axis=2)
        met: NDArray[np.bool_] = (reached >= self._const[access] + moved).all(axis=(1, 2)) & (lo < hi).all(axis=1)
        return met

    def _propagate_bounds(self, access: Ints, lo: Ints, hi: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Narrow the range of each coordinate by every row, given the ranges of the others (bounds propagation)."""
        moved = np.stack([lo, -hi, np.zeros_like(lo)], axis=2)
        if len(access) and (access == access[0]).all():
            access = access[:1]  # broadcast: one access for all boxes
        factors, needs = self._factor[access], self._const[access] + moved
        begin, end = begin.copy(), end.copy()
        end[(self._constant[access] & (needs > 0)).any(axis=(1, 2)), 0] = 0
        for d, kind, axes in self._used:
            factor, need = factors[:, d, kind], needs[:, d, kind]
            most = {a: np.maximum(factor[:, a] * begin[:, a], factor[:, a] * (end[:, a] - 1)) for a in axes}
            for axis in axes:
                rest = need - sum(most[other] for other in axes if other != axis)
                by = factor[:, axis]
                up, down = np.where(by > 0, by, 1), np.where(by < 0, by, -1)
                np.maximum(begin[:, axis], -(-rest // up), where=by > 0, out=begin[:, axis])
                np.minimum(end[:, axis], rest // down + 1, where=by < 0, out=end[:, axis])
        return begin, end


def build_inequalities(shape: Sequence[int], op: Op, access: Access) -> tuple[Ints, Ints]:
    """Return the inequalities that hold for a tile t whose region intersects the box [a, b).

    There are three per dimension: hi > a, lo < b and lo < hi. Each is a row in the form factor @ t >= const + moved,
    where moved is a, -b or 0. The result is (factor, const), of shapes (rank, 3, 3) and (rank, 3).
    """
    factor, const = np.zeros((len(shape), 3, _AXES), np.int64), np.zeros((len(shape), 3), np.int64)
    for d, (span, extent) in enumerate(zip(access.spans, shape, strict=True)):
        (lo, lo_at), (hi, hi_at) = (_clip_bound(b, op, extent) for b in (span.lo, span.hi))
        factor[d] = hi, [-x for x in lo], [y - x for x, y in zip(lo, hi, strict=True)]
        const[d] = 1 - hi_at, 1 + lo_at, 1 + lo_at - hi_at
    return factor, const


def _unravel(tile: Ints, grid: Ints) -> tuple[Ints, Ints, Ints]:
    rest, last = np.divmod(tile, grid[:, 2])
    return (*np.divmod(rest, grid[:, 1]), last)


def _find_wide(mixed: NDArray[np.bool_], begin: Ints, end: Ints) -> NDArray[np.bool_]:
    """Return the coordinates that rows mix with others and whose ranges still hold more than one value."""
    wide: NDArray[np.bool_] = mixed & (end - begin > 1)
    return wide


def _split_outer(width: Ints, grid: Ints) -> tuple[Ints, Ints]:
    """Return the number of runs along the two outer coordinates, shape (n, 2), and the length of each run.

    Args:
        width: extents of boxes of coordinates, outermost first.
        grid: extents of the grids of these boxes.
    """
    whole = width[:, 2] == grid[:, 2]
    both = whole & (width[:, 1] == grid[:, 1])
    outer = np.stack([np.where(both, 1, width[:, 0]), np.where(whole, 1, width[:, 1])], axis=1)
    return outer, width[:, 2] * np.where(whole, width[:, 1], 1) * np.where(both, width[:, 0], 1)


def _pad(values: Sequence[int], filler: int) -> list[int]:
    return [*values, *[filler] * (_AXES - len(values))]


def _clip_bound(bound: Affine, op: Op, extent: int) -> tuple[list[int], int]:
    """Return (factors, constant) of a whole tile's bound; a bound outside the tensor for every tile has no factors."""
    const = bound.const + bound.k_hi * op.k_extent
    reach = [factor * (n - 1) for factor, n in zip(bound.tile, op.grid, strict=False)]
    if const + sum(x for x in reach if x > 0) <= 0:
        return [0] * _AXES, 0
    if const + sum(x for x in reach if x < 0) >= extent:
        return [0] * _AXES, extent
    return [f if n > 1 else 0 for f, n in zip(_pad(bound.tile, 0), _pad(op.grid, 1), strict=True)], const

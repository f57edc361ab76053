"""Regions that whole ops touch, and the dependencies between accesses that follow from them.

The boxes of all tiles of an op merge into few: into one if there are no gaps. A coordinate that moves only one
dimension adds nothing to the others, so such dimensions are merged separately and the results are multiplied: a grid
of 700 x 700 tiles takes 1,400 intervals.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from interlace.core.errors import UnwrittenError
from interlace.graph.access import Access, Ints
from interlace.graph.boxes import intersects, merge_boxes
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Region
from interlace.graph.visible import AccessBoxes, SweepResult, sweep


@dataclass(frozen=True)
class Use:
    """One access of an op.

    Attributes:
        op: position of the op in the graph.
        access: the access.
        writes: True if it is one of the op's writes.
    """

    op: int
    access: Access
    writes: bool


def list_uses(graph: Graph) -> tuple[Use, ...]:
    """Return the accesses to tensors that ops write, in program order: op by op, an op's reads before its writes.

    Reads of a tensor that is never written cause no dependency; ``Graph`` checks that such a tensor is an input.
    """
    written = {access.tensor for op in graph.ops for access in op.writes}
    return tuple(
        Use(o, access, writes)
        for o, op in enumerate(graph.ops)
        for accesses, writes in ((op.reads, False), (op.writes, True))
        for access in accesses
        if access.tensor in written
    )


def find_predecessors(graph: Graph) -> tuple[frozenset[int], ...]:
    """Return, for each op, positions of the earlier ops on which it may depend: a superset, with few false positives.

    Two ops depend on each other if they touch the same elements and one of them writes. Each access is represented by
    the bounding box of its regions, so no tiles are enumerated.
    """
    before: list[set[int]] = [set() for _ in graph.ops]
    earlier: dict[str, list[tuple[Use, Ints, Ints]]] = {}
    for use in list_uses(graph):
        lo, hi = _compute_bounding_box(graph, graph.ops[use.op], use.access)
        others = earlier.setdefault(use.access.tensor, [])
        for other, other_lo, other_hi in others:
            meet = (np.maximum(lo, other_lo) < np.minimum(hi, other_hi)).all()
            if other.op < use.op and (other.writes or use.writes) and meet:
                before[use.op].add(other.op)
        others.append((use, lo, hi))
    return tuple(map(frozenset, before))


def _compute_bounding_box(graph: Graph, op: Op, access: Access) -> tuple[Ints, Ints]:
    """Return the bounding box of all tiles' regions; bounds are affine, so the corners of the grid suffice."""
    corners = np.array([*product(*((0, extent - 1) for extent in op.grid))], np.int64)
    lo, hi = _bound_whole_tiles(graph, op, access, corners)
    return lo.min(0), hi.max(0)


def compute_boxes(graph: Graph, op: Op, access: Access, tiles: Ints | None = None) -> tuple[Ints, Ints]:
    """Return bounds, each (n, rank), of the regions that whole tiles touch through ``access``; by default all tiles."""
    return _bound_whole_tiles(graph, op, access, op.compute_coords(tiles))


def make_region_key(graph: Graph, use: Use) -> Hashable:
    """Return a key of all that decides which elements each tile touches; many accesses of a graph share one."""
    op = graph.ops[use.op]
    return op.grid, op.k_extent, graph.tensor(use.access.tensor).shape, use.access.spans


def classify_uses(graph: Graph, uses: Sequence[Use]) -> Ints:
    """Return the class of each access: a number that is equal for accesses whose tiles touch the same elements."""
    classes: dict[Hashable, int] = {}
    return np.array([classes.setdefault(make_region_key(graph, use), len(classes)) for use in uses], np.int64)


def cover_accesses(graph: Graph, uses: Sequence[Use], classes: Ints) -> list[tuple[Ints, Ints]]:
    """Return, for each access, non-empty boxes that cover exactly the elements that all tiles of its op touch.

    Args:
        graph: the graph.
        uses: accesses of the graph.
        classes: class of each access (``classify_uses``).
    """
    found: dict[int, tuple[Ints, Ints]] = {}
    number = classes.tolist()
    for use, kind in zip(uses, number, strict=True):
        if kind not in found:
            found[kind] = _cover_access(graph, use)
    return [found[kind] for kind in number]


def _cover_access(graph: Graph, use: Use) -> tuple[Ints, Ints]:
    op, access = graph.ops[use.op], use.access
    lo, hi = np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int64)
    dims: list[int] = []
    for own, axes in _group_dimensions(op, access):
        grid = [n if axis in axes else 1 for axis, n in enumerate(op.grid)]
        coords = np.indices(grid, np.int64).reshape(len(grid), -1).T
        part_lo, part_hi = merge_boxes(*(side[:, own] for side in _bound_whole_tiles(graph, op, access, coords)))
        a, b = np.divmod(np.arange(len(lo) * len(part_lo)), max(len(part_lo), 1))
        lo, hi = np.concatenate([lo[a], part_lo[b]], axis=1), np.concatenate([hi[a], part_hi[b]], axis=1)
        dims += own
    back = np.argsort(dims)
    return lo[:, back], hi[:, back]


def find_dependencies(graph: Graph, uses: Sequence[Use], covers: Sequence[tuple[Ints, Ints]]) -> SweepResult:
    """Return the direct dependencies between accesses of different ops, as pairs of positions in ``uses``.

    The second access of each pair depends on the first.

    Args:
        graph: the graph.
        uses: accesses in program order.
        covers: boxes that each access touches.

    Raises:
        UnwrittenError: a tile reads an element that no earlier op writes and no input holds, or an output is not
            written completely.
    """
    spaces = {t.name: n for n, t in enumerate(graph.tensors)}
    # Inputs count as written before all ops, outputs as read after them.
    ends = [(-1, name, True) for name in graph.inputs] + [(len(uses), name, False) for name in graph.outputs]
    touched = {use.access.tensor for use in uses}
    ends = [end for end in ends if end[1] in touched]
    shapes = [np.array([graph.tensor(name).shape], np.int64) for _, name, _ in ends]
    whole = [(np.zeros_like(shape), shape) for shape in shapes]
    events = [(n, use.access.tensor, use.writes) for n, use in enumerate(uses)] + ends
    rank = max(len(t.shape) for t in graph.tensors)
    none = np.zeros((0, rank), np.int64)
    lo = np.concatenate([none, *(_pad_rank(lo, rank, 0) for lo, _ in (*covers, *whole))])
    hi = np.concatenate([none, *(_pad_rank(hi, rank, 1) for _, hi in (*covers, *whole))])
    number = [len(lo) for lo, _ in (*covers, *whole)]
    event = np.repeat(np.array([e for e, _, _ in events], np.int64), number)
    space = np.repeat(np.array([spaces[name] for _, name, _ in events], np.int64), number)
    writes = np.repeat(np.array([w for _, _, w in events], bool), number)
    seen = sweep(AccessBoxes(space, event, writes, lo, hi))
    _check_written(graph, uses, seen)
    op = np.array([use.op for use in uses], np.int64)
    inner = (seen.source >= 0) & (seen.target < len(uses))
    source, target = seen.source[inner], seen.target[inner]
    apart = op[source] != op[target]
    return SweepResult(source[apart], target[apart], seen.unwritten, seen.examined_boxes)


def _bound_whole_tiles(graph: Graph, op: Op, access: Access, coords: Ints) -> tuple[Ints, Ints]:
    k = np.zeros(len(coords), np.int64)
    return access.compute_bounds(graph.tensor(access.tensor).shape, coords, k, k + op.k_extent)


def _group_dimensions(op: Op, access: Access) -> list[tuple[list[int], set[int]]]:
    """Group the dimensions of a tensor so that no tile coordinate moves two groups: (dimensions, coordinates)."""
    groups: list[tuple[list[int], set[int]]] = []
    for d, span in enumerate(access.spans):
        factors = [entry for bound in (span.lo, span.hi) for entry in enumerate(bound.tile)]
        dims, axes = [d], {axis for axis, factor in factors if factor and op.grid[axis] > 1}
        for other in [group for group in groups if group[1] & axes]:
            groups.remove(other)
            dims, axes = other[0] + dims, other[1] | axes
        groups.append((dims, axes))
    return groups


def _pad_rank(bounds: Ints, rank: int, filler: int) -> Ints:
    """Pad bounds with dimensions in which all boxes share one extent."""
    more = np.full((len(bounds), rank - bounds.shape[1]), filler, np.int64)
    return np.concatenate([bounds, more], axis=1)


def _check_written(graph: Graph, uses: Sequence[Use], seen: SweepResult) -> None:
    """Check that every element that is read, by an op or as an output, is written before."""
    event, space, lo, hi = seen.unwritten
    if not len(event):
        return
    first = np.lexsort((space, event))[0]
    tensor = graph.tensors[int(space[first])]
    some = (event == event[first]) & (space == space[first])
    lo, hi = merge_boxes(lo[some, : len(tensor.shape)], hi[some, : len(tensor.shape)])
    if event[first] == len(uses):
        missing = _make_region(tensor.name, lo[0], hi[0])
        raise UnwrittenError(
            f"graph {graph.name!r} has output {tensor.name!r}, of which no op writes {missing}; let one write it, "
            f"widen an access map, or list {tensor.name!r} among the inputs if its old values are meant"
        )
    use = uses[int(event[first])]
    op = graph.ops[use.op]
    tile_lo, tile_hi = compute_boxes(graph, op, use.access)
    tiles = [np.flatnonzero(intersects(tile_lo, tile_hi, a[None], b[None])) for a, b in zip(lo, hi, strict=True)]
    tile, box = min((int(found[0]), n) for n, found in enumerate(tiles) if len(found))
    missing = _make_region(tensor.name, np.maximum(lo[box], tile_lo[tile]), np.minimum(hi[box], tile_hi[tile]))
    raise UnwrittenError(
        f"{op.format_tile(tile)} reads {missing}, which no op before it writes; let one write it, narrow the access "
        f"map of argument {use.access.arg!r}, or list {tensor.name!r} among the inputs if its old values are meant"
    )


def _make_region(tensor: str, lo: Ints, hi: Ints) -> Region:
    return Region(tensor, tuple(map(int, lo)), tuple(map(int, hi)))

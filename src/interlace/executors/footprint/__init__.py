"""The footprint check: does a body touch what its op declares, and nothing else?

Dependencies and proofs follow from access maps alone, so a body that touches more than its map declares can race under
a plan that ``verify`` accepts. On a device, each item (a whole tile, then parts of its reduction) runs alone, between
guard zones, on inputs of several kinds:

    "cpu"    every load and store is observed: a read of a neighbouring element is found even if its value is not used,
             and a write even if it changes nothing
    "cuda"   memory is poisoned and changes are compared: an access that leaves no trace in memory is not found

On both devices, the check misses branches that no kind of input takes, and tiles that are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from interlace.core.arguments import check_sequence, check_type, format_value
from interlace.core.errors import FootprintError, GraphError, NoDeviceError, ReferenceBodyError
from interlace.executors.footprint.exact import check_by_observation
from interlace.executors.footprint.items import INPUT_KINDS, PLAIN_KIND, FootprintItem
from interlace.executors.footprint.poison import check_by_poison
from interlace.executors.reference_calls import accumulate, complete, reference_of
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Region

_MAX_FULL_GRID = 32  # largest grid of which all tiles are checked
_CHECKED_PARTS = 3  # a reduction is also checked in parts: the first, a middle and the last one


@dataclass(frozen=True)
class FootprintReport:
    """Record of what a check tried, and by which method.

    Attributes:
        op: name of the op.
        grid: grid of the op.
        tiles: linear numbers of the tiles that were tried.
        parts: k-ranges that were tried of each tile: the whole reduction, then parts of it.
        inputs: kinds of inputs: all are used for the whole reduction, the first for its parts.
        method: how the check detects accesses.
    """

    op: str
    grid: tuple[int, ...]
    tiles: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]
    inputs: tuple[str, ...]
    method: str

    @property
    def is_complete(self) -> bool:
        """True if every tile was tried."""
        return len(set(self.tiles)) == np.prod(self.grid)

    def __str__(self) -> str:
        tiles = int(np.prod(self.grid))
        which = f"all {tiles} tiles" if self.is_complete else f"{len(set(self.tiles))} of {tiles} tiles"
        *most, last = self.inputs
        kinds = f"{', '.join(most)} and {last}" if most else last
        parts = len(self.parts) - 1
        of_parts = f", {parts} parts of their reductions on {self.inputs[0]}" if parts else ""
        rest = "" if self.is_complete else f"; for the other tiles pass tiles=range({tiles})"
        return f"op {self.op!r}: {which} on {kinds}{of_parts}; {self.method}{rest}"


def check_footprint(
    graph: Graph,
    op: str,
    *,
    device: str = "reference",
    tiles: Sequence[int] | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FootprintReport:
    """Check that the body of an op touches exactly what the op's access maps declare, tile by tile.

    Args:
        graph: graph that contains the op.
        op: name of the op.
        device: "reference" checks that the NumPy reference requests declared reads only and returns the declared writes
            in their shapes. A torch device runs the Triton body on inputs of several kinds. "cpu", under the Triton
            interpreter, observes every load and store. "cuda" poisons memory, and does not detect a value that is
            written back unchanged; on a Hopper GPU it also checks a body that is CUDA source for the megakernel.
        tiles: linear tile numbers; ``range(graph.op(op).tiles)`` for all. The default is all tiles of a small grid,
            otherwise corners, edges and a few random ones.
        seed: seed of the inputs and of the choice of tiles.
        progress: function that receives the number of finished runs and the total.

    Returns:
        What was tried; it can be printed.

    Raises:
        ArgumentError: an argument has another type.
        FootprintError: the body touches something undeclared, or omits something declared; names the tile, the bounding
            box of the offending elements, and what to change.
        GraphError: no such op or tile, or the op has no body for the device.
        IntraOpRaceError: tiles of the op conflict according to their declarations.
        NoDeviceError: torch, triton or the device is missing, or the device runs nothing ("meta").
    """
    check_type(graph, Graph, "check_footprint", "graph")
    check_type(op, str, "check_footprint", "op", repr(getattr(op, "name", "name")))
    check_type(device, str, "check_footprint", "device", repr(str(device)))
    target = graph.op(op)
    chosen = _sample_tiles(target, seed) if tiles is None else check_sequence(tiles, int, "check_footprint", "tiles")
    for tile in chosen:
        if not 0 <= tile < target.tiles:
            raise GraphError(f"op {op!r} has no tile {tile}; grid {target.grid} has 0..{target.tiles - 1}")
    if not chosen:
        raise GraphError(f"op {op!r}: no tiles to check; give some of 0..{target.tiles - 1}")
    parts = _list_k_ranges(target)
    items = [FootprintItem(graph, target, tile, lo, hi) for tile in chosen for lo, hi in parts]
    try:
        check, kinds, method = _METHODS[device.partition(":")[0]]
    except KeyError:
        raise NoDeviceError(
            f"a footprint is checked on 'reference', 'cpu' or 'cuda', not on {device!r}; use one of them"
        ) from None
    check(items, device, seed, progress)
    return FootprintReport(op, target.grid, tuple(chosen), tuple(parts), kinds, method)


def _sample_tiles(op: Op, seed: int) -> list[int]:
    """Return all tiles of a small grid, otherwise corners, middles of edges and faces, and a few random ones."""
    if op.tiles <= _MAX_FULL_GRID:
        return list(range(op.tiles))
    corners = product(*({0, n // 2, n - 1} for n in op.grid))
    few = np.random.default_rng(seed).choice(op.tiles, 8, replace=False).tolist()
    return sorted({*few, *(int(np.ravel_multi_index(at, op.grid)) for at in corners)})


def _list_k_ranges(op: Op) -> list[tuple[int, int]]:
    """Return the k-range of the whole reduction, then those of its parts."""
    block, chunks = (op.reduction.block, op.reduction.chunks) if op.reduction else (1, 1)
    cuts = sorted({min(block * (chunks * p // _CHECKED_PARTS), op.k_extent) for p in range(_CHECKED_PARTS + 1)})
    return [(0, op.k_extent), *(pairwise(cuts) if len(cuts) > 2 else ())]


def _check_references(
    items: Sequence[FootprintItem], device: str, seed: int, progress: Callable[[int, int], None]
) -> None:
    for done, item in enumerate(items, 1):
        _check_reference(item, np.random.default_rng(seed))
        progress(done, len(items))


def _check_reference(item: FootprintItem, random: np.random.Generator) -> None:
    """Check what a reference requests and returns; it cannot read anything that it does not receive."""
    op = item.op
    reference = reference_of(op)
    moving = {a.arg: random.random(_compute_extent(item.compute_region(a))) + 0.5 for a in op.reads if a.uses_k}
    fixed = {a.arg: random.random(_compute_extent(item.compute_region(a))) + 0.5 for a in op.reads if not a.uses_k}
    try:
        acc = accumulate(op, item.tile, reference, moving, None) if reference.accumulate else None
        found = complete(op, item.tile, reference, acc, fixed)
    except ReferenceBodyError as error:
        if not isinstance(error.__cause__, KeyError):
            raise
        raise FootprintError(
            f"{item}: the reference asks for {error.__cause__}, but the op declares reads {sorted(moving)} over the "
            f"k-range, for accumulate, and {sorted(fixed)} otherwise, for finish; declare that one too"
        ) from error
    expected = {a.arg: _compute_extent(item.compute_region(a)) for a in op.writes}
    shapes = (
        {arg: np.shape(value) for arg, value in found.items()} if isinstance(found, Mapping) else format_value(found)
    )
    if shapes != expected:
        raise FootprintError(f"{item}: the reference returns {shapes}, its op declares {expected}; fix one")


def _compute_extent(region: Region) -> tuple[int, ...]:
    return tuple(b - a for a, b in zip(region.lo, region.hi, strict=True))


#: Device type -> check function, kinds of inputs, method of detection.
_METHODS = {
    "reference": (_check_references, (PLAIN_KIND,), "what the reference asks for and returns"),
    "cpu": (check_by_observation, tuple(INPUT_KINDS), "every load and store observed"),
    "cuda": (
        check_by_poison,
        tuple(INPUT_KINDS),
        "undeclared memory poisoned, so what is written back unchanged goes unseen",
    ),
}

"""Tiles of block-sparse matmuls in the megakernel: the one with the shortest estimated time, then the others.

Block rows have unequal numbers of blocks, which only the table on the device tells, so workers claim tickets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.block_sparse.tiles import NAME, TILING, estimate_s, iter_tiles
from interlace.kernels.matmul.tile import MatmulTile
from interlace.kernels.tuning import Tuning
from interlace.plan.plan import Dispatch
from interlace.policies.tiling import OpTiling, Tilings

_GROUP = 8  # row tiles of a panel, which read the same blocks one after another
_MAX_LIKELY = 4
_FEW_SUMS = 64 * 128  # upper bound of the products of a tile that one warpgroup computes by default


def _rank_tiles(graph: Graph, op: Op, device: DeviceSpec) -> list[OpTiling]:
    """Return the tilings of an op by estimated time; ties go to the larger tile, then to more warps if it is large."""
    dtype = graph.tensor(op.writes[0].tensor).dtype

    def rank(tile: MatmulTile) -> tuple[float, int, int]:
        size = tile.m * tile.n
        return estimate_s(op, tile, dtype, device), -size, tile.num_warps if size <= _FEW_SUMS else -tile.num_warps

    def tiling(tile: MatmulTile) -> OpTiling:
        params = tuple((param, value) for param, value in tile.params if param in TILING)
        return OpTiling(params, group=_GROUP if int(op.param("M")) > tile.m else 0)

    return [tiling(tile) for tile in sorted(iter_tiles(op), key=rank)] or [OpTiling()]


def _iter_ranked(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    """Yield tilings of all ops by rank; an op with fewer tilings than others keeps its best one."""
    ranked = {op.name: _rank_tiles(graph, op, device) for op in graph.ops if op.kernel == NAME}
    for place in range(max(map(len, ranked.values()), default=0)):
        yield {name: tilings[place] if place < len(tilings) else tilings[0] for name, tilings in ranked.items()}


def _select_default(graph: Graph, device: DeviceSpec) -> Tilings:
    return next(_iter_ranked(graph, device), {})


def _iter_likely(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    return islice(_iter_ranked(graph, device), 1, _MAX_LIKELY)


MEGAKERNEL_TUNING = Tuning(_select_default, _iter_likely, _iter_ranked, dispatch=Dispatch.TICKET)

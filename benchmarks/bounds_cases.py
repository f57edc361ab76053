"""Problems of the picture of bounds, and the launches of them whose bytes are counted.

Each problem has graphs in some tilings. A launch is a graph, an order and an interleaving. Counted are the order that
is predicted best at the L2 of an H200, and others that are near it or plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil

import interlace as il
from interlace.cli.names import INTERLEAVINGS, ORDERS
from interlace.kernels.base import format_tiling
from interlace.planner.bounds import Convolution, Gemm
from interlace.workloads.conv import conv_chain

WORKERS = il.H200.sms
NAMED_ORDERS = ("row", "column", "serpentine", "hilbert", *(f"grouped:{rows}" for rows in (2, 4, 8, 16, 32)))
NAMED_INTERLEAVINGS = ("op-after-op", "panels:1", "panels:4")

GEMM = Gemm(8192, 8192, 8192)
MLP = Gemm(1792, 6144, 12288), Gemm(1792, 12288, 6144)
ATTENTION = Gemm(4096, 4096, 512), Gemm(4096, 512, 4096)
#: Pairs of convolutions by name, each with rows and channels of its tiles.
CONVOLUTIONS: Mapping[str, tuple[Convolution, tuple[tuple[int, int], ...]]] = {
    "convolutions": (Convolution(32, 56, 56, 64, 64), ((4, 64), (2, 64))),
    "convolutions-512": (Convolution(32, 7, 7, 512, 512), ((7, 128), (7, 64))),
}


def _build_convolutions(name: str) -> tuple[il.Graph, ...]:
    conv, tiles = CONVOLUTIONS[name]
    sizes = conv.images, conv.rows, conv.channels
    listed = (il.Conv2DTile(1, rows, n, 64, num_warps=4, swap_ab=True) for rows, n in tiles)
    return tuple(conv_chain(*sizes, tile=tile) for tile in listed)


@cache
def build_graphs(name: str) -> tuple[il.Graph, ...]:
    """Return the graphs of a problem, one for each tiling."""
    if name in CONVOLUTIONS:
        return _build_convolutions(name)
    tiles = il.MatmulTile(128, 128, 64, num_warps=8), il.MatmulTile(128, 256, 64, num_warps=8)
    if name == "gemm":
        return tuple(il.workloads.one_matmul(GEMM.m, GEMM.n, GEMM.k, tile=tile) for tile in tiles)
    if name == "mlp":
        shape = il.workloads.FeedForward.from_fields({"m": MLP[0].m}, True, "gpt3-145b-tp8").shape
        return tuple(il.workloads.ffn(MLP[0].m, shape, il.bf16, tile, tile) for tile in tiles)
    scores = ATTENTION[0]
    sizes, rows = (scores.m, scores.n, scores.k), ceil(scores.m / WORKERS)
    return tuple(il.workloads.attention(*sizes, il.bf16, tile, rows=rows) for tile in tiles)


def build_plan(graph: il.Graph, order: str, interleaving: str) -> il.Plan:
    """Return the plan of a graph under an order and an interleaving, by their names in the command line."""
    schedule = il.Schedule(WORKERS, order=ORDERS.parse(order), interleaving=INTERLEAVINGS.parse(interleaving))
    return il.build(graph, schedule)


@dataclass(frozen=True)
class BoundsCase:
    """One launch.

    Attributes:
        name: name of the problem.
        tiling: place of the graph among those of the problem.
        order, interleaving: names as in the command line.
    """

    name: str
    tiling: int = 0
    order: str = "row"
    interleaving: str = "op-after-op"

    def plan(self) -> il.Plan:
        """Build the plan."""
        return build_plan(build_graphs(self.name)[self.tiling], self.order, self.interleaving)

    @property
    def binary(self) -> tuple[object, ...]:
        """Key that cases of one compiled launch share."""
        return self.name, self.tiling

    @property
    def facts(self) -> dict[str, str]:
        """Facts that the record names."""
        tiles = format_tiling(build_graphs(self.name)[self.tiling])
        return {"name": self.name, "tiles": tiles, "order": self.order, "interleaving": self.interleaving}


BOUNDS_CASES = tuple(
    BoundsCase(*case)
    for case in (
        ("gemm", 1, "grouped:16"),
        ("gemm", 1, "grouped:8"),
        ("mlp", 1, "column"),
        ("mlp", 1, "grouped:8"),
        ("mlp", 1, "row"),
        ("attention", 0, "serpentine", "panels:1"),
        ("attention", 0, "row", "panels:1"),
        ("attention", 0, "row"),
        ("convolutions", 0),
        ("convolutions", 0, "row", "panels:1"),
        ("convolutions", 1),
        ("convolutions-512", 0),
        ("convolutions-512", 1),
    )
)

"""Tilings of FFNs with chosen tiles."""

from __future__ import annotations

from dataclasses import dataclass

import interlace as il
from interlace.kernels.matmul.tilings import count_weights
from interlace.policies.schedule import Schedule
from interlace.policies.tiling import OpTiling


@dataclass(frozen=True)
class Ring:
    """Tilings of both matmuls of an FFN, with stages of equal size.

    Attributes:
        m, n, k, swap_ab, warpgroups: their tile; a matmul with a gate has half of k, or half of n if k is 64.
        parts: number of parts of each tile's reduction.
        group: number of row panels that an order groups.
        split_tail: True if the tiles of the last wave are cut in two.
    """

    m: int
    n: int
    k: int
    swap_ab: bool
    warpgroups: int = 1
    parts: tuple[int, int] = (1, 1)
    group: int = 0
    split_tail: bool = False

    def tilings(self, graph: il.Graph) -> dict[str, OpTiling]:
        return {op.name: self._op(op, parts) for op, parts in zip(graph.ops, self.parts, strict=True)}

    def schedule(self, graph: il.Graph) -> Schedule:
        """Return the megakernel's schedule with these tilings on an H200."""
        return il.MegakernelExecutor.make_schedule(graph, il.H200, self.tilings(graph))

    def _op(self, op: il.Op, parts: int) -> OpTiling:
        halved = count_weights(op) == 2
        n, k = (self.n, self.k // 2) if halved and self.k > 64 else (self.n // (1 + halved), self.k)
        tile = il.MatmulTile(self.m, n, k, num_warps=4 * self.warpgroups, swap_ab=self.swap_ab)
        return OpTiling(tile.params, parts, self.split_tail, self.group)

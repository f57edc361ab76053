"""FFNs on the Hopper executor in a tile of choice."""

from __future__ import annotations

from dataclasses import dataclass

import interlace as il
from interlace.kernels.matmul.gluon_tuning import RingTile
from interlace.planner.settings import plan_with
from interlace.policies.setting import Setting
from interlace.workloads import FFNShape, ffn


@dataclass(frozen=True)
class Ring:
    """A setting of both matmuls of an FFN.

    Attributes:
        m, n, k, swap_ab, warpgroups: their tile.
        parts: of each tile's reduction.
        in_flight: stages of weights, 0 for the executor's own choice.
        group: row panels that an order groups.
        split_tail: the tiles of the last wave are cut in two.
    """

    m: int
    n: int
    k: int
    swap_ab: bool
    warpgroups: int = 1
    parts: tuple[int, int] = (1, 1)
    in_flight: int = 0
    group: int = 0
    split_tail: bool = False

    def setting(self, graph: il.Graph) -> Setting:
        tile = RingTile(self.m, self.n, self.k, self.swap_ab, self.warpgroups)
        each = zip(graph.ops, self.parts, strict=True)
        return Setting(
            tuple((op.name, tile.op(op, parts, self.split_tail, self.group)) for op, parts in each), self.in_flight
        )


def hopper_executor(
    m: int,
    shape: FFNShape,
    ring: Ring | None = None,
    options: il.Options | None = None,
    dtype: il.DType = il.bf16,
    workers: int = il.H200.sms,
    bias: bool = False,
) -> il.HopperExecutor:
    """An FFN over m tokens, by default as the rules tile it."""
    graph = ffn(m, shape, dtype, bias=bias)
    setting = il.HopperExecutor.default(graph, il.H200) if ring is None else ring.setting(graph)
    return il.HopperExecutor.from_setting(plan_with(graph, setting, workers), setting, options)

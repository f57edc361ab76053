"""Order of the tiles of expert matmuls in the megakernel: panels of rows, column by column.

Row tiles of an expert are adjacent, and within one panel its weights are read from memory once. If each expert has
one tile there is nothing to share; otherwise panels are as tall as 132 SMs can process well at a time.

The routing decides how many tiles have rows. Per-worker queues hold the tiles that surely do, without the atomics of
tickets; tickets then even out the rest. So hybrid dispatch is the fastest dispatch in 13 of 16 cases and 2 % faster
than tickets in the geometric mean (benchmarks/notes/moe.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.kernels.tuning import Tuning
from interlace.plan.plan import Dispatch
from interlace.policies.tiling import OpTiling, Tilings

#: Kernel name of expert matmuls.
NAME = "expert_matmul"
_TALLEST = 8  # row tiles of a panel


def _select_default(graph: Graph, device: DeviceSpec) -> Tilings:
    ops = [op for op in graph.ops if op.kernel == NAME]
    shared = {op.name: op.grid[0] >= 2 * int(op.param("E")) for op in ops}
    return {name: OpTiling(group=_TALLEST if some else 0) for name, some in shared.items()}


def _iter_likely(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    ops = [op.name for op in graph.ops if op.kernel == NAME]
    for group in (0, 2, 4, 2 * _TALLEST):
        yield {name: OpTiling(group=group) for name in ops}


MEGAKERNEL_TUNING = Tuning(_select_default, _iter_likely, _iter_likely, dispatch=Dispatch.HYBRID)

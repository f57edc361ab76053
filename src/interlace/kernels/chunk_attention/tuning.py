"""The tile of attention of chunks in the megakernel: 64 rows per consumer warpgroup, a block of 64 positions or 32."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.kernels.bodies import PANEL
from interlace.kernels.causal_attention.tile import AttentionTile
from interlace.kernels.tuning import Tuning
from interlace.policies.tiling import OpTiling, Tilings

#: Name of the kernel.
NAME = "chunk_attention"
_ROWS = 64  # rows of a warpgroup
_BLOCK = 64 * 128  # most elements of a block of keys, heads in whole panels, times warpgroups: a thread has registers


def _select_default(graph: Graph, device: DeviceSpec) -> Tilings:
    """Choose two warpgroups from 65 rows of a step on, as for its matmuls (``matmul/megakernel_candidates``)."""
    ops = {}
    for op in graph.ops:
        if op.kernel == NAME:
            groups = 1 if int(op.param("ROWS")) + int(op.param("BASE")) <= _ROWS else 2
            keys = 64 if -(-int(op.param("D")) // PANEL) * PANEL * 64 * groups <= _BLOCK else 32
            keys = gcd(keys, int(op.param("PAGE")))  # of 64 and 0: 64
            ops[op.name] = OpTiling(AttentionTile(_ROWS * groups, keys, 1, 4 * groups).params)
    return ops


def _iter_default(graph: Graph, device: DeviceSpec) -> Iterator[Tilings]:
    yield _select_default(graph, device)


MEGAKERNEL_TUNING = Tuning(_select_default, _iter_default, _iter_default)

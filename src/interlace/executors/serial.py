"""One launch per op on one stream: the baseline, with the barrier between kernels that Interlace removes."""

from __future__ import annotations

from typing import Any

from interlace.core.devices import DeviceSpec
from interlace.executors.launch import AnyLaunch
from interlace.executors.triton import TritonExecutor
from interlace.graph.graph import Graph
from interlace.plan.orderings import Ordering
from interlace.sim.modes import SERIAL, Mode, slow_to_plain_bodies


class SerialExecutor(TritonExecutor):
    """Executor that runs ops one after another on the current stream."""

    name = title = "serial"
    description = "a launch per op, from Python"
    enforced_orderings = frozenset({Ordering.LAUNCH})
    is_interpretable = True
    has_trace_times = True
    _has_dependent_launch = False

    @classmethod
    def build_mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """Return the model of a launch per op, one after another."""
        return slow_to_plain_bodies(SERIAL)

    def _build_launches(self, arguments: tuple[Any, ...]) -> list[AnyLaunch]:
        return [
            self._build_grid_launch(o, arguments[o], self._has_dependent_launch)
            for o in range(len(self.plan.graph.ops))
        ]


class PdlExecutor(SerialExecutor):
    """Executor that launches each op while the one before drains (programmatic dependent launch).

    Every launch waits for the whole launch before it (``griddepcontrol.wait``) before it touches anything that a kernel
    writes. So the order is that of ``serial``, and only launch latency overlaps.
    """

    name = title = "pdl"
    description = "as cuda_graph, launched while the last op drains"
    is_interpretable = False
    has_trace_times = False
    _has_dependent_launch = True

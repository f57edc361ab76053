"""One launch per op on one stream: the baseline, with the barrier between kernels that Interlace removes."""

from __future__ import annotations

from typing import Any

from interlace.core.devices import DeviceSpec
from interlace.executors.launch import AnyLaunch
from interlace.executors.triton import TritonExecutor
from interlace.graph.graph import Graph
from interlace.plan.orderings import Ordering
from interlace.sim.modes import SERIAL, Mode, plain_bodies


class SerialExecutor(TritonExecutor):
    """Executor that runs ops one after another on the current stream."""

    name = title = "serial"
    what = "a launch per op, from Python"
    keeps = frozenset({Ordering.LAUNCH})
    interpreted = True
    traces = True
    _dependent = False

    @classmethod
    def mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """Return the model of a launch per op, one after another."""
        return plain_bodies(SERIAL)

    def _launches(self, arguments: tuple[Any, ...]) -> list[AnyLaunch]:
        return [self._grid_launch(o, arguments[o], self._dependent) for o in range(len(self.plan.graph.ops))]


class PdlExecutor(SerialExecutor):
    """Executor that launches each op while the one before drains (programmatic dependent launch).

    Every launch waits for the whole launch before it (``griddepcontrol.wait``) before it touches anything that a kernel
    writes. So the order is that of ``serial``, and only launch latency overlaps.
    """

    name = title = "pdl"
    what = "as cuda_graph, launched while the last op drains"
    interpreted = False
    traces = False
    _dependent = True

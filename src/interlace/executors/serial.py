"""One launch per op on one stream: the full stop between kernels that Interlace removes, as a baseline."""

from __future__ import annotations

from typing import Any

from interlace.core.devices import DeviceSpec
from interlace.executors.launch import AnyLaunch
from interlace.executors.triton import TritonExecutor
from interlace.graph.graph import Graph
from interlace.plan.orderings import Ordering
from interlace.sim.modes import SERIAL, Mode, plain_bodies


class SerialExecutor(TritonExecutor):
    """Ops one after another on the current stream."""

    name = title = "serial"
    what = "a launch per op, from Python"
    keeps = frozenset({Ordering.LAUNCH})
    interpreted = True
    traces = True
    _dependent = False

    @classmethod
    def mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """A launch per op, one after another."""
        return plain_bodies(SERIAL)

    def _launches(self, arguments: tuple[Any, ...]) -> list[AnyLaunch]:
        return [self._grid_launch(o, arguments[o], self._dependent) for o in range(len(self.plan.graph.ops))]


class PdlExecutor(SerialExecutor):
    """Ops one after another, each launched while the one before drains (programmatic dependent launch).

    Every launch waits for the whole one before it (``griddepcontrol.wait``) before it touches anything that
    a kernel writes, so order is as in ``serial``; only launch latency overlaps.
    """

    name = title = "pdl"
    what = "as cuda_graph, launched while the last op drains"
    interpreted = False
    traces = False
    _dependent = True

"""One launch per op on one stream: the baselines, with the barrier between kernels that Interlace removes.

One executor; its names differ in how the launches of a run reach the GPU (``LaunchMethod``).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar

from interlace.core.devices import DeviceSpec
from interlace.executors.launch import AnyLaunch
from interlace.executors.triton import TritonExecutor
from interlace.graph.graph import Graph
from interlace.plan.orderings import Ordering
from interlace.sim.modes import SERIAL, Mode, slow_to_plain_bodies


class LaunchMethod(Enum):
    """Method by which the launches of a run reach the GPU."""

    ENQUEUE = "enqueue"
    """Each from Python."""
    GRAPH = "graph"
    """All by a replay of one captured run."""
    DEPENDENT = "dependent"
    """Each from Python, while the one before drains (programmatic dependent launch). Every launch waits for the whole
    launch before it (``griddepcontrol.wait``) before it touches anything that a kernel writes, so only launch latency
    overlaps."""


class SerialExecutor(TritonExecutor):
    """Executor that runs ops one after another on the current stream.

    Attributes:
        launch_method: method by which the launches of a run reach the GPU.
    """

    name = title = "serial"
    description = "a launch per op, from Python"
    enforced_orderings = frozenset({Ordering.LAUNCH})
    is_interpretable = True
    has_trace_times = True
    launch_method: ClassVar[LaunchMethod] = LaunchMethod.ENQUEUE

    @classmethod
    def build_mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """Return the model of a launch per op, one after another."""
        return slow_to_plain_bodies(SERIAL)

    def _prepare(self) -> None:
        self._captured: tuple[Sequence[AnyLaunch], Any] | None = None

    def _build_launches(self, arguments: tuple[Any, ...]) -> list[AnyLaunch]:
        dependent = self.launch_method is LaunchMethod.DEPENDENT
        return [self._build_grid_launch(o, arguments[o], dependent) for o in range(len(self.plan.graph.ops))]

    def _enqueue(self, launches: Sequence[AnyLaunch]) -> None:
        if (
            self.launch_method is not LaunchMethod.GRAPH
            or self._is_interpreted
            or self._torch.cuda.is_current_stream_capturing()
        ):
            super()._enqueue(launches)
            return
        if self._captured is None or self._captured[0] is not launches:
            self._captured = (launches, self._capture(launches))
        self._captured[1].replay()

    def _capture(self, launches: Sequence[AnyLaunch]) -> Any:
        """Return a CUDA graph of one run of these launches, which hold the addresses of the tensors."""
        for launch in launches:
            launch.load()
        self._torch.cuda.synchronize(self._device)
        from interlace.megakernel.capture import capture_graph  # imports torch

        graph = self._torch.cuda.CUDAGraph()
        with capture_graph(graph):
            super()._enqueue(launches)
        return graph


class CudaGraphExecutor(SerialExecutor):
    """Serial executor that replays one captured run: the strongest kernel-by-kernel baseline.

    It captures again when the tensors' addresses change.
    """

    name = title = "cuda_graph"
    description = "a launch per op, in a CUDA graph"
    is_interpretable = False
    has_trace_times = False
    launch_method = LaunchMethod.GRAPH


class PdlExecutor(SerialExecutor):
    """Serial executor that launches each op while the one before drains."""

    name = title = "pdl"
    description = "as cuda_graph, launched while the last op drains"
    is_interpretable = False
    has_trace_times = False
    launch_method = LaunchMethod.DEPENDENT

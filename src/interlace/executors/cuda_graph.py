"""Serial launches captured into a CUDA graph: the strongest kernel-by-kernel baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlace.executors.launch import AnyLaunch
from interlace.executors.serial import SerialExecutor


class CudaGraphExecutor(SerialExecutor):
    """Executor that replays one captured run, and captures again when the tensors' addresses change."""

    name = title = "cuda_graph"
    description = "a launch per op, in a CUDA graph"
    is_interpretable = False
    has_trace_times = False

    def _prepare(self) -> None:
        self._captured: tuple[Sequence[AnyLaunch], Any] | None = None

    def _enqueue(self, launches: Sequence[AnyLaunch]) -> None:
        torch = self._torch
        if self._is_interpreted or torch.cuda.is_current_stream_capturing():
            super()._enqueue(launches)
            return
        if self._captured is None or self._captured[0] is not launches:
            for launch in launches:
                launch.load()
            torch.cuda.synchronize(self._device)
            from interlace.megakernel.capture import capture_graph  # imports torch

            graph = torch.cuda.CUDAGraph()
            with capture_graph(graph):
                super()._enqueue(launches)
            self._captured = (launches, graph)
        self._captured[1].replay()

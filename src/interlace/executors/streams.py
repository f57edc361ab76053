"""A launch per op on several streams: independent ops run concurrently.

The current stream forks into a few streams and joins them again, by events. No kernel is launched on the current stream
itself, which may be the legacy default stream, and the host waits for nothing. So runs follow each other, and a run can
be captured into a CUDA graph, whose branches are then the streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlace.core.devices import DeviceSpec
from interlace.core.errors import CoverageError
from interlace.executors.gpu import find_spec
from interlace.executors.launch import AnyLaunch
from interlace.executors.serial import SerialExecutor
from interlace.graph.graph import Graph
from interlace.graph.uses import find_predecessors
from interlace.policies.streams import Streams
from interlace.sim.modes import Mode, slow_to_plain_bodies
from interlace.sim.modes import make_streams_mode as streams_mode

#: Most streams of a run. A process has this many queues to a device unless CUDA_DEVICE_MAX_CONNECTIONS is set (CUDA C++
#: Programming Guide), and streams that share a queue may wait for each other.
MAX_STREAMS = 8


class StreamsExecutor(SerialExecutor):
    """Executor that runs ops on several streams, each op after events of the ops that it depends on.

    Ops are arranged in as few chains of dependent ops as possible. A stream runs one chain, or several if there are
    more than ``MAX_STREAMS``. Events that others imply are omitted. Streams with the critical path have the highest
    priority of the device.

    Attributes:
        streams: stream of each op, and the ops that it waits for.
    """

    name = title = "streams"
    description = "a launch per op, events between streams"
    has_trace_times = True

    @classmethod
    def build_mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """Return the model of a launch per op, after the ops that it depends on."""
        return slow_to_plain_bodies(streams_mode(assign_streams(graph, device).after))

    def _prepare(self) -> None:
        self.streams = assign_streams(self.plan.graph, find_spec(self.options.device))
        check_streams(self.plan.graph, self.streams)
        if self._device.type == "cuda":
            with self._torch.cuda.device(self._device):
                self._fork = StreamFork(self._torch.cuda, self.streams)

    def _enqueue(self, launches: Sequence[AnyLaunch]) -> None:
        if self._is_interpreted:
            super()._enqueue(launches)
        else:
            self._fork.run(launches)


class StreamFork:
    """Streams and events on the current device, for one run after another.

    Args:
        cuda: ``torch.cuda``.
        streams: stream of each launch, and the launches that it waits for.
    """

    def __init__(self, cuda: Any, streams: Streams) -> None:
        self._cuda, self._plan = cuda, streams
        # PyTorch's streams do not wait for the legacy default stream. Streams with the longest paths get SMs first.
        self._streams = [cuda.Stream(priority=p) for p in streams.compute_priorities(*cuda.Stream.priority_range())]
        self._first, self._awaited = {*streams.root_ops}, streams.awaited_ops
        ahead = {u for earlier in self._awaited for u in earlier}
        self._events = {o: cuda.Event() for o in sorted(ahead | {*streams.final_ops})}
        self._begin = cuda.Event()

    def run(self, launches: Sequence[AnyLaunch]) -> None:
        """Enqueue launches, one per op, after all work on the current stream; later work on it comes after them."""
        main, plan = self._cuda.current_stream(), self._plan
        main.record_event(self._begin)
        try:
            for o, launch in enumerate(launches):
                stream = self._streams[plan.stream[o]]
                if o in self._first:
                    stream.wait_event(self._begin)
                for earlier in self._awaited[o]:
                    stream.wait_event(self._events[earlier])
                self._cuda.set_stream(stream)
                launch.run()
                if o in self._events:
                    stream.record_event(self._events[o])
        finally:
            self._cuda.set_stream(main)
        for o in plan.final_ops:
            main.wait_event(self._events[o])


def assign_streams(graph: Graph, device: DeviceSpec) -> Streams:
    """Assign the ops of a graph to streams of a device, with the ops that each waits for."""

    def seconds(o: int) -> float:
        """Return a lower bound of an op's time: its FLOPs or its tensors' bytes, at the device's rates."""
        op = graph.ops[o]
        touched = [graph.tensor(name) for name in dict.fromkeys(access.tensor for access in op.accesses)]
        computing = op.flops * op.tiles / device.flops_per_s(graph.find_compute_dtype(op)) if touched else 0.0
        return max(computing, sum(tensor.nbytes for tensor in touched) / device.dram_bytes_per_s)

    return Streams.from_predecessors(find_predecessors(graph), [seconds(o) for o in range(len(graph.ops))], MAX_STREAMS)


def check_streams(graph: Graph, streams: Streams) -> None:
    """Raise unless each op is launched after all that it depends on: later on the same stream, or after an event.

    Raises:
        CoverageError: an op is not; the error names both ops.
    """
    behind: list[int] = []  # for each op, the ops that have ended when it begins, as bits
    on_stream: dict[int, int] = {}  # for each stream, the ops that have ended when its newest op has
    for o, earlier in enumerate(find_predecessors(graph)):
        ended = on_stream.get(streams.stream[o], 0)
        for u in streams.awaited_ops[o]:
            ended |= behind[u] | 1 << u
        for u in sorted(earlier):
            if not ended >> u & 1:
                raise CoverageError(
                    f"op {graph.ops[o].name!r} on stream {streams.stream[o]} depends on op {graph.ops[u].name!r} on "
                    f"stream {streams.stream[u]}, and no event makes it wait; add one, or put both on one stream"
                )
        behind.append(ended)
        on_stream[streams.stream[o]] = ended | 1 << o

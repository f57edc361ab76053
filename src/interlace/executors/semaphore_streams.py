"""One stream per op, with tile semaphores between them, as in CuSync.

The current stream forks into one stream per op and joins them again, so runs follow each other without host
synchronisation, and the next run cannot overwrite what this one still reads. Before each consumer, on its stream, a
gate of one program waits until all thread blocks of its producers' launches have started. So consumers only take room
that producers leave free, which rules out deadlock for any number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.core.errors import DeadlockError, GraphError
from interlace.executors.launch import AnyLaunch, TritonLaunch
from interlace.executors.triton import TritonExecutor
from interlace.graph.graph import Graph
from interlace.graph.ragged import group_by, mark_covered
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Plan
from interlace.sim.modes import SEMAPHORE_STREAMS, Mode, slow_to_plain_bodies


@dataclass(frozen=True)
class LaunchStage:
    """Where one op of one run is launched; as a context manager, the op's stream after its gates.

    Attributes:
        grid: launch grid, one program per item.
        sync: first argument of a kernel that uses ``interlace.device``.
    """

    grid: tuple[int]
    sync: Any
    context: AbstractContextManager[Any]
    gates: list[TritonLaunch]

    def __enter__(self) -> LaunchStage:
        self.context.__enter__()
        for gate in self.gates:
            gate.run()
        return self

    def __exit__(self, *error: Any) -> None:
        self.context.__exit__(*error)


class _LaunchStages(dict[str, LaunchStage]):
    """Stages by the op's name."""

    def __missing__(self, op: str) -> LaunchStage:
        raise GraphError(f"there is no op {op!r} to launch; the graph has {list(self)}")


class SemaphoreStreamsExecutor(TritonExecutor):
    """Executor with one launch and one stream per op; tiles wait for tiles.

    Raises:
        CoverageError: a dependency rests on the order of one worker.
        DeadlockError: an item waits for items of its own op, which one launch cannot order.
    """

    name = title = "semaphore_streams"
    description = "a stream per op, tiles wait for tiles"
    #: Blocks of a launch start in any order, and blocks of several launches run concurrently.
    enforced_orderings = frozenset({Ordering.WAIT})
    is_interpretable = True
    has_trace_times = True

    @classmethod
    def build_mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """Return the model of one launch and one stream per op."""
        return slow_to_plain_bodies(SEMAPHORE_STREAMS)

    def _prepare(self) -> None:
        self._awaited_ops = _find_awaited_ops(self.plan)
        if self._device.type == "cuda":
            with self._torch.cuda.device(self._device):
                self._streams = [self._torch.cuda.Stream() for _ in self.plan.graph.ops]

    def _build_launches(self, arguments: tuple[Any, ...]) -> list[AnyLaunch]:
        # Keep launches per op, so that each op's launches go to its stream.
        self._per_op = [
            [*self.build_gates(o), self._build_grid_launch(o, arguments[o])] for o in range(len(self.plan.graph.ops))
        ]
        return [launch for launches in self._per_op for launch in launches]

    def _enqueue(self, launches: Sequence[AnyLaunch]) -> None:
        with self.open_stages() as stages:
            for stage, (*_, body) in zip(stages.values(), self._per_op, strict=True):
                with stage:
                    body.run()

    @contextmanager
    def open_stages(self) -> Iterator[Mapping[str, LaunchStage]]:
        """Open one run, op by op, for kernels that place their own waits and posts.

        Inside, enter each op's stage and launch its kernel there with ``stage.sync``, in program order:

            with executor.open_stages() as stages:
                with stages["first"] as stage:
                    my_kernel[stage.grid](stage.sync, x, y)

        Raises:
            GraphError: a stage is requested by a name that no op has.
        """
        cuda = self._torch.cuda
        main = None if self._is_interpreted else cuda.current_stream()
        stages = _LaunchStages()
        for o, op in enumerate(self.plan.graph.ops):
            if main is not None:
                self._streams[o].wait_stream(main)
            context = nullcontext() if main is None else cuda.stream(self._streams[o])
            stages[op.name] = LaunchStage(
                (self._count_programs(o),), self._build_op_sync(o), context, self.build_gates(o)
            )
        try:
            yield stages
        finally:
            if main is not None:
                for stream in self._streams:
                    main.wait_stream(stream)

    def build_gates(self, o: int) -> list[TritonLaunch]:
        """Return launches that block their stream until all blocks of the ops that op ``o`` awaits have started."""
        from interlace.kernels.templates import gate_kernel

        count = len(self.plan.graph.ops)
        return [
            TritonLaunch(
                gate_kernel,
                (1,),
                (self._build_op_sync(p), self._counters[count + o * count + p :], p),
                {"num_warps": 1},
            )
            for p in self._awaited_ops[o]
        ]


def _find_awaited_ops(plan: Plan) -> list[list[int]]:
    """Return, for each op, the ops whose posts its items await."""
    items, waits = plan.items, plan.waits
    posters: dict[int, set[int]] = {}
    for op, post in {*zip(items.op.tolist(), items.post.tolist(), strict=True)}:
        posters.setdefault(post, set()).add(op)
    of_op = group_by(items.op[waits.item], len(plan.graph.ops))
    gates: list[set[int]] = []
    for rows in (of_op[o] for o in range(len(plan.graph.ops))):
        awaited = mark_covered(waits.first[rows], waits.count[rows], waits.stride[rows], plan.semaphores)
        gates.append(set().union(*(posters[s] for s in np.flatnonzero(awaited).tolist())))
    for o, producers in enumerate(gates):
        if any(p >= o for p in producers):
            raise DeadlockError(
                f"items of op {plan.graph.ops[o].name!r} wait for its own items or for a later op; a launch per op "
                "cannot order them, use the persistent executor"
            )
    return [sorted(producers) for producers in gates]

"""What a command works on: a graph, its inputs, what is right in float64, and the proved plan of each executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from interlace.cli.console import bad_input
from interlace.cli.machine import Machine
from interlace.cli.options import ScheduleOptions
from interlace.cli.workloads import Selection
from interlace.core.devices import DeviceSpec
from interlace.deploy import prove_graph
from interlace.executors import Executor
from interlace.graph.graph import Graph
from interlace.kernels.matmul.tile import Tile
from interlace.plan.verify import Proof
from interlace.planner.build import Choices
from interlace.planner.kept import proved
from interlace.policies.setting import Setting
from interlace.workloads.base import Inputs

#: (numpy or torch, tensors by name) -> the outputs by name.
Dense = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Planned:
    """How an executor runs a problem.

    Attributes:
        proof: of its plan.
        setting: what else its launch is told.
    """

    proof: Proof
    setting: Setting


#: What an executor runs.
Plans = Callable[[type[Executor]], Planned]


@dataclass(frozen=True)
class Problem:
    """One graph with its data.

    Attributes:
        graph: what is run.
        title: for people.
        facts: the workload as JSON.
        inputs: of a seed.
        dense: the outputs without any tiling, as an independent check; None where only the kernels' references tell.
        blocks: workers per SM that suit it on a GPU.
        tiled: whether executors run it in the tiles that it has, rather than in those that suit each.
        flops: without those on rows and columns that only fill a tile, if the workload tells.
    """

    graph: Graph
    title: str
    facts: Mapping[str, Any]
    inputs: Callable[[int], Inputs]
    dense: Dense | None
    blocks: int = 1
    tiled: bool = True
    flops: float | None = None

    def choices(self, schedule: ScheduleOptions, spec: DeviceSpec) -> Choices:
        """The plan of the graph as it is tiled, with defaults filled in."""
        workers = spec.sms * (self.blocks if spec.architecture else 1)
        return replace(Choices(workers), **_given(schedule))

    def plans(self, schedule: ScheduleOptions, spec: DeviceSpec) -> Plans:
        """The plan of each executor on a device, proved: what is given stands in all, and the rest is by rule.

        Executors whose plans are equal share one. Asking for one raises what ``plan_graph`` does.
        """
        whole, given = self.choices(schedule, spec), _given(schedule)
        given |= {"workers": whole.workers}
        made: dict[object, Planned] = {}

        def of(executor: type[Executor]) -> Planned:
            dispatch = whole.dispatch if whole.dispatch in executor.dispatches else executor.dispatches[0]
            executor.check(self.graph, spec)
            setting = Setting()
            if not self.tiled:
                setting = executor.default(self.graph, spec)
            elif spec.architecture:
                executor.check_tiles(self.graph, spec)
            if (setting, dispatch) not in made:
                chosen = {**given, "dispatch": dispatch}
                if self.tiled:
                    proof = proved(self.graph, replace(whole, **chosen))
                else:
                    proof = prove_graph(self.graph, spec, executor, **chosen)
                made[setting, dispatch] = Planned(proof, setting)
            return made[setting, dispatch]

        return of


def _given(schedule: ScheduleOptions) -> dict[str, Any]:
    """The attributes of ``Choices`` that the options name."""
    given: dict[str, Any] = {
        "policy": schedule.policy,
        "order": schedule.order,
        "split": schedule.split,
        "interleaving": schedule.interleave,
        "workers": schedule.workers,
        "chunk_waits": schedule.chunk_waits or None,
    }
    if schedule.dispatch is not None:
        dispatch = schedule.dispatch
        given |= {name: getattr(dispatch, name) for name in ("dispatch", "assignment", "stealing")}
    return {name: value for name, value in given.items() if value is not None}


def problem(work: Selection, machine: Machine, tile: Tile | None = None) -> Problem:
    """The problem that the options describe; small on a CPU unless they say otherwise.

    On a GPU each executor has tiles of its own, unless one is given.

    Raises:
        BadInput: options that do not go together, a checkpoint without the weights, impossible shapes.
    """
    workload = work.on(machine.cuda)

    def inputs(seed: int) -> Inputs:
        with bad_input():
            return workload.inputs(seed)

    with bad_input():
        graph = workload.graph(machine.spec, tile)
    tiled = tile is not None or not machine.cuda
    title, facts = workload.title, workload.facts()
    return Problem(graph, title, facts, inputs, workload.dense, workload.blocks, tiled, workload.flops)


def input_bytes(graph: Graph) -> int:
    """Bytes of all inputs together."""
    return sum(graph.tensor(name).nbytes for name in graph.inputs)

"""Problem of a command: a graph, its inputs, the expected outputs in float64, and the proved plan of each executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from interlace.cli.console import convert_to_bad_input
from interlace.cli.machine import HostMachine
from interlace.cli.options import ScheduleOptions
from interlace.cli.workloads import Selection
from interlace.core.devices import DeviceSpec
from interlace.deploy import prove_graph
from interlace.executors import Executor
from interlace.graph.graph import Graph
from interlace.kernels.matmul.tile import TileShape
from interlace.plan.verify import Proof
from interlace.planner.build import Choices
from interlace.planner.proof_cache import prove_choices
from interlace.policies.setting import Setting
from interlace.workloads.base import Inputs

#: Function of numpy or torch, and of tensors by name, that returns the outputs by name.
Dense = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class ExecutorPlan:
    """Proved plan and setting with which an executor runs a problem.

    Attributes:
        proof: proof of its plan.
        setting: other settings of its launch.
    """

    proof: Proof
    setting: Setting


#: Function that returns the plan that an executor runs.
Plans = Callable[[type[Executor]], ExecutorPlan]


@dataclass(frozen=True)
class RunProblem:
    """Graph with its data.

    Attributes:
        graph: graph to run.
        title: title in tables.
        facts: the workload as JSON.
        inputs: function from a seed to the inputs.
        dense: function that computes the outputs without tiles, as an independent check; None if there are only the
            kernels' references.
        blocks: number of workers per SM that suits it on a GPU.
        is_tiled: True if executors run it in the tiles of the graph, False if each has its own.
        flops: FLOPs without those on rows and columns that only pad a tile, if the workload knows them.
    """

    graph: Graph
    title: str
    facts: Mapping[str, Any]
    inputs: Callable[[int], Inputs]
    dense: Dense | None
    blocks: int = 1
    is_tiled: bool = True
    flops: float | None = None

    def derive_choices(self, schedule: ScheduleOptions, spec: DeviceSpec) -> Choices:
        """Return the choices for the graph as it is tiled, with defaults filled in."""
        workers = spec.sms * (self.blocks if spec.architecture else 1)
        return replace(Choices(workers), **_collect_choices(schedule))

    def make_plans(self, schedule: ScheduleOptions, spec: DeviceSpec) -> Plans:
        """Return a function that returns the proved plan of an executor: from the given options, and else by rule.

        Executors with equal plans share one plan. The function raises what ``autoplan`` raises.
        """
        whole, given = self.derive_choices(schedule, spec), _collect_choices(schedule)
        given |= {"workers": whole.workers}
        made: dict[object, ExecutorPlan] = {}

        def of(executor: type[Executor]) -> ExecutorPlan:
            dispatch = whole.dispatch if whole.dispatch in executor.dispatches else executor.dispatches[0]
            executor.check(self.graph, spec)
            setting = Setting()
            if not self.is_tiled:
                setting = executor.select_default(self.graph, spec)
            elif spec.architecture:
                executor.check_tiles(self.graph, spec)
            if (setting, dispatch) not in made:
                chosen = {**given, "dispatch": dispatch}
                if self.is_tiled:
                    proof = prove_choices(self.graph, replace(whole, **chosen))
                else:
                    proof = prove_graph(self.graph, spec, executor, **chosen)
                made[setting, dispatch] = ExecutorPlan(proof, setting)
            return made[setting, dispatch]

        return of


def _collect_choices(schedule: ScheduleOptions) -> dict[str, Any]:
    """Return the attributes of ``Choices`` that the options name."""
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


def build_problem(work: Selection, machine: HostMachine, tile: TileShape | None = None) -> RunProblem:
    """Return the problem that the options describe; by default it is small on a CPU.

    On a GPU each executor has its own tiles, unless tiles are given.

    Raises:
        BadInput: options conflict, a checkpoint lacks the weights, or shapes are impossible.
    """
    workload = work.build_workload(machine.cuda)

    def inputs(seed: int) -> Inputs:
        with convert_to_bad_input():
            return workload.make_inputs(seed)

    with convert_to_bad_input():
        graph = workload.build_graph(machine.spec, tile)
    tiled = tile is not None or not machine.cuda
    title, facts = workload.title, workload.to_data()
    return RunProblem(graph, title, facts, inputs, workload.run_dense, workload.blocks, tiled, workload.flops)


def count_input_bytes(graph: Graph) -> int:
    """Return the bytes of all inputs together."""
    return sum(graph.tensor(name).nbytes for name in graph.inputs)

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
from interlace.executors import Executor
from interlace.graph.graph import Graph
from interlace.kernels.matmul.tile import TileShape
from interlace.plan.verify import Proof
from interlace.planner.proof_cache import prove_schedule
from interlace.policies.schedule import Schedule
from interlace.workloads.base import Inputs

#: Function of numpy or torch, and of tensors by name, that returns the outputs by name.
Dense = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]


#: Function that returns the proof of the plan that an executor runs.
Plans = Callable[[type[Executor]], Proof]


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

    def make_schedule(self, options: ScheduleOptions, spec: DeviceSpec) -> Schedule:
        """Return the schedule for the graph as it is tiled, with defaults filled in."""
        workers = spec.sms * (self.blocks if spec.architecture else 1)
        return replace(Schedule(workers), **_collect_values(options))

    def make_plans(self, options: ScheduleOptions, spec: DeviceSpec) -> Plans:
        """Return a function that returns the proved plan of an executor: from the given options, and else by rule.

        Executors with equal plans share one plan. The function raises what ``autoplan`` raises.
        """
        common, given = self.make_schedule(options, spec), _collect_values(options)
        given |= {"workers": common.workers}
        made: dict[object, Proof] = {}

        def prove(executor: type[Executor]) -> Proof:
            dispatch = common.dispatch if common.dispatch in executor.dispatches else executor.dispatches[0]
            executor.check(self.graph, spec)
            schedule = common
            if not self.is_tiled:
                schedule = executor.select_default(self.graph, spec)
            elif spec.architecture:
                executor.check_tiles(self.graph, spec)
            key = repr(schedule.op_tilings), dispatch  # the rest is given, or follows from these
            if key not in made:
                made[key] = prove_schedule(self.graph, replace(schedule, **{**given, "dispatch": dispatch}))
            return made[key]

        return prove


def _collect_values(options: ScheduleOptions) -> dict[str, Any]:
    """Return the attributes of ``Schedule`` that the options name."""
    given: dict[str, Any] = {
        "policy": options.policy,
        "order": options.order,
        "split": options.split,
        "interleaving": options.interleave,
        "workers": options.workers,
        "chunk_waits": options.chunk_waits or None,
    }
    if options.dispatch is not None:
        dispatch = options.dispatch
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

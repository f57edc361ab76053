"""What a command works on: a graph, its inputs, what is right in float64, and its proved plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from interlace.cli.console import bad_input
from interlace.cli.machine import Machine
from interlace.cli.names import DispatchChoice
from interlace.cli.options import ScheduleOptions
from interlace.cli.workloads import Selection
from interlace.graph.graph import Graph
from interlace.plan.plan import Dispatch
from interlace.plan.verify import Proof, verify
from interlace.planner.build import Choices, build
from interlace.policies.interleavings import OpAfterOp
from interlace.policies.orders import RowMajor
from interlace.policies.splits import Whole
from interlace.policies.sync import SyncPolicy
from interlace.workloads.base import Inputs, Tile

#: (numpy or torch, tensors by name) -> the outputs by name.
Dense = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]
#: The verified plan of a dispatch, of None for the one that suits.
Proofs = Callable[[Dispatch | None], Proof]


@dataclass(frozen=True)
class Problem:
    """One graph with its data.

    Attributes:
        graph: what is run.
        title: for people.
        facts: the workload as JSON.
        inputs: of a seed.
        dense: the outputs without any tiling, as an independent check; None where only the kernels' references tell.
        policy: which suits the graph unless another is given.
        blocks: workers per SM that suit it on a GPU.
        dispatch: the only one that there is a plan for, None if any can be planned.
    """

    graph: Graph
    title: str
    facts: Mapping[str, Any]
    inputs: Callable[[int], Inputs]
    dense: Dense | None
    policy: SyncPolicy
    blocks: int = 1
    dispatch: Dispatch | None = None

    def choices(self, schedule: ScheduleOptions, machine: Machine) -> Choices:
        """What the plan leaves open, with defaults filled in."""
        dispatch = schedule.dispatch or DispatchChoice(Dispatch.TICKET)
        return Choices(
            workers=schedule.workers or machine.spec.sms * (self.blocks if machine.cuda else 1),
            dispatch=dispatch.dispatch,
            assignment=dispatch.assignment,
            policy=schedule.policy or self.policy,
            order=schedule.order or RowMajor(),
            split=schedule.split or Whole(),
            interleaving=schedule.interleave or OpAfterOp(),
            chunk_waits=schedule.chunk_waits,
        )

    def proofs(self, schedule: ScheduleOptions, machine: Machine) -> Proofs:
        """The plans under the options, each built and verified once."""
        choices = self.choices(schedule, machine)

        @cache
        def of(dispatch: Dispatch) -> Proof:
            return verify(build(self.graph, replace(choices, dispatch=dispatch)))

        return lambda dispatch: of(dispatch or choices.dispatch)


def problem(work: Selection, machine: Machine, tile: Tile | None = None) -> Problem:
    """The problem that the options describe; small on a CPU unless they say otherwise.

    Raises:
        BadInput: options that do not go together, a checkpoint without the weights, impossible shapes.
    """
    workload = work.on(machine.cuda)

    def inputs(seed: int) -> Inputs:
        with bad_input():
            return workload.inputs(seed)

    with bad_input():
        graph = workload.graph(machine.spec, tile)
    return Problem(
        graph, workload.title, workload.facts(), inputs, workload.dense, workload.policy, workload.blocks
    )


def input_bytes(graph: Graph) -> int:
    """Bytes of all inputs together."""
    return sum(graph.tensor(name).nbytes for name in graph.inputs)

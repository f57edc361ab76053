"""What a run without a GPU says of one: what the same workload would do there, by prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interlace.cli.console import draw, note, say, show, working
from interlace.cli.machine import Machine, target
from interlace.cli.names import Device
from interlace.cli.options import ScheduleOptions
from interlace.cli.problem import Problem, problem
from interlace.cli.table import number
from interlace.cli.workloads import Selection
from interlace.core.text import plural

if TYPE_CHECKING:
    from interlace.cli.predicted import Predicted

_MOST_TILES = 1 << 15  # more take longer than a few seconds


@dataclass(frozen=True, eq=False)
class Foreseen:
    """A workload on a GPU that is not here.

    Attributes:
        work: which.
        machine: where.
        found: what each executor would do, the fastest first.
    """

    work: Problem
    machine: Machine
    found: list[Predicted]

    def to_data(self) -> dict[str, Any]:
        """As JSON."""
        executors = [each.to_data() for each in self.found]
        return {"workload": dict(self.work.facts), "device": self.machine.facts, "executors": executors}

    def show(self) -> None:
        """Print times of all executors, and where the time of the workers goes under the fastest and op by op."""
        from interlace.cli.predicted import comparison, picture

        where = self.machine.name
        show(comparison(f"predicted, nothing of this ran: {self.work.title}, on {where}", self.found))
        best = self.found[0]
        stops = next((each for each in self.found[1:] if "cuda_graph" in each.names), None)
        shown = [best] if stops is None else [best, stops]
        until_ns = max(each.prediction.trace.span_ns for each in shown)
        for each in shown:
            workers = each.prediction.plan.workers
            us = number(each.prediction.trace.span_ns * 1e-3)
            say(f"{', '.join(each.names)}: {plural(workers, 'worker')}, {us} us")
            draw(picture(each.prediction.trace, workers, until_ns))
        until = number(until_ns * 1e-3)
        say(f"from 0 to {until} us; the more workers, the darker; `interlace explain` tells more")


def foreseen(work: Selection, schedule: ScheduleOptions) -> Foreseen | None:
    """What the executors of a GPU would do with a workload, in the size that is meant there; None if it is too large.

    Raises:
        BadInput: options that make no problem for a GPU.
    """
    machine = target(Device.CUDA)
    task = problem(work, machine, schedule.tile)
    tiles = sum(op.tiles for op in task.graph.ops)
    if tiles > _MOST_TILES:
        does = f"`interlace explain {work.kind.name} --device cuda` does it"
        note(f"{tiles:,} tiles take long to predict on {machine.name}; {does}")
        return None
    with working(f"predicting for {machine.name} (the first time, the simulated machine is compiled)"):
        from interlace.cli.predicted import by_rule

        found = by_rule(task.plans(schedule, machine.spec), machine.spec)
    return Foreseen(task, machine, found) if found else None

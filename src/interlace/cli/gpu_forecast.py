"""Prediction that a run without a GPU prints: the same workload on each executor of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interlace.cli.console import note, print_line, print_lines, print_table, show_spinner
from interlace.cli.machine import HostMachine, find_target
from interlace.cli.names import Device, DeviceChoice
from interlace.cli.options import ScheduleOptions
from interlace.cli.problem import RunProblem, build_problem
from interlace.cli.table import format_number
from interlace.cli.workloads import Selection
from interlace.core.text import format_count

if TYPE_CHECKING:
    from interlace.cli.predicted import PredictedRun

_MAX_TILES = 1 << 15  # larger plans take longer than a few seconds


@dataclass(frozen=True, eq=False)
class GpuForecast:
    """Predictions of a workload on a GPU that this machine does not have.

    Attributes:
        work: the workload.
        machine: the GPU.
        predictions: prediction of each executor, the fastest first.
    """

    work: RunProblem
    machine: HostMachine
    predictions: list[PredictedRun]

    def to_data(self) -> dict[str, Any]:
        """Return the prediction as JSON data."""
        executors = [each.to_data() for each in self.predictions]
        return {"workload": dict(self.work.facts), "device": self.machine.facts, "executors": executors}

    def show(self) -> None:
        """Print times of all executors, and the timelines of the fastest one and of one that runs op by op."""
        from interlace.cli.predicted import build_comparison, draw_picture

        where = self.machine.name
        print_table(
            build_comparison(f"predicted, nothing of this ran: {self.work.title}, on {where}", self.predictions)
        )
        best = self.predictions[0]
        stops = next((each for each in self.predictions[1:] if "cuda_graph" in each.names), None)
        shown = [best] if stops is None else [best, stops]
        until_ns = max(each.prediction.trace.span_ns for each in shown)
        for each in shown:
            workers = each.prediction.plan.workers
            us = format_number(each.prediction.trace.span_ns * 1e-3)
            print_line(f"{', '.join(each.names)}: {format_count(workers, 'worker')}, {us} us")
            print_lines(draw_picture(each.prediction.trace, workers, until_ns))
        until = format_number(until_ns * 1e-3)
        print_line(f"from 0 to {until} us; the more workers, the darker; `interlace explain` tells more")


def predict_for_gpu(
    work: Selection, schedule: ScheduleOptions, device: DeviceChoice = Device.CUDA
) -> GpuForecast | None:
    """Return the predictions of a GPU's executors for a workload in its default size there; None if it is too large.

    Raises:
        BadInput: the options describe no problem for a GPU.
    """
    machine = find_target(device)
    task = build_problem(work, machine, schedule.tile)
    tiles = sum(op.tiles for op in task.graph.ops)
    if tiles > _MAX_TILES:
        does = f"`interlace explain {work.kind.name} --device cuda` does it"
        note(f"{tiles:,} tiles take long to predict on {machine.name}; {does}")
        return None
    with show_spinner(f"predicting for {machine.name}"):
        from interlace.cli.predicted import predict_by_rule

        found = predict_by_rule(task.make_plans(schedule, machine.spec), machine.spec)
    return GpuForecast(task, machine, found) if found else None

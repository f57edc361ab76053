"""Predictions of executors: as tables, as JSON data, and as a timeline of the workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from interlace.cli import table
from interlace.cli.console import escape_text, note
from interlace.cli.problem import Plans, RunProblem
from interlace.core.devices import DeviceSpec
from interlace.core.errors import DeviceError, GraphError, PlanError
from interlace.executors import EXECUTORS, DeviceExecutor, Executor
from interlace.kernels.base import format_ops, format_tiling
from interlace.planner.configs import ExecutorConfig, RankedConfig, merge_configs
from interlace.planner.excerpt import Excerpt
from interlace.planner.explain import OpReport, report_ops
from interlace.planner.predict import FINE, Prediction, predict
from interlace.sim.modes import Mode
from interlace.trace.events import Trace
from interlace.trace.summary import Summary

_CANNOT = (DeviceError, GraphError, PlanError)
_COLUMNS = 72  # columns of a timeline
_SHADES = " ░▒▓█"


@dataclass(frozen=True, eq=False)
class PredictedRun:
    """Prediction of a plan under executors that have the same prediction.

    Attributes:
        names: names of the executors.
        prediction: prediction of the plan.
        mode: mode of the executors.
        device: device that it is for.
        excerpt: part of the graph that was predicted; None for the whole.
    """

    names: tuple[str, ...]
    prediction: Prediction
    mode: Mode
    device: DeviceSpec
    excerpt: Excerpt | None = None

    @staticmethod
    def from_config(entry: RankedConfig, device: DeviceSpec) -> PredictedRun:
        """Return the prediction of a planner's result."""
        return PredictedRun(
            entry.config.names, entry.best.prediction, entry.config.mode, device, entry.best.planner.excerpt
        )

    @property
    def us(self) -> float:
        """Microseconds of one run."""
        return self._excerpt.scale_us(self.prediction)

    @property
    def dram_read(self) -> int:
        """Bytes from memory."""
        return self._excerpt.scale_dram_read(self.prediction)

    @cached_property
    def summary(self) -> Summary:
        """Summary of the workers' time."""
        return self._excerpt.scale_summary(self.prediction)

    @property
    def _excerpt(self) -> Excerpt:
        graph = self.prediction.plan.graph
        return self.excerpt or Excerpt(graph, graph)

    @cached_property
    def ops(self) -> tuple[OpReport, ...]:
        """Limit of each op."""
        return report_ops(self.prediction, self.device, self.mode)

    @property
    def limits(self) -> str:
        """Limits of the ops in a few words."""
        each = {op.op: op.limit.value for op in self.ops}
        alike = set(each.values())
        return alike.pop() if len(alike) == 1 else format_ops(f"{op} {limit}" for op, limit in each.items())

    def to_data(self) -> dict[str, Any]:
        """Return the prediction as JSON data, one entry for all its executors."""
        plan, summary = self.prediction.plan, self.summary
        spans = {op.op: op for op in summary.ops}
        return {
            "names": list(self.names),
            "us": self.us,
            "busy": summary.busy,
            "waiting": summary.waiting,
            "idle": summary.idle,
            "dram_read_bytes": self.dram_read,
            "tiles": format_tiling(plan.graph),
            "order": plan.order,
            "policy": plan.policy,
            "ops": [
                {
                    "op": op.op,
                    "limit": op.limit.value,
                    "start_us": spans[op.op].start_ns / 1e3,
                    "end_us": spans[op.op].end_ns / 1e3,
                }
                for op in self.ops
            ],
        }


def list_candidates(
    work: RunProblem, device: DeviceSpec, chosen: Sequence[type[Executor]] | None
) -> list[ExecutorConfig]:
    """Return the planner's candidates: tilings, mode and dispatches of each device executor that can run the problem.

    Raises:
        GraphError, PlanError, DeviceError: a named executor, or every executor, cannot run it.
    """
    ways, reasons = [], []
    for executor in chosen or _list_device_executors():
        try:
            executor.check(work.graph, device)
            graphs = (work.graph,) if work.is_tiled else executor.iter_tilings(work.graph, device)
            if work.is_tiled and device.architecture:
                executor.check_tiles(work.graph, device)
            elif not graphs:
                executor.select_default(work.graph, device)  # raises with the reason
            ways.append(
                ExecutorConfig((executor.name,), graphs, executor.build_mode(graphs[0], device), executor.dispatches)
            )
        except _CANNOT as error:
            if chosen:
                raise
            reasons.append(f"{executor.name} is left out: {error}")
    if not ways:
        raise PlanError("; ".join(reasons))
    for reason in reasons:
        note(reason)
    return merge_configs(ways)


def predict_by_rule(plans: Plans, device: DeviceSpec) -> list[PredictedRun]:
    """Return the prediction of each device executor with its plan without a search, the fastest first."""
    alike: dict[object, PredictedRun] = {}
    for executor in _list_device_executors():
        try:
            proof = plans(executor)
            executor.prove(proof)
        except _CANNOT as error:
            note(f"{executor.name} is left out: {error}")
            continue
        mode = executor.build_mode(proof.plan.graph, device)
        known = alike.get((id(proof), mode))
        if known is None:
            prediction = predict(proof.plan, device, mode, limit=FINE)
            alike[id(proof), mode] = PredictedRun((executor.name,), prediction, mode, device)
        else:
            alike[id(proof), mode] = replace(known, names=(*known.names, executor.name))
    return sorted(alike.values(), key=lambda each: each.us)


def build_comparison(title: str, found: Iterable[PredictedRun]) -> Table:
    """Return a table of executors."""
    headings = ("executor", "us", "working", "waiting", "idle", "from memory", "limit", "tiles")
    rows = (
        (
            ", ".join(each.names),
            table.format_number(each.us),
            *(f"{share:.0%}" for share in (each.summary.busy, each.summary.waiting, each.summary.idle)),
            table.format_volume(each.dram_read),
            each.limits,
            format_tiling(each.prediction.plan.graph),
        )
        for each in found
    )
    return table.build_columns(title, headings, rows)


def draw_picture(trace: Trace, workers: int, until_ns: int, columns: int = _COLUMNS) -> list[str]:
    """Return lines that show when workers run each op and when they wait; darker for more workers.

    Args:
        trace: trace to show.
        workers: number of workers.
        until_ns: end of the last column, in nanoseconds from the first arrival.
        columns: number of columns.
    """
    first = int(trace.wait_ns.min())
    edges = np.linspace(0, max(until_ns, 1), columns + 1)
    lanes = {
        escape_text(name): _compute_share(
            trace.start_ns[trace.op == o] - first, trace.end_ns[trace.op == o] - first, edges
        )
        for o, name in enumerate(trace.ops)
    }
    lanes["waiting"] = _compute_share(trace.wait_ns - first, trace.start_ns - first, edges)
    wide = max(map(len, lanes))
    return [f"  {name:{wide}}  |{_shade(share / workers)}|" for name, share in lanes.items()]


def _compute_share(begin: NDArray[np.int64], end: NDArray[np.int64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean number of intervals that overlap, between each two edges."""

    def sum_durations(times: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sum over the times of the duration since each, at every edge."""
        times = np.sort(times)
        count = np.searchsorted(times, edges)
        return np.asarray(count * edges - np.r_[0.0, np.cumsum(times)][count], np.float64)

    return np.asarray(np.diff(sum_durations(begin) - sum_durations(end)) / np.diff(edges), np.float64)


def _shade(share: NDArray[np.float64]) -> str:
    """Return a character for each share of all workers: blank for 0, else a shade from light to full."""
    steps = len(_SHADES) - 1
    shades = np.where(share < 0.01, 0, np.clip(np.ceil(share * steps - 0.2), 1, steps)).astype(int)
    return "".join(_SHADES[shade] for shade in shades)


def _list_device_executors() -> list[type[Executor]]:
    return [executor for executor in EXECUTORS if issubclass(executor, DeviceExecutor)]

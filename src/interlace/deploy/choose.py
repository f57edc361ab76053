"""Choose between a megakernel and PyTorch's own ops for a graph on a GPU.

Measurements decide: a row of the table that ships with the package (``table.py``), or the cached result of
``interlace tune``. Between rows, the choice uses the ratio of the two predicted times. The ratio is corrected by the
prediction errors of nearby rows, weighted by a Gaussian over the features of a launch
(``table.compute_features``). It must exceed a margin from the table that depends on the rows of the launch. Each margin
is the smallest for which leave-one-out slows down none of the table's FFNs (``benchmarks/choose.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import exp

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.core.errors import GraphError, PlanError
from interlace.deploy.library import predict_library_us
from interlace.deploy.planning import avoid_resident_workers, select_executor
from interlace.deploy.store import CacheEntry, load_cached
from interlace.deploy.table import (
    FFNTimes,
    MeasurementTable,
    compute_features,
    count_rows,
    describe_timed_problem,
    load_table,
)
from interlace.executors import DeviceExecutor
from interlace.graph.graph import Graph
from interlace.planner.build import build
from interlace.planner.retile import retile
from interlace.policies.schedule import Schedule

#: Minimum ratio of the library's time to the launch's for which the launch runs. If both were measured, the ratio only
#: has to exceed noise; if one is scaled, also the error of scaling. If both are predicted, the minimum is the table's
#: margin for the launch's rows, and ``EXTRAPOLATED_RATIO`` if that is more and the graph is far from all measured rows.
MEASURED_RATIO, SCALED_RATIO, EXTRAPOLATED_RATIO = 1.01, 1.04, 1.25
#: Length scale of the Gaussian along each feature of ``table.compute_features``.
REACH = (0.3, 0.4, 0.3, 0.6, 0.6)
_MIN_WEIGHT = 0.05  # minimum weight of a nearby row, reached at 2.4 length scales
_MAX_ITEMS = 1 << 14  # maximum number of items that are planned and predicted only to choose


@dataclass(frozen=True)
class Choice:
    """Decision between a launch and PyTorch's own ops for a graph, with its reason.

    Attributes:
        executor: executor whose launch runs the graph; None for PyTorch's own ops.
        schedule: schedule of the launch; None if there is no launch.
        launch_us, library_us: microseconds of one run that were compared; None where unknown.
        why: origin of these times, or the obstacle to a launch.
    """

    executor: type[DeviceExecutor] | None
    schedule: Schedule | None
    launch_us: float | None
    library_us: float | None
    why: str

    def __str__(self) -> str:
        what = "PyTorch's own ops" if self.executor is None else f"one launch ({self.executor.name})"
        if self.launch_us is None or self.library_us is None:
            return f"{what}: {self.why}"
        return f"{what}: the launch takes {self.launch_us:.1f} us, PyTorch's ops {self.library_us:.1f} us; {self.why}"


def choose(graph: Graph, device: DeviceSpec, launched: Graph | None = None) -> Choice:
    """Choose whether a megakernel or PyTorch's own ops run a graph on a device.

    Args:
        graph: graph in any tiling.
        device: device that it runs on.
        launched: graph that the launch is built for, if it has more rows.
    """
    launched = graph if launched is None else launched
    library = predict_library_us(graph, device)
    try:
        executor = select_executor(launched, device)
        kept = load_cached(launched, device, executor)
        schedule = executor.select_default(launched, device) if kept is None else kept.schedule
    except (PlanError, GraphError) as error:
        return Choice(None, None, None, library, str(error))
    if kept is not None:
        return _choose_by_tuning(executor, kept, library)
    measured = load_table(device)
    reason = _explain_unknown(measured, launched, executor, schedule, count_rows(graph))
    if reason:
        return Choice(None, None, None, library, reason)
    found = judge(measured, graph, launched, device, lambda: predict_us(launched, device, executor))
    faster = found.ratio >= found.least
    return Choice(
        executor if faster else None, schedule if faster else None, found.launch_us, found.library_us, found.why
    )


def _choose_by_tuning(executor: type[DeviceExecutor], kept: CacheEntry, library: float) -> Choice:
    timed = kept.library_us is not None
    least = MEASURED_RATIO if timed else SCALED_RATIO
    us = kept.library_us if kept.library_us is not None else library
    why = "both timed by `interlace tune`" if timed else "the launch timed by `interlace tune`, PyTorch's ops predicted"
    faster = us / kept.us >= least
    return Choice(executor if faster else None, kept.schedule if faster else None, kept.us, us, why)


def _explain_unknown(
    measured: MeasurementTable, launched: Graph, executor: type[DeviceExecutor], schedule: Schedule, rows: int
) -> str:
    """Return why neither table nor prediction covers a launch, or an empty string if they do."""
    if executor.name != measured.executor:
        return f"nobody measured the {executor.name} executor against a library here; `interlace tune` does"
    if rows > measured.max_tokens:
        return (
            f"{rows} rows are more than the {measured.max_tokens} up to which launches were measured "
            f"({measured.origin}); `interlace tune` measures this one"
        )
    items = sum(op.tiles * schedule.get_op_tiling(op.name).parts for op in retile(launched, schedule.tiles).ops)
    if items > _MAX_ITEMS:
        return f"a launch would have {items} items, too many to predict; `interlace tune` measures it"
    return ""


@lru_cache(256)
def predict_us(graph: Graph, device: DeviceSpec, executor: type[DeviceExecutor]) -> float:
    """Return the predicted microseconds of a launch of a graph under the executor's default schedule."""
    from interlace.planner.predict import predict  # slow import: compiled code

    # Torch modules run it so.
    plan = build(graph, avoid_resident_workers(executor.select_default(graph, device), executor))
    return predict(plan, device, executor.build_mode(plan.graph, device)).us


@dataclass(frozen=True)
class Judgement:
    """Times of a launch and a library on a graph, and the ratio that the launch has to reach.

    Attributes:
        launch_us, library_us: microseconds of one run.
        least: minimum ratio of library to launch time for which the launch is chosen.
        why: origin of the times.
    """

    launch_us: float
    library_us: float
    least: float
    why: str

    @property
    def ratio(self) -> float:
        """Ratio of the library's time to the launch's."""
        return self.library_us / self.launch_us


def judge(
    measurements: MeasurementTable, graph: Graph, launched: Graph, device: DeviceSpec, predict: Callable[[], float]
) -> Judgement:
    """Judge a graph by the table and by predictions; predict the launch only if no measured row matches it."""
    rows = count_rows(graph)
    if (measurements.device.name, measurements.device.sms) == (device.name, device.sms):
        same = _find_same_launch(measurements, launched)
        below = max((row for row in same if row.tokens <= rows), key=lambda row: row.tokens, default=None)
        above = min((row for row in same if row.tokens >= rows), key=lambda row: row.tokens, default=None)
        ends = [row for row in (below, above) if row is not None]
        if ends:
            return _judge_by_row(
                measurements, min(ends, key=lambda row: row.ratio), graph, device, exact=len(ends) == 2
            )
    library = predict_library_us(graph, device)
    missed, near = _estimate_log_error(measurements, graph, count_rows(launched))
    like = "alike" if near else "that are all unlike it"
    why = f"predicted, corrected by what was measured of FFNs {like} ({measurements.origin})"
    margin = measurements.find_margin(count_rows(launched))
    least = margin if near else max(margin, EXTRAPOLATED_RATIO)
    return Judgement(predict(), library * exp(missed), least, why)


def _find_same_launch(measured: MeasurementTable, launched: Graph) -> list[FFNTimes]:
    """Return the table rows of the same launch."""
    at, rows = describe_timed_problem(launched), count_rows(launched)
    return [row for row in measured.rows if row.launched == rows and row.launch_problem == at]


def _judge_by_row(
    measured: MeasurementTable, row: FFNTimes, graph: Graph, device: DeviceSpec, exact: bool
) -> Judgement:
    """Judge by a row of the same launch; unless ``exact``, reduce the library's time if the graph has fewer tokens."""
    launch, library = row.launch_us[row.worst_context], row.library_us[row.worst_context]
    if exact:
        return Judgement(
            launch, library, MEASURED_RATIO, f"measured {_CONTEXT_TEXT[row.worst_context]} ({measured.origin})"
        )
    library *= min(1.0, predict_library_us(graph, device) / predict_library_us(row.problem, device))
    return Judgement(
        launch,
        library,
        SCALED_RATIO,
        f"measured over {row.tokens} rows {_CONTEXT_TEXT[row.worst_context]} ({measured.origin}), scaled",
    )


_CONTEXT_TEXT = {"alone": "back to back", "layer": "in a layer", "compiled": "in a compiled layer"}


def _estimate_log_error(measured: MeasurementTable, graph: Graph, launched: int) -> tuple[float, bool]:
    """Return the log error of the predicted ratio, estimated from rows near a graph, and whether any row is near."""
    places, residuals = measured.residuals
    if not len(residuals):
        return 0.0, False
    distances = ((places - np.array(compute_features(graph, launched))) / REACH) ** 2
    weights = np.exp(-distances.sum(1) / 2)
    near = bool(weights.max() > _MIN_WEIGHT)
    # Far from all rows, each has about equal weight.
    weights = weights + 1e-9
    return float(weights @ residuals / weights.sum()), near

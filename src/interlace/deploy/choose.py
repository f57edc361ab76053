"""Whether one launch runs a graph faster than PyTorch's own ops do on a GPU.

What was measured decides: a row of the table that ships (``table.py``), or what ``interlace tune`` kept. Between rows
the ratio of the two predicted times is corrected by what the predictions missed on rows nearby, weighted by a Gaussian
over what a launch is (``table.place``), and must exceed a margin, which the table has for launches of so many rows: the
least with which none of its FFNs, each judged by the others, is made slower (``benchmarks/choose.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import exp

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.core.errors import GraphError, PlanError
from interlace.deploy.deployment import Deployment, deployment
from interlace.deploy.library import library_us
from interlace.deploy.store import Kept
from interlace.deploy.table import Row, Table, place, rows_of, table, timed
from interlace.executors import DeviceExecutor
from interlace.graph.graph import Graph
from interlace.planner.settings import retiled
from interlace.policies.setting import Setting

#: The library's time over the launch's from which on the launch runs: where both were measured it need not pay for
#: more than noise, where one is scaled for the error of that too. Where both are predicted, it is the table's margin
#: for its rows, and more far from all that was measured.
MEASURED, SCALED, UNLIKE = 1.01, 1.04, 1.25
#: How far a row of the table reaches, along each number of ``table.place``.
REACH = (0.3, 0.4, 0.3, 0.6, 0.6)
_NEAR = 0.05  # weight of a row at 2.4 times that
_MOST_ITEMS = 1 << 14  # that are planned and predicted only to choose


@dataclass(frozen=True)
class Choice:
    """What runs a graph, and why.

    Attributes:
        executor: the one whose launch runs it; None for PyTorch's own ops.
        setting: how the launch runs it, None where there is none.
        launch_us, library_us: microseconds of one run, of which the lesser was taken; None where nothing is known.
        why: where these are from, or what rules out a launch.
    """

    executor: type[DeviceExecutor] | None
    setting: Setting | None
    launch_us: float | None
    library_us: float | None
    why: str

    def __str__(self) -> str:
        what = "PyTorch's own ops" if self.executor is None else f"one launch ({self.executor.name})"
        if self.launch_us is None or self.library_us is None:
            return f"{what}: {self.why}"
        return f"{what}: the launch takes {self.launch_us:.1f} us, PyTorch's ops {self.library_us:.1f} us; {self.why}"


def choose(graph: Graph, device: DeviceSpec, launched: Graph | None = None) -> Choice:
    """What runs a graph faster on a device, one launch or PyTorch's own ops.

    Args:
        graph: in any tiling.
        device: on which.
        launched: the graph that the launch is built for, if that has more rows.
    """
    launched = graph if launched is None else launched
    library = library_us(graph, device)
    try:
        chosen = deployment(launched, device)
        kept = chosen.kept
        setting = chosen.default if kept is None else kept.setting
    except (PlanError, GraphError) as error:
        return Choice(None, None, None, library, str(error))
    if kept is not None:
        return _by_tuning(chosen, kept, library)
    measured = table(device)
    reason = _unknown(measured, chosen, setting, rows_of(graph))
    if reason:
        return Choice(None, None, None, library, reason)
    found = judge(measured, graph, launched, device, lambda: predicted_us(chosen))
    faster = found.ratio >= found.least
    return Choice(
        chosen.executor if faster else None, setting if faster else None, found.launch_us, found.library_us, found.why
    )


def _by_tuning(chosen: Deployment, kept: Kept, library: float) -> Choice:
    timed = kept.library_us is not None
    least = MEASURED if timed else SCALED
    us = kept.library_us if kept.library_us is not None else library
    why = "both timed by `interlace tune`" if timed else "the launch timed by `interlace tune`, PyTorch's ops predicted"
    faster = us / kept.us >= least
    return Choice(chosen.executor if faster else None, kept.setting if faster else None, kept.us, us, why)


def _unknown(measured: Table, chosen: Deployment, setting: Setting, rows: int) -> str:
    """Why nothing can be said of a launch; empty if something can."""
    if chosen.executor.name != measured.executor:
        return f"nobody measured the {chosen.executor.name} executor against a library here; `interlace tune` does"
    if rows > measured.most_tokens:
        return (
            f"{rows} rows are more than the {measured.most_tokens} up to which launches were measured "
            f"({measured.origin}); `interlace tune` measures this one"
        )
    items = sum(op.tiles * setting.op(op.name).parts for op in retiled(chosen.graph, setting).ops)
    if items > _MOST_ITEMS:
        return f"a launch would have {items} items, too many to predict; `interlace tune` measures it"
    return ""


@lru_cache(256)
def predicted_us(launch: Deployment) -> float:
    """Predicted microseconds of a launch at its default setting."""
    from interlace.planner.predict import predict  # compiled code, which takes long to import

    plan = launch.plan(launch.default, alone=False)  # as modules run it
    return predict(plan, launch.device, launch.mode(plan)).us


@dataclass(frozen=True)
class Judgement:
    """Two times of a graph, and how far apart they must be.

    Attributes:
        launch_us, library_us: microseconds.
        least: the ratio of these from which on the launch is taken.
        why: where they are from.
    """

    launch_us: float
    library_us: float
    least: float
    why: str

    @property
    def ratio(self) -> float:
        """The library's time over the launch's."""
        return self.library_us / self.launch_us


def judge(
    measured: Table, graph: Graph, launched: Graph, device: DeviceSpec, predicted: Callable[[], float]
) -> Judgement:
    """What a table and the predictions say of a graph; its launch is only predicted where nothing is known of it."""
    rows = rows_of(graph)
    if (measured.device.name, measured.device.sms) == (device.name, device.sms):
        same = _same(measured, launched)
        below = max((row for row in same if row.tokens <= rows), key=lambda row: row.tokens, default=None)
        above = min((row for row in same if row.tokens >= rows), key=lambda row: row.tokens, default=None)
        ends = [row for row in (below, above) if row is not None]
        if ends:
            return _between(measured, min(ends, key=lambda row: row.ratio), graph, device, exact=len(ends) == 2)
    library = library_us(graph, device)
    missed, near = _missed(measured, graph, rows_of(launched))
    like = "alike" if near else "that are all unlike it"
    why = f"predicted, corrected by what was measured of FFNs {like} ({measured.origin})"
    margin = measured.margin(rows_of(launched))
    least = margin if near else max(margin, UNLIKE)
    return Judgement(predicted(), library * exp(missed), least, why)


def _same(measured: Table, launched: Graph) -> list[Row]:
    """Rows of the same launch."""
    at, rows = timed(launched), rows_of(launched)
    return [row for row in measured.rows if row.launched == rows and row.launch_problem == at]


def _between(measured: Table, row: Row, graph: Graph, device: DeviceSpec, exact: bool) -> Judgement:
    """By a row of the same launch; over fewer rows than were measured a library may be faster."""
    launch, library = row.launch_us[row.worse], row.library_us[row.worse]
    if exact:
        return Judgement(launch, library, MEASURED, f"measured {_WHERE[row.worse]} ({measured.origin})")
    library *= min(1.0, library_us(graph, device) / library_us(row.problem, device))
    return Judgement(
        launch, library, SCALED, f"measured over {row.tokens} rows {_WHERE[row.worse]} ({measured.origin}), scaled"
    )


_WHERE = {"alone": "back to back", "layer": "in a layer", "compiled": "in a compiled layer"}


def _missed(measured: Table, graph: Graph, launched: int) -> tuple[float, bool]:
    """Logarithm of what the ratio of two predictions misses on rows near a graph; whether there are any."""
    places, residuals = measured.residuals
    if not len(residuals):
        return 0.0, False
    distances = ((places - np.array(place(graph, launched))) / REACH) ** 2
    weights = np.exp(-distances.sum(1) / 2)
    near = bool(weights.max() > _NEAR)
    # Far from all of them each counts alike.
    weights = weights + 1e-9
    return float(weights @ residuals / weights.sum()), near

"""Find the fastest schedule for a workload on this GPU: predict many, measure the most promising, cache the winner.

The schedules to measure are compiled in parallel, checked against float64, and timed interleaved in one process. The
default schedule is always among them, so the result is never slower than the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from interlace.bench.compile import compile_launches
from interlace.bench.problem import BenchProblem, translate_errors
from interlace.bench.timing import time_medians, time_rounds
from interlace.core.devices import DeviceSpec
from interlace.core.errors import InterlaceError, LaunchEndedError, StoreError
from interlace.deploy import current_device, make_executor, select_executor, store
from interlace.executors.device import DeviceExecutor
from interlace.graph.graph import Graph
from interlace.policies.schedule import Schedule
from interlace.policies.tiling import encode_tilings
from interlace.tune.rank import RankedSchedule, rank, select_best
from interlace.workloads.base import Workload

#: Callback that receives the current activity, the amount done and the total amount.
Progress = Callable[[str, int, int], None]
#: Function that returns the microseconds of the schedules that run correctly; the first schedule must.
Measure = Callable[["TuningCase", Sequence[Schedule], Progress], Mapping[Schedule, float]]

DEFAULT_TOP = 8
_ROUNDS = 25
_LIBRARY_ROUNDS = 10  # to compare the winner with PyTorch's own ops


@dataclass(frozen=True)
class TuningCase:
    """A workload that runs as one launch."""

    workload: Workload
    graph: Graph
    device: DeviceSpec
    executor: type[DeviceExecutor]

    @staticmethod
    def from_workload(workload: Workload, device: DeviceSpec) -> TuningCase:
        """Return the case with the fastest executor that can run a workload. Raises PlanError if none can."""
        graph = workload.build_graph(device)
        return TuningCase(workload, graph, device, select_executor(graph, device))

    @property
    def default_schedule(self) -> Schedule:
        """Schedule chosen by rules, without a search."""
        return self.executor.select_default(self.graph, self.device)

    def make_executor(self, schedule: Schedule) -> DeviceExecutor:
        """Return an executor of a schedule. Raises what ``deploy.make_executor`` raises."""
        return make_executor(self.graph, self.device, self.executor, schedule)


@dataclass(frozen=True)
class TuningCandidate:
    """A schedule that was selected for measurement.

    Attributes:
        schedule: schedule that was selected.
        predicted_us: predicted microseconds of one run.
        us: measured microseconds; None if it did not compile, did not run, or gave a wrong result.
    """

    schedule: Schedule
    predicted_us: float
    us: float | None

    @property
    def prediction_error(self) -> float | None:
        """Relative error of the prediction: positive if it is longer than the measured time, negative if shorter."""
        return None if self.us is None else self.predicted_us / self.us - 1

    def to_data(self) -> dict[str, Any]:
        """Return the candidate as JSON data."""
        figures = {"predicted_us": self.predicted_us, "us": self.us, "off": self.prediction_error}
        return {"setting": encode_tilings(self.schedule.op_tilings), **figures}


@dataclass(frozen=True)
class TuningResult:
    """Result of the search for a workload.

    Attributes:
        workload: workload that was tuned.
        executor: name of the executor that runs it.
        predicted: number of schedules that were predicted.
        candidates: schedules that were selected for measurement, fastest first, failed ones last.
        default_schedule: default schedule; it is one of the candidates and ran.
    """

    workload: Workload
    executor: str
    predicted: int
    candidates: tuple[TuningCandidate, ...]
    default_schedule: Schedule

    @property
    def tried_schedules(self) -> int:
        """Number of candidates that ran with a correct result."""
        return sum(c.us is not None for c in self.candidates)

    @property
    def best_schedule(self) -> Schedule:
        """Fastest schedule."""
        return self.candidates[0].schedule

    @property
    def best_us(self) -> float:
        """Microseconds of the fastest schedule."""
        return self._find_us(self.best_schedule)

    @property
    def default_us(self) -> float:
        """Microseconds of the default schedule, from the same interleaved rounds."""
        return self._find_us(self.default_schedule)

    def _find_us(self, schedule: Schedule) -> float:
        return next(c.us for c in self.candidates if c.schedule == schedule and c.us is not None)

    def to_data(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {
            "size": getattr(self.workload, self.workload.size),
            "workload": self.workload.to_data(),
            "executor": self.executor,
            "predicted": self.predicted,
            "tried": self.tried_schedules,
            "failed": len(self.candidates) - self.tried_schedules,
            "default": {"setting": encode_tilings(self.default_schedule.op_tilings), "us": self.default_us},
            "best": {"setting": encode_tilings(self.best_schedule.op_tilings), "us": self.best_us},
            "candidates": [c.to_data() for c in self.candidates],
        }


def tune(
    workloads: Sequence[Workload],
    top: int = DEFAULT_TOP,
    progress: Progress = lambda what, done, total: None,
) -> Iterator[TuningResult]:
    """Search for each workload in turn on the current CUDA device, and cache the best schedule.

    Args:
        workloads: workloads to tune.
        top: number of plans to measure, by best prediction, in addition to the default.

    Raises:
        NoDeviceError: there is no CUDA device.
        PlanError: no executor runs a workload as one launch.
        ResultError, DeviceError: the default schedule gives a wrong result, or does not run on this device.
        StoreError: the cache cannot be written.
    """
    with _translate_store_errors("settings"):
        store.create_cache_folder()  # fail before any time is spent
    for workload in workloads:
        case = TuningCase.from_workload(workload, current_device())
        with _translate_errors(case):
            case.make_executor(case.default_schedule)  # fail early if this GPU does not suffice
        found = search(case, top, measure_schedules, progress)
        with _translate_errors(case):
            best = case.make_executor(found.best_schedule)
            library_us = found.best_us * measure_speedup(workload, case.device, best)
        with _translate_store_errors(f"the setting of {workload.name} for {workload.size_text}"):
            kept = store.CacheEntry(found.best_schedule, found.best_us, library_us)
            store.store_cached(case.graph, case.device, case.executor, kept)
        yield found


@contextmanager
def _translate_store_errors(what: str) -> Iterator[None]:
    """Turn an OSError into a StoreError that names what cannot be cached and where."""
    try:
        yield
    except OSError as error:
        where = f" in {error.filename!r}" if error.filename else ""
        raise StoreError(
            f"cannot keep {what}{where}: {error.strerror}; set INTERLACE_CACHE_DIR to a folder that can be written"
        ) from None


def search(case: TuningCase, top: int, measure: Measure, progress: Progress) -> TuningResult:
    """Search for the best schedule of one case. Nothing is cached.

    Args:
        case: case to tune.
        top: number of plans to measure, by best prediction, in addition to the default.
        measure: function that times schedules.
        progress: callback that reports the current activity.
    """
    schedules, default = list(case.executor.iter_schedules(case.graph, case.device)), case.default_schedule
    what = f"{_describe_case(case)}: predicting"
    ranked = rank(case.graph, case.device, case.executor, schedules, lambda done: progress(what, done, len(schedules)))
    chosen = {r.schedule: r for r in select_best(ranked, top, default)}
    ordered = [default, *(schedule for schedule in chosen if schedule != default)]
    times = measure(case, ordered, progress)
    return TuningResult(case.workload, case.executor.name, len(schedules), _sort_candidates(chosen, times), default)


def _sort_candidates(
    chosen: Mapping[Schedule, RankedSchedule], times: Mapping[Schedule, float]
) -> tuple[TuningCandidate, ...]:
    found = [TuningCandidate(schedule, r.predicted_us, times.get(schedule)) for schedule, r in chosen.items()]
    return tuple(sorted(found, key=lambda c: float("inf") if c.us is None else c.us))


def measure_schedules(case: TuningCase, schedules: Sequence[Schedule], progress: Progress) -> Mapping[Schedule, float]:
    """Return the median microseconds of one run for each schedule that runs correctly on the current CUDA device.

    Raises:
        ResultError, DeviceError: the first schedule gives a wrong result, or does not run on this device.
    """
    with _translate_errors(case):
        return _measure(case, schedules, progress)


def _measure(case: TuningCase, schedules: Sequence[Schedule], progress: Progress) -> Mapping[Schedule, float]:
    total, what = len(schedules), _describe_case(case)
    for left in compile_launches([partial(case.make_executor, schedule) for schedule in schedules]):
        progress(f"{what}: compiling", total - left, total)
    problem = BenchProblem(case.workload, case.device)
    right: dict[Schedule, DeviceExecutor] = {}
    for done, schedule in enumerate(schedules, 1):
        executor = _check_schedule(problem, case, schedule, needed=schedule == schedules[0])
        if executor is not None:
            right[schedule] = executor
        progress(f"{what}: checking", done, total)
    progress(f"{what}: timing {len(right)} settings", 0, 1)
    names = {str(i): schedule for i, schedule in enumerate(right)}
    functions = {name: problem.make_rotation(problem.make_run(right[schedule])) for name, schedule in names.items()}
    times = time_medians(functions, _ROUNDS, calls=problem.runs)
    progress(f"{what}: done", 1, 1)
    return {schedule: times[name].median_us for name, schedule in names.items()}


def _check_schedule(problem: BenchProblem, case: TuningCase, schedule: Schedule, needed: bool) -> DeviceExecutor | None:
    """Return an executor with a checked result; None if the schedule fails and is not needed."""
    try:
        with _translate_errors(case):
            executor = case.make_executor(schedule)
            problem.check(executor)
    except LaunchEndedError:  # no other launch can run in this process any more
        raise
    except InterlaceError:
        if needed:
            raise
        return None
    return executor


def _translate_errors(case: TuningCase) -> AbstractContextManager[None]:
    return translate_errors(case.workload, case.device)


def _describe_case(case: TuningCase) -> str:
    return f"{case.workload.name}, {case.workload.size_text}"


def measure_speedup(workload: Workload, device: DeviceSpec, executor: DeviceExecutor) -> float:
    """Return the speedup of a launch over the fastest PyTorch configuration, the lesser of back to back and in a layer.

    Times are taken on the current CUDA device. PyTorch runs its own ops, or those of ``Workload.run_fused``.

    Raises:
        InterlaceError: the launch gives a wrong result, or does not run on this device.
    """
    problem = BenchProblem(workload, device)
    problem.check(executor)
    ways = {"eager": problem.run_pytorch, "fused": problem.run_fused}
    functions = {**ways, "launch": problem.make_run(executor)}
    contests: list[dict[str, Callable[[], Any]]] = [{n: problem.make_rotation(f) for n, f in functions.items()}]
    if workload.layer_ports is not None:
        contests.append({n: problem.make_layer_rotation(problem.make_layer(f)) for n, f in functions.items()})
    ratios = []
    for contest in contests:
        rounds = time_rounds(contest, _LIBRARY_ROUNDS, problem.runs)
        ratios.append(rounds.compute_ratio(rounds.find_fastest(ways), "launch"))
    return min(ratios)

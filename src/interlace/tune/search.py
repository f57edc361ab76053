"""Find the fastest setting for a workload on this GPU: predict many, measure the most promising, cache the winner.

The settings to measure are compiled in parallel, checked against float64, and timed interleaved in one process. The
default setting is always among them, so the result is never slower than the default.
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
from interlace.deploy import Deployment, current_device, deploy_graph, store
from interlace.executors.device import DeviceExecutor
from interlace.policies.setting import Setting
from interlace.tune.rank import RankedSetting, rank, select_best
from interlace.workloads.base import Workload

#: Callback that receives the current activity, the amount done and the total amount.
Progress = Callable[[str, int, int], None]
#: Function that returns the microseconds of the settings that run correctly; the first setting must.
Measure = Callable[["TuningCase", Sequence[Setting], Progress], Mapping[Setting, float]]

DEFAULT_TOP = 8
_ROUNDS = 25
_LIBRARY_ROUNDS = 10  # to compare the winner with PyTorch's own ops


@dataclass(frozen=True)
class TuningCase:
    """A workload and its deployment as one launch."""

    workload: Workload
    deployment: Deployment

    @staticmethod
    def of(workload: Workload, device: DeviceSpec) -> TuningCase:
        """Deploy a workload by the fastest executor that can run it. Raises PlanError if none can."""
        return TuningCase(workload, deploy_graph(workload.build_graph(device), device))


@dataclass(frozen=True)
class TuningCandidate:
    """A setting that was selected for measurement.

    Attributes:
        setting: setting that was selected.
        predicted_us: predicted microseconds of one run.
        us: measured microseconds; None if it did not compile, did not run, or gave a wrong result.
    """

    setting: Setting
    predicted_us: float
    us: float | None

    @property
    def prediction_error(self) -> float | None:
        """Relative error of the prediction: positive if it is longer than the measured time, negative if shorter."""
        return None if self.us is None else self.predicted_us / self.us - 1

    def to_data(self) -> dict[str, Any]:
        """Return the candidate as JSON data."""
        figures = {"predicted_us": self.predicted_us, "us": self.us, "off": self.prediction_error}
        return {"setting": self.setting.to_data(), **figures}


@dataclass(frozen=True)
class TuningResult:
    """Result of the search for a workload.

    Attributes:
        workload: workload that was tuned.
        executor: name of the executor that runs it.
        predicted: number of settings that were predicted.
        candidates: settings that were selected for measurement, fastest first, failed ones last.
        default_setting: default setting; it is one of the candidates and ran.
    """

    workload: Workload
    executor: str
    predicted: int
    candidates: tuple[TuningCandidate, ...]
    default_setting: Setting

    @property
    def tried_settings(self) -> int:
        """Number of candidates that ran with a correct result."""
        return sum(c.us is not None for c in self.candidates)

    @property
    def best_setting(self) -> Setting:
        """Fastest setting."""
        return self.candidates[0].setting

    @property
    def best_us(self) -> float:
        """Microseconds of the fastest setting."""
        return self._find_us(self.best_setting)

    @property
    def default_us(self) -> float:
        """Microseconds of the default setting, from the same interleaved rounds."""
        return self._find_us(self.default_setting)

    def _find_us(self, setting: Setting) -> float:
        return next(c.us for c in self.candidates if c.setting == setting and c.us is not None)

    def to_data(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {
            "size": getattr(self.workload, self.workload.size),
            "workload": self.workload.to_data(),
            "executor": self.executor,
            "predicted": self.predicted,
            "tried": self.tried_settings,
            "failed": len(self.candidates) - self.tried_settings,
            "default": {"setting": self.default_setting.to_data(), "us": self.default_us},
            "best": {"setting": self.best_setting.to_data(), "us": self.best_us},
            "candidates": [c.to_data() for c in self.candidates],
        }


def tune(
    workloads: Sequence[Workload],
    top: int = DEFAULT_TOP,
    progress: Progress = lambda what, done, total: None,
) -> Iterator[TuningResult]:
    """Search for each workload in turn on the current CUDA device, and cache the best setting.

    Args:
        workloads: workloads to tune.
        top: number of plans to measure, by best prediction, in addition to the default.

    Raises:
        NoDeviceError: there is no CUDA device.
        PlanError: no executor runs a workload as one launch.
        ResultError, DeviceError: the default setting gives a wrong result, or does not run on this device.
        StoreError: the cache cannot be written.
    """
    with _translate_store_errors("settings"):
        store.create_cache_folder()  # fail before any time is spent
    for workload in workloads:
        case = TuningCase.of(workload, current_device())
        with _translate_errors(case):
            case.deployment.make_executor(case.deployment.default_setting)  # fail early if this GPU does not suffice
        found = search(case, top, measure_settings, progress)
        with _translate_errors(case):
            library_us = found.best_us * measure_speedup(workload, case.deployment, found.best_setting)
        with _translate_store_errors(f"the setting of {workload.name} for {workload.size_text}"):
            case.deployment.cache_setting(found.best_setting, found.best_us, library_us)
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
    """Search for the best setting of one case. Nothing is cached.

    Args:
        case: case to tune.
        top: number of plans to measure, by best prediction, in addition to the default.
        measure: function that times settings.
        progress: callback that reports the current activity.
    """
    settings, default = list(case.deployment.iter_settings()), case.deployment.default_setting
    what = f"{_describe_case(case)}: predicting"
    ranked = rank(case.deployment, settings, lambda done: progress(what, done, len(settings)))
    chosen = {r.setting: r for r in select_best(ranked, top, default)}
    ordered = [default, *(setting for setting in chosen if setting != default)]
    times = measure(case, ordered, progress)
    return TuningResult(
        case.workload, case.deployment.executor.name, len(settings), _sort_candidates(chosen, times), default
    )


def _sort_candidates(
    chosen: Mapping[Setting, RankedSetting], times: Mapping[Setting, float]
) -> tuple[TuningCandidate, ...]:
    found = [TuningCandidate(setting, r.predicted_us, times.get(setting)) for setting, r in chosen.items()]
    return tuple(sorted(found, key=lambda c: float("inf") if c.us is None else c.us))


def measure_settings(case: TuningCase, settings: Sequence[Setting], progress: Progress) -> Mapping[Setting, float]:
    """Return the median microseconds of one run for each setting that runs correctly on the current CUDA device.

    Raises:
        ResultError, DeviceError: the first setting gives a wrong result, or does not run on this device.
    """
    with _translate_errors(case):
        return _measure(case, settings, progress)


def _measure(case: TuningCase, settings: Sequence[Setting], progress: Progress) -> Mapping[Setting, float]:
    total, what = len(settings), _describe_case(case)
    for left in compile_launches([partial(case.deployment.make_executor, setting) for setting in settings]):
        progress(f"{what}: compiling", total - left, total)
    problem = BenchProblem(case.workload, case.deployment.device)
    right: dict[Setting, DeviceExecutor] = {}
    for done, setting in enumerate(settings, 1):
        executor = _check_setting(problem, case, setting, needed=setting == settings[0])
        if executor is not None:
            right[setting] = executor
        progress(f"{what}: checking", done, total)
    progress(f"{what}: timing {len(right)} settings", 0, 1)
    names = {str(i): setting for i, setting in enumerate(right)}
    functions = {name: problem.make_rotation(problem.make_run(right[setting])) for name, setting in names.items()}
    times = time_medians(functions, _ROUNDS, calls=problem.runs)
    progress(f"{what}: done", 1, 1)
    return {setting: times[name].median_us for name, setting in names.items()}


def _check_setting(problem: BenchProblem, case: TuningCase, setting: Setting, needed: bool) -> DeviceExecutor | None:
    """Return an executor with a checked result; None if the setting fails and is not needed."""
    try:
        with _translate_errors(case):
            executor = case.deployment.make_executor(setting)
            problem.check(executor)
    except LaunchEndedError:  # no other launch can run in this process any more
        raise
    except InterlaceError:
        if needed:
            raise
        return None
    return executor


def _translate_errors(case: TuningCase) -> AbstractContextManager[None]:
    return translate_errors(case.workload, case.deployment.device)


def _describe_case(case: TuningCase) -> str:
    return f"{case.workload.name}, {case.workload.size_text}"


def measure_speedup(workload: Workload, launch: Deployment, setting: Setting) -> float:
    """Return the speedup of a launch over the fastest PyTorch configuration, the lesser of back to back and in a layer.

    Times are taken on the current CUDA device. PyTorch runs its own ops, or those of ``Workload.run_fused``.

    Raises:
        InterlaceError: the launch gives a wrong result, or does not run on this device.
    """
    problem = BenchProblem(workload, launch.device)
    executor = launch.make_executor(setting)
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

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
from interlace.bench.problem import Problem, running
from interlace.bench.timing import median_us
from interlace.core.devices import DeviceSpec
from interlace.core.errors import InterlaceError, LaunchEndedError, StoreError
from interlace.deploy import Deployment, deployment, here, store
from interlace.executors.device import DeviceExecutor
from interlace.policies.setting import Setting
from interlace.tune.library import times_faster
from interlace.tune.rank import Ranked, best, rank
from interlace.workloads.base import Workload

#: Callback that receives the current activity, the amount done and the total amount.
Progress = Callable[[str, int, int], None]
#: Function that returns the microseconds of the settings that run correctly; the first setting must.
Measure = Callable[["Case", Sequence[Setting], Progress], Mapping[Setting, float]]

TOP = 8
_ROUNDS = 25


@dataclass(frozen=True)
class Case:
    """A workload and its deployment as one launch."""

    workload: Workload
    deployment: Deployment

    @staticmethod
    def of(workload: Workload, device: DeviceSpec) -> Case:
        """Deploy a workload by the fastest executor that can run it. Raises PlanError if none can."""
        return Case(workload, deployment(workload.graph(device), device))


@dataclass(frozen=True)
class Candidate:
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
    def off(self) -> float | None:
        """Relative error of the prediction: positive if it is longer than the measured time, negative if shorter."""
        return None if self.us is None else self.predicted_us / self.us - 1

    def to_data(self) -> dict[str, Any]:
        """Return the candidate as JSON data."""
        figures = {"predicted_us": self.predicted_us, "us": self.us, "off": self.off}
        return {"setting": self.setting.to_data(), **figures}


@dataclass(frozen=True)
class Tuned:
    """Result of the search for a workload.

    Attributes:
        workload: workload that was tuned.
        executor: name of the executor that runs it.
        predicted: number of settings that were predicted.
        candidates: settings that were selected for measurement, fastest first, failed ones last.
        default: default setting; it is one of the candidates and ran.
    """

    workload: Workload
    executor: str
    predicted: int
    candidates: tuple[Candidate, ...]
    default: Setting

    @property
    def tried(self) -> int:
        """Number of candidates that ran with a correct result."""
        return sum(c.us is not None for c in self.candidates)

    @property
    def best(self) -> Setting:
        """Fastest setting."""
        return self.candidates[0].setting

    @property
    def best_us(self) -> float:
        """Microseconds of the fastest setting."""
        return self._us(self.best)

    @property
    def default_us(self) -> float:
        """Microseconds of the default setting, from the same interleaved rounds."""
        return self._us(self.default)

    def _us(self, setting: Setting) -> float:
        return next(c.us for c in self.candidates if c.setting == setting and c.us is not None)

    def to_data(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {
            "size": getattr(self.workload, self.workload.size),
            "workload": self.workload.facts(),
            "executor": self.executor,
            "predicted": self.predicted,
            "tried": self.tried,
            "failed": len(self.candidates) - self.tried,
            "default": {"setting": self.default.to_data(), "us": self.default_us},
            "best": {"setting": self.best.to_data(), "us": self.best_us},
            "candidates": [c.to_data() for c in self.candidates],
        }


def tune(
    workloads: Sequence[Workload],
    top: int = TOP,
    progress: Progress = lambda what, done, total: None,
) -> Iterator[Tuned]:
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
    with _storing("settings"):
        store.make_store()  # fail before any time is spent
    for workload in workloads:
        case = Case.of(workload, here())
        with _running(case):
            case.deployment.make(case.deployment.default)  # fail early if this GPU does not suffice
        found = search(case, top, measured, progress)
        with _running(case):
            library_us = found.best_us * times_faster(workload, case.deployment, found.best)
        with _storing(f"the setting of {workload.name} for {workload.sized}"):
            case.deployment.keep(found.best, found.best_us, library_us)
        yield found


@contextmanager
def _storing(what: str) -> Iterator[None]:
    """Turn an OSError into a StoreError that names what cannot be cached and where."""
    try:
        yield
    except OSError as error:
        where = f" in {error.filename!r}" if error.filename else ""
        raise StoreError(
            f"cannot keep {what}{where}: {error.strerror}; set INTERLACE_CACHE_DIR to a folder that can be written"
        ) from None


def search(case: Case, top: int, measure: Measure, progress: Progress) -> Tuned:
    """Search for the best setting of one case. Nothing is cached.

    Args:
        case: case to tune.
        top: number of plans to measure, by best prediction, in addition to the default.
        measure: function that times settings.
        progress: callback that reports the current activity.
    """
    settings, default = list(case.deployment.settings()), case.deployment.default
    what = f"{_what(case)}: predicting"
    ranked = rank(case.deployment, settings, lambda done: progress(what, done, len(settings)))
    chosen = {r.setting: r for r in best(ranked, top, default)}
    ordered = [default, *(setting for setting in chosen if setting != default)]
    times = measure(case, ordered, progress)
    return Tuned(case.workload, case.deployment.executor.name, len(settings), _sorted(chosen, times), default)


def _sorted(chosen: Mapping[Setting, Ranked], times: Mapping[Setting, float]) -> tuple[Candidate, ...]:
    found = [Candidate(setting, r.predicted_us, times.get(setting)) for setting, r in chosen.items()]
    return tuple(sorted(found, key=lambda c: float("inf") if c.us is None else c.us))


def measured(case: Case, settings: Sequence[Setting], progress: Progress) -> Mapping[Setting, float]:
    """Return the median microseconds of one run for each setting that runs correctly on the current CUDA device.

    Raises:
        ResultError, DeviceError: the first setting gives a wrong result, or does not run on this device.
    """
    with _running(case):
        return _measured(case, settings, progress)


def _measured(case: Case, settings: Sequence[Setting], progress: Progress) -> Mapping[Setting, float]:
    total, what = len(settings), _what(case)
    for left in compile_launches([partial(case.deployment.make, setting) for setting in settings]):
        progress(f"{what}: compiling", total - left, total)
    problem = Problem(case.workload, case.deployment.device)
    right: dict[Setting, DeviceExecutor] = {}
    for done, setting in enumerate(settings, 1):
        executor = _checked(problem, case, setting, needed=setting == settings[0])
        if executor is not None:
            right[setting] = executor
        progress(f"{what}: checking", done, total)
    progress(f"{what}: timing {len(right)} settings", 0, 1)
    names = {str(i): setting for i, setting in enumerate(right)}
    functions = {name: problem.every(problem.run(right[setting])) for name, setting in names.items()}
    times = median_us(functions, _ROUNDS, calls=problem.runs)
    progress(f"{what}: done", 1, 1)
    return {setting: times[name].median_us for name, setting in names.items()}


def _checked(problem: Problem, case: Case, setting: Setting, needed: bool) -> DeviceExecutor | None:
    """Return an executor with a checked result; None if the setting fails and is not needed."""
    try:
        with _running(case):
            executor = case.deployment.make(setting)
            problem.check(executor)
    except LaunchEndedError:  # no other launch can run in this process any more
        raise
    except InterlaceError:
        if needed:
            raise
        return None
    return executor


def _running(case: Case) -> AbstractContextManager[None]:
    return running(case.workload, case.deployment.device)


def _what(case: Case) -> str:
    return f"{case.workload.name}, {case.workload.sized}"

"""Which setting is fastest for a workload on this GPU: predict many, measure the few that look best, keep the winner.

The settings to measure are compiled in parallel, compared with float64, and timed in one process, interleaved. The
default setting is always among them, so that what is found is never slower than what one has without a search.
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

#: Called with what goes on, how much of it is done, and of how much.
Progress = Callable[[str, int, int], None]
#: Times in microseconds of those settings that run and are right; the first one must be.
Measure = Callable[["Case", Sequence[Setting], Progress], Mapping[Setting, float]]

TOP = 8
_ROUNDS = 25


@dataclass(frozen=True)
class Case:
    """A workload as one launch."""

    workload: Workload
    deployment: Deployment

    @staticmethod
    def of(workload: Workload, device: DeviceSpec) -> Case:
        """By the fastest executor that can. Raises PlanError if none can."""
        return Case(workload, deployment(workload.graph(device), device))


@dataclass(frozen=True)
class Candidate:
    """A setting that was to be measured.

    Attributes:
        setting: which.
        predicted_us: time of one run by prediction.
        us: as measured; None if it did not compile, did not run, or was wrong.
    """

    setting: Setting
    predicted_us: float
    us: float | None

    @property
    def off(self) -> float | None:
        """By which part of the measured time the prediction is too long, negative if too short."""
        return None if self.us is None else self.predicted_us / self.us - 1

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        figures = {"predicted_us": self.predicted_us, "us": self.us, "off": self.off}
        return {"setting": self.setting.to_data(), **figures}


@dataclass(frozen=True)
class Tuned:
    """What the search found for a workload.

    Attributes:
        workload: which.
        executor: by which it runs.
        predicted: settings whose time was predicted.
        candidates: those that were to be measured, the fastest first, those that failed last.
        default: the default setting; it is one of them, and ran.
    """

    workload: Workload
    executor: str
    predicted: int
    candidates: tuple[Candidate, ...]
    default: Setting

    @property
    def tried(self) -> int:
        """Candidates that ran and were right."""
        return sum(c.us is not None for c in self.candidates)

    @property
    def best(self) -> Setting:
        """The fastest."""
        return self.candidates[0].setting

    @property
    def best_us(self) -> float:
        """Its time."""
        return self._us(self.best)

    @property
    def default_us(self) -> float:
        """The time of the default, from the same interleaved rounds."""
        return self._us(self.default)

    def _us(self, setting: Setting) -> float:
        return next(c.us for c in self.candidates if c.setting == setting and c.us is not None)

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
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
    """Search for each workload in turn, on the current CUDA device, and store what is best.

    Args:
        workloads: any.
        top: how many of the plans that are predicted best are measured, beside the default.

    Raises:
        NoDeviceError: there is no CUDA device.
        PlanError: no executor runs it as one launch.
        ResultError, DeviceError: the default setting is wrong, or does not run here.
        StoreError: the cache cannot be written.
    """
    with _storing("settings"):
        store.make_store()  # before any time is spent
    for workload in workloads:
        case = Case.of(workload, here())
        with _running(case):
            case.deployment.make(case.deployment.default)  # says at once if this GPU will not do
        found = search(case, top, measured, progress)
        with _running(case):
            library_us = found.best_us * times_faster(workload, case.deployment, found.best)
        with _storing(f"the setting of {workload.name} for {workload.sized}"):
            case.deployment.keep(found.best, found.best_us, library_us)
        yield found


@contextmanager
def _storing(what: str) -> Iterator[None]:
    """Say what cannot be kept, and where."""
    try:
        yield
    except OSError as error:
        where = f" in {error.filename!r}" if error.filename else ""
        raise StoreError(
            f"cannot keep {what}{where}: {error.strerror}; set INTERLACE_CACHE_DIR to a folder that can be written"
        ) from None


def search(case: Case, top: int, measure: Measure, progress: Progress) -> Tuned:
    """The best setting of one case. Stores nothing.

    Args:
        case: what to tune.
        top: how many of the plans that are predicted best are measured, beside the default.
        measure: times settings.
        progress: told what goes on.
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
    """Median microseconds of one run of each setting that runs and is right, on the current CUDA device.

    Raises:
        ResultError, DeviceError: the first setting is wrong, or does not run here.
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
    """An executor that has given the right result; None if it cannot, unless it is needed."""
    try:
        with _running(case):
            executor = case.deployment.make(setting)
            problem.check(executor)
    except LaunchEndedError:  # no other runs in this process any more
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

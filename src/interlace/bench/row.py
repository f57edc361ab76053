"""Results of one problem: executor variants, libraries, and the fastest of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from statistics import geometric_mean
from typing import Any

from interlace.bench.timing import Timing
from interlace.core.devices import DeviceSpec
from interlace.deploy import make_executor
from interlace.executors import DeviceExecutor
from interlace.graph.graph import Graph
from interlace.policies.schedule import Schedule
from interlace.policies.tiling import encode_tilings, format_tilings
from interlace.workloads.base import Target, Workload


@dataclass(frozen=True)
class Variant:
    """One configuration in which an executor runs a problem."""

    graph: Graph
    device: DeviceSpec
    executor: type[DeviceExecutor]
    schedule: Schedule

    def make_executor(self) -> DeviceExecutor:
        """Return an executor that is ready to run. Raises what ``deploy.make_executor`` raises."""
        return make_executor(self.graph, self.device, self.executor, self.schedule)

    @property
    def label(self) -> str:
        """Label that is unique among the variants of the problem."""
        return f"{self.executor.name} | {format_tilings(self.schedule.op_tilings)} | {self.schedule.policy}"


@dataclass(frozen=True)
class VariantTimes:
    """Times of one variant or library.

    Attributes:
        timing: microseconds in the reported rounds.
        picked_us: median microseconds of the rounds that the fastest is picked by.
        sm_mhz: SM clock in MHz during its replays; None if it was not read.
    """

    timing: Timing
    picked_us: float
    sm_mhz: float | None = None

    def to_data(self) -> dict[str, float]:
        """Return the times as JSON data."""
        clock = {} if self.sm_mhz is None else {"sm_mhz": self.sm_mhz}
        return {**asdict(self.timing), "picked_us": self.picked_us, **clock}


@dataclass(frozen=True)
class Comparison:
    """Libraries and executors by name, timed in the same rounds; each executor by its fastest variant.

    Attributes:
        configurations: name of each executor's fastest configuration, where there are several.
    """

    libraries: Mapping[str, VariantTimes]
    executors: Mapping[str, VariantTimes]
    configurations: Mapping[str, str] = field(default_factory=dict)

    @property
    def library(self) -> str:
        """Name of the fastest library."""
        return find_fastest(self.libraries)

    @property
    def executor(self) -> str:
        """Name of the fastest executor."""
        return find_fastest(self.executors)

    @property
    def ratio(self) -> float:
        """Ratio of the library's time to the executor's: above 1 the executor is faster."""
        return self.libraries[self.library].timing.median_us / self.executors[self.executor].timing.median_us

    def to_data(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        return {
            "libraries": {name: timed.to_data() for name, timed in self.libraries.items()},
            "library": self.library,
            "executors": {
                name: timed.to_data() | ({"way": self.configurations[name]} if name in self.configurations else {})
                for name, timed in self.executors.items()
            },
            "executor": self.executor,
            "ratio": self.ratio,
        }


@dataclass(frozen=True)
class ProblemResult:
    """Results of one problem.

    Attributes:
        preset: name of the problem's preset, if it has one.
        workload: problem.
        alone: comparison back to back.
        layer: comparison in a model's layers; None if the workload is not part of a layer.
        variants: variant of each executor.
        errors: relative error of each executor against float64.
        library_error: relative error of PyTorch against float64.
        stream: time of the stream of bulk loads over the weights; None on a GPU without bulk loads.
        floor_us: lower bound on the time in microseconds (see ``bench/workload``).
        left_out: reason for each executor that was left out.
        compute_bound: True if arithmetic takes longer than memory; clock and power are then read.
        watts: power of the GPU in watts during the rounds; None if it was not read.
    """

    preset: str | None
    workload: Workload
    alone: Comparison
    layer: Comparison | None
    variants: Mapping[str, Variant]
    errors: Mapping[str, float]
    library_error: float
    stream: Timing | None
    floor_us: float
    left_out: Mapping[str, str]
    compute_bound: bool = False
    watts: float | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        size = getattr(self.workload, self.workload.size)
        recorded = self.workload.record.get(self.preset) if self.preset else None
        alone = self.alone.to_data()
        for name, told in alone["executors"].items():
            variant = self.variants[name]
            tilings, policy = encode_tilings(variant.schedule.op_tilings), str(variant.schedule.policy)
            how = {"setting": tilings, "policy": policy}
            alone["executors"][name] = {**told, **how, "relative_error": self.errors[name]}
        return {
            "preset": self.preset,
            "size": size,
            "workload": self.workload.to_data(),
            **alone,
            "target": recorded and recorded.find_target(size),
            "layer": self.layer and self.layer.to_data(),
            "stream": self.stream and asdict(self.stream),
            "floor_us": self.floor_us,
            "library_relative_error": self.library_error,
            "left_out": dict(self.left_out),
            "compute_bound": self.compute_bound,
            "watts": self.watts,
        }


def find_fastest(timed: Mapping[str, VariantTimes]) -> str:
    """Return the name of the fastest, by the rounds to pick by."""
    return min(timed, key=lambda name: timed[name].picked_us)


def iter_means(
    kind: type[Workload], ratios: Mapping[tuple[str | None, int], float]
) -> Iterator[tuple[str, Target, float]]:
    """Yield (preset, target, geometric mean) for each mean target whose ratios, by (preset, size), all exist."""
    for preset, recorded in kind.record.items():
        for target in recorded.targets:
            if target.mean and all((preset, size) in ratios for size in target.sizes):
                yield preset, target, geometric_mean([ratios[preset, size] for size in target.sizes])

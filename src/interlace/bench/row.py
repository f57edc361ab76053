"""What is measured of one problem: variants of executors, libraries, and who is fastest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from statistics import geometric_mean
from typing import Any

from interlace.bench.timing import Timing
from interlace.deploy import Deployment
from interlace.executors import DeviceExecutor
from interlace.policies.orders import Order
from interlace.policies.setting import Setting
from interlace.policies.sync import SyncPolicy
from interlace.workloads.base import Target, Workload


@dataclass(frozen=True)
class Variant:
    """One way for an executor to run a problem."""

    deployment: Deployment
    setting: Setting
    policy: SyncPolicy
    order: Order | None = None
    """Of every op's tiles; None for the setting's own."""

    def make(self) -> DeviceExecutor:
        """Ready to run; raises what ``Deployment.make`` does."""
        return self.deployment.make(self.setting, policy=self.policy, order=self.order)

    @property
    def label(self) -> str:
        """Unlike that of any other variant of the problem."""
        return f"{self.deployment.executor.name} | {self.setting} | {self.policy}"


@dataclass(frozen=True)
class Timed:
    """Something that was timed.

    Attributes:
        timing: in the rounds that are reported.
        picked_us: median of the rounds to pick by.
        sm_mhz: the clock of the SMs meanwhile, if it was watched.
    """

    timing: Timing
    picked_us: float
    sm_mhz: float | None = None

    def to_data(self) -> dict[str, float]:
        """As JSON data."""
        clock = {} if self.sm_mhz is None else {"sm_mhz": self.sm_mhz}
        return {**asdict(self.timing), "picked_us": self.picked_us, **clock}


@dataclass(frozen=True)
class Contest:
    """Libraries and executors in the same rounds, by name; of each executor its fastest variant.

    Attributes:
        ways: what that is called, where there are several.
    """

    libraries: Mapping[str, Timed]
    executors: Mapping[str, Timed]
    ways: Mapping[str, str] = field(default_factory=dict)

    @property
    def library(self) -> str:
        """The fastest."""
        return fastest(self.libraries)

    @property
    def executor(self) -> str:
        """The fastest."""
        return fastest(self.executors)

    @property
    def ratio(self) -> float:
        """The library's time over the executor's: above 1 is faster."""
        return self.libraries[self.library].timing.median_us / self.executors[self.executor].timing.median_us

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "libraries": {name: timed.to_data() for name, timed in self.libraries.items()},
            "library": self.library,
            "executors": {
                name: timed.to_data() | ({"way": self.ways[name]} if name in self.ways else {})
                for name, timed in self.executors.items()
            },
            "executor": self.executor,
            "ratio": self.ratio,
        }


@dataclass(frozen=True)
class Row:
    """One problem.

    Attributes:
        preset: its name, if it has one.
        workload: the problem.
        alone: back to back.
        layer: in a model; None if the workload is no layer.
        variants: how each executor ran.
        errors: relative, of each executor against float64.
        library_error: of PyTorch.
        stream: time of the stream of bulk loads over the weights, None on a GPU that has none.
        floor_us: the least time; see the module.
        left_out: why, by executor.
        compute_bound: arithmetic takes longer than memory, so that clock and power are watched.
        watts: of the GPU meanwhile, if the driver tells.
    """

    preset: str | None
    workload: Workload
    alone: Contest
    layer: Contest | None
    variants: Mapping[str, Variant]
    errors: Mapping[str, float]
    library_error: float
    stream: Timing | None
    floor_us: float
    left_out: Mapping[str, str]
    compute_bound: bool = False
    watts: float | None = None

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""
        size = getattr(self.workload, self.workload.size)
        recorded = self.workload.record.get(self.preset) if self.preset else None
        alone = self.alone.to_data()
        for name, told in alone["executors"].items():
            variant = self.variants[name]
            how = {"setting": variant.setting.to_data(), "policy": str(variant.policy)}
            alone["executors"][name] = {**told, **how, "relative_error": self.errors[name]}
        return {
            "preset": self.preset,
            "size": size,
            "workload": self.workload.facts(),
            **alone,
            "target": recorded and recorded.target(size),
            "layer": self.layer and self.layer.to_data(),
            "stream": self.stream and asdict(self.stream),
            "floor_us": self.floor_us,
            "library_relative_error": self.library_error,
            "left_out": dict(self.left_out),
            "compute_bound": self.compute_bound,
            "watts": self.watts,
        }


def fastest(timed: Mapping[str, Timed]) -> str:
    """By the rounds to pick by."""
    return min(timed, key=lambda name: timed[name].picked_us)


def means(kind: type[Workload], ratios: Mapping[tuple[str | None, int], float]) -> Iterator[tuple[str, Target, float]]:
    """(preset, target, geometric mean) for each target of a mean all of whose ratios, by (preset, size), are there."""
    for preset, recorded in kind.record.items():
        for target in recorded.targets:
            if target.mean and all((preset, size) in ratios for size in target.sizes):
                yield preset, target, geometric_mean([ratios[preset, size] for size in target.sizes])

"""Find the limit of a workload on this GPU: compare hardware counters of one launch per size with the prediction.

    python -m interlace.bench.profile RUNS

runs the child process whose launches the profiler counts: one launch per ``ProfileRun`` in a pickle file, in order.
Caches are flushed before each launch, because in a model the weights of a layer are not in the cache either.

A launch is bound by the resource with the highest utilisation if that is at least 60 % of the device spec. Below that,
it mostly waits for latencies. Example, an FFN on an H200, 4096 to 14336 to 4096 without a gate:

    tokens    bytes     FLOPs        us     of 4.53 TB/s    of 790 TFLOP/s
    16        236 MB    3.76e9       63     83 %            8 %               memory bound
    1024      492 MB    2.41e11     325     33 %            94 %              compute bound
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from interlace.bench.compile import compile_launches
from interlace.bench.counters import count_launches, find_ncu
from interlace.core.devices import DeviceSpec
from interlace.core.errors import ProfilerError
from interlace.deploy import count_flops, make_executor, select_executor, select_schedule
from interlace.executors import DeviceExecutor
from interlace.executors.gpu import open_device
from interlace.graph.graph import Graph
from interlace.megakernel.options import RunOptions
from interlace.planner.build import build
from interlace.policies.schedule import Schedule
from interlace.policies.tiling import encode_tilings
from interlace.workloads.base import Workload

METRICS = {
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "ns": "gpu__time_duration.sum",
}
#: Minimum share of a rate at which it counts as the limit.
BOUND = 0.6
_ALONE = RunOptions()  # no dependent launch: a counted launch does not start while another drains


class LaunchBottleneck(Enum):
    """Limit of a launch."""

    MEMORY = "memory bound"
    COMPUTE = "compute bound"
    NEITHER = "neither"


@dataclass(frozen=True)
class Figures:
    """Counted or predicted figures of one launch.

    Attributes:
        dram_read_bytes, dram_write_bytes: bytes moved between memory and the L2.
        l2_hit_rate: hit rate of the L2, from 0 to 1.
        us: microseconds from start to end.
        memory_share: bytes per second, reads and writes, as a share of the device spec's rate.
        compute_share: FLOPs per second as a share of the device spec's rate.
    """

    dram_read_bytes: float
    dram_write_bytes: float
    l2_hit_rate: float
    us: float
    memory_share: float
    compute_share: float

    @property
    def bottleneck(self) -> LaunchBottleneck:
        """Limit of the launch."""
        if max(self.memory_share, self.compute_share) < BOUND:
            return LaunchBottleneck.NEITHER
        return LaunchBottleneck.MEMORY if self.memory_share >= self.compute_share else LaunchBottleneck.COMPUTE


@dataclass(frozen=True)
class ProfileRun:
    """A graph as one launch, under a schedule."""

    graph: Graph
    device: DeviceSpec
    executor: type[DeviceExecutor]
    schedule: Schedule

    @staticmethod
    def from_workload(workload: Workload, device: DeviceSpec) -> ProfileRun:
        """Return the run of a workload by the fastest executor, under its tuned schedule or the default."""
        graph = workload.build_graph(device)
        executor = select_executor(graph, device)
        return ProfileRun(graph, device, executor, select_schedule(graph, device, executor))

    def make_executor(self) -> DeviceExecutor:
        """Return an executor that is ready to run, without dependent launch."""
        return make_executor(self.graph, self.device, self.executor, self.schedule, _ALONE)


@dataclass(frozen=True)
class Profile:
    """Profile of one problem.

    Attributes:
        workload: workload that ran.
        executor: name of the executor that ran it.
        schedule: schedule that it ran under.
        flops: floating-point operations of the run, without those on padding rows of tiles.
        counted, predicted: figures from hardware counters and from prediction.
    """

    workload: Workload
    executor: str
    schedule: Schedule
    flops: float
    counted: Figures
    predicted: Figures

    def to_data(self) -> dict[str, Any]:
        """Return the profile as JSON data."""

        def figures(f: Figures) -> dict[str, Any]:
            rates = {
                "bytes_per_s": (f.dram_read_bytes + f.dram_write_bytes) / f.us * 1e6,
                "flops_per_s": self.flops / f.us * 1e6,
            }
            return {**vars(f), **rates, "verdict": f.bottleneck.value}

        return {
            "size": getattr(self.workload, self.workload.size),
            "workload": self.workload.to_data(),
            "executor": self.executor,
            "setting": encode_tilings(self.schedule.op_tilings),
            "flops": self.flops,
            "counted": figures(self.counted),
            "predicted": figures(self.predicted),
        }


def profile(
    workloads: Sequence[Workload],
    device: DeviceSpec,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Profile]:
    """Count one launch of each workload under its tuned schedule, or the default if there is none.

    Args:
        workloads: workloads to profile.
        device: spec of the current CUDA device.
        progress: callback that receives the current activity, the amount done and the total amount.

    Raises:
        PlanError: no executor runs a workload as one launch.
        ProfilerError: ``ncu`` is missing or may not read counters, or the runs failed.
    """
    find_ncu()  # fail before any time is spent
    runs = [ProfileRun.from_workload(workload, device) for workload in workloads]
    for left in compile_launches([run.make_executor for run in runs]):
        progress("compiling", len(runs) - left, len(runs))
    progress("counting", 0, 1)
    counted = _count_runs(runs)
    progress("counting", 1, 1)
    found = []
    for done, (workload, run, counts) in enumerate(zip(workloads, runs, counted, strict=True), 1):
        found.append(_build_profile(workload, run, counts))
        progress("predicting", done, len(runs))
    return found


def _count_runs(runs: Sequence[ProfileRun]) -> list[Mapping[str, float]]:
    """Return the counters of each run; runs of the same kernel are counted in one process."""
    found: dict[int, Mapping[str, float]] = {}
    for kernel in dict.fromkeys(run.executor.kernel for run in runs):
        mine = {i: run for i, run in enumerate(runs) if run.executor.kernel == kernel}
        with TemporaryDirectory() as folder:
            file = Path(folder) / "runs"
            file.write_bytes(pickle.dumps(list(mine.values())))
            counted = count_launches([sys.executable, "-m", "interlace.bench.profile", str(file)], kernel, METRICS)
        if len(counted) != len(mine):
            raise ProfilerError(
                f"ncu counted {len(counted)} launches of {len(mine)}; does another process profile too?"
            )
        found.update(zip(mine, counted, strict=True))
    return [found[i] for i in range(len(runs))]


def _build_profile(workload: Workload, run: ProfileRun, counts: Mapping[str, float]) -> Profile:
    from interlace.planner.predict import FINE, predict  # slow import: numba

    graph, spec = run.graph, run.device
    plan, flops = build(graph, run.schedule), count_flops(graph)
    multiplied = max((graph.tensor(name) for name in graph.inputs), key=lambda t: t.nbytes).dtype

    def figures(read: float, written: float, hit_rate: float, us: float) -> Figures:
        memory = (read + written) / us * 1e6 / spec.dram_bytes_per_s
        return Figures(read, written, hit_rate, us, memory, flops / us * 1e6 / spec.flops_per_s(multiplied))

    read, written = counts["dram_read_bytes"], counts["dram_write_bytes"]
    counted = figures(read, written, counts["l2_hit_pct"] / 100, counts["ns"] / 1e3)
    p = predict(plan, spec, run.executor.build_mode(plan.graph, spec), limit=FINE)
    predicted = figures(p.traffic.dram_read, p.traffic.written_bytes, p.traffic.hit_rate, p.us)
    return Profile(workload, run.executor.name, run.schedule, flops, counted, predicted)


def run_child(runs: Sequence[ProfileRun]) -> None:
    """Launch each run once, in order, on random data."""
    torch, device = open_device("cuda")
    for run in runs:
        executor = run.make_executor()
        graph = executor.plan.graph
        tensors = {name: executor.allocate_tensor(name) for name in (*graph.inputs, *graph.outputs)}
        for name in graph.inputs:
            tensors[name].normal_(0, graph.tensor(name).shape[-1] ** -0.5)
        torch.cuda.synchronize(device)
        executor.run(tensors)
        executor.synchronize()


if __name__ == "__main__":
    run_child(pickle.loads(Path(sys.argv[1]).read_bytes()))  # written by the process that started this one

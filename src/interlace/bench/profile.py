"""What limits an FFN on this GPU: hardware counters of one launch per size, beside what is predicted.

    python -m interlace.bench.profile '{"dtype": "bf16", "hidden": 4096, ..., "runs": [{"m": 16, "ffn": 14336, ...}]}'

is the child whose launches the profiler counts, one of each run, in order. Caches are emptied before each launch, since
weights of a model are not in the cache either when their layer comes round.

A launch is bound by what it uses most of, if that is at least 60 % of what the device spec has; below it waits for
latencies most of the time. On an H200, 4096 to 14336 to 4096 without a gate:

    tokens    bytes     FLOPs        us     of 4.53 TB/s    of 790 TFLOP/s
    16        236 MB    3.76e9       63     83 %            8 %               memory bound
    1024      492 MB    2.41e11     325     33 %            94 %              compute bound
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from interlace.bench.case import FFNCase
from interlace.bench.compile import compile_launches
from interlace.bench.counters import count_launches, find_ncu
from interlace.core.dtypes import dtype
from interlace.core.errors import ProfilerError
from interlace.executors.gpu import open_device
from interlace.executors.options import Options
from interlace.kernels.matmul import Activation
from interlace.policies.setting import Setting
from interlace.workloads.ffn import FFNShape

METRICS = {
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "ns": "gpu__time_duration.sum",
}
#: Share of a ceiling from which on it is what binds.
BOUND = 0.6
_ALONE = Options()  # a launch that is counted does not start while another drains


class Verdict(Enum):
    """What a launch is limited by."""

    MEMORY = "memory bound"
    COMPUTE = "compute bound"
    NEITHER = "neither"


@dataclass(frozen=True)
class Figures:
    """One launch, as counted or as predicted.

    Attributes:
        dram_read_bytes, dram_write_bytes: moved between memory and the L2.
        l2_hit_rate: from 0 to 1.
        us: from its start to its end.
        memory_share: bytes per second, both ways, as a part of what the device spec has.
        compute_share: the same of FLOPs per second.
    """

    dram_read_bytes: float
    dram_write_bytes: float
    l2_hit_rate: float
    us: float
    memory_share: float
    compute_share: float

    @property
    def verdict(self) -> Verdict:
        """What it is limited by."""
        if max(self.memory_share, self.compute_share) < BOUND:
            return Verdict.NEITHER
        return Verdict.MEMORY if self.memory_share >= self.compute_share else Verdict.COMPUTE


@dataclass(frozen=True)
class Profile:
    """One number of tokens through one width.

    Attributes:
        m: tokens.
        ffn: width between the matmuls.
        executor: by which it ran.
        setting: how.
        flops: floating-point operations of the run, without those on rows that only fill a tile.
        counted, predicted: what the hardware did and what was expected of it.
    """

    m: int
    ffn: int
    executor: str
    setting: Setting
    flops: float
    counted: Figures
    predicted: Figures

    def to_data(self) -> dict[str, Any]:
        """As JSON data."""

        def figures(f: Figures) -> dict[str, Any]:
            rates = {
                "bytes_per_s": (f.dram_read_bytes + f.dram_write_bytes) / f.us * 1e6,
                "flops_per_s": self.flops / f.us * 1e6,
            }
            return {**vars(f), **rates, "verdict": f.verdict.value}

        return {
            "m": self.m,
            "ffn": self.ffn,
            "executor": self.executor,
            "setting": self.setting.to_data(),
            "flops": self.flops,
            "counted": figures(self.counted),
            "predicted": figures(self.predicted),
        }


def profile(
    cases: Sequence[FFNCase], progress: Callable[[str, int, int], None] = lambda what, done, total: None
) -> list[Profile]:
    """Count one launch of each case under the setting that was tuned for it, else the default.

    Args:
        cases: one FFN at several numbers of tokens or widths between the matmuls, on the current CUDA device.
        progress: told what goes on, how much of it is done, and of how much.

    Raises:
        ProfilerError: ``ncu`` is not there, may not read counters, or the runs failed; or the cases need more than
            one kernel.
    """
    find_ncu()  # before any time is spent
    if len({case.deployment.executor.kernel for case in cases}) > 1:
        raise ProfilerError("some widths run on the Hopper executor and some do not; use multiples of 16, or none")
    settings = [case.deployment.setting() for case in cases]
    makers = [partial(case.deployment.make, setting, _ALONE) for case, setting in zip(cases, settings, strict=True)]
    for left in compile_launches(makers):
        progress("compiling", len(makers) - left, len(makers))
    progress("counting", 0, 1)
    command = [sys.executable, "-m", "interlace.bench.profile", json.dumps(_request(cases, settings))]
    counted = count_launches(command, cases[0].deployment.executor.kernel, METRICS)
    if len(counted) != len(cases):
        raise ProfilerError(f"ncu counted {len(counted)} launches of {len(cases)}; does another process profile too?")
    progress("counting", 1, 1)
    found = []
    for done, (case, setting, counts) in enumerate(zip(cases, settings, counted, strict=True), 1):
        found.append(_profile(case, setting, counts))
        progress("predicting", done, len(cases))
    return found


def _profile(case: FFNCase, setting: Setting, counts: Mapping[str, float]) -> Profile:
    from interlace.planner.predict import FINE, predict  # loads numba, which is slow

    launch, spec = case.deployment, case.gpu
    plan, flops = launch.plan(setting), launch.flops

    def figures(read: float, written: float, hit_rate: float, us: float) -> Figures:
        memory = (read + written) / us * 1e6 / spec.dram_bytes_per_s
        return Figures(read, written, hit_rate, us, memory, flops / us * 1e6 / spec.flops_per_s(case.dtype))

    read, written = counts["dram_read_bytes"], counts["dram_write_bytes"]
    counted = figures(read, written, counts["l2_hit_pct"] / 100, counts["ns"] / 1e3)
    p = predict(plan, spec, launch.mode(plan), limit=FINE)
    predicted = figures(p.traffic.dram_read, p.traffic.written, p.traffic.hit_rate, p.us)
    return Profile(case.m, case.shape.ffn, launch.executor.name, setting, flops, counted, predicted)


def _request(cases: Sequence[FFNCase], settings: Sequence[Setting]) -> dict[str, Any]:
    """What the child is to run."""
    shape = cases[0].shape
    return {
        "dtype": cases[0].dtype.name,
        "hidden": shape.hidden,
        "activation": shape.activation.value,
        "gated": shape.gated,
        "runs": [
            {"m": case.m, "ffn": case.shape.ffn, "setting": s.to_data()}
            for case, s in zip(cases, settings, strict=True)
        ],
    }


def child(request: Mapping[str, Any]) -> None:
    """One launch of each run, in order, on random data."""
    torch, device = open_device("cuda")
    for run in request["runs"]:
        shape = FFNShape(request["hidden"], run["ffn"], Activation(request["activation"]), request["gated"])
        case = FFNCase.here(run["m"], shape, dtype(request["dtype"]))
        executor = case.deployment.make(Setting.from_data(run["setting"]), _ALONE)
        graph = executor.plan.graph
        tensors = {name: executor.empty(name) for name in (*graph.inputs, *graph.outputs)}
        for name in graph.inputs:
            tensors[name].normal_(0, graph.tensor(name).shape[-1] ** -0.5)
        torch.cuda.synchronize(device)
        executor.run(tensors)
        executor.synchronize()


if __name__ == "__main__":
    child(json.loads(sys.argv[1]))

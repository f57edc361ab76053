"""Every executor against cuBLAS and torch.compile, on the FFNs of well-known models.

All variants of one shape run in one process, their CUDA-graph replays interleaved, over weight sets that
together exceed the L2. Each executor is timed on every setting and reported with its best one, picked on other rounds
than those reported, and the baseline, the same tile bodies launched op by op, gets the same choice: the better of a
CUDA graph of plain launches and one of dependent launches. So the ratio compares scheduling at its best with launching
at its best. The ratio on the winner's own setting is kept beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, log
from multiprocessing import get_context
from typing import Any

from interlace.bench.problem import pytorch_ffn, transposed
from interlace.bench.timing import Timing, rounds_us
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import bf16
from interlace.deploy import here
from interlace.executors.cuda_graph import CudaGraphExecutor
from interlace.executors.device import DeviceExecutor
from interlace.executors.gpu import open_device
from interlace.executors.options import Options
from interlace.executors.persistent import PersistentExecutor
from interlace.executors.semaphore_streams import SemaphoreStreamsExecutor
from interlace.executors.serial import PdlExecutor
from interlace.graph.graph import Graph
from interlace.kernels.matmul.triton_tuning import TRITON
from interlace.plan.plan import Dispatch, Plan
from interlace.planner.build import Choices, build
from interlace.planner.settings import choices, retiled
from interlace.policies.setting import Setting
from interlace.policies.sync import RowSync, TileSync
from interlace.workloads.ffn import FFNShape, ffn

#: What decides how fast these launches are.
MEASURES = (
    "executors",
    "kernels/abi",
    "kernels/matmul",
    "kernels/primitives",
    "kernels/templates.py",
    "planner/build.py",
    "planner/waits.py",
    "policies",
)
#: Executors that synchronise tile by tile.
TILE_SYNCHRONISED = ("semaphore_streams", "persistent-static", "persistent-ticket")
BASELINES = ("cuda_graph", "pdl")  # op by op
_READ_BYTES_PER_S, _FLOPS_PER_S = 4.36e12, 790e12  # measured: TMA weight stream, cuBLAS at 8192 cubed
_EXECUTORS_PER_SETTING = 7
_TOLERANCE = 1e-2  # relative error that bf16 through two matmuls stays under


@dataclass(frozen=True)
class Result:
    """One executor on one shape: its best setting and time."""

    setting: str
    timing: Timing
    relative_error: float


@dataclass(frozen=True)
class Row:
    """One shape.

    Attributes:
        model, m: which.
        floor_us: the larger of weight bytes and FLOPs over the measured ceilings.
        results: by executor.
        libraries: cuBLAS, weights as ``nn.Linear`` stores them and transposed, and torch.compile(mode="max-autotune").
        best: the fastest tile-synchronised executor.
        baseline: the faster of those that launch op by op.
        same_setting: time of that launch on the best executor's setting, over the latter's.
    """

    model: str
    m: int
    floor_us: float
    results: Mapping[str, Result]
    libraries: Mapping[str, Timing]
    best: str
    baseline: str
    same_setting: float

    @property
    def ratio(self) -> float:
        """Baseline on its best setting over the best tile-synchronised executor on its best: above 1 is faster."""
        return self.results[self.baseline].timing.median_us / self.results[self.best].timing.median_us


def geometric_mean(values: list[float]) -> float:
    """Geometric mean of positive numbers."""
    return exp(sum(map(log, values)) / len(values))


def measure(
    model: str, shape: FFNShape, m: int, *, compiled: bool = True, repeats: int = 15, seed: int = 0
) -> Row:
    """Measure one shape on the current CUDA device.

    Raises:
        NoDeviceError: there is no CUDA device.
        RuntimeError: an executor's result is wrong; nothing is timed then.
    """
    torch, device = open_device("cuda")
    torch.manual_seed(seed)
    gpu = here()

    def random(*extents: int) -> Any:
        scale = extents[-1] ** -0.5
        return (torch.randn(extents, device=device, dtype=torch.float32) * scale).bfloat16()

    names = ("w_up", "w_gate", "w_down") if shape.gated else ("w_up", "w_down")
    extents = {
        "w_up": (shape.ffn, shape.hidden),
        "w_gate": (shape.ffn, shape.hidden),
        "w_down": (shape.hidden, shape.ffn),
    }
    weight_bytes = len(names) * shape.ffn * shape.hidden * bf16.itemsize
    sets = 2 + gpu.l2_bytes * 2 // weight_bytes
    weights = [{name: random(*extents[name]) for name in names} for _ in range(sets)]
    x = random(m, shape.hidden) * shape.hidden**0.5
    out = torch.empty_like(x)
    plain = pytorch_ffn(torch, shape)
    gold = plain(x.double(), {k: v.double() for k, v in weights[0].items()})

    def every(run: Callable[[Mapping[str, Any]], object], sets: Sequence[Any] = weights) -> Callable[[], None]:
        def call() -> None:
            for w in sets:
                run(w)

        return call

    turned = [transposed(w) for w in weights]
    functions: dict[str, Callable[[], None]] = {
        "cublas": every(lambda w: plain(x, w)),
        "cublas, transposed weights": every(lambda w: plain(x, w), turned),
    }
    if compiled:
        torch.compiler.reset()
        fast = torch.compile(plain, mode="max-autotune-no-cudagraphs", dynamic=False)
        functions["torch.compile"] = every(lambda w: fast(x, w))
    errors: dict[str, float] = {}
    for label, executor in _executors(m, shape, gpu):

        def run(w: Mapping[str, Any], executor: DeviceExecutor = executor) -> None:
            executor.run({"x": x, "out": out, **w})

        out.fill_(float("nan"))
        run(weights[0])
        executor.synchronize()
        errors[label] = float((out.double() - gold).norm() / gold.norm())
        if not errors[label] < _TOLERANCE:
            raise RuntimeError(f"{label} is wrong on {model}, M = {m}: relative error {errors[label]:.1e}")
        functions[label] = every(run)
    rounds = rounds_us(functions, repeats, calls=sets)
    labels: dict[str, list[str]] = {}
    for label in errors:
        labels.setdefault(label.split(" | ")[0], []).append(label)
    fastest = {name: rounds.fastest(some) for name, some in labels.items()}
    results = {
        name: Result(label.split(" | ")[1], rounds.times[label], errors[label]) for name, label in fastest.items()
    }
    libraries = {name: time for name, time in rounds.times.items() if name not in errors}
    best, baseline = (
        min((name for name in some if name in fastest), key=lambda name: rounds.picking_us[fastest[name]])
        for some in (TILE_SYNCHRONISED, BASELINES)
    )
    floor = max(weight_bytes / _READ_BYTES_PER_S, weight_bytes * m / _FLOPS_PER_S) * 1e6
    tiling = results[best].setting.split("; policy")[0]
    same = rounds.times[f"{baseline} | {tiling}"].median_us / results[best].timing.median_us
    return Row(model, m, floor, results, libraries, best, baseline, same)


def compile_all(shapes: Sequence[tuple[FFNShape, int]], processes: int | None = None) -> Iterator[int]:
    """Compile the kernels of every executor in parallel, into Triton's cache; yields how many are left.

    Takes a GPU context per process. Kernels that do not compile are left to ``measure``, which reports them.
    """
    gpu = here()
    jobs = [
        (shape, m, gpu, i)
        for shape, m in shapes
        for i in range(len(_settings(m, shape, gpu)) * _EXECUTORS_PER_SETTING)
    ]
    count = processes or min(len(jobs), max(1, (os.cpu_count() or 2) - 2))
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        for left, job in enumerate(as_completed([pool.submit(_compile, *job) for job in jobs]), 1):
            job.result()
            yield len(jobs) - left


def _compile(shape: FFNShape, m: int, gpu: DeviceSpec, index: int) -> None:
    _, executor = next(islice(_executors(m, shape, gpu), index, None))
    graph = executor.plan.graph
    for launch in executor.launches({name: executor.empty(name) for name in (*graph.inputs, *graph.outputs)}):
        launch.compile()


def _settings(m: int, shape: FFNShape, gpu: DeviceSpec) -> list[Setting]:
    """What came out best for some executor, for so many tokens."""
    return list(TRITON.likely(ffn(m, shape), gpu))


def _executors(m: int, shape: FFNShape, gpu: DeviceSpec) -> Iterator[tuple[str, DeviceExecutor]]:
    """Every executor on every setting, labelled ``executor | setting; ...``."""
    for setting in _settings(m, shape, gpu):
        tiled = retiled(ffn(m, shape), setting)
        chosen = choices(tiled, setting, gpu.sms)

        def plan(tiled: Graph = tiled, chosen: Choices = chosen, **given: Any) -> Plan:
            return build(tiled, replace(chosen, **given))

        yield f"cuda_graph | {setting}", CudaGraphExecutor(plan())
        yield f"pdl | {setting}", PdlExecutor(plan())
        for policy in (TileSync(), RowSync()):
            tail = f"{setting}; policy {policy}"
            yield f"semaphore_streams | {tail}", SemaphoreStreamsExecutor(plan(policy=policy))
            yield (
                f"persistent-ticket | {tail}",
                PersistentExecutor(plan(policy=policy), Options(dependent_launch=True)),
            )
        tail = f"{setting}; policy {TileSync()}"
        yield (
            f"persistent-static | {tail}",
            PersistentExecutor(plan(policy=TileSync(), dispatch=Dispatch.STATIC)),
        )

"""Every executor against cuBLAS and torch.compile, on the FFNs of well-known models.

All variants of one shape run in one process, their CUDA-graph replays interleaved, over weight sets that
together exceed the L2. Each executor is timed on every setting and reported with its best one, and the
baseline, the kernel-by-kernel CUDA graph of the same tile bodies, gets the same choice: so the ratio compares
scheduling at its best with launching at its best. The ratio on the winner's own setting is kept beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from math import exp, log
from multiprocessing import get_context
from typing import Any

from interlace.bench.problem import pytorch_ffn
from interlace.bench.timing import Timing, median_us
from interlace.core.dtypes import bf16
from interlace.executors.cuda_graph import CudaGraphExecutor
from interlace.executors.device import DeviceExecutor, Options
from interlace.executors.gpu import open_device
from interlace.executors.persistent import PersistentExecutor
from interlace.executors.semaphore_streams import SemaphoreStreamsExecutor
from interlace.executors.serial import PdlExecutor
from interlace.plan.plan import Dispatch
from interlace.planner.build import Choices, build
from interlace.policies.sync import RowSync, TileSync
from interlace.workloads.ffn import FFNShape, ffn
from interlace.workloads.settings import FFNSetting, ffn_settings

#: Executors that synchronise tile by tile.
TILE_SYNCHRONISED = ("semaphore_streams", "persistent-static", "persistent-ticket")
BASELINE = "cuda_graph"
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
        libraries: cuBLAS in a CUDA graph and torch.compile(mode="max-autotune").
        same_setting: baseline time over that of the best tile-synchronised executor, both on the latter's setting.
    """

    model: str
    m: int
    floor_us: float
    results: Mapping[str, Result]
    libraries: Mapping[str, Timing]
    same_setting: float

    @property
    def best(self) -> str:
        """The fastest tile-synchronised executor."""
        return min(
            (name for name in TILE_SYNCHRONISED if name in self.results),
            key=lambda name: self.results[name].timing.median_us,
        )

    @property
    def ratio(self) -> float:
        """Baseline on its best setting over the best tile-synchronised executor on its best: above 1 is faster."""
        return self.results[BASELINE].timing.median_us / self.results[self.best].timing.median_us


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
    properties = torch.cuda.get_device_properties(device)

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
    sets = 2 + properties.L2_cache_size * 2 // weight_bytes
    weights = [{name: random(*extents[name]) for name in names} for _ in range(sets)]
    x = random(m, shape.hidden) * shape.hidden**0.5
    out = torch.empty_like(x)
    plain = pytorch_ffn(torch, shape)
    gold = plain(x.double(), {k: v.double() for k, v in weights[0].items()})

    def every(run: Callable[[Mapping[str, Any]], object]) -> Callable[[], None]:
        def call() -> None:
            for w in weights:
                run(w)

        return call

    functions: dict[str, Callable[[], None]] = {"cublas": every(lambda w: plain(x, w))}
    if compiled:
        torch.compiler.reset()
        fast = torch.compile(plain, mode="max-autotune-no-cudagraphs", dynamic=False)
        functions["torch.compile"] = every(lambda w: fast(x, w))
    errors: dict[str, float] = {}
    for label, executor in _executors(m, shape, properties.multi_processor_count):

        def run(w: Mapping[str, Any], executor: DeviceExecutor = executor) -> None:
            executor.run({"x": x, "out": out, **w})

        out.fill_(float("nan"))
        run(weights[0])
        executor.synchronize()
        errors[label] = float((out.double() - gold).norm() / gold.norm())
        if not errors[label] < _TOLERANCE:
            raise RuntimeError(f"{label} is wrong on {model}, M = {m}: relative error {errors[label]:.1e}")
        functions[label] = every(run)
    times = median_us(functions, repeats, calls=sets)

    results: dict[str, Result] = {}
    for label, error in errors.items():
        name, setting = label.split(" | ")
        if name not in results or times[label].median_us < results[name].timing.median_us:
            results[name] = Result(setting, times[label], error)
    libraries: dict[str, Timing] = {
        name: times[name] for name in ("cublas", "torch.compile") if name in times
    }
    floor = max(weight_bytes / _READ_BYTES_PER_S, weight_bytes * m / _FLOPS_PER_S) * 1e6
    row = Row(model, m, floor, results, libraries, 1.0)
    best = results[row.best]
    tiling = best.setting.split("; policy")[0]
    same = times[f"{BASELINE} | {tiling}"].median_us / best.timing.median_us
    return Row(model, m, floor, results, libraries, same)


def compile_all(shapes: Sequence[tuple[FFNShape, int]], processes: int | None = None) -> Iterator[int]:
    """Compile the kernels of every executor in parallel, into Triton's cache; yields how many are left.

    Takes a GPU context per process. Kernels that do not compile are left to ``measure``, which reports them.
    """
    torch, device = open_device("cuda")
    workers = torch.cuda.get_device_properties(device).multi_processor_count
    jobs = [
        (shape, m, workers, i)
        for shape, m in shapes
        for i in range(len(ffn_settings(m, shape)) * _EXECUTORS_PER_SETTING)
    ]
    count = processes or min(len(jobs), max(1, (os.cpu_count() or 2) - 2))
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        for left, job in enumerate(as_completed([pool.submit(_compile, *job) for job in jobs]), 1):
            job.result()
            yield len(jobs) - left


def _compile(shape: FFNShape, m: int, workers: int, index: int) -> None:
    _, executor = next(islice(_executors(m, shape, workers), index, None))
    graph = executor.plan.graph
    for launch in executor.launches({name: executor.empty(name) for name in (*graph.inputs, *graph.outputs)}):
        launch.compile()


def _executors(m: int, shape: FFNShape, workers: int) -> Iterator[tuple[str, DeviceExecutor]]:
    """Every executor on every setting, labelled ``executor | setting; ...``."""
    for setting in ffn_settings(m, shape):
        graph = ffn(m, shape, bf16, setting.up, setting.down)

        def plan(setting: FFNSetting = setting, graph: Any = graph, **choices: Any) -> Any:
            return build(graph, Choices(workers, split=setting.splits, order=setting.order, **choices))

        yield f"{BASELINE} | {setting}", CudaGraphExecutor(plan())
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

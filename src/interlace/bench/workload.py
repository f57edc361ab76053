"""Workload benchmark: every executor that can run a workload, against PyTorch and its compiler.

The libraries are eager PyTorch, ``torch.compile`` and ``torch.compile(mode="max-autotune")``, each with weights as they
are and with transposed matrices. Everything is captured in the benchmark's own CUDA graphs, many runs to a graph, so
that launch costs of Python do not count. All variants of one problem are replayed interleaved in one process, over sets
of weights that together exceed twice the L2. If several processes measure on one GPU, timed work has it alone
(``turns``). Each executor is timed under its default schedule and a few likely ones. Where the fastest of several
variants represents all of them, it is picked on other rounds than the reported ones.

Two figures are measured. *Back to back*: a run follows itself. Under dependent launch, the next run loads its first
weights while the previous one drains, which PyTorch's kernels do not do. *In a model*: each run is part of the model
layer that the workload defines (``Workload.apply_layer``). Each contestant's layers are captured in one graph, and
torch.compile may fuse as it likes. It may also compile the ops around an executor, or the executor runs the whole layer
as one plan.

The lower bound of a problem is the time of a stream of bulk loads over the same weights, without arithmetic (on a GPU
without bulk loads, the bytes at the rate of memory), or its FLOPs at the rate of a large matmul, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor as Pool
from dataclasses import replace
from itertools import islice, product
from typing import Any

from interlace.bench.compile import compile_launches
from interlace.bench.gpu_lock import lock_autotuning
from interlace.bench.problem import BenchProblem, Tensors, translate_errors
from interlace.bench.row import Comparison, ProblemResult, Variant, VariantTimes
from interlace.bench.stream import make_stream
from interlace.bench.timing import Rounds, time_rounds
from interlace.core.devices import DeviceSpec
from interlace.core.errors import DeviceError, GraphError, OrderError, PlanError
from interlace.executors import EXECUTORS, DeviceExecutor, Executor
from interlace.executors.gpu import open_device
from interlace.executors.serial import SerialExecutor
from interlace.graph.graph import Graph
from interlace.plan.orderings import Ordering
from interlace.planner.retile import retile
from interlace.policies.orders import Order
from interlace.policies.schedule import Schedule
from interlace.policies.sync import ConsumerSync, RowSync, TileSync
from interlace.workloads.base import Workload

#: Executors that take part; in CUDA graphs, ``serial`` equals ``cuda_graph``.
CANDIDATES: tuple[type[DeviceExecutor], ...] = tuple(
    e for e in EXECUTORS if issubclass(e, DeviceExecutor) and e is not SerialExecutor
)
#: Modes of PyTorch: the mode that torch.compile is called with, or None without torch.compile.
MODES = {"eager": None, "compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}
#: Minimum number of rounds to pick by, and to report.
REPEATS = 15
_CANNOT = (DeviceError, GraphError, PlanError)


def list_variants(
    workload: Workload,
    device: DeviceSpec,
    executors: Sequence[type[Executor]] = (),
    order: Order | None = None,
) -> tuple[list[Variant], dict[str, str]]:
    """Return every variant to time, and the reason for each executor that has none.

    Executors that wait for single tiles are tried with the finest policy and with one semaphore per row of tiles.

    Args:
        workload: workload to run.
        device: device that it runs on.
        executors: subset of ``CANDIDATES``; all of them if empty.
        order: order of every op's tiles, for schedules whose grids it fits; None for each schedule's own order.
    """
    graph = workload.build_graph(device)
    found: list[Variant] = []
    left_out = {}
    for executor in CANDIDATES:
        if executors and executor not in executors:
            continue
        obstacle = executor.fallback_reason(graph, device)
        policies = (TileSync(),) if Ordering.LAUNCH in executor.enforced_orderings else (TileSync(), RowSync())
        schedules = [] if obstacle else list(executor.iter_likely(graph, device))
        if not schedules:
            left_out[executor.name] = obstacle or "no tiles that are known make a launch"
        elif order is not None:
            schedules, unfit = _find_fitting(graph, device, executor, schedules, order)
            left_out.update({} if schedules else {executor.name: unfit})
        each = (replace(schedule, policy=policy) for schedule, policy in product(schedules, policies))
        found += [Variant(graph, device, executor, schedule) for schedule in each]
    return found, left_out


def _find_fitting(
    graph: Graph, device: DeviceSpec, executor: type[Executor], likely: Sequence[Schedule], order: Order
) -> tuple[list[Schedule], str]:
    """Return schedules whose grids fit an order, in that order, and the reason if there are none.

    The likely schedules are preferred; if none of them fits, the first fitting one of all schedules is returned.
    """
    found = [schedule for schedule in likely if not _explain_unfit(graph, schedule, order)]
    if not found:
        every = executor.iter_schedules(graph, device)
        found = list(islice((schedule for schedule in every if not _explain_unfit(graph, schedule, order)), 1))
    ordered = dict.fromkeys(replace(schedule, order=order) for schedule in found)
    return list(ordered), "" if found else _explain_unfit(graph, likely[0], order)


def _explain_unfit(graph: Graph, schedule: Schedule, order: Order) -> str:
    """Return why an order does not fit all ops' grids under a schedule, or an empty string if it does."""
    try:
        for op in retile(graph, schedule.tiles).ops:
            order.compute_permutation(op.grid)
    except OrderError as error:
        return f"op {op.name!r}: {error}"
    return ""


def measure(
    preset: str | None,
    workload: Workload,
    device: DeviceSpec,
    executors: Sequence[type[Executor]] = (),
    *,
    with_compile: bool = True,
    order: Order | None = None,
    pool: Pool | None = None,
    seed: int = 0,
) -> ProblemResult:
    """Measure one problem on the current CUDA device.

    Args:
        preset: name of the problem's preset, if it has one.
        workload: problem.
        device: spec of the current CUDA device.
        executors: subset of ``CANDIDATES``; all that can run it if empty.
        with_compile: True to include torch.compile.
        order: order of every op's tiles, as in ``list_variants``.
        pool: pool of compiling processes, as in ``compile_launches``.
        seed: seed of the inputs.

    Raises:
        NoDeviceError: there is no CUDA device.
        PlanError: no executor runs it.
        ResultError: a result is wrong, before or after the timed runs.
    """
    with translate_errors(workload, device):
        return _measure(preset, workload, device, executors, with_compile, order, pool, seed)


def _measure(
    preset: str | None,
    workload: Workload,
    device: DeviceSpec,
    executors: Sequence[type[Executor]],
    compiled: bool,
    order: Order | None,
    pool: Pool | None,
    seed: int,
) -> ProblemResult:
    found, left_out = list_variants(workload, device, executors, order)
    # Policies differ only in tables, not in code, so schedules that differ in nothing else are compiled once.
    unlike = {(v.executor, replace(v.schedule, policy=ConsumerSync())): v for v in reversed(found)}
    for _ in compile_launches([variant.make_executor for variant in unlike.values()], pool):
        pass
    problem = BenchProblem(workload, device, seed=seed)
    ready, errors = _check_variants(problem, found, left_out)
    modes = MODES if compiled else {"eager": None}
    functions = {"": problem.run_pytorch, **{f", {name}": other for name, other in problem.alternatives.items()}}
    libraries = _build_libraries(problem, modes, functions, problem.run_once, problem.make_rotation)
    ours = {label: problem.make_rotation(problem.make_run(made)) for label, (_, made) in ready.items()}
    floor = make_stream(problem.read_buffers, problem.runs, device)
    streams = {} if floor is None else {"stream": floor}
    compute_bound = problem.flops_us > problem.bytes_us
    rounds = time_rounds({**libraries, **ours, **streams}, REPEATS, problem.runs, read_clocks=compute_bound)
    labels: dict[str, list[str]] = {}
    for label, (variant, _) in ready.items():
        labels.setdefault(variant.executor.name, []).append(label)
    best = {name: rounds.find_fastest(some) for name, some in labels.items()}
    layer = None
    if workload.layer_ports is not None:
        plain = {"": problem.make_layer(problem.run_pytorch)}
        blocks = _build_libraries(problem, modes, plain, problem.run_layer_once, problem.make_layer_rotation)
        mine = {}
        for name, label in best.items():
            variant, executor = ready[label]
            mine[name] = _build_layers(problem, name, executor, compiled, _make_layered(workload, variant))
        each = {way: call for ways in mine.values() for way, call in ways.items()}
        layer_rounds = time_rounds({**blocks, **each}, REPEATS, problem.runs, read_clocks=compute_bound)
        timed = _collect_times(layer_rounds, each)
        quickest = {name: layer_rounds.find_fastest(ways) for name, ways in mine.items()}
        layer = Comparison(
            _collect_times(layer_rounds, blocks), {name: timed[way] for name, way in quickest.items()}, quickest
        )
    for label in best.values():
        errors[label] = max(errors[label], problem.check(ready[label][1]))
    streamed = rounds.times["stream"] if streams else None
    alone = _collect_times(rounds, ours)
    return ProblemResult(
        preset,
        workload,
        Comparison(_collect_times(rounds, libraries), {name: alone[label] for name, label in best.items()}),
        layer,
        {name: ready[label][0] for name, label in best.items()},
        {name: errors[label] for name, label in best.items()},
        problem.pytorch_error,
        streamed,
        max(problem.flops_us, problem.bytes_us if streamed is None else streamed.median_us),
        left_out,
        compute_bound,
        None if rounds.clocks is None else rounds.clocks.watts,
    )


def _check_variants(
    problem: BenchProblem, found: Sequence[Variant], left_out: dict[str, str]
) -> tuple[dict[str, tuple[Variant, DeviceExecutor]], dict[str, float]]:
    """Return by label the variants with correct results and their errors; leave out executors that have none."""
    ready: dict[str, tuple[Variant, DeviceExecutor]] = {}
    errors: dict[str, float] = {}
    failed: dict[str, str] = {}
    for variant in found:
        try:
            with translate_errors(problem.workload, variant.device):
                executor = variant.make_executor()
                errors[variant.label] = problem.check(executor)
            ready[variant.label] = variant, executor
        except _CANNOT as error:
            failed.setdefault(variant.executor.name, str(error))
    able = {variant.executor.name for variant, _ in ready.values()}
    left_out.update({name: reason for name, reason in failed.items() if name not in able})
    if not ready:
        told = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise PlanError(f"no executor runs {problem.workload.title}: {told}")
    return ready, errors


def _build_libraries(
    problem: BenchProblem,
    modes: Mapping[str, str | None],
    functions: Mapping[str, Callable[..., Any]],
    once: Callable[[Any, Sequence[Tensors]], None],
    every: Callable[[Any, Sequence[Tensors]], Callable[[], Any]],
) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's functions by label, in each mode, compiled if the mode is, with weights stored either way."""
    torch, _ = open_device("cuda")
    lock_autotuning()
    stored: dict[str, Sequence[Tensors]] = {"": problem.weights, ", transposed weights": problem.transpose_weights()}
    torch.compiler.reset()
    found = {}
    for (label, mode), (way, one), (suffix, weights) in product(modes.items(), functions.items(), stored.items()):
        if weights:
            if mode is not None:
                one = torch.compile(one, mode=mode, dynamic=False)
                once(one, weights)
            found[label + way + suffix] = every(one, weights)
    return found


def _build_layers(
    problem: BenchProblem, name: str, executor: DeviceExecutor, compiled: bool, whole: DeviceExecutor | None = None
) -> dict[str, Callable[[], Any]]:
    """Return functions that run an executor in a model's layers, by name of the configuration.

    The ops around it are run by eager PyTorch, compiled, or, with ``whole``, run by the executor too.

    Args:
        problem: problem to run.
        name: name of the executor.
        executor: executor of the problem alone.
        compiled: True to include the configuration with compiled ops around the executor.
        whole: executor of ``Workload.layer_workload``; None if there is none.

    Raises:
        ResultError: a result is wrong.
    """
    torch, _ = open_device("cuda")
    run = problem.make_run(executor)
    block = problem.make_layer(run)
    problem.check_layers(block, executor)
    ways = {name: problem.make_layer_rotation(block)}
    if compiled:
        around = torch.compile(problem.make_layer(torch.compiler.disable(run)), dynamic=False)
        problem.run_layer_once(around)
        ways[f"{name}, compiled around"] = problem.make_layer_rotation(around)
    if whole is not None:
        block = problem.make_whole_layer(whole)
        problem.check_layers(block, whole)
        ways[f"{name}, whole layer"] = problem.make_layer_rotation(block)
    return ways


def _make_layered(workload: Workload, variant: Variant) -> DeviceExecutor | None:
    """Return an executor of the whole layer like the problem's, under its default schedule; None if there is none."""
    device, executor = variant.device, variant.executor
    if workload.layer_workload is None:
        return None
    graph = workload.layer_workload.build_graph(device)
    if executor.fallback_reason(graph, device) is not None:
        return None
    schedule = replace(executor.select_default(graph, device), policy=variant.schedule.policy)
    return Variant(graph, device, executor, schedule).make_executor()


def _collect_times(rounds: Rounds, names: Mapping[str, object]) -> dict[str, VariantTimes]:
    mhz = {} if rounds.clocks is None else rounds.clocks.sm_mhz
    return {name: VariantTimes(rounds.times[name], rounds.picking_us[name], mhz.get(name)) for name in names}

"""Plan a graph for an executor on a device and make the executor; rules or a search choose the schedule."""

from __future__ import annotations

from dataclasses import fields, replace
from math import prod
from typing import Any

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.devices import DEFAULT_GPU, DeviceSpec
from interlace.core.errors import ArgumentError, NoDeviceError, PlanError
from interlace.deploy.store import load_cached
from interlace.executors import SINGLE_LAUNCH_EXECUTORS, DeviceExecutor, Executor
from interlace.executors.gpu import find_spec
from interlace.graph.access import FULL
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.megakernel.options import RunOptions
from interlace.plan.plan import Plan
from interlace.planner.build import build
from interlace.planner.proof_cache import prove_schedule
from interlace.policies.schedule import Schedule

_ATTRIBUTES = tuple(field.name for field in fields(Schedule))
_DEPENDENT = (9, 0)  # minimum compute capability for a launch to start while the previous one drains


def autoplan(
    graph: Graph,
    device: DeviceSpec | None = None,
    executor: type[Executor] | None = None,
    *,
    search: bool = False,
    **given: Any,
) -> Plan:
    """Plan a graph so that an executor can run it on a device, with its ops retiled as the executor needs.

    Use ``autoplan`` to have the schedule decided for an executor and a device, ``build`` to decide it yourself.

    Args:
        graph: graph in any tiling; the plan's graph has the same ops on the same tensors.
        device: device that it runs on; by default the current CUDA device, or ``DEFAULT_GPU`` if there is none.
        executor: class of the executor; by default the first of ``executors.SINGLE_LAUNCH_EXECUTORS`` that can run the
            graph.
        search: True to let the planner choose by prediction, which takes seconds, instead of by measured rules.
        given: attributes of ``Schedule``, such as ``policy`` or ``workers``, that replace the decided ones.

    Raises:
        ArgumentError: an argument has the wrong type, or a schedule has no such attribute.
        GraphError, PlanError, NoDeviceError: the executor cannot run the graph on the device in any known tiling.
        SimulationError: the graph is too large for a search.
        TooManyItemsError, OrderError, IntraOpRaceError, UnwrittenError: see ``build``.
    """
    check_type(graph, Graph, "autoplan", "graph")
    check_type(device, (DeviceSpec, type(None)), "autoplan", "device", "il.H200")
    if executor is not None and not (isinstance(executor, type) and issubclass(executor, Executor)):
        raise ArgumentError(f"autoplan: executor is {executor!r}; pass a class, such as il.PersistentExecutor")
    unknown = sorted(given.keys() - {*_ATTRIBUTES})
    if unknown:
        raise ArgumentError(f"autoplan: a schedule has no {unknown}; choose among {', '.join(_ATTRIBUTES)}")
    device = _find_device() if device is None else device
    executor = select_executor(graph, device) if executor is None else executor
    executor.check(graph, device)
    if search:
        graph, schedule = _search_schedule(graph, device, executor)
    else:
        schedule = executor.select_default(graph, device)
    return build(graph, replace(schedule, **given))


def select_executor(graph: Graph, device: DeviceSpec) -> type[DeviceExecutor]:
    """Return the fastest executor that runs a graph as one launch on a device.

    Raises:
        PlanError: no executor can; the message gives the reasons.
    """
    reasons = {executor: executor.fallback_reason(graph, device) for executor in SINGLE_LAUNCH_EXECUTORS}
    for executor, reason in reasons.items():
        if reason is None:
            return executor
    told = "; ".join(f"{executor.name}: {reason}" for executor, reason in reasons.items())
    raise PlanError(f"no executor runs graph {graph.name!r} as one launch on {device.name}: {told}")


def _find_device() -> DeviceSpec:
    try:
        return find_spec("cuda")
    except NoDeviceError:
        return DEFAULT_GPU


def _search_schedule(graph: Graph, device: DeviceSpec, executor: type[Executor]) -> tuple[Graph, Schedule]:
    """Return the best schedule by prediction, and the graph in the tiles that it is for."""
    from interlace.planner.search import search  # slow import: compiled code

    tilings = executor.iter_tilings(graph, device)
    if not tilings:
        executor.select_default(graph, device)  # raises with the reason
    best = search(tilings, device, executor.build_mode(tilings[0], device), dispatches=executor.dispatches).best
    return best.graph, best.schedule


def select_schedule(graph: Graph, device: DeviceSpec, executor: type[Executor]) -> Schedule:
    """Return the schedule cached by ``interlace tune``, or the executor's default if there is none.

    Raises:
        GraphError, PlanError: no tiling known to the rules can be launched.
    """
    kept = load_cached(graph, device, executor)
    return executor.select_default(graph, device) if kept is None else kept.schedule


def avoid_resident_workers(schedule: Schedule, executor: type[Executor]) -> Schedule:
    """Return the schedule with a dispatch that does not need all workers resident at once.

    Use it for launches that other work may keep from some SMs for as long as they wait.
    """
    return replace(schedule, dispatch=executor.dispatches[0]) if schedule.dispatch.has_resident_workers else schedule


def make_executor(
    graph: Graph,
    device: DeviceSpec,
    executor: type[DeviceExecutor],
    schedule: Schedule,
    options: RunOptions | None = None,
) -> DeviceExecutor:
    """Return an executor of the planned and verified graph, ready to run.

    Args:
        graph: graph in any tiling.
        device: device that it runs on.
        executor: class of the executor.
        schedule: schedule of the plan; plans of many ops are cached on disk (``planner/proof_cache``).
        options: run options; None for those of a model's layers: the launch may start while the previous one drains,
            where it ``can_overlap``.

    Raises:
        PlanError, OrderError, ParamError, NoDeviceError, ShapeError, DTypeError: see ``build`` and the executors.
    """
    proof = prove_schedule(graph, schedule)
    if options is None:
        options = RunOptions(dependent_launch=can_overlap(executor, proof.plan, device))
    return executor(proof, options)


def can_overlap(executor: type[Executor], plan: Plan, device: DeviceSpec) -> bool:
    """Return True if a run of a plan may start while the previous run drains, given the executor and the GPU."""
    return plan.dispatch in executor.overlapping_dispatches and device.capability >= _DEPENDENT


def current_device() -> DeviceSpec:
    """Return the spec of the current CUDA device.

    Raises:
        NoDeviceError: there is no CUDA device.
    """
    return find_spec("cuda")


def count_flops(graph: Graph) -> float:
    """Return the floating-point operations of one run, without those on padding elements of tiles."""
    return sum(_count_op_flops(graph, op) for op in graph.ops)


def _count_op_flops(graph: Graph, op: Op) -> float:
    """Return the FLOPs of all tiles of an op, each scaled by the part of it inside the op's first output."""
    if not op.writes:
        return op.flops * op.tiles
    access = op.writes[0]
    shape = graph.tensor(access.tensor).shape
    coords = op.compute_coords()
    zeros = np.zeros(len(coords), np.int64)
    lo, hi = access.compute_bounds(shape, coords, zeros, zeros + op.k_extent)
    whole = []
    for span, extent in zip(access.spans, shape, strict=True):
        first, last = (int(b.evaluate(coords[:1], zeros[:1], zeros[:1])[0]) for b in (span.lo, span.hi))
        whole.append(extent if last >= FULL else last - first)
    return op.flops * float(np.prod(hi - lo, axis=1, dtype=np.float64).sum()) / max(prod(whole), 1)

"""Plan a graph for an executor on a device; rules or a search choose tiles, order and splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from interlace.core.arguments import check_type
from interlace.core.devices import DEFAULT_GPU, DeviceSpec
from interlace.core.errors import ArgumentError, NoDeviceError, PlanError
from interlace.executors import SINGLE_LAUNCH_EXECUTORS, DeviceExecutor, Executor
from interlace.executors.gpu import find_spec
from interlace.graph.graph import Graph
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof
from interlace.planner.build import Choices, build
from interlace.planner.proof_cache import prove_choices
from interlace.planner.settings import derive_choices, retile

_CHOICES = tuple(field.name for field in fields(Choices))


def autoplan(
    graph: Graph,
    device: DeviceSpec | None = None,
    executor: type[Executor] | None = None,
    *,
    search: bool = False,
    **given: Any,
) -> Plan:
    """Plan a graph so that an executor can run it on a device, with its ops retiled as the executor needs.

    Use ``autoplan`` to have the choices made for an executor and a device, ``build`` to make them yourself.

    Args:
        graph: graph in any tiling; the plan's graph has the same ops on the same tensors.
        device: device that it runs on; by default the current CUDA device, or ``DEFAULT_GPU`` if there is none.
        executor: class of the executor; by default the first of ``executors.SINGLE_LAUNCH_EXECUTORS`` that can run the
            graph.
        search: True to let the planner choose by prediction, which takes seconds, instead of by measured rules.
        given: attributes of ``Choices``, such as ``policy`` or ``workers``, that replace the chosen ones.

    Raises:
        ArgumentError: an argument has the wrong type, or a choice is unknown.
        GraphError, PlanError, NoDeviceError: the executor cannot run the graph on the device in any known tiling.
        SimulationError: the graph is too large for a search.
        TooManyItemsError, OrderError, IntraOpRaceError, UnwrittenError: see ``build``.
    """
    return build(*_choose(graph, device, executor, search, given))


def prove_graph(graph: Graph, device: DeviceSpec, executor: type[Executor], **given: Any) -> Proof:
    """Plan a graph as ``autoplan`` does by rule, and prove it; plans of many ops are cached (``planner/proof_cache``).

    Raises:
        InterlaceError: see ``autoplan`` and ``verify``.
    """
    return prove_choices(*_choose(graph, device, executor, False, given))


def _choose(
    graph: Graph,
    device: DeviceSpec | None,
    executor: type[Executor] | None,
    search: bool,
    given: Mapping[str, Any],
) -> tuple[Graph, Choices]:
    """Return the graph and the choices that ``autoplan`` builds a plan from."""
    check_type(graph, Graph, "autoplan", "graph")
    check_type(device, (DeviceSpec, type(None)), "autoplan", "device", "il.H200")
    if executor is not None and not (isinstance(executor, type) and issubclass(executor, Executor)):
        raise ArgumentError(f"autoplan: executor is {executor!r}; pass a class, such as il.PersistentExecutor")
    unknown = sorted(given.keys() - {*_CHOICES})
    if unknown:
        raise ArgumentError(f"autoplan: there are no choices {unknown}; choose among {', '.join(_CHOICES)}")
    device = _find_device() if device is None else device
    executor = select_executor(graph, device) if executor is None else executor
    executor.check(graph, device)
    tiled, chosen = _choose_by_search(graph, device, executor) if search else _choose_by_rule(graph, device, executor)
    return tiled, replace(chosen, **given)


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


def _choose_by_rule(graph: Graph, device: DeviceSpec, executor: type[Executor]) -> tuple[Graph, Choices]:
    setting = executor.select_default(graph, device)
    tiled = retile(graph, setting)
    chosen = derive_choices(tiled, setting, device.sms)
    return tiled, replace(chosen, dispatch=executor.select_dispatch(tiled, device, chosen))


def _choose_by_search(graph: Graph, device: DeviceSpec, executor: type[Executor]) -> tuple[Graph, Choices]:
    from interlace.planner.search import search  # slow import: compiled code

    tilings = executor.iter_tilings(graph, device)
    if not tilings:
        executor.select_default(graph, device)  # raises with the reason
    best = search(tilings, device, executor.build_mode(tilings[0], device), dispatches=executor.dispatches).best
    return best.graph, best.choices

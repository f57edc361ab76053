"""Plan a graph for an executor on a device; rules or a search choose tiles, order and splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from interlace.core.arguments import check_type
from interlace.core.devices import DEFAULT_GPU, DeviceSpec
from interlace.core.errors import ArgumentError, NoDeviceError, PlanError
from interlace.executors import ONE_LAUNCH, DeviceExecutor, Executor
from interlace.executors.gpu import spec_by_name
from interlace.graph.graph import Graph
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof
from interlace.planner.build import Choices, build
from interlace.planner.kept import proved
from interlace.planner.settings import choices, retiled

_CHOICES = tuple(field.name for field in fields(Choices))


def plan_graph(
    graph: Graph,
    device: DeviceSpec | None = None,
    executor: type[Executor] | None = None,
    *,
    search: bool = False,
    **given: Any,
) -> Plan:
    """Plan a graph so that an executor can run it on a device, with its ops retiled as the executor needs.

    Use ``plan_graph`` to have the choices made for an executor and a device, ``build`` to make them yourself.

    Args:
        graph: graph in any tiling; the plan's graph has the same ops on the same tensors.
        device: device that it runs on; by default the current CUDA device, or ``DEFAULT_GPU`` if there is none.
        executor: class of the executor; by default the first of ``executors.ONE_LAUNCH`` that can run the graph.
        search: True to let the planner choose by prediction, which takes seconds, instead of by measured rules.
        given: attributes of ``Choices``, such as ``policy`` or ``workers``, that replace the chosen ones.

    Raises:
        ArgumentError: an argument has the wrong type, or a choice is unknown.
        GraphError, PlanError, NoDeviceError: the executor cannot run the graph on the device in any known tiling.
        SimulationError: the graph is too large for a search.
        TooManyItemsError, OrderError, IntraOpRaceError, UnwrittenError: see ``build``.
    """
    return build(*_decided(graph, device, executor, search, given))


def prove_graph(graph: Graph, device: DeviceSpec, executor: type[Executor], **given: Any) -> Proof:
    """Plan a graph as ``plan_graph`` does by rule, and prove it; plans of many ops are cached (``planner/kept``).

    Raises:
        InterlaceError: see ``plan_graph`` and ``verify``.
    """
    return proved(*_decided(graph, device, executor, False, given))


def _decided(
    graph: Graph,
    device: DeviceSpec | None,
    executor: type[Executor] | None,
    search: bool,
    given: Mapping[str, Any],
) -> tuple[Graph, Choices]:
    """Return the graph and the choices that ``plan_graph`` builds a plan from."""
    check_type(graph, Graph, "plan_graph", "graph")
    check_type(device, (DeviceSpec, type(None)), "plan_graph", "device", "il.H200")
    if executor is not None and not (isinstance(executor, type) and issubclass(executor, Executor)):
        raise ArgumentError(f"plan_graph: executor is {executor!r}; pass a class, such as il.PersistentExecutor")
    unknown = sorted(given.keys() - {*_CHOICES})
    if unknown:
        raise ArgumentError(f"plan_graph: there are no choices {unknown}; choose among {', '.join(_CHOICES)}")
    device = _here() if device is None else device
    executor = runner(graph, device) if executor is None else executor
    executor.check(graph, device)
    tiled, chosen = _searched(graph, device, executor) if search else _by_rule(graph, device, executor)
    return tiled, replace(chosen, **given)


def runner(graph: Graph, device: DeviceSpec) -> type[DeviceExecutor]:
    """Return the fastest executor that runs a graph as one launch on a device.

    Raises:
        PlanError: no executor can; the message gives the reasons.
    """
    reasons = {executor: executor.obstacle(graph, device) for executor in ONE_LAUNCH}
    for executor, reason in reasons.items():
        if reason is None:
            return executor
    told = "; ".join(f"{executor.name}: {reason}" for executor, reason in reasons.items())
    raise PlanError(f"no executor runs graph {graph.name!r} as one launch on {device.name}: {told}")


def _here() -> DeviceSpec:
    try:
        return spec_by_name("cuda")
    except NoDeviceError:
        return DEFAULT_GPU


def _by_rule(graph: Graph, device: DeviceSpec, executor: type[Executor]) -> tuple[Graph, Choices]:
    setting = executor.default(graph, device)
    tiled = retiled(graph, setting)
    chosen = choices(tiled, setting, device.sms)
    return tiled, replace(chosen, dispatch=executor.dispatch(tiled, device, chosen))


def _searched(graph: Graph, device: DeviceSpec, executor: type[Executor]) -> tuple[Graph, Choices]:
    from interlace.planner.search import search  # slow import: compiled code

    tilings = executor.tilings(graph, device)
    if not tilings:
        executor.default(graph, device)  # raises with the reason
    best = search(tilings, device, executor.mode(tilings[0], device), dispatches=executor.dispatches).best
    return best.graph, best.choices

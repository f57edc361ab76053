"""The launch that a module runs, if it runs one: what was tuned, else by the executor whose launches were measured."""

from __future__ import annotations

from interlace.core.devices import DeviceSpec
from interlace.deploy.deployment import Deployment, deployment
from interlace.deploy.table import table
from interlace.executors import DeviceExecutor
from interlace.executors.one_launch import OneLaunchExecutor
from interlace.graph.graph import Graph

#: Those whose launches also serve fewer rows than they are built for.
SERVING: tuple[type[DeviceExecutor], ...] = (OneLaunchExecutor,)


def serving(graph: Graph, device: DeviceSpec) -> Deployment:
    """A graph as the launch that serves a module on a device.

    Raises:
        PlanError: no executor can run it; says why not.
    """
    able = [Deployment(graph, device, kind) for kind in SERVING if kind.obstacle(graph, device) is None]
    if not able:
        return deployment(graph, device)
    measured = table(device).executor
    return max(able, key=lambda found: (found.kept is not None, found.executor.name == measured))

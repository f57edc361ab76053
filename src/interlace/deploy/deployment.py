"""A graph on a device as one launch: by which executor, under which setting, and what is predicted of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.deploy.planning import runner
from interlace.deploy.store import Kept, lookup, store
from interlace.executors import DeviceExecutor, Executor
from interlace.executors.gpu import spec_by_name
from interlace.executors.options import Options
from interlace.graph.access import FULL
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof
from interlace.planner.build import Choices, build
from interlace.planner.kept import proved
from interlace.planner.settings import choices, retiled
from interlace.policies.orders import Order
from interlace.policies.setting import Setting
from interlace.policies.sync import SyncPolicy
from interlace.sim.modes import Mode

_DEPENDENT = (9, 0)  # compute capability from which a launch may start while the one before drains


@dataclass(frozen=True)
class Deployment:
    """A graph as one launch.

    Attributes:
        graph: in any tiling.
        device: what it runs on.
        executor: by which.
    """

    graph: Graph
    device: DeviceSpec
    executor: type[DeviceExecutor]

    @property
    def default(self) -> Setting:
        """The setting without any search.

        Raises:
            GraphError, PlanError: nothing that the rules know makes a launch.
        """
        return self.executor.default(self.graph, self.device)

    @property
    def kept(self) -> Kept | None:
        """What ``interlace tune`` kept for it, None if nothing or damaged."""
        return lookup(self.graph, self.device, self.executor)

    def setting(self) -> Setting:
        """The setting that ``interlace tune`` kept, else the default."""
        kept = self.kept
        return self.default if kept is None else kept.setting

    def settings(self) -> Iterator[Setting]:
        """All that make a launch and that a search may try, the default first, each once."""
        return self.executor.settings(self.graph, self.device)

    def plan(
        self, setting: Setting, policy: SyncPolicy | None = None, order: Order | None = None, *, alone: bool = True
    ) -> Plan:
        """The plan under a setting, by default of the finest policy and in the setting's own order.

        Args:
            setting, policy, order: how.
            alone: nothing else keeps SMs for as long as it waits; else no dispatch is taken that needs all at once.

        Raises:
            PlanError, OrderError, ParamError, ShapeError, TooManyItemsError: as ``planner.settings.retiled`` and
                ``build``.
        """
        return build(*self._chosen(setting, policy, order, alone))

    def proof(
        self, setting: Setting, policy: SyncPolicy | None = None, order: Order | None = None, *, alone: bool = True
    ) -> Proof:
        """The plan under a setting, proved; one of many ops is kept on disk, and not made twice (``planner/kept``).

        Args:
            setting, policy, order, alone: as of ``plan``.

        Raises:
            PlanError, OrderError, ParamError, ShapeError, TooManyItemsError: as ``plan`` and ``verify``.
        """
        return proved(*self._chosen(setting, policy, order, alone))

    def _chosen(
        self, setting: Setting, policy: SyncPolicy | None, order: Order | None, alone: bool
    ) -> tuple[Graph, Choices]:
        """What a plan is built of."""
        tiled = retiled(self.graph, setting)
        chosen = choices(tiled, setting, self.device.sms)
        dispatch = self.executor.dispatch(tiled, self.device, chosen)
        chosen = replace(chosen, dispatch=dispatch if alone or not dispatch.resident else self.executor.dispatches[0])
        chosen = chosen if policy is None else replace(chosen, policy=policy)
        return tiled, chosen if order is None else replace(chosen, order=order)

    def mode(self, plan: Plan) -> Mode:
        """How a prediction takes the executor of a plan."""
        return self.executor.mode(plan.graph, self.device)

    def make(
        self,
        setting: Setting,
        options: Options | None = None,
        policy: SyncPolicy | None = None,
        order: Order | None = None,
    ) -> DeviceExecutor:
        """Planned, verified and ready to run.

        Args:
            setting, policy, order: how; see ``plan``.
            options: by default those of a model's layers: it may start while the launch before drains, where that
                ``overlaps``.

        Raises:
            PlanError, OrderError, NoDeviceError, ShapeError, DTypeError: as the executors do.
        """
        proof = self.proof(setting, policy, order)
        if options is None:
            options = Options(dependent_launch=overlaps(self.executor, proof.plan, self.device))
        return self.executor(proof, options)

    @property
    def flops(self) -> float:
        """Floating-point operations of one run, without those on elements that only fill a tile."""
        return sum(_flops(self.graph, op) for op in self.graph.ops)

    def keep(self, setting: Setting, us: float, library_us: float | None = None) -> Path:
        """Keep a setting with its time and, if it was timed beside it, the library's; returns the file.

        Raises:
            OSError: the cache cannot be written.
        """
        return store(self.graph, self.device, self.executor, Kept(setting, us, library_us))


def overlaps(executor: type[Executor], plan: Plan, device: DeviceSpec) -> bool:
    """Whether a run of a plan may start while the run before drains, as the executor and the GPU allow."""
    return plan.dispatch in executor.overlapping and device.capability >= _DEPENDENT


def deployment(graph: Graph, device: DeviceSpec) -> Deployment:
    """A graph by the fastest executor that can run it as one launch on a device.

    Raises:
        PlanError: none can; says why not.
    """
    return Deployment(graph, device, runner(graph, device))


def here() -> DeviceSpec:
    """The current CUDA device.

    Raises:
        NoDeviceError: there is none.
    """
    return spec_by_name("cuda")


def _flops(graph: Graph, op: Op) -> float:
    """Of all its tiles, by the part of each that lies in what the op writes first."""
    if not op.writes:
        return op.flops * op.tiles
    access = op.writes[0]
    shape = graph.tensor(access.tensor).shape
    coords = op.coords()
    zeros = np.zeros(len(coords), np.int64)
    lo, hi = access.bounds(shape, coords, zeros, zeros + op.k_extent)
    whole = []
    for span, extent in zip(access.spans, shape, strict=True):
        first, last = (int(b.evaluate(coords[:1], zeros[:1], zeros[:1])[0]) for b in (span.lo, span.hi))
        whole.append(extent if last >= FULL else last - first)
    return op.flops * float(np.prod(hi - lo, axis=1, dtype=np.float64).sum()) / max(prod(whole), 1)

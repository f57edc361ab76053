"""A graph as one launch (a megakernel) on a device: its executor, setting, plan, proof and predicted mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.deploy.planning import select_executor
from interlace.deploy.store import CacheEntry, load_cached, store_cached
from interlace.executors import DeviceExecutor, Executor
from interlace.executors.gpu import find_spec
from interlace.graph.access import FULL
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.megakernel.options import RunOptions
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof
from interlace.planner.build import Choices, build
from interlace.planner.proof_cache import prove_choices
from interlace.planner.settings import derive_choices, retile
from interlace.policies.orders import Order
from interlace.policies.setting import Setting
from interlace.policies.sync import SyncPolicy
from interlace.sim.modes import Mode

_DEPENDENT = (9, 0)  # minimum compute capability for a launch to start while the previous one drains


@dataclass(frozen=True)
class Deployment:
    """A graph as one launch.

    Attributes:
        graph: graph in any tiling.
        device: device that it runs on.
        executor: class of the executor that runs it.
    """

    graph: Graph
    device: DeviceSpec
    executor: type[DeviceExecutor]

    @property
    def default_setting(self) -> Setting:
        """Setting chosen by rules, without a search.

        Raises:
            GraphError, PlanError: no setting known to the rules makes a launch.
        """
        return self.executor.select_default(self.graph, self.device)

    @property
    def cache_entry(self) -> CacheEntry | None:
        """Cached result of ``interlace tune``; None if it is absent or damaged."""
        return load_cached(self.graph, self.device, self.executor)

    def select_setting(self) -> Setting:
        """Return the setting cached by ``interlace tune``, or the default if there is none."""
        kept = self.cache_entry
        return self.default_setting if kept is None else kept.setting

    def iter_settings(self) -> Iterator[Setting]:
        """Yield every setting that makes a launch and that a search may try, the default first, without repeats."""
        return self.executor.iter_settings(self.graph, self.device)

    def build_plan(
        self, setting: Setting, policy: SyncPolicy | None = None, order: Order | None = None, *, alone: bool = True
    ) -> Plan:
        """Build the plan under a setting, by default with the finest policy and in the setting's own order.

        Args:
            setting, policy, order: setting, and the policy and order that replace its own if given.
            alone: True if nothing else occupies SMs for as long as it waits; False to avoid dispatches that need all
                workers resident at once.

        Raises:
            PlanError, OrderError, ParamError, ShapeError, TooManyItemsError: see ``planner.settings.retile`` and
                ``build``.
        """
        return build(*self._choose(setting, policy, order, alone))

    def prove_plan(
        self, setting: Setting, policy: SyncPolicy | None = None, order: Order | None = None, *, alone: bool = True
    ) -> Proof:
        """Build and prove the plan under a setting; plans of many ops are cached on disk (``planner/proof_cache``).

        Args:
            setting, policy, order, alone: arguments of ``build_plan``.

        Raises:
            PlanError, OrderError, ParamError, ShapeError, TooManyItemsError: see ``build_plan`` and ``verify``.
        """
        return prove_choices(*self._choose(setting, policy, order, alone))

    def _choose(
        self, setting: Setting, policy: SyncPolicy | None, order: Order | None, alone: bool
    ) -> tuple[Graph, Choices]:
        """Return the graph and the choices that a plan is built from."""
        tiled = retile(self.graph, setting)
        chosen = derive_choices(tiled, setting, self.device.sms)
        dispatch = self.executor.select_dispatch(tiled, self.device, chosen)
        chosen = replace(
            chosen, dispatch=dispatch if alone or not dispatch.has_resident_workers else self.executor.dispatches[0]
        )
        chosen = chosen if policy is None else replace(chosen, policy=policy)
        return tiled, chosen if order is None else replace(chosen, order=order)

    def build_mode(self, plan: Plan) -> Mode:
        """Return the mode of the executor for predicting a plan."""
        return self.executor.build_mode(plan.graph, self.device)

    def make_executor(
        self,
        setting: Setting,
        options: RunOptions | None = None,
        policy: SyncPolicy | None = None,
        order: Order | None = None,
    ) -> DeviceExecutor:
        """Return an executor of the planned and verified graph, ready to run.

        Args:
            setting, policy, order: arguments of ``build_plan``.
            options: launch options; None for those of a model's layers: the launch may start while the previous one
                drains, where it ``can_overlap``.

        Raises:
            PlanError, OrderError, NoDeviceError, ShapeError, DTypeError: see the executors.
        """
        proof = self.prove_plan(setting, policy, order)
        if options is None:
            options = RunOptions(dependent_launch=can_overlap(self.executor, proof.plan, self.device))
        return self.executor(proof, options)

    @property
    def flops(self) -> float:
        """Floating-point operations of one run, without those on padding elements of tiles."""
        return sum(_count_flops(self.graph, op) for op in self.graph.ops)

    def cache_setting(self, setting: Setting, us: float, library_us: float | None = None) -> Path:
        """Cache a setting with its time and, if it was timed in the same run, the library's; return the file's path.

        Raises:
            OSError: the cache cannot be written.
        """
        return store_cached(self.graph, self.device, self.executor, CacheEntry(setting, us, library_us))


def can_overlap(executor: type[Executor], plan: Plan, device: DeviceSpec) -> bool:
    """Return True if a run of a plan may start while the previous run drains, given the executor and the GPU."""
    return plan.dispatch in executor.overlapping_dispatches and device.capability >= _DEPENDENT


def deploy_graph(graph: Graph, device: DeviceSpec) -> Deployment:
    """Return the deployment of a graph by the fastest executor that can run it as one launch on a device.

    Raises:
        PlanError: no executor can; the message gives the reasons.
    """
    return Deployment(graph, device, select_executor(graph, device))


def current_device() -> DeviceSpec:
    """Return the spec of the current CUDA device.

    Raises:
        NoDeviceError: there is no CUDA device.
    """
    return find_spec("cuda")


def _count_flops(graph: Graph, op: Op) -> float:
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

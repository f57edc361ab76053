"""The whole graph as one launch of Triton bodies: workers stay resident and execute the plan's items.

Each program is a worker. It takes the next row of the item table, by ticket or from its queue, and polls the row's
waits. It computes the tile by the op's body (the one kernel has a branch for each op), meets at a barrier and posts.
Unlike ``one_launch``, it loads nothing of the next item before the present one has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.core.errors import PlanError, TooManyWorkersError
from interlace.executors.gpu import count_resident_blocks
from interlace.executors.launch import AnyLaunch, TritonLaunch
from interlace.executors.triton import TritonExecutor
from interlace.graph.graph import Graph
from interlace.kernels.bodies import BodyKind
from interlace.megakernel.table import DeviceTables, build_worker_tables
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch
from interlace.sim.modes import PERSISTENT, Mode, slow_to_plain_bodies

#: Most ops of one launch on a GPU. The kernel has the code of each, and more take minutes to compile.
MAX_OPS = 16


class PersistentExecutor(TritonExecutor):
    """Executor whose workers run items under the plan's dispatch, static or ticket.

    Static dispatch needs all workers resident at once, so it uses a cooperative launch; ticket dispatch makes progress
    with any number of resident workers.

    Raises:
        TooManyWorkersError: under static dispatch, more workers than the device keeps resident.
    """

    name = title = "persistent"
    description = "one launch, workers run the whole graph"
    #: The block meets at a barrier between two items, so an item sees what the one before wrote.
    enforced_orderings = frozenset({Ordering.WORKER, Ordering.WAIT})
    body_kinds = (BodyKind.TRITON,)
    is_interpretable = True
    has_trace_times = True

    @classmethod
    def check(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise if the executor cannot run a graph on a device; see ``Executor.check``."""
        super().check(graph, device)
        if device.capability != (0, 0) and len(graph.ops) > MAX_OPS:
            raise PlanError(
                f"graph {graph.name!r} has {len(graph.ops)} ops, and the {cls.name} executor compiles at most "
                f"{MAX_OPS} into its one kernel; use pdl, or make several graphs of them"
            )

    @classmethod
    def build_mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """Return the model of one launch that runs the whole sequence."""
        return slow_to_plain_bodies(PERSISTENT)

    def _lower(self) -> DeviceTables:
        return build_worker_tables(self.plan, self._find_chunked_ops())

    def _prepare(self) -> None:
        self._static = self.plan.dispatch is Dispatch.STATIC
        if self._static and self.options.dependent_launch:
            raise PlanError(
                "dependent launch and static dispatch exclude each other: a cooperative launch cannot start early; "
                "use ticket dispatch"
            )
        if self._is_interpreted and self._static and self._table.workers > 1:
            raise TooManyWorkersError(
                f"the interpreter runs programs one after another, so {self._table.workers} static workers cannot be "
                "resident at once; use one worker or ticket dispatch"
            )
        self._lists = self._torch.tensor(self._table.worker_rows.astype(np.int32), device=self._device)
        self._checked = self._is_interpreted or not self._static

    def _build_launches(self, arguments: tuple[Any, ...]) -> list[TritonLaunch]:
        from interlace.kernels.templates import persistent_static_kernel, persistent_ticket_kernel

        options = {"num_warps": max(self._get_num_warps(op) for op in self.plan.graph.ops)}
        ops = tuple(op.name for op in self.plan.graph.ops)
        n, workers = len(self.plan.items), self._table.workers
        sync = self._build_sync(0, 0, workers if self._static else n + workers)
        if self._static:
            return [
                TritonLaunch(
                    persistent_static_kernel,
                    (workers,),
                    (sync, self._lists, self._build_constants(), arguments),
                    {**options, "launch_cooperative_grid": True},
                    ops,
                )
            ]
        dependent = self.options.dependent_launch and not self._is_interpreted
        return [
            TritonLaunch(
                persistent_ticket_kernel,
                (workers,),
                (sync, n, self._count_free_items(), self._build_constants(), arguments, dependent),
                {**options, "launch_pdl": dependent},
                ops,
            )
        ]

    def _count_free_items(self) -> int:
        """Return the number of leading items of the sequence that wait for nothing."""
        waiting = np.flatnonzero(np.diff(self.plan.waits.ptr))
        return int(waiting[0]) if len(waiting) else len(self.plan.items)

    def _enqueue(self, launches: Sequence[AnyLaunch]) -> None:
        if not self._checked:
            launches[0].load()
            resident = count_resident_blocks(launches[0].compile(), self._torch, self._device)
            if self._table.workers > resident:
                raise TooManyWorkersError(
                    f"plan has {self._table.workers} workers, but {self._device} keeps {resident} thread blocks of "
                    f"this kernel resident; static dispatch would wait for ever. Plan for at most {resident} workers, "
                    "or use ticket dispatch"
                )
            self._checked = True
        super()._enqueue(launches)


class PersistentStaticExecutor(PersistentExecutor):
    """Persistent executor with static dispatch only: the plan assigns each item to a worker."""

    name = title = "persistent-static"
    description = "one launch, a queue of tiles per worker"
    dispatches = (Dispatch.STATIC,)


class PersistentTicketExecutor(PersistentExecutor):
    """Persistent executor with ticket dispatch only: workers claim items through a counter."""

    name = title = "persistent-ticket"
    description = "one launch, workers claim tiles from a counter"
    dispatches = (Dispatch.TICKET,)
    kernel = "persistent_ticket_kernel"

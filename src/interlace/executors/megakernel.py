"""Megakernel: the whole graph as one launch of CUDA C++ on a Hopper GPU (``csrc/roles.cuh``).

The steps from a proof to a run, each built from the one before; the composition rejects what does not fit:

    table           the plan's items and waits as rows for the device (``megakernel/table``)
    parts           each op's body, and how a tile is computed (``megakernel/parts``)
    composition     the CUDA source, and the number of stages that shared memory holds (``megakernel/compose``)
    binary          compiled by NVRTC; needs no device
    parameter       the kernel's parameter for some tensors (``megakernel/launch``)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.devices import DeviceSpec
from interlace.core.errors import (
    DeviceError,
    InterlaceError,
    NoDeviceError,
    PlanError,
    TooManyWorkersError,
)
from interlace.executors.base import check_named_tensors
from interlace.executors.bound_launches import make_tensor_key
from interlace.executors.device import DeviceExecutor
from interlace.executors.gpu import check_generation, find_spec
from interlace.executors.launch import AnyLaunch, CudaSourceLaunch
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.bodies import COMPUTE_CAPABILITY_MAJOR, ROW_FLOATS, BodyKind
from interlace.kernels.cuda.compiler import CudaBinary
from interlace.kernels.cuda.launcher import LoadedKernel, load_kernel
from interlace.kernels.cuda.preamble import EMPTY_BYTE
from interlace.megakernel.clusters import check_resident_blocks, has_weight_pairs
from interlace.megakernel.compose import PREAMBLE, MegakernelSource, count_stages
from interlace.megakernel.dispatch import DispatchCode
from interlace.megakernel.launch import MemoryLaunch, ParameterLaunch
from interlace.megakernel.ll_search import select_ll_tensors
from interlace.megakernel.lower import LoweredGraph, lower
from interlace.megakernel.options import RunOptions, check_options
from interlace.megakernel.pacing import select_dispatch
from interlace.megakernel.parts import build_bodies, check_operands, count_warpgroups, get_graph_bodies
from interlace.megakernel.queues import QueueMemory
from interlace.megakernel.registers import compile_launch
from interlace.megakernel.table import DeviceTables, build_worker_tables
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof
from interlace.policies.interleavings import Abreast, Interleaving, OpAfterOp, find_joint_writers
from interlace.policies.schedule import Schedule
from interlace.sim.modes import LLHandOffs, Mode, make_megakernel_mode
from interlace.trace.events import Trace

_MIN_STAGES = 3  # stages of a ring that lets loads run ahead
_MAX_CACHED_LAUNCHES = 256  # cached launches, one per combination of tensor locations and layouts: two kilobytes each


class MegakernelExecutor(DeviceExecutor):
    """Megakernel executor: resident workers execute the plan's items, and weights stream ahead of the activations.

    All ops share one ring of shared memory, and each op divides its stages as it needs. Ops whose body is the CUDA
    source of a tile (a text) take a stage but move nothing through it.

    Args:
        plan, options: as for every device executor.

    Raises:
        GraphError: an op has no body for this executor.
        CoverageError: a dependency rests on the order of one worker.
        PlanError: tiles that cannot share a ring, prefetched weights that an op of the graph writes, a split op whose
            CUDA source computes whole tiles, split tiles in a plan that waits for later items, or loops that the
            megakernel cannot run.
        ParamError: params or names that a CUDA source does not accept.
        DTypeError, ShapeError: a dtype other than bf16 and fp16, rows that bulk loads cannot address, or tiles that the
            warpgroups cannot hold.
        NoDeviceError: the GPU is not of the Hopper generation.
        TooManyWorkersError: more workers than the device keeps resident, under dispatch with per-worker queues or
            termination by votes.
        DeviceError: dependent launch under spawn dispatch.
        QueueOverflowError: the queue may need to hold more items than ``RunOptions.queue_capacity``.
    """

    name = title = "one_launch"
    description = "one launch of CUDA C++, tiles of any width"
    #: Loads of a worker's next items run ahead of this item's stores, so only waits order items.
    enforced_orderings = frozenset({Ordering.WAIT})
    dispatches = (Dispatch.TICKET, *(d for d in Dispatch if d is not Dispatch.TICKET))
    #: Blocks of a launch start once all blocks of the launch before have started, so none of those waits for a block
    #: that has no SM.
    overlapping_dispatches = frozenset(d for d in Dispatch if d is not Dispatch.SPAWN)
    body_kinds = (BodyKind.MEGAKERNEL,)
    has_trace_times = True
    kernel = "one_launch"
    generation = COMPUTE_CAPABILITY_MAJOR

    def __init__(self, plan: Plan | Proof, options: RunOptions | None = None) -> None:
        proof = self.prove(plan)
        check_operands(proof.plan.graph)
        self._spec = find_spec(check_options(options).device)
        super().__init__(proof, options)

    @classmethod
    def select_dispatch(cls, graph: Graph, device: DeviceSpec, chosen: Schedule | None = None) -> Dispatch:
        return select_dispatch(graph, device, chosen)

    @classmethod
    def select_interleaving(cls, graph: Graph, device: DeviceSpec) -> Interleaving:
        return Abreast(device.sms) if find_joint_writers(graph) else OpAfterOp()

    @classmethod
    def check(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise if no tiling lets the executor run a graph on a device; see ``Executor.check``."""
        super().check(graph, device)
        check_operands(graph)
        check_generation(device.name, device.capability, cls.generation)

    @classmethod
    def check_tiles(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise unless all ops share a ring of at least three stages and their accumulators fit the registers.

        Raises:
            PlanError, ShapeError: the ring is too short, or the tiles do not fit.
        """
        tiles = [part.tile for part in get_graph_bodies(graph).whole_tiles]
        count = count_stages(tiles, count_warpgroups(graph), device.smem_bytes)
        if count < _MIN_STAGES:
            raise PlanError(
                f"{device.smem_bytes} bytes of shared memory hold {count} stages of these tiles, too few for loads to "
                "run ahead; give the ops smaller tiles"
            )

    @classmethod
    def build_mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """Return the model of one launch whose loads run ahead through its ring, with LL hand-offs where allowed."""
        tiles = [part.tile for part in get_graph_bodies(graph).whole_tiles]
        stage = max(t.prefetchable_bytes for t in tiles) + max(t.dependent_bytes for t in tiles)
        return make_megakernel_mode(
            count_stages(tiles, count_warpgroups(graph), device.smem_bytes) * stage,
            _find_ll_hand_offs,
            _find_evict_first_tensors(graph),
            _count_neighbours,
        )

    def _lower(self) -> DeviceTables:
        self.lowered = lower(self.proof, self._spec, self.options)
        self._cooperative_ops = self.lowered.cooperative_ops
        return self.lowered.tables

    def _compute_slot_floats(self) -> int:
        return ROW_FLOATS

    def _prepare(self) -> None:
        if self._device.type == "cpu":
            raise NoDeviceError("CUDA C++ does not run under the interpreter; use the persistent executor")
        if self.lowered.spawning is not None and self.options.dependent_launch:
            raise DeviceError("spawn dispatch clears memory ahead of a launch; leave out dependent_launch")
        self.is_resident = self._dispatch.is_resident
        if self._device.type == "cuda":
            capability = self._torch.cuda.get_device_capability(self._device)
            check_generation(str(self._device), capability, self.generation)
        if self.is_resident and self._table.workers > self._spec.sms:
            raise TooManyWorkersError(
                f"plan has {self._table.workers} workers, but {self._spec.name} keeps {self._spec.sms} thread blocks "
                f"of this kernel resident; {self.plan.dispatch.value} dispatch would wait for ever. Plan for at "
                f"most {self._spec.sms} workers, or use ticket dispatch"
            )
        limit = self._dispatch.item_limit
        if limit is not None and len(self.plan.items) >= limit:
            raise PlanError(
                f"plan has {len(self.plan.items):,} items, and words of lists that others take from count to "
                f"{limit:,}; use ticket dispatch"
            )
        #: Operands in memory that captured runs read, kept alive because such runs may be replayed.
        self.captured: list[Any] = []
        #: Functions that enqueue a launch, by locations and layouts of its tensors, the most recently used last.
        self._cached_launches: dict[Any, Callable[[int], None]] = {}
        self.composition  # noqa: B018 - raises for what does not fit before anything runs

    def _allocate(self) -> None:
        super()._allocate()
        torch, rows = self._torch, self._table.worker_rows.astype(np.int32)
        #: First row of each block's queue; ``_heads``: what its dispatch counts there.
        self._lists = torch.tensor(rows, device=self._device)
        counts = torch.int64 if self._dispatch.has_wide_heads else torch.int32
        heads = self._dispatch.count_heads(self._table.workers, len(rows) - 1)
        self._heads = torch.zeros(heads, dtype=counts, device=self._device)
        self._words = self.lowered.ll_edges.allocate_words(torch, self._device)
        self._memory = QueueMemory.allocate(self.plan, self._table, self.lowered.spawning, torch, self._device)
        self._workspace.view(torch.uint8).fill_(EMPTY_BYTE)  # every run restores this, unless a wait fails

    def _reset(self) -> None:
        for buffer in (self._heads, *self._words.values()):
            buffer.zero_()
        self._workspace.view(self._torch.uint8).fill_(EMPTY_BYTE)
        self._memory.reset()
        super()._reset()

    def _make_fault_error(self, item: int, semaphore: int, expected: int, seen: int) -> InterlaceError:
        if self.lowered.spawning is not None and self._bound_launches is not None:
            given = dict(zip(self._bound_launches.addresses, self._bound_launches.tensors, strict=True))
            run = int(self._counters[0]) // self._table.workers % (1 << 32)
            done = self._done.cpu().numpy().view(np.uint32) == run
            done |= self._memory.find_waiting(len(done))
            error = self.lowered.spawning.make_fault_error(item, semaphore, expected, seen, done, given)
            if error is not None:
                return error
        return super()._make_fault_error(item, semaphore, expected, seen)

    def _find_enqueued(self) -> NDArray[np.bool_] | None:
        return self._memory.find_enqueued(self._table) if self.plan.dispatch.can_reorder else None

    def read_trace(self) -> Trace:
        """Return the times of the last run; see ``DeviceExecutor.read_trace``. Blocks are numbered as their workers."""
        trace = super().read_trace()
        if self.lowered.spawning is not None:
            return trace.select(np.flatnonzero(trace.end_ns))
        if not self.plan.dispatch.has_queues:
            return trace
        owners = np.unique(self.plan.items.worker)
        return replace(trace, worker=owners[owners >= 0][trace.worker])

    @property
    def _dispatch(self) -> DispatchCode:
        """The code of the plan's dispatch."""
        return self.lowered.dispatch

    @cached_property
    def composition(self) -> MegakernelSource:
        """The CUDA source of the launch, and its shared memory."""
        return self.lowered.source

    @cached_property
    def binary(self) -> CudaBinary:
        """The compiled launch; needs no device.

        Raises:
            CompileError: the CUDA source does not compile, or needs more registers than a thread has.
        """
        return compile_lowered(self.lowered)

    @cached_property
    def loaded_kernel(self) -> LoadedKernel:
        """The kernel, loaded on the current device."""
        kernel = load_kernel(self.binary, self.composition.shared_bytes)
        blocks = self.options.cluster.blocks
        if blocks > 1:
            needed = self._table.workers if self.is_resident else blocks
            check_resident_blocks(kernel.count_resident_clusters(self.threads, blocks), blocks, needed)
        return kernel

    @cached_property
    def placement_size(self) -> int:
        """Number of blocks to place on neighbouring SMs: those of a cluster, or pairs that load the same weights."""
        blocks = self.options.cluster.blocks
        pairs = blocks == 1 and has_weight_pairs(self.plan, self._table, build_bodies(self.plan.graph))
        fit = pairs and 2 * self.loaded_kernel.count_resident_clusters(self.threads, 2) >= self._table.workers
        return 2 if fit else blocks

    @property
    def torch(self) -> Any:
        """The module ``torch``."""
        return self._torch

    @property
    def device(self) -> Any:
        """The torch device of the launch."""
        return self._device

    @property
    def workers(self) -> int:
        """Thread blocks of the launch."""
        return self._table.workers

    @property
    def threads(self) -> int:
        """Threads per block."""
        return (self.lowered.warpgroups + 1) * 128

    def _find_short_arguments(self, op: Op) -> Sequence[str]:
        return build_bodies(self.plan.graph)[self.plan.graph.op_index(op.name)].loads.short_names

    def _get_partial_size(self, op: Op) -> Any:
        return lambda op: self.lowered.ops[self.plan.graph.op_index(op.name)].tile.partial_elements

    def _build_arguments(self, op: Op, tensors: Mapping[str, Any]) -> Any:
        given = {access.arg: tensors[access.tensor] for access in op.accesses}
        number = self.plan.graph.op_index(op.name)
        return op, given | self.lowered.ll_edges.bind_arguments(number, op, self.lowered.ops[number].body, self._words)

    def _build_launches(self, arguments: tuple[Any, ...]) -> Sequence[AnyLaunch]:
        if self.composition.has_inline_operands:
            return [CudaSourceLaunch(ParameterLaunch(self, arguments))]
        return [CudaSourceLaunch(MemoryLaunch(self, arguments))]

    def _bind(self, tensors: Mapping[str, Any]) -> list[AnyLaunch]:
        """Bind tensors as every executor does, but skip checks and encoding for known locations and layouts."""
        if not self.composition.has_inline_operands or self._device.type != "cuda":
            return super()._bind(tensors)
        places = make_tensor_key(self._torch, check_named_tensors(tensors))
        enqueue = self._cached_launches.pop(places, None)
        if enqueue is None:
            (launch,) = super()._bind(tensors)
            assert isinstance(launch, CudaSourceLaunch)
            assert isinstance(launch.launch, ParameterLaunch)
            enqueue = launch.launch.enqueue
            if len(self._cached_launches) == _MAX_CACHED_LAUNCHES:
                del self._cached_launches[next(iter(self._cached_launches))]
        self._cached_launches[places] = enqueue
        return [CudaSourceLaunch(ParameterLaunch(self, (), enqueue))]

    def pack_operands(self, arguments: tuple[Any, ...]) -> bytes:
        """Return the operands of the launch as bytes, given each op with its tensors by argument."""
        both = zip(self.lowered.ops, arguments, strict=True)
        rows = [part.body.pack(op, tensors, part.dtype) for part, (op, tensors) in both]
        packed = b"".join(row.ljust(self.composition.operand_bytes, b"\0") for row in rows)
        return packed if self.lowered.spawning is None else packed + self.lowered.spawning.pack_addresses(arguments)

    def clear_outputs(self, arguments: tuple[Any, ...]) -> None:
        """Zero what items that may not run would write, ahead of the launch."""
        if self.lowered.spawning is not None:
            self.lowered.spawning.clear_outputs(arguments)
            if self.options.trace:
                self._trace.zero_()

    def pack_parameter(self, operands: Any) -> bytes:
        """Return the parameter of the launch, given its operands in memory."""
        return self.pack_parameter_for(operands, self._items, len(self.plan.items), self._table.workers)

    def pack_parameter_for(self, operands: Any, items: Any, count: int, workers: int) -> bytes:
        """Return the parameter for ``count`` items in consecutive rows and a number of blocks."""
        options = self.options
        if self.plan.dispatch is Dispatch.TICKET:  # a cluster claims one ticket for all of its blocks
            count, workers = count // options.cluster.blocks, workers // options.cluster.blocks
        return self.composition.launch.pack(
            items=items,
            waits=self._waits,
            semaphores=self._semaphores,
            arrivals=self._arrivals,
            workspace=self._workspace,
            done=self._done,
            fault=self._fault,
            record=self._record,
            trace=self._trace if options.trace else None,
            starts=self._counters,
            lists=self._lists,
            heads=self._heads,
            queue=self._memory.pack(),
            operands=operands,
            timeout_ns=int(options.timeout_s * 1e9),
            jitter_ns=int(options.jitter_s * 1e9),
            count=count,
            programs=workers if self.is_resident or self.lowered.spawning is not None else count + workers,
        )


def compile_lowered(lowered: LoweredGraph) -> CudaBinary:
    """Return a lowered graph as a compiled launch; needs no device.

    Raises:
        PlanError: shared memory does not hold two stages next to the scratch.
        CompileError: the CUDA source does not compile, or needs more registers than a thread has.
    """
    return compile_launch(
        lowered.source.source,
        MegakernelExecutor.kernel,
        lowered.device.architecture,
        preamble=PREAMBLE,
        holds_operands=any(part.tile.has_register_operands for part in lowered.ops),
        kernels=(op.kernel for op in lowered.proof.plan.graph.ops),
    )


def _find_ll_hand_offs(plan: Plan) -> LLHandOffs:
    """Return the hand-offs of a plan's launch that use the LL protocol under default options."""
    return select_ll_tensors(plan, build_bodies(plan.graph), RunOptions("meta")).build_hand_offs(plan)


def _find_evict_first_tensors(graph: Graph) -> frozenset[str]:
    """Return the names of the tensors that some op loads with the L2's eviction policy ``evict_first``."""
    both = zip(graph.ops, build_bodies(graph), strict=True)
    return frozenset(a.tensor for op, body in both for a in op.reads if a.arg in body.loads.evict_first_inputs)


def _count_neighbours(plan: Plan) -> int:
    """Return how many consecutive blocks a plan's launch places on neighbouring SMs under default options."""
    if plan.dispatch is not Dispatch.STATIC:
        return 1
    table = build_worker_tables(plan, [False] * len(plan.graph.ops))
    return 2 if has_weight_pairs(plan, table, build_bodies(plan.graph)) else 1

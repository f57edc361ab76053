"""Megakernel: the whole graph as one launch of CUDA C++ on a Hopper GPU (``megakernel/walk``).

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
from interlace.executors.base import by_name
from interlace.executors.bound import places_of
from interlace.executors.device import DeviceExecutor
from interlace.executors.gpu import check_generation, spec_by_name
from interlace.executors.launch import AnyLaunch, TextLaunch
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.bodies import ALONE, GENERATION, ROW_FLOATS, BodyKind
from interlace.kernels.cuda.compiler import Binary
from interlace.kernels.cuda.launcher import LoadedKernel, loaded
from interlace.kernels.cuda.ptx import PTX
from interlace.kernels.primitives.semaphore_cuda import SEMAPHORES
from interlace.kernels.primitives.words_cuda import EMPTY_BYTE, WORDS
from interlace.megakernel.clusters import are_pairs, check_clusters, check_resident, in_clusters
from interlace.megakernel.compose import AGAIN, KEEPS, LAST, Composition, codes, compose, stages
from interlace.megakernel.dispatch import HELD
from interlace.megakernel.launch import OperandsInMemory, WithOperands
from interlace.megakernel.ll_edges import handed_over
from interlace.megakernel.ll_proof import proved_words
from interlace.megakernel.options import Options, given
from interlace.megakernel.pace import dispatch_of, in_flight_bytes
from interlace.megakernel.parts import (
    able_to_share,
    bodies_of,
    check_operands,
    check_order,
    parts_of,
    warpgroups_of,
)
from interlace.megakernel.queues import QueueMemory, check_capacity
from interlace.megakernel.registers import compiled
from interlace.megakernel.shares import Shares, parts_of_tiles
from interlace.megakernel.spawn import Termination
from interlace.megakernel.spawning import Spawning
from interlace.megakernel.stealing import ROW_BITS
from interlace.megakernel.sums import with_sums
from interlace.megakernel.table import Table, for_workers
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof
from interlace.planner.build import Choices
from interlace.sim.modes import ByWords, Mode, ring_launch
from interlace.trace.events import Trace

_LEAST_STAGES = 3  # stages of a ring that lets loads run ahead
_KNOWN = 256  # cached launches, one per combination of tensor locations and layouts: two kilobytes each


class OneLaunchExecutor(DeviceExecutor):
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
        QueueOverflowError: the queue may need to hold more items than ``Options.capacity``.
    """

    name = title = "one_launch"
    what = "one launch of CUDA C++, tiles of any width"
    #: Loads of a worker's next items run ahead of this item's stores, so only waits order items.
    keeps = frozenset({Ordering.WAIT})
    dispatches = (Dispatch.TICKET, *(d for d in Dispatch if d is not Dispatch.TICKET))
    #: Blocks of a launch start once all blocks of the launch before have started, so none of those waits for a block
    #: that has no SM.
    overlapping = frozenset(d for d in Dispatch if d is not Dispatch.SPAWN)
    kinds = (BodyKind.WALK,)
    traces = True
    kernel = "one_launch"
    generation = GENERATION

    def __init__(self, plan: Plan | Proof, options: Options | None = None) -> None:
        proof = self.prove(plan)
        check_operands(proof.plan.graph)
        self._spec = spec_by_name(given(options).device)
        self._warpgroups = warpgroups_of(proof.plan.graph)
        super().__init__(proof, options)

    @classmethod
    def dispatch(cls, graph: Graph, device: DeviceSpec, chosen: Choices | None = None) -> Dispatch:
        return dispatch_of(graph, device, chosen)

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
        tiles = [part.tile for part in parts_of(graph)]
        count = stages(tiles, warpgroups_of(graph), device.smem_bytes)
        if count < _LEAST_STAGES:
            raise PlanError(
                f"{device.smem_bytes} bytes of shared memory hold {count} stages of these tiles, too few for loads to "
                "run ahead; give the ops smaller tiles"
            )

    @classmethod
    def mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """Return the model of one launch whose loads run ahead through its ring, with LL hand-offs where allowed."""
        tiles = [part.tile for part in parts_of(graph)]
        stage = max(t.independent_bytes for t in tiles) + max(t.dependent_bytes for t in tiles)
        return ring_launch(stages(tiles, warpgroups_of(graph), device.smem_bytes) * stage, _by_words)

    def _lower(self) -> Table:
        graph, bodies = self.plan.graph, bodies_of(self.plan.graph)
        shares = Shares.of(self.proof, able_to_share(graph, parts_of_tiles(self.plan)))
        self._shared, self._handed_over = shares.ops, proved_words(self.plan, bodies, self.options)
        chunked, words = [body.chunked for body in bodies], self._handed_over
        table = for_workers(self.plan, chunked, parts_wait=True, shares=shares, words=words)
        check_order(self.proof, table.parts.tolist())
        self._parts = parts_of(graph, table.parts.tolist(), shares.ops, words, table.least.tolist())
        if self.options.cluster != ALONE:
            check_clusters(self.plan, table, self.options.cluster)
            self._parts = in_clusters(self._parts, self.plan.graph, self.options.cluster)
        table.items["code"] = np.array(codes(self._parts))[table.items["op"]]
        self._spawning = Spawning.of(self.plan, table) if self.plan.dispatch is Dispatch.SPAWN else None
        check_capacity(self.plan, table, self._spawning, self.options.capacity)
        if self._spawning is not None:
            return self._spawning.table
        sums = [self._accumulator_size(op) for op in graph.ops]
        left = words.without(self.plan.waits, self.plan)  # LL words order only themselves
        launched = replace(self.plan.items, post=words.posts(left, self.plan))
        one_adds = [part.tile.share for part in self._parts]
        table = with_sums(table, sums, one_adds, replace(self.plan, items=launched, waits=left))
        if self.plan.dispatch in (Dispatch.STATIC, Dispatch.TICKET, Dispatch.HYBRID):
            last = table.last_of_ops if self.plan.dispatch is Dispatch.STATIC else table.last_wave_of_ops
            table.items["code"] |= np.where(last, KEEPS, 0)
        late = table.last_that_wait & (self.plan.dispatch is Dispatch.TICKET)
        table.items["code"] |= np.where(late, LAST, 0)
        again = table.same_op_before & (self.plan.dispatch is Dispatch.STATIC)
        table.items["code"] |= np.where(again, AGAIN, 0)
        return table

    def _slot_floats(self) -> int:
        return ROW_FLOATS

    def _prepare(self) -> None:
        if self._device.type == "cpu":
            raise NoDeviceError("CUDA C++ does not run under the interpreter; use the persistent executor")
        if self._spawning is not None and self.options.dependent_launch:
            raise DeviceError("spawn dispatch clears memory ahead of a launch; leave out dependent_launch")
        votes = self.plan.dispatch is Dispatch.SPAWN and self.options.termination is Termination.VOTES
        self._resident = self.plan.dispatch.resident or votes
        if self._device.type == "cuda":
            capability = self._torch.cuda.get_device_capability(self._device)
            check_generation(str(self._device), capability, self.generation)
        if self._resident and self._table.workers > self._spec.sms:
            raise TooManyWorkersError(
                f"plan has {self._table.workers} workers, but {self._spec.name} keeps {self._spec.sms} thread blocks "
                f"of this kernel resident; {self.plan.dispatch.value} dispatch would wait for ever. Plan for at "
                f"most {self._spec.sms} workers, or use ticket dispatch"
            )
        if self.plan.dispatch is Dispatch.STEALING and len(self.plan.items) >= 1 << ROW_BITS:
            raise PlanError(
                f"plan has {len(self.plan.items):,} items, and words of lists that others take from count to "
                f"{1 << ROW_BITS:,}; use ticket dispatch"
            )
        #: Operands in memory that captured runs read, kept alive because such runs may be replayed.
        self._captured: list[Any] = []
        #: Functions that enqueue a launch, by locations and layouts of its tensors, the most recently used last.
        self._known: dict[Any, Callable[[int], None]] = {}
        self.composition  # noqa: B018 - raises for what does not fit before anything runs

    def _allocate(self) -> None:
        super()._allocate()
        torch, rows = self._torch, self._table.worker_rows.astype(np.int32)
        #: First row of each block's queue; ``_heads``: items claimed from it in all runs, or (stealing) the rows left.
        self._lists = torch.tensor(rows, device=self._device)
        #: Under a dispatcher, ``_heads`` holds the mailboxes of two runs.
        dispatch, boxes = self.plan.dispatch, 2 * HELD * self._table.workers
        counts = torch.int64 if dispatch in (Dispatch.STEALING, Dispatch.DISPATCHER) else torch.int32
        heads = boxes if dispatch is Dispatch.DISPATCHER else len(rows) - 1
        self._heads = torch.zeros(heads, dtype=counts, device=self._device)
        self._words = self._handed_over.memory(torch, self._device)
        self._memory = QueueMemory.of(self.plan, self._table, self._spawning, torch, self._device)
        self._workspace.view(torch.uint8).fill_(EMPTY_BYTE)  # every run restores this, unless a wait fails

    def _reset(self) -> None:
        for buffer in (self._heads, *self._words.values()):
            buffer.zero_()
        self._workspace.view(self._torch.uint8).fill_(EMPTY_BYTE)
        self._memory.reset()
        super()._reset()

    def _error(self, item: int, semaphore: int, expected: int, seen: int) -> InterlaceError:
        if self._spawning is not None and self._bound is not None:
            given = dict(zip(self._bound.addresses, self._bound.tensors, strict=True))
            run = int(self._counters[0]) // self._table.workers % (1 << 32)
            done = self._done.cpu().numpy().view(np.uint32) == run
            done |= self._memory.waiting(len(done))
            error = self._spawning.error(item, semaphore, expected, seen, done, given)
            if error is not None:
                return error
        return super()._error(item, semaphore, expected, seen)

    def _came(self) -> NDArray[np.bool_] | None:
        return self._memory.came(self._table) if self.plan.dispatch.when_ready else None

    def trace(self) -> Trace:
        """Return the times of the last run; see ``DeviceExecutor.trace``. Blocks are numbered as their workers."""
        trace = super().trace()
        if self._spawning is not None:
            return trace.of(np.flatnonzero(trace.end_ns))
        if not self.plan.dispatch.lists:
            return trace
        owners = np.unique(self.plan.items.worker)
        return replace(trace, worker=owners[owners >= 0][trace.worker])

    @cached_property
    def composition(self) -> Composition:
        """The CUDA source of the launch, and its shared memory."""
        spec = self._spec
        return compose(
            self._parts,
            self._warpgroups,
            spec.smem_bytes,
            in_flight_bytes(self.plan.graph, spec),
            dispatch=self.plan.dispatch,
            dependent_launch=self.options.dependent_launch,
            stealing=self.plan.stealing,
            blocks=self._spec.sms,
            termination=self.options.termination,
            cluster=self.options.cluster,
        )

    @cached_property
    def binary(self) -> Binary:
        """The compiled launch; needs no device.

        Raises:
            CompileError: the CUDA source does not compile, or needs more registers than a thread has.
        """
        return compiled(
            self.composition.text,
            self.kernel,
            self._spec.architecture,
            preamble=PTX + SEMAPHORES + WORDS,
            holds=any(part.tile.holds for part in self._parts),
            kernels=(op.kernel for op in self.plan.graph.ops),
        )

    @cached_property
    def loaded(self) -> LoadedKernel:
        """The kernel, loaded on the current device."""
        kernel = loaded(self.binary, self.composition.shared_bytes)
        blocks = self.options.cluster.blocks
        if blocks > 1:
            needed = self._table.workers if self._resident else blocks
            check_resident(kernel.resident_clusters(self._threads, blocks), blocks, needed)
        return kernel

    @cached_property
    def placed_together(self) -> int:
        """Number of blocks to place on neighbouring SMs: those of a cluster, or pairs that load the same weights."""
        blocks = self.options.cluster.blocks
        pairs = blocks == 1 and are_pairs(self.plan, self._table, self._parts)
        fit = pairs and 2 * self.loaded.resident_clusters(self._threads, 2) >= self._table.workers
        return 2 if fit else blocks

    @property
    def _threads(self) -> int:
        """Threads per block."""
        return (self._warpgroups + 1) * 128

    def _filled(self, op: Op) -> Sequence[str]:
        return bodies_of(self.plan.graph)[self.plan.graph.op_index(op.name)].filled

    def _partial(self, op: Op) -> Any:
        return lambda op: self._parts[self.plan.graph.op_index(op.name)].tile.sums

    def _arguments(self, op: Op, tensors: Mapping[str, Any]) -> Any:
        given = {access.arg: tensors[access.tensor] for access in op.accesses}
        number = self.plan.graph.op_index(op.name)
        return op, given | self._handed_over.arguments(number, op, self._parts[number].body, self._words)

    def _launches(self, arguments: tuple[Any, ...]) -> Sequence[AnyLaunch]:
        if self.composition.held:
            return [TextLaunch(WithOperands(self, arguments))]
        return [TextLaunch(OperandsInMemory(self, arguments))]

    def _bind(self, tensors: Mapping[str, Any]) -> list[AnyLaunch]:
        """Bind tensors as every executor does, but skip checks and encoding for known locations and layouts."""
        if not self.composition.held or self._device.type != "cuda":
            return super()._bind(tensors)
        places = places_of(self._torch, by_name(tensors))
        enqueue = self._known.pop(places, None)
        if enqueue is None:
            (launch,) = super()._bind(tensors)
            assert isinstance(launch, TextLaunch)
            assert isinstance(launch.launch, WithOperands)
            enqueue = launch.launch.enqueue
            if len(self._known) == _KNOWN:
                del self._known[next(iter(self._known))]
        self._known[places] = enqueue
        return [TextLaunch(WithOperands(self, (), enqueue))]

    def _operands(self, arguments: tuple[Any, ...]) -> bytes:
        """Return the operands of the launch as bytes, given each op with its tensors by argument."""
        both = zip(self._parts, arguments, strict=True)
        rows = [part.body.pack(op, tensors, part.dtype) for part, (op, tensors) in both]
        packed = b"".join(row.ljust(self.composition.operand_bytes, b"\0") for row in rows)
        return packed if self._spawning is None else packed + self._spawning.addresses(arguments)

    def _clear(self, arguments: tuple[Any, ...]) -> None:
        """Zero what items that may not run would write, ahead of the launch."""
        if self._spawning is not None:
            self._spawning.clear(arguments)
            if self.options.trace:
                self._trace.zero_()

    def _parameter(self, operands: Any) -> bytes:
        """Return the parameter of the launch, given its operands in memory."""
        return self._parameter_of(operands, self._items, len(self.plan.items), self._table.workers)

    def _parameter_of(self, operands: Any, items: Any, count: int, workers: int) -> bytes:
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
            queue=self._memory.packed(),
            operands=operands,
            timeout_ns=int(options.timeout_s * 1e9),
            jitter_ns=int(options.jitter_s * 1e9),
            count=count,
            programs=workers if self._resident or self._spawning is not None else count + workers,
        )


def _by_words(plan: Plan) -> ByWords:
    """Return the hand-offs of a plan's launch that use the LL protocol under default options."""
    return handed_over(plan, bodies_of(plan.graph), Options("meta")).by_words(plan)

"""The whole graph as one launch of CUDA C++ on a Hopper GPU (``launch/walk``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType
from interlace.core.errors import DTypeError, GraphError, NoDeviceError, PlanError, ShapeError, TooManyWorkersError
from interlace.executors.device import DeviceExecutor
from interlace.executors.gpu import spec_by_name
from interlace.executors.launch import AnyLaunch, TextLaunch
from interlace.executors.options import Options
from interlace.executors.table import Table, for_workers
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import walk_body
from interlace.kernels.bodies import BodyKind, WalkBody, WalkTile
from interlace.kernels.cuda.compiler import Binary, compile_text
from interlace.kernels.cuda.launcher import LoadedKernel
from interlace.kernels.cuda.ptx import PTX
from interlace.kernels.primitives.semaphore_cuda import SEMAPHORES
from interlace.launch.compose import Composition, compose, stages
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof
from interlace.sim.modes import Mode
from interlace.sim.modes import hopper as ring_launch

_HOPPER = 9  # the compute capability whose instructions the text uses
_IN_FLIGHT_BYTES = 96 << 10  # of weights in one block: what saturates memory (docs/performance.md)
_ROW_STEP = 8  # elements: bulk loads address rows in steps of 16 bytes
_LEAST_STAGES = 3  # of a ring through which loads run ahead


class OneLaunchExecutor(DeviceExecutor):
    """Workers stay resident and walk the plan's items; weights stream ahead of the activations.

    All ops share one ring of shared memory, whose stages each op cuts as it likes.

    Args:
        plan, options: as for every device executor.

    Raises:
        GraphError: an op has no body for it.
        CoverageError: the plan leaves a dependency to the order of one worker.
        PlanError: tiles that do not share a ring, more ops than one launch takes, weights that an op of the graph
            writes, or dependent launch under static dispatch.
        DTypeError, ShapeError: another dtype than bf16 and fp16, rows that bulk loads cannot address, or tiles that
            warpgroups cannot hold.
        NoDeviceError: the GPU is not of the Hopper generation.
        TooManyWorkersError: under static dispatch, more workers than the device keeps resident.
    """

    name = title = "one_launch"
    what = "one launch of CUDA C++, tiles of any width"
    #: Loads of a worker's next items run ahead of the stores of this one.
    keeps = frozenset({Ordering.WAIT})
    kinds = (BodyKind.WALK,)
    traces = True
    kernel = "one_launch"

    def __init__(self, plan: Plan | Proof, options: Options | None = None) -> None:
        proof = self.prove(plan)
        _check_operands(proof.plan.graph)
        self._spec = spec_by_name("cuda" if options is None else options.device)
        self._posts_per_tile = _warpgroups(proof.plan.graph)
        super().__init__(proof, options)

    @classmethod
    def check(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise if there is no tiling in which it can run a graph on a device; see ``Executor.check``."""
        super().check(graph, device)
        _check_operands(graph)
        _check_capability(device.name, device.capability)

    @classmethod
    def check_tiles(cls, graph: Graph, device: DeviceSpec) -> None:
        """Raise unless all ops share a ring of three stages or more, and their sums fit the registers.

        Raises:
            PlanError, ShapeError: they do not.
        """
        tiles = _tiles(graph, [1] * len(graph.ops))
        count = stages(tiles, _warpgroups(graph), device.smem_bytes)
        if count < _LEAST_STAGES:
            raise PlanError(
                f"{device.smem_bytes} bytes of shared memory hold {count} stages of these tiles, too few for loads to "
                "run ahead; give the ops smaller tiles"
            )

    @classmethod
    def mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """One launch whose loads run ahead through its ring."""
        tiles = _tiles(graph, [1] * len(graph.ops))
        stage = max(t.independent_bytes for t in tiles) + max(t.dependent_bytes for t in tiles)
        return ring_launch(stages(tiles, _warpgroups(graph), device.smem_bytes) * stage)

    def _lower(self) -> Table:
        return for_workers(self.plan, [True] * len(self.plan.graph.ops), self._posts_per_tile)

    def _prepare(self) -> None:
        if self._device.type == "cpu":
            raise NoDeviceError("CUDA C++ does not run under the interpreter; use the persistent executor")
        self._static = self.plan.dispatch is Dispatch.STATIC
        if self._static and self.options.dependent_launch:
            raise PlanError(
                "dependent launch and static dispatch exclude each other: workers of the next launch would take the "
                "room of this one's; use ticket dispatch"
            )
        if self._device.type == "cuda":
            _check_capability(str(self._device), self._torch.cuda.get_device_capability(self._device))
            if self._static and self._table.workers > self._spec.sms:
                raise TooManyWorkersError(
                    f"plan has {self._table.workers} workers, but {self._device} keeps {self._spec.sms} thread blocks "
                    f"of this kernel resident; static dispatch would wait for ever. Plan for at most {self._spec.sms} "
                    "workers, or use ticket dispatch"
                )
        self._lists = self._torch.tensor(self._table.worker_rows.astype(np.int32), device=self._device)
        self.composition  # noqa: B018 - says what does not fit before anything runs

    @cached_property
    def composition(self) -> Composition:
        """The launch as text, and its shared memory."""
        graph = self.plan.graph
        return compose(
            _body(graph),
            _tiles(graph, [int(parts) for parts in self._table.parts]),
            _dtype(graph),
            self._posts_per_tile,
            self._spec.smem_bytes,
            _IN_FLIGHT_BYTES,
            static=self._static,
            dependent_launch=self.options.dependent_launch,
        )

    @cached_property
    def binary(self) -> Binary:
        """The compiled launch; needs no device."""
        return compile_text(self.composition.text, self.kernel, self._spec.architecture, preamble=PTX + SEMAPHORES)

    @cached_property
    def loaded(self) -> LoadedKernel:
        """The launch on the current device."""
        return LoadedKernel(self.binary, self.composition.shared_bytes)

    def _partial(self, op: Op) -> Any:
        return lambda op: walk_body(op).tile(op, 1, self._posts_per_tile).sums

    def _arguments(self, op: Op, tensors: Mapping[str, Any]) -> Any:
        return op, {access.arg: tensors[access.tensor] for access in op.accesses}

    def _launches(self, arguments: tuple[Any, ...]) -> Sequence[AnyLaunch]:
        return [TextLaunch(_Launch(self, arguments))]

    def _packed(self, arguments: tuple[Any, ...]) -> bytes:
        """The launch's parameter, given each op with its tensors by argument."""
        launch, options = self.composition.launch, self.options
        n, workers = len(self.plan.items), self._table.workers
        head = replace(launch, fields=tuple(field for field in launch.fields if field[0] != "operands"), align=64)
        packed = head.pack(
            items=self._items,
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
            timeout_ns=int(options.timeout_s * 1e9),
            jitter_ns=int(options.jitter_s * 1e9),
            count=n,
            programs=workers if self._static else n + workers,
            slot_floats=self._slot_size,
        )
        return packed + b"".join(walk_body(op).pack(op, tensors, _dtype(self.plan.graph)) for op, tensors in arguments)


@dataclass(frozen=True)
class _Launch:
    """The launch on some tensors."""

    executor: OneLaunchExecutor
    arguments: tuple[Any, ...]

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream."""
        executor = self.executor
        executor.loaded.launch(
            (executor._table.workers, 1, 1),
            (executor._posts_per_tile + 1) * 128,
            [self._parameter],
            stream,
            dependent=executor.options.dependent_launch,
        )

    @cached_property
    def _parameter(self) -> bytes:
        return self.executor._packed(self.arguments)

    def compile(self) -> Binary:
        """Compile, which needs no device."""
        return self.executor.binary

    def load(self) -> None:
        """Compile and load for the current device, and encode what the launch takes."""
        self.executor.loaded  # noqa: B018
        self._parameter  # noqa: B018


def _body(graph: Graph) -> WalkBody:
    """What the ops of a graph have in common."""
    body = walk_body(graph.ops[0])
    for op in graph.ops:
        if walk_body(op) is not body:
            raise GraphError(
                f"op {op.name!r}: kernel {op.kernel!r} and {graph.ops[0].kernel!r} have bodies of different texts; one "
                "launch takes ops of one kernel. Use the persistent executor"
            )
    return body


def _tiles(graph: Graph, parts: Sequence[int]) -> list[WalkTile]:
    """How each op's tiles are computed, given the most parts of one."""
    warpgroups = _warpgroups(graph)
    return [walk_body(op).tile(op, count, warpgroups) for op, count in zip(graph.ops, parts, strict=True)]


def _warpgroups(graph: Graph) -> int:
    """Two consumer warpgroups where ops are tiled for eight warps."""
    return max(1, *(int(op.parameters.get("num_warps", 4)) // 4 for op in graph.ops))


def _dtype(graph: Graph) -> DType:
    return graph.tensor(graph.ops[0].reads[0].tensor).dtype


def _check_capability(name: str, capability: tuple[int, int]) -> None:
    if capability[0] != _HOPPER:
        raise NoDeviceError(
            f"{name} has compute capability {capability[0]}.{capability[1]}, this executor needs {_HOPPER}.0; use the "
            "persistent executor"
        )


def _check_operands(graph: Graph) -> None:
    """Raise unless the launch can load what the ops read, and what they load early depends on nothing."""
    body = _body(graph)
    for op in graph.ops:
        for access in op.accesses:
            tensor = graph.tensor(access.tensor)
            if not tensor.dtype.on_tensor_cores or tensor.dtype.itemsize != 2:
                raise DTypeError(
                    f"op {op.name!r} has {tensor}; the one launch multiplies bf16 and fp16. Use the persistent "
                    "executor, whose Triton bodies take fp32 too"
                )
            if len(tensor.shape) == 2 and tensor.shape[1] % _ROW_STEP:
                raise ShapeError(
                    f"op {op.name!r} has {tensor}; its loads and stores need rows of a multiple of {_ROW_STEP} "
                    "elements. Pad it, or use the persistent executor, whose Triton bodies take any shape"
                )
        for access in op.reads:
            tensor = graph.tensor(access.tensor)
            writers = [other.name for other in graph.ops for write in other.writes if write.tensor == access.tensor]
            if writers and access.arg in body.independent:
                raise PlanError(
                    f"op {op.name!r} loads {access.arg} {tensor.name!r} ahead of every wait, but op {writers[0]!r} "
                    "writes it; use the persistent executor, which loads it after its waits"
                )

"""The whole graph as one warp-specialised launch on a Hopper GPU (``kernels/gluon/template``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from interlace.core.arguments import shown
from interlace.core.devices import DeviceSpec
from interlace.core.errors import DTypeError, NoDeviceError, PlanError, ShapeError
from interlace.executors.gpu import spec_by_name
from interlace.executors.launch import Launch
from interlace.executors.options import Options
from interlace.executors.table import Table, for_workers
from interlace.executors.triton import TritonExecutor
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import gluon_body
from interlace.kernels.bodies import MOST_GLUON_OPS, PANEL, BodyKind, GluonCode, Pipeline
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof
from interlace.policies.setting import Setting
from interlace.sim.modes import Mode
from interlace.sim.modes import hopper as ring_launch

_IN_FLIGHT_BYTES = 96 << 10  # of weights in one block
_ITEMSIZE = 2  # of what wgmma multiplies here
_LEAST_STAGES = 3  # of a ring through which loads run ahead


class HopperExecutor(TritonExecutor):
    """Workers run the plan's items by ticket; weights stream ahead of the activations.

    All ops share one ring of shared memory.

    Args:
        plan, options: as for every device executor.
        pipeline: how data moves; by default as deep as shared memory allows.

    Raises:
        GraphError: an op has no Gluon body.
        CoverageError: the plan leaves a dependency to the order of one worker.
        PlanError: the plan has static dispatch, more ops than one launch takes, tiles that do not share a ring, or
            weights that an op of the graph writes.
        DTypeError, ShapeError: another dtype than bf16 and fp16, rows that bulk loads cannot address, or tiles that
            warpgroups cannot hold.
        NoDeviceError: the GPU is not of the Hopper generation.
    """

    name = title = "hopper"
    what = "one launch, weights stream ahead of the activations"
    #: Loads of a worker's next items run ahead of the stores of this one.
    keeps = frozenset({Ordering.WAIT})
    dispatches = (Dispatch.TICKET,)
    kinds = (BodyKind.GLUON,)
    traces = True
    kernel = "hopper_kernel"
    _specialised = True

    def __init__(
        self, plan: Plan | Proof, options: Options | None = None, pipeline: Pipeline | None = None
    ) -> None:
        proof = self.prove(plan)
        graph = proof.plan.graph
        _check_operands(graph)
        if pipeline is None:
            pipeline = default_pipeline(graph, spec_by_name("cuda" if options is None else options.device))
        if not isinstance(pipeline, Pipeline):
            raise PlanError(
                f"pipeline is {shown(pipeline)}; pass a Pipeline, or leave it out for the deepest that fits"
            )
        self.pipeline = pipeline
        self._posts_per_tile = pipeline.warpgroups
        super().__init__(proof, options)

    @classmethod
    def from_setting(cls, plan: Plan | Proof, setting: Setting, options: Options | None = None) -> HopperExecutor:
        """An executor of a plan that was made under a setting, with as many loads in flight as that says.

        Raises:
            InterlaceError: as making one does.
        """
        proof = cls.prove(plan)
        _check_operands(proof.plan.graph)
        pipeline = default_pipeline(proof.plan.graph, spec_by_name("cuda" if options is None else options.device))
        return cls(proof, options, replace(pipeline, in_flight=setting.in_flight or pipeline.in_flight))

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
        pipeline = default_pipeline(graph, device)
        _check_tiles(graph, pipeline)
        if pipeline.stages < _LEAST_STAGES:
            raise PlanError(
                f"a stage takes {pipeline.stage_bytes} bytes of shared memory, and {device.smem_bytes} hold "
                f"{pipeline.stages} of them, too few for loads to run ahead; give the ops smaller tiles"
            )

    @classmethod
    def mode(cls, graph: Graph, device: DeviceSpec) -> Mode:
        """One launch whose loads run ahead through its ring."""
        ring = default_pipeline(graph, device)
        return ring_launch(ring.stages * ring.stage_bytes)

    def _lower(self) -> Table:
        return for_workers(self.plan, [True] * len(self.plan.graph.ops), self._posts_per_tile)

    def _prepare(self) -> None:
        _check_tiles(self.plan.graph, self.pipeline)
        if self._device.type == "cpu":
            raise NoDeviceError("Gluon kernels do not run under the interpreter; use the persistent executor")
        if self._device.type == "cuda":
            _check_capability(str(self._device), self._torch.cuda.get_device_capability(self._device))

    @cached_property
    def _code(self) -> tuple[GluonCode, ...]:
        """Of each op."""
        return tuple(gluon_body(op).code() for op in self.plan.graph.ops)

    def _filled(self, op: Op) -> Sequence[str]:
        return gluon_body(op).filled

    def _partial(self, op: Op) -> Any:
        return gluon_body(op).partial

    def _arguments(self, op: Op, tensors: Mapping[str, Any]) -> tuple[Any, ...]:
        o = self.plan.graph.op_index(op.name)
        code, parts = self._code[o], int(self._table.parts[o])
        return code.operands(op, tensors), code.arguments(op, tensors, self.pipeline, parts)

    def _launches(self, arguments: tuple[Any, ...]) -> list[Launch]:
        from triton.language import constexpr

        from interlace.kernels.gluon.template import hopper_kernel

        n = len(self.plan.items)
        workers = self._table.workers
        sync = self._sync(0, 0, n + workers)
        operands = [descriptor for of_op, _ in arguments for descriptor in of_op]
        operands += [None] * (3 * MOST_GLUON_OPS - len(operands))
        bodies = tuple(
            (*code.functions, constexpr("-".join(f.cache_key for f in code.functions))) for code in self._code
        )
        dependent = self.options.dependent_launch
        # Registers per thread: at the launch, then of warpgroups that multiply, then of the loading warps.
        at_launch, math, load = (168, 216, 72) if self.pipeline.warpgroups == 2 else (248, 248, 96)
        return [
            Launch(
                hopper_kernel,
                (workers,),
                (
                    sync,
                    n,
                    bodies,
                    tuple(argument for _, argument in arguments),
                    *operands,
                    self.pipeline.stages,
                    self.pipeline.independent_rows,
                    self.pipeline.dependent_rows,
                    dependent,
                    math,
                    load,
                ),
                {"num_warps": 4, "launch_pdl": dependent, "maxnreg": at_launch},
                tuple(op.name for op in self.plan.graph.ops),
            )
        ]


def _check_operands(graph: Graph) -> None:
    """Raise unless the launch can load what the ops read, and weights depend on nothing."""
    if len(graph.ops) > MOST_GLUON_OPS:
        raise PlanError(f"graph {graph.name!r} has {len(graph.ops)} ops; one launch takes {MOST_GLUON_OPS}")
    for op in graph.ops:
        body = gluon_body(op)
        for access in op.reads:
            tensor = graph.tensor(access.tensor)
            if tensor.dtype.itemsize != _ITEMSIZE:
                raise DTypeError(
                    f"op {op.name!r} reads {tensor}; Hopper kernels multiply bf16 and fp16. Use the persistent "
                    "executor, whose Triton bodies take fp32 too"
                )
            if len(tensor.shape) == 2 and tensor.shape[1] % 16:
                raise ShapeError(
                    f"op {op.name!r} reads {tensor}; bulk loads need rows of a multiple of 16 elements. Pad it, or "
                    "use the persistent executor, whose Triton bodies take any shape"
                )
            writers = [other.name for other in graph.ops for write in other.writes if write.tensor == access.tensor]
            if writers and access.arg in body.independent:
                raise PlanError(
                    f"op {op.name!r} loads {access.arg} {tensor.name!r} ahead of every wait, but op {writers[0]!r} "
                    "writes it; use the persistent executor, which loads it after its waits"
                )


def _check_tiles(graph: Graph, pipeline: Pipeline) -> None:
    """Raise unless all ops can share a ring and their tiles suit its warpgroups."""
    for op in graph.ops:
        body = gluon_body(op)
        body.check(op, pipeline.warpgroups)
        rows = zip(body.rows(op), (pipeline.independent_rows, pipeline.dependent_rows), strict=True)
        if any(ring % mine for mine, ring in rows):
            raise PlanError(
                f"op {op.name!r} takes stages of {body.rows(op)} rows of 64 elements, weights and activations; "
                f"the ring of this launch has {pipeline.independent_rows} and {pipeline.dependent_rows}, "
                "which must be multiples. Use tiles whose extents are powers of two"
            )


def _check_capability(device: str, capability: tuple[int, int]) -> None:
    if capability[0] != 9:
        raise NoDeviceError(
            "{} has compute capability {}.{}, this executor needs 9.0; use the persistent executor".format(
                device, *capability
            )
        )


def default_pipeline(graph: Graph, device: DeviceSpec) -> Pipeline:
    """A ring as deep as shared memory allows; two warpgroups where ops ask for eight warps.

    64 to 96 KiB of weights in flight per SM saturate memory (docs/performance.md).

    Raises:
        GraphError: an op has no Gluon body.
        PlanError: shared memory does not hold two stages.
    """
    rows = [gluon_body(op).rows(op) for op in graph.ops]
    independent, dependent = max(row for row, _ in rows), max(row for _, row in rows)
    if not independent or not dependent:
        raise PlanError("a stage is a multiple of 64 deep; give every op a tile with k = 64 or more")
    in_flight = max(1, _IN_FLIGHT_BYTES // (independent * PANEL * 2))
    warpgroups = max(int(op.parameters.get("num_warps", 4)) // 4 for op in graph.ops)
    ring = Pipeline(1, independent, dependent, in_flight, warpgroups)
    room = device.smem_bytes - max(gluon_body(op).scratch_bytes(op) for op in graph.ops)
    if room < 2 * ring.stage_bytes:
        raise PlanError(
            f"a stage takes {ring.stage_bytes} bytes of shared memory and {device.smem_bytes} do not hold two "
            "of them; give the ops smaller tiles"
        )
    return replace(ring, stages=room // ring.stage_bytes)

"""The whole graph as one warp-specialised launch on a Hopper GPU (``kernels/hopper/template``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from interlace.core.devices import H200
from interlace.core.errors import DTypeError, NoDeviceError, PlanError, ShapeError, kind
from interlace.executors.base import proved
from interlace.executors.device import DeviceExecutor
from interlace.executors.launch import Launch
from interlace.executors.options import Options
from interlace.executors.table import Table, for_workers
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import HopperBody, Pipeline, kernel_of, no_body
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof


class HopperExecutor(DeviceExecutor):
    """Workers run the plan's items by ticket; weights stream ahead of the activations.

    All ops share one ring of shared memory.

    Args:
        plan, options: as for every device executor.
        pipeline: how data moves; by default as deep as shared memory allows.

    Raises:
        GraphError: an op has no Hopper body.
        CoverageError: the plan leaves a dependency to the order of one worker.
        PlanError: the plan has static dispatch, more ops than one launch takes, tiles that do not share a ring, or
            weights that an op of the graph writes.
        DTypeError, ShapeError: another dtype than bf16 and fp16, rows that bulk loads cannot address, or tiles that
            warpgroups cannot hold.
        NoDeviceError: the GPU is not of the Hopper generation.
    """

    name = "hopper"
    #: Loads of a worker's next items run ahead of the stores of this one.
    keeps = frozenset({Ordering.WAIT})
    _specialised = True

    def __init__(
        self, plan: Plan | Proof, options: Options | None = None, pipeline: Pipeline | None = None
    ) -> None:
        proof = proved(self.name, self.keeps, plan)
        _check_operands(proof.plan.graph)
        self.pipeline = default_pipeline(proof.plan.graph.ops) if pipeline is None else pipeline
        if not isinstance(self.pipeline, Pipeline):
            raise PlanError(f"pipeline is {kind(pipeline)}; pass a Pipeline, or leave it out for the deepest that fits")
        self._shares = self.pipeline.shares
        super().__init__(proof, options)

    def _lower(self) -> Table:
        return for_workers(self.plan, [True] * len(self.plan.graph.ops), self._shares)

    def _prepare(self) -> None:
        from interlace.kernels.hopper.template import OPS

        ops = self.plan.graph.ops
        if self.plan.dispatch is not Dispatch.TICKET:
            raise PlanError(f"the {self.name} executor runs plans with ticket dispatch; plan with Dispatch.TICKET")
        if len(ops) > OPS:
            raise PlanError(f"graph {self.plan.graph.name!r} has {len(ops)} ops; one launch takes {OPS}")
        for op in ops:
            body = hopper_body(op)
            body.check(op, self._shares)
            rows = zip(body.rows(op), (self.pipeline.free_rows, self.pipeline.bound_rows), strict=True)
            if any(ring % mine for mine, ring in rows):
                raise PlanError(
                    f"op {op.name!r} takes stages of {body.rows(op)} rows of 64 elements, weights and activations; "
                    f"the ring of this launch has {self.pipeline.free_rows} and {self.pipeline.bound_rows}, "
                    "which must be multiples. Use tiles whose extents are powers of two"
                )
        if self._device.type == "cpu":
            raise NoDeviceError("Gluon kernels do not run under the interpreter; use the persistent executor")
        if self._device.type == "cuda":
            major, minor = self._torch.cuda.get_device_capability(self._device)
            if major != 9:
                raise NoDeviceError(
                    f"{self._device} has compute capability {major}.{minor}, this executor needs 9.0; "
                    "use the persistent executor"
                )

    @cached_property
    def _hopper_bodies(self) -> tuple[HopperBody, ...]:
        return tuple(hopper_body(op) for op in self.plan.graph.ops)

    def _partial(self, op: Op) -> Any:
        return hopper_body(op).partial

    def _arguments(self, op: Op, tensors: Mapping[str, Any]) -> tuple[Any, ...]:
        body = hopper_body(op)
        parts = int(self._table.parts[self.plan.graph.op_index(op.name)])
        return body.operands(op, tensors), body.arguments(op, tensors, self.pipeline, parts)

    def _launches(self, arguments: tuple[Any, ...]) -> list[Launch]:
        from triton.language import constexpr

        from interlace.kernels.hopper.template import OPS, hopper_kernel

        n = len(self.plan.items)
        workers = self._table.workers
        sync = self._sync(0, 0, n + workers)
        operands = [descriptor for bound_free, _ in arguments for descriptor in bound_free]
        operands += [None] * (3 * OPS - len(operands))
        bodies = tuple(
            (*body.functions, constexpr("-".join(f.cache_key for f in body.functions)))
            for body in self._hopper_bodies
        )
        dependent = self.options.dependent_launch
        # Registers per thread: at the launch, then of warpgroups that multiply, then of the loading warps.
        at_launch, math, load = (168, 216, 72) if self._shares == 2 else (248, 248, 96)
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
                    self.pipeline.free_rows,
                    self.pipeline.bound_rows,
                    dependent,
                    math,
                    load,
                ),
                {"num_warps": 4, "launch_pdl": dependent, "maxnreg": at_launch},
            )
        ]


def _check_operands(graph: Graph) -> None:
    """Raise unless the launch can load what the ops read, and weights depend on nothing."""
    for op in graph.ops:
        body = hopper_body(op)
        for access in op.reads:
            tensor = graph.tensor(access.tensor)
            if tensor.dtype.name not in ("bf16", "fp16"):
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
            if writers and access.arg in body.free:
                raise PlanError(
                    f"op {op.name!r} loads {access.arg} {tensor.name!r} ahead of every wait, but op {writers[0]!r} "
                    "writes it; use the persistent executor, which loads it after its waits"
                )


def default_pipeline(ops: tuple[Op, ...]) -> Pipeline:
    """A ring as deep as shared memory allows; two warpgroups where ops ask for eight warps.

    64 to 96 KiB of weights in flight per SM saturate memory (docs/performance.md).

    Raises:
        GraphError: an op has no Hopper body.
        PlanError: shared memory does not hold two stages.
    """
    rows = [hopper_body(op).rows(op) for op in ops]
    free, bound = max(free for free, _ in rows), max(bound for _, bound in rows)
    if not free or not bound:
        raise PlanError("a stage is a multiple of 64 deep; give every op a tile with k = 64 or more")
    shares = max(int(op.parameters.get("num_warps", 4)) // 4 for op in ops)
    stages = (H200.smem_bytes - max(hopper_body(op).scratch(op) for op in ops)) // ((free + bound) * 128)
    if stages < 2:
        raise PlanError(
            f"a stage takes {(free + bound) * 128} bytes of shared memory and {H200.smem_bytes} do not hold two "
            "of them; give the ops smaller tiles"
        )
    return Pipeline(stages, free, bound, max(1, (96 << 10) // (free * 128)), shares)


def hopper_body(op: Op) -> HopperBody:
    """The Hopper body of an op. Raises GraphError if its kernel has none."""
    kernel = kernel_of(op)
    if kernel.hopper is None:
        raise no_body(op, "Hopper")
    return kernel.hopper()

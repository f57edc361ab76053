"""The whole graph as one warp-specialised launch on a Hopper GPU (``kernels/hopper/template``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from interlace.core.errors import DTypeError, GraphError, NoDeviceError, PlanError, ShapeError
from interlace.executors.device import DeviceExecutor, Options
from interlace.executors.launch import Launch
from interlace.executors.table import Table, for_workers
from interlace.graph.op import Op
from interlace.kernels.base import HopperBody, Pipeline, kernel_of
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof

_RESERVED = 10 << 10  # shared memory for barriers, tickets and the epilogue's scratch


class HopperExecutor(DeviceExecutor):
    """Workers run the plan's items by ticket; weights stream ahead of the activations.

    All ops share one shape of boxes, so that they share the rings.

    Args:
        plan, options: as for every device executor.
        pipeline: how data moves; by default as deep as shared memory allows.

    Raises:
        PlanError: the plan has static dispatch, more ops than one launch takes, or boxes of different shapes.
        DTypeError, ShapeError: another dtype than bf16 and fp16, or rows that bulk loads cannot address.
        NoDeviceError: the GPU is not of the Hopper generation.
    """

    name = "hopper"
    synchronises = True
    _specialised = True

    def __init__(
        self, plan: Plan | Proof, options: Options | None = None, pipeline: Pipeline | None = None
    ) -> None:
        self.pipeline = pipeline or default_pipeline((plan.plan if isinstance(plan, Proof) else plan).graph.ops)
        self._shares = self.pipeline.shares
        super().__init__(plan, options)

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
            for access in op.reads:
                tensor = self.plan.graph.tensor(access.tensor)
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
        tiles = {tuple(int(op.param(name)) for name in ("BM", "BN", "BK")) for op in ops}
        if len(tiles) > 1:
            raise PlanError(
                f"ops of graph {self.plan.graph.name!r} have tiles of different shapes {sorted(tiles)}; "
                "one ring serves them all, so give them one tile shape"
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
        return tuple(_hopper_body(op) for op in self.plan.graph.ops)

    def _partial(self, op: Op) -> Any:
        return _hopper_body(op).partial

    def _arguments(self, op: Op, tensors: Mapping[str, Any]) -> tuple[Any, ...]:
        body = _hopper_body(op)
        return body.operands(op, tensors), body.arguments(op, tensors, self.pipeline)

    def _launches(self, arguments: tuple[Any, ...]) -> list[Launch]:
        from triton.language import constexpr

        from interlace.kernels.hopper.template import OPS, hopper_kernel

        n = len(self.plan.items)
        sync = self._sync(0, 0, n + self.plan.workers)
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
                (self.plan.workers,),
                (
                    sync,
                    n,
                    bodies,
                    tuple(argument for _, argument in arguments),
                    *operands,
                    self.pipeline.stages,
                    self.pipeline.panels,
                    dependent,
                    math,
                    load,
                ),
                {"num_warps": 4, "launch_pdl": dependent, "maxnreg": at_launch},
            )
        ]


def default_pipeline(ops: tuple[Op, ...], smem_bytes: int = 227 << 10) -> Pipeline:
    """A ring as deep as shared memory allows; two warpgroups where the op asks for eight warps.

    64 to 96 KiB in flight per SM saturate memory (docs/performance.md).
    """
    bm, bn, k = (int(ops[0].param(name)) for name in ("BM", "BN", "BK"))
    shares = int(ops[0].parameters.get("num_warps", 4)) // 4
    # The epilogue turns blocks of up to 64 columns round, for each warpgroup.
    rows, columns = (bn, bm) if ops[0].param("SWAP") else (bm, bn)
    scratch = rows * min(columns, 64) * 2 + (2 << 10)
    stage = (bm + bn) * k * 2
    return Pipeline((smem_bytes - scratch) // stage, k // 64, max(1, (96 << 10) // (bn * k * 2)), shares)


def _hopper_body(op: Op) -> HopperBody:
    kernel = kernel_of(op)
    if kernel.hopper is None:
        raise GraphError(f"op {op.name!r}: kernel {kernel.name!r} has no Hopper body; use the persistent executor")
    return kernel.hopper()

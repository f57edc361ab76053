"""Tiles that spin for a given time, to measure which worker runs which tile when."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.core.dtypes import int32
from interlace.csrc import include
from interlace.graph.access import axes
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.base import Kernel, require
from interlace.kernels.bodies import Array, Params, Reference, Regions, TritonBody
from interlace.kernels.cuda_body import CudaBody


def _finish(_: Array | None, regions: Regions, params: Params) -> Mapping[str, Array]:
    return {"out": regions["ns"]}


def _build_triton_body() -> TritonBody:
    from interlace.kernels.spin.triton import spin_tile

    return TritonBody(finish=spin_tile)


_SPIN_CUDA = CudaBody(
    include("ops/spin.cuh"),
    "spin_tile",
    is_proved=True,
)

SPIN = Kernel("spin", Reference(_finish), _build_triton_body, megakernel=_SPIN_CUDA)


def spin(name: str, ns: Tensor, out: Tensor) -> Op:
    """Return the op whose tile i spins for ``ns[i]`` nanoseconds on the GPU's clock, then writes that to ``out[i]``.

    Both are int32 vectors.

    Raises:
        ShapeError: tensors of other shapes or dtypes.
    """
    require(
        ns.dtype is out.dtype is int32 and len(ns.shape) == 1 and ns.shape == out.shape,
        f"op {name!r} spins for {ns} and writes {out}; both must be int32 vectors of one length",
    )
    (i,) = axes(1)
    return SPIN.make_op(name, ns.shape, {"ns": (ns, (i.block(1),))}, {"out": (out, (i.block(1),))})

"""CUDA source that joins the splits of attention in the megakernel."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda_body import CudaBody, CudaVariants
from interlace.kernels.cuda_loads import CudaLoads
from interlace.kernels.megakernel_body import LLArguments


def _can_use_ll(op: Op, tensors: Mapping[str, Tensor], name: str) -> bool:
    return "rows" not in tensors and tensors["out"].dtype.itemsize == 2


def _build_body(splits: str) -> CudaBody:
    """Return the body, given the header that finds the splits of a sequence."""
    return CudaBody(
        include("ops/rows.cuh", f"ops/combine/{splits}.cuh", "ops/combine/combine.cuh"),
        "combine_tile",
        constants=("HEADS", "SPLITS", "GROUP", "D"),
        loads=CudaLoads(paired_inputs=("parts",)),
        ll=LLArguments(inputs=("parts", "peak", "total"), outputs=("out",), can_use=_can_use_ll),
        is_proved=True,
    )


_OF_ROWS = _build_body("splits_of_rows")

COMBINE_CUDA = CudaVariants(_build_body("splits_equal"), lambda op, tensors: _OF_ROWS if "rows" in tensors else None)

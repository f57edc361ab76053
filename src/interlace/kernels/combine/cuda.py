"""CUDA source that joins the splits of attention in the megakernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda_body import CudaBody

_WARP_ELEMENTS = 64  # elements at a time


def _text(splits: str) -> str:
    """Return the text, given the header that finds the splits of a sequence."""
    return include("ops/rows.cuh", f"ops/combine/{splits}.cuh", "ops/combine/combine.cuh")


def _can_use_ll(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    return "rows" not in tensors and int(op.param("D")) % _WARP_ELEMENTS == 0 and tensors["out"].dtype.itemsize == 2


def _select_variant(op: Op, tensors: Mapping[str, Tensor]) -> CudaBody | None:
    if "rows" not in tensors:
        return None
    return replace(COMBINE_CUDA, source=_text("splits_of_rows"), select_variant=None)


COMBINE_CUDA = CudaBody(
    _text("splits_equal"),
    "combine_tile",
    constants=("HEADS", "SPLITS", "GROUP", "D"),
    paired_inputs=("parts",),
    is_proved=True,
    ll_inputs=("parts", "peak", "total"),
    ll_outputs=("out",),
    can_use_ll=_can_use_ll,
    select_variant=_select_variant,
)

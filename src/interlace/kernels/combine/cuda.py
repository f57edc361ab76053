"""The CUDA C++ body that joins the splits of attention, for the one launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import CudaBody

_WARP_ELEMENTS = 64  # elements at a time
_BODY = include("ops/combine/combine.cuh")
_EQUAL_SPLITS = include("ops/combine/splits_equal.cuh")
_SPLITS_OF_ROWS = include("ops/combine/splits_of_rows.cuh")


def _can_use_ll(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    return "rows" not in tensors and int(op.param("D")) % _WARP_ELEMENTS == 0 and tensors["out"].dtype.itemsize == 2


def _select_variant(op: Op, tensors: Mapping[str, Tensor]) -> CudaBody | None:
    if "rows" not in tensors:
        return None
    return replace(COMBINE_CUDA, source=ROWS + _SPLITS_OF_ROWS + _BODY, select_variant=None)


COMBINE_CUDA = CudaBody(
    ROWS + _EQUAL_SPLITS + _BODY,
    "combine_tile",
    constants=("HEADS", "SPLITS", "GROUP", "D"),
    paired_inputs=("parts",),
    is_proved=True,
    ll_inputs=("parts", "peak", "total"),
    ll_outputs=("out",),
    can_use_ll=_can_use_ll,
    select_variant=_select_variant,
)

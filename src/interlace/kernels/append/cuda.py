"""CUDA source that appends to caches in the megakernel."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda_body import CudaBody
from interlace.kernels.pages import PAGES

APPEND_CUDA = CudaBody(
    include("ops/rows.cuh", "ops/heads.cuh") + PAGES + include("ops/append.cuh"),
    "append_tile",
    constants=("HEADS", "PAGE", "COUNT", "D", "EPS"),
    optional_args=("table", "k_norm"),
    is_proved=True,
    ll_inputs=("k", "v"),
    can_use_ll=lambda op, tensors: tensors["k"].dtype.itemsize == 2,
)

"""CUDA source that appends to caches in the megakernel."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda_body import CudaBody
from interlace.kernels.megakernel_body import LLArguments
from interlace.kernels.pages import PAGES

APPEND_CUDA = CudaBody(
    include("ops/rows.cuh", "ops/heads.cuh") + PAGES + include("ops/append.cuh"),
    "append_tile",
    constants=("HEADS", "PAGE", "COUNT", "D", "EPS"),
    optional_args=("table", "k_norm"),
    ll=LLArguments(inputs=("k", "v"), can_use=lambda op, tensors, name: tensors["k"].dtype.itemsize == 2),
    is_proved=True,
)

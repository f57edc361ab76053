"""CUDA source that appends to caches in the megakernel."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda_body import CudaBody, CudaVariants
from interlace.kernels.megakernel_body import LLArguments
from interlace.kernels.pages import PAGES


def _build_body(rows: str) -> CudaBody:
    """Return the body, given the header that finds the sequence of a row."""
    return CudaBody(
        include(f"ops/append/{rows}.cuh", "ops/rows.cuh", "ops/heads.cuh") + PAGES + include("ops/append/append.cuh"),
        "append_tile",
        constants=("HEADS", "PAGE", "COUNT", "D", "EPS"),
        optional_args=("table", "k_norm"),
        ll=LLArguments(inputs=("k", "v"), can_use=lambda op, tensors, name: tensors["k"].dtype.itemsize == 2),
        is_proved=True,
    )


_NAMED = _build_body("rows_named")

APPEND_CUDA = CudaVariants(_build_body("rows_own"), lambda op, tensors: _NAMED if "sequence" in tensors else None)

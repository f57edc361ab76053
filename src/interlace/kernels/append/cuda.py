"""The CUDA C++ body that appends to caches, for the one launch.

The few elements of a tile are all latency. So a warp asks for what its heads need in trips as wide as can be: positions
and pages of 32 of them at once, a lane each; then keys, values and angles of some heads, before the first is used.
"""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda.rows import ROPE_HEADS, ROWS
from interlace.kernels.pages import PAGES
from interlace.kernels.text import CudaBody

APPEND_CUDA = CudaBody(
    ROWS + ROPE_HEADS + PAGES + include("ops/append.cuh"),
    "append_tile",
    constants=("HEADS", "PAGE", "COUNT", "D", "EPS"),
    optional_args=("table", "k_norm"),
    is_proved=True,
    ll_inputs=("k", "v"),
    can_use_ll=lambda op, tensors: tensors["k"].dtype.itemsize == 2,
)

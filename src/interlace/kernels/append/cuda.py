"""The CUDA C++ body that appends to caches, for the one launch.

The few elements of a tile are all latency. So a warp asks for what its heads need in trips as wide as can be: positions
and pages of 32 of them at once, a lane each; then keys, values and angles of some heads, before the first is used.
"""

from __future__ import annotations

from interlace.csrc import read_header
from interlace.kernels.cuda.rows import PLACED, ROWS
from interlace.kernels.pages import PAGES
from interlace.kernels.text import TextBody

APPEND_TEXT = TextBody(
    ROWS + PLACED + PAGES + read_header("ops/append.cuh"),
    "append_tile",
    constants=("HEADS", "PAGE", "COUNT", "D", "EPS"),
    optional=("table", "k_norm"),
    proved=True,
    polls=("k", "v"),
    by_words=lambda op, tensors: tensors["k"].dtype.itemsize == 2,
)

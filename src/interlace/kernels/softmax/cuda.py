"""The CUDA C++ body of softmax, for the one launch."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda.teams import build_row_body

SOFTMAX_CUDA = build_row_body(include("ops/softmax.cuh"))

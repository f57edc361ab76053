"""The CUDA C++ body of layer normalisation, for the one launch."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda.teams import build_row_body

LAYER_NORM_CUDA = build_row_body(include("ops/layer_norm.cuh"))

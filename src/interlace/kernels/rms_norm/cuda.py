"""The CUDA C++ body of RMS normalisation, for the one launch."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda.teams import build_row_body

RMS_NORM_CUDA = build_row_body(include("ops/rms_norm.cuh"))

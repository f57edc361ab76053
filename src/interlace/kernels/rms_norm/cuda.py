"""The CUDA C++ body of RMS normalisation, for the one launch."""

from __future__ import annotations

from interlace.csrc import read_header
from interlace.kernels.cuda.teams import of_whole_rows

RMS_NORM_TEXT = of_whole_rows(read_header("ops/rms_norm.cuh"))

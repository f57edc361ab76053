"""RMS normalisation folded into matmuls (``kernels/squares``) in CUDA C++: factors, scaled rows, sums of squares."""

from __future__ import annotations

from interlace.csrc import include

FOLDED = include("ops/matmul/folded_norm.cuh")

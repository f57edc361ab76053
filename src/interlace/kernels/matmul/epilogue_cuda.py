"""What epilogues of products share in the one launch, in CUDA C++: their operands, activations, and small accesses."""

from __future__ import annotations

from interlace.csrc import include

EPILOGUE = include("ops/matmul/epilogue.cuh")

"""CUDA C++ functions that emitted kernels use beside the PTX instructions: vectors, clipped access.

A clipped access names how many of its elements lie inside the tensor: ``count`` from the front, without the first
``skip``. With a row of 10 and vectors of 4, the vector at column 8 has count 2 and that at column 12 count -2.
"""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda.elements import ELEMENTS

#: Index arithmetic.
INDICES = include("loops/indices.cuh")
#: Vectors of tiles; behind ``ELEMENTS``.
VALUES = include("loops/values.cuh")

TILE_FUNCTIONS = INDICES + ELEMENTS + VALUES

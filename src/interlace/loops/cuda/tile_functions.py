"""CUDA C++ functions of emitted kernels, in addition to the PTX instructions: vectors, clipped access.

A clipped access states which of its elements lie inside the tensor: the first ``count``, without the first ``skip``.
With a row of 10 elements and vectors of 4, the vector at column 8 has count 2 and the one at column 12 count -2.
"""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda.elements import ELEMENTS

#: Index arithmetic.
INDICES = include("loops/indices.cuh")
#: Vectors of tiles. Must follow ``ELEMENTS``.
VALUES = include("loops/values.cuh")

TILE_FUNCTIONS = INDICES + ELEMENTS + VALUES

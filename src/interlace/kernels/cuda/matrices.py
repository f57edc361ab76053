"""Products of a warp out of registers, and how their operands come from shared memory, in CUDA C++.

Of a product of 16 x 16 by 16 x 8, lane l has of the first operand rows l / 4 and l / 4 + 8, of the second and of the
sums what this table says (PTX ISA, "Matrix fragments for mma.m16n8k16"); r is l / 4 and c is 2 (l % 4):

    register    0                   1                     2                     3
    first       row r, k c .. c+1   row r+8, k c .. c+1   row r, k c+8 .. c+9   row r+8, k c+8 .. c+9
    second      column r, k c, c+1  column r, k c+8, c+9
    sums        row r, column c     row r, column c+1     row r+8, column c     row r+8, column c+1
"""

from __future__ import annotations

from interlace.csrc import include

#: Elements are those of ``ELEMENT_PTX``.
MATRICES = include("ops/mma.cuh")

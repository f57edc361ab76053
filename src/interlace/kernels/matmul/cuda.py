"""The CUDA C++ body of matmul for the one launch.

A tile is BM tokens by BN weight rows. The tensor core multiplies 64 rows of one operand by up to 256 of the other, any
multiple of 8: rows are tokens, or, transposed (``SWAP``), weights, which keeps the 64-row operand full where there are
few tokens. Consumer warpgroups share the rows. Operands lie in a slot as panels of 64 elements of k (128 bytes: one
swizzled line); the panels of the gate come first, then those of the other weights. The last boxes along M and N are as
small as their tensors leave them, bulk loads fill what lies beyond k with zeros, and stores are masked: so any M will
do, any N (``RAGGED``: no multiple of 8), and any K that is a multiple of 8.

``csrc/ops/matmul/fix_up.inc`` reduces the parts of a split tile.

RMS normalisation that is folded in (``kernels/squares``) costs no pass of its own: threads that store neighbouring
columns of a row also have the sum of their squares, and factors of rows are made while the last products are under way.
Rows that are normalised here (``x_scale``) are the 64-row operand, out of registers: there a thread scales what it has
of a stage, and adds up its squares, before it awaits the stage's weights, and while products of others are under way.
"""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels import gelu
from interlace.kernels.matmul.epilogue_cuda import EPILOGUE
from interlace.kernels.matmul.folded_cuda import FOLDED
from interlace.kernels.matmul.operands_cuda import OPERANDS_OF_PRODUCTS

MATMUL = gelu.CUDA + OPERANDS_OF_PRODUCTS + EPILOGUE + FOLDED + include("ops/matmul/matmul.cuh")

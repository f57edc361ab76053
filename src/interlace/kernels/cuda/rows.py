"""What texts of a tile have in common: elements by the 16 bytes, sums over a warp or all threads, heads in place."""

from __future__ import annotations

from interlace.csrc import include

ROWS = include("ops/rows.cuh")

#: Behind ``ROWS``: 16 bytes from memory and back.
VECTORS = include("ops/vectors.cuh")

#: Behind ``ROWS``: see ``kernels/rope``.
ROPE_HEADS = include("ops/heads.cuh")

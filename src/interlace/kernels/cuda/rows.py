"""What texts of a tile have in common: elements by the 16 bytes, sums over a warp or all threads, heads in place."""

from __future__ import annotations

from interlace.csrc import read_header

ROWS = read_header("ops/rows.cuh")

#: Behind ``ROWS``: 16 bytes from memory and back.
VECTORS = read_header("ops/vectors.cuh")

#: Behind ``ROWS``: see ``kernels/rope``.
ROPE_HEADS = read_header("ops/heads.cuh")

"""Prefetch into the L2: prefetchable loads run before a wait.

A prefetch only moves lines into the L2, where later writes are still seen, so it is safe before any wait and before
``griddepcontrol.wait``.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def prefetch_rows(row, available, ROW_BYTES: tl.constexpr, SIZE: tl.constexpr):
    """Prefetch into the L2 the first ROW_BYTES (a multiple of 16) of each row, or the available part.

    ``row`` points at each row's first element of SIZE bytes, 16-byte aligned; ``available`` is the number of elements
    per row. One bulk prefetch per row; with fewer rows than threads, rows are cut into pieces so that no two threads
    prefetch the same bytes.
    """
    PIECES: tl.constexpr = max(1, 128 // row.shape[0])
    BYTES: tl.constexpr = max(16, ROW_BYTES // PIECES // 16 * 16)
    begin = tl.arange(0, PIECES) * BYTES
    size = tl.maximum(tl.minimum(available * SIZE - begin, BYTES) // 16 * 16, 0)
    pointer = row[:, None] + (begin // SIZE)[None, :]
    bytes_ = tl.broadcast_to(size[None, :], pointer.shape)
    tl.inline_asm_elementwise(
        "{ .reg .pred some; setp.gt.s32 some, $2, 0; @some cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r",
        [pointer, bytes_],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )

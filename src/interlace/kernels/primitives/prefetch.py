"""Prefetch into the L2: loads that depend on nothing run ahead of a wait.

A prefetch only moves lines into the cache, where later writes would still be seen, so it is safe before
any wait and before ``griddepcontrol.wait``.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def prefetch_rows(row, available, ROW_BYTES: tl.constexpr, SIZE: tl.constexpr):
    """Ask the L2 for the first ROW_BYTES of each row (or what is available of it).

    ``row`` points at each row's first element of SIZE bytes; ``available`` is the elements per row.
    One ``prefetch.global.L2`` per 128-byte line.
    """
    LINES: tl.constexpr = triton.next_power_of_2(max(ROW_BYTES // 128, 1))
    step = tl.arange(0, LINES) * (128 // SIZE)
    pointer = row[:, None] + tl.minimum(step, available - 1)[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointer], dtype=tl.int32, is_pure=False, pack=1
    )

"""Split-K partials of a tile: where each part stores its own, and how the last part to arrive reduces them.

Part ``p`` of a tile has slot ``tile.slot + p`` of the workspace, ``sync.SLOT`` float32 elements wide. The slot holds
the blocks of the part's sums in sequence. This module does not order accesses: a part stores its partial before the
atomic add of ``semaphore.fix_up``. ``sum_partials`` runs after that add, in the part that ``fix_up`` reports as last.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _compute_offsets(block):
    """Return the offset of each element of a block in its partial."""
    rows: tl.constexpr = block.shape[0]
    columns: tl.constexpr = block.shape[1]
    return tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :]


@triton.jit
def store_partial(tile, sync, acc):
    """Store a part's sums in its slot, through the L2; ``acc`` is the ``acc`` of ``semaphore.fix_up``."""
    size: tl.constexpr = acc[0].shape[0] * acc[0].shape[1]
    mine = sync.workspace + (tile.slot + tile.part).to(tl.int64) * sync.SLOT
    for b in tl.static_range(len(acc)):
        tl.store(mine + b * size + _compute_offsets(acc[b]), acc[b], cache_modifier=".cg")


@triton.jit
def sum_partials(tile, sync, acc, block: tl.constexpr, PARTS: tl.constexpr):
    """Sum ``acc[block]`` over all parts, in part order; for the last part to arrive.

    Its own part is read back too: held together with the sum, it would spill.
    """
    value = acc[block]
    if PARTS > 1 and tile.parts > 1:
        size: tl.constexpr = value.shape[0] * value.shape[1]
        slot = sync.workspace + tile.slot.to(tl.int64) * sync.SLOT + block * size
        within = _compute_offsets(value)
        value = tl.load(slot + within, cache_modifier=".cg")
        for _ in range(1, tile.parts):
            slot += sync.SLOT
            value += tl.load(slot + within, cache_modifier=".cg")
    return value

"""Partial sums of a split tile: where each part keeps its own, and how the last part to arrive adds them.

Part ``p`` of a tile has slot ``tile.slot + p`` of the workspace, ``sync.SLOT`` float32 elements wide; in it lie the
shares of the warpgroups one after another, and in a share its blocks. When a sum may be read is not said here: keeping
comes before the add of ``semaphore.fix_up``, and ``sum_of_parts`` after it, in the part that ``fix_up`` calls the last.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental.gluon import language as gl


@triton.jit
def _within(block):
    """Where each element of a block lies in its partial sum."""
    rows: tl.constexpr = block.shape[0]
    columns: tl.constexpr = block.shape[1]
    return tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :]


@triton.jit
def _flat(block):
    """An accumulator of one warpgroup in the order of its threads' registers: four in a row for each thread.

    Moves nothing. A wgmma accumulator's 8 x 8 fragments give thread (r, c) of (8, 4) two columns of row r, and of
    row r + 8.
    """
    rows: tl.constexpr = block.shape[0]
    columns: tl.constexpr = block.shape[1]
    fragments = block.reshape([rows // 64, 4, 2, 8, columns // 8, 4, 2]).permute([0, 4, 1, 3, 5, 2, 6])
    return fragments.reshape([rows * columns])


@triton.jit
def _square(flat, rows: tl.constexpr, columns: tl.constexpr):
    """The inverse of ``_flat``."""
    fragments = flat.reshape([rows // 64, columns // 8, 4, 8, 4, 2, 2]).permute([0, 2, 5, 3, 1, 4, 6])
    return fragments.reshape([rows, columns])


@triton.jit
def keep(tile, sync, acc, share: tl.constexpr):
    """Store a part's sums in its slot, through the L2; ``acc`` and ``share`` are those of ``semaphore.fix_up``."""
    size: tl.constexpr = acc[0].shape[0] * acc[0].shape[1]
    mine = sync.workspace + (tile.slot + tile.part).to(tl.int64) * sync.SLOT + share * len(acc) * size
    for b in tl.static_range(len(acc)):
        if sync.SPECIALISED:
            flat = _flat(acc[b])
            within = gl.arange(0, size, layout=flat.type.layout)
            tl.store(mine + b * size + within, flat, cache_modifier=".cg")
        else:
            tl.store(mine + b * size + _within(acc[b]), acc[b], cache_modifier=".cg")


@triton.jit
def sum_of_parts(tile, sync, acc, block: tl.constexpr, share: tl.constexpr, PARTS: tl.constexpr):
    """Sum of ``acc[block]`` over all parts, in part order; for the last part to arrive.

    Where blocks are whole tiles, its own part is read back too: beside the sum it would spill.
    """
    value = acc[block]
    if PARTS > 1 and tile.parts > 1:
        rows: tl.constexpr = value.shape[0]
        columns: tl.constexpr = value.shape[1]
        size: tl.constexpr = rows * columns
        slot = sync.workspace + tile.slot.to(tl.int64) * sync.SLOT + (share * len(acc) + block) * size
        if sync.SPECIALISED:
            # Loads of all parts are under way before the first addition, and its own part never left.
            own = _flat(value)
            within = gl.arange(0, size, layout=own.type.layout)
            flat = gl.zeros_like(own)
            for p in tl.static_range(PARTS):
                other = (p < tile.parts) & (p != tile.part)
                part = tl.load(slot + p * sync.SLOT + within, mask=other, other=0.0, cache_modifier=".cg")
                flat += tl.where(p == tile.part, own, part)
            value = gl.convert_layout(_square(flat, rows, columns), value.type.layout, assert_trivial=True)
        else:
            within = _within(value)
            value = tl.load(slot + within, cache_modifier=".cg")
            for _ in range(1, tile.parts):
                slot += sync.SLOT
                value += tl.load(slot + within, cache_modifier=".cg")
    return value

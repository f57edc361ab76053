"""Access maps of an op: the box of every global tensor that each block touches, derived from the loops.

Worked example, ``copy_2d`` in 16 x 256 tiles, four to a block, for a tensor of 100 x 3000. Its boxes begin at
``(r * 16, (b * 4 + c) * 256)`` with ``c`` from 0 to at most 3, so block ``(r, b)`` touches rows ``16 r : 16 r + 16``
and columns ``1024 b : 1024 b + 1024``, clipped to the tensor.

A box is never too small; where ``bounds`` are not exact, it is larger than the region that the block touches.
"""

from __future__ import annotations

from collections.abc import Mapping

from interlace.graph.access import Span
from interlace.loops.ir.bounds import Grid, bound_blocks, combine_bounds, compute_bounds, walk_reachable
from interlace.loops.ir.nest import split_block_loops
from interlace.loops.ir.statements import LoopKernel, MemorySpace
from interlace.loops.ir.traverse import list_boxes


def find_touched_spans(kernel: LoopKernel, sizes: Mapping[str, int]) -> dict[str, tuple[Span, ...]]:
    """Return the span of each global tensor that block ``t0, t1, ...`` touches, along each of its dimensions.

    Args:
        kernel: source kernel, not rewritten yet.
        sizes: run-time extents.
    """
    _, body = split_block_loops(kernel)
    grid, known = bound_blocks(kernel, sizes)
    out: dict[str, tuple[Span, ...]] = {}
    for stmt, known_there, _ in walk_reachable(body, known, grid):
        for box in list_boxes(stmt):
            if kernel.find_tensor(box.tensor).memory is MemorySpace.GLOBAL:
                at = (compute_bounds(origin, known_there, grid) for origin in box.origin)
                spans = tuple(Span(b.lo, b.hi + n) for b, n in zip(at, box.shape, strict=True))
                out[box.tensor] = _compute_hull(out.get(box.tensor, spans), spans, grid)
    return out


def _compute_hull(a: tuple[Span, ...], b: tuple[Span, ...], grid: Grid) -> tuple[Span, ...]:
    pairs = zip(a, b, strict=True)
    return tuple(
        Span(combine_bounds(x.lo, y.lo, min, grid.find_minimum), combine_bounds(x.hi, y.hi, max, grid.find_maximum))
        for x, y in pairs
    )

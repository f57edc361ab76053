"""Limits of a launch: within a kernel, indices, numbers of steps and numbers of blocks must fit 32 bits.

Worked example, a tensor of ``m * n`` elements with both 60000: each extent fits, ``m * n`` does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod

from interlace.core.errors import PipelineError
from interlace.loops.ir.bounds import Bounds, Grid, bound_blocks, compute_bounds, walk_reachable
from interlace.loops.ir.index import BinaryIndex, Const, Index
from interlace.loops.ir.nest import split_block_loops
from interlace.loops.ir.statements import For, LoopKernel
from interlace.loops.ir.text import print_index
from interlace.loops.ir.traverse import walk_indices

#: The largest index, with room for a tile and for steps past the end.
INDEX_LIMIT = 2**31 - 2**16


def check_range(kernel: LoopKernel, sizes: Mapping[str, int]) -> None:
    """Check that indices within a kernel fit 32 bits, with room for tiles and steps past the ends.

    Raises:
        PipelineError: with run-time extents ``sizes``, an extent, an index, or a number of steps or blocks is too
            large.
    """
    far, index = _find_farthest(kernel, tuple(sizes.items()))
    if far > INDEX_LIMIT:
        raise PipelineError(
            f"kernel {kernel.name!r}: {print_index(index)} or a part of it reaches {far} with extents {dict(sizes)}; "
            f"at most {INDEX_LIMIT}, so cut the tensor, or make tiles larger"
        )


@lru_cache(maxsize=1024)
def _find_farthest(kernel: LoopKernel, sizes: tuple[tuple[str, int], ...]) -> tuple[int, Index]:
    """Return the index of a source kernel, or part of one, that is farthest from 0, and its distance."""
    loops, body = split_block_loops(kernel)
    grid, known = bound_blocks(kernel, dict(sizes))
    every = [(index, known) for index in (*(n for t in kernel.tensors for n in t.shape), *(x.stop for x in loops))]
    found = [(prod(grid.extents), loops[0].stop if loops else Const(1))]
    for stmt, known_there, steps in walk_reachable(body, known, grid):
        every += [(index, known_there) for index in walk_indices(stmt)]
        if isinstance(stmt, For):
            found.append((steps * grid.find_maximum(compute_bounds(stmt.stop, known_there, grid).hi), stmt.stop))
    found += [(abs(n), index) for index, there in every for n in _walk_bounds(index, there, grid)]
    return max(found, key=lambda f: f[0])


def _walk_bounds(index: Index, known: Mapping[str, Bounds], grid: Grid) -> Iterator[int]:
    """Yield numeric lower and upper bounds of ``index`` and its parts."""
    bounds = compute_bounds(index, known, grid)
    yield from (grid.find_minimum(bounds.lo), grid.find_maximum(bounds.hi))
    if isinstance(index, BinaryIndex):
        yield from _walk_bounds(index.left, known, grid)
        yield from _walk_bounds(index.right, known, grid)

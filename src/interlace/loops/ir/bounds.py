"""Bounds of indices that are affine in a block's coordinates.

Worked example, ``(b * 4 + c) * 256`` with ``c`` from 0 to 3: the lower bound is ``1024 b``, the upper bound is
``1024 b + 768``. Where an index is not affine in the coordinates (``b // 3``), its bounds are numbers that hold in all
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product, zip_longest

from interlace.graph.access import Affine, axes
from interlace.loops.ir.index import BinaryIndex, Const, Index, IndexOp, Var, evaluate
from interlace.loops.ir.nest import split_block_loops
from interlace.loops.ir.statements import Block, For, LoopKernel, Stmt


@dataclass(frozen=True)
class Bounds:
    """Lower bound ``lo`` and upper bound ``hi`` of an index, valid in every block."""

    lo: Affine
    hi: Affine


@dataclass(frozen=True)
class Grid:
    """Extents of the block loops."""

    extents: tuple[int, ...]

    def find_range(self, value: Affine) -> tuple[int, int]:
        """Return the smallest and the largest number that ``value`` takes."""
        far = [c * max(n - 1, 0) for c, n in zip_longest(value.tile, self.extents, fillvalue=0)]
        return value.const + sum(min(f, 0) for f in far), value.const + sum(max(f, 0) for f in far)

    def find_minimum(self, value: Affine) -> int:
        return self.find_range(value)[0]

    def find_maximum(self, value: Affine) -> int:
        return self.find_range(value)[1]


def bound_blocks(kernel: LoopKernel, sizes: Mapping[str, int]) -> tuple[Grid, dict[str, Bounds]]:
    """Return the grid of a kernel and the bounds of its run-time extents and of the block loops' variables."""
    loops, _ = split_block_loops(kernel)
    known = {name: make_constant_bounds(value) for name, value in sizes.items()}
    known |= {loop.var: Bounds(axis, axis) for loop, axis in zip(loops, axes(len(loops)), strict=True)}
    return Grid(tuple(evaluate(loop.stop, sizes) for loop in loops)), known


def walk_reachable(
    body: tuple[Stmt, ...], known: dict[str, Bounds], grid: Grid, steps: int = 1
) -> Iterator[tuple[Stmt, dict[str, Bounds], int]]:
    """Yield every statement that some block reaches if all conditions hold, with the bounds of variables there.

    The number yielded is the maximum trip count of the enclosing loops within ``body``, multiplied over the nest.
    """
    for stmt in body:
        yield stmt, known, steps
        if isinstance(stmt, For):
            start, stop = compute_bounds(stmt.start, known, grid).lo, compute_bounds(stmt.stop, known, grid).hi
            most = grid.find_maximum(stop) - grid.find_minimum(start)
            if most > 0:
                yield from walk_reachable(stmt.body, known | {stmt.var: Bounds(start, stop - 1)}, grid, steps * most)
        elif isinstance(stmt, Block):
            yield from walk_reachable(stmt.body, known, grid, steps)


def combine_bounds(x: Affine, y: Affine, choose: Callable[[int, int], int], reach: Callable[[Affine], int]) -> Affine:
    """Return a bound for both of two indices: one of the two if their coefficients agree, else a number."""
    if x.tile == y.tile:
        return x + (choose(x.const, y.const) - x.const)
    return Affine(choose(reach(x), reach(y)))


def make_constant_bounds(value: int) -> Bounds:
    return Bounds(Affine(value), Affine(value))


def compute_bounds(index: Index, known: Mapping[str, Bounds], grid: Grid) -> Bounds:
    """Return the bounds of ``index``, computed from those of its variables."""
    if isinstance(index, Const):
        return make_constant_bounds(index.value)
    if isinstance(index, Var):
        return known[index.name]
    assert isinstance(index, BinaryIndex)
    a, b = compute_bounds(index.left, known, grid), compute_bounds(index.right, known, grid)
    match index.op:
        case IndexOp.ADD:
            return Bounds(a.lo + b.lo, a.hi + b.hi)
        case IndexOp.SUB:
            return Bounds(a.lo - b.hi, a.hi - b.lo)
        case IndexOp.MIN:  # both upper bounds hold: take the tighter one
            return Bounds(combine_bounds(a.lo, b.lo, min, grid.find_minimum), min(a.hi, b.hi, key=grid.find_maximum))
        case IndexOp.MAX:
            return Bounds(max(a.lo, b.lo, key=grid.find_minimum), combine_bounds(a.hi, b.hi, max, grid.find_maximum))
    if b.lo == b.hi and not b.lo.tile:
        factor = b.lo.const
        if index.op is IndexOp.MUL:
            ends = (a.lo * factor, a.hi * factor)
            return Bounds(*(ends if factor >= 0 else reversed(ends)))
        if index.op is IndexOp.FLOORDIV and all(c % factor == 0 for c in (*a.lo.tile, *a.hi.tile)):
            return Bounds(_divide(a.lo, factor), _divide(a.hi, factor))
    elif index.op is IndexOp.MUL and a.lo == a.hi and not a.lo.tile:
        return compute_bounds(BinaryIndex(index.op, index.right, index.left), known, grid)
    return _compute_numeric_bounds(index.op, a, b, grid)


def _divide(value: Affine, divisor: int) -> Affine:
    """Divide and round down, where every coefficient of a coordinate is a multiple of the divisor."""
    return Affine(value.const // divisor, tuple(c // divisor for c in value.tile))


def _compute_numeric_bounds(op: IndexOp, a: Bounds, b: Bounds, grid: Grid) -> Bounds:
    """Return numeric bounds of a product, a quotient or a remainder."""
    lefts, rights = ((grid.find_minimum(x.lo), grid.find_maximum(x.hi)) for x in (a, b))
    if op is IndexOp.MOD:
        return Bounds(Affine(0), Affine(rights[1] - 1))
    ends = [x * y if op is IndexOp.MUL else x // max(y, 1) for x, y in product(lefts, rights)]
    return Bounds(Affine(min(ends)), Affine(max(ends)))

"""Which box of every global tensor each block touches, found in the loops: the access maps of an op.

Worked example, ``copy_2d`` in 16 x 256 tiles, four to a block, for a tensor of 100 x 3000. Its boxes begin at
``(r * 16, (b * 4 + c) * 256)`` with ``c`` from 0 to at most 3, so block ``(r, b)`` touches rows ``16 r : 16 r + 16``
and columns ``1024 b : 1024 b + 1024``, clipped to the tensor.

An index lies between two bounds that are affine in the block's coordinates. Where it is no affine function of them
(``b // 3``) the bounds are the numbers that it stays within for all blocks: more than a block touches, never less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product, zip_longest

from interlace.graph.access import Affine, Span, axes
from interlace.pipeline.index import Binary, Const, Index, IndexOp, Var, evaluate
from interlace.pipeline.ir import Block, Box, For, Kernel, Memory, Stmt
from interlace.pipeline.nest import block_loops
from interlace.pipeline.traverse import boxes


@dataclass(frozen=True)
class Bounds:
    """An index is at least ``lo`` and at most ``hi``, for every block."""

    lo: Affine
    hi: Affine


def touched(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, tuple[Span, ...]]:
    """The span of each global tensor that block ``t0, t1, ...`` touches, along each of the tensor's dimensions.

    Args:
        kernel: not rewritten yet.
        sizes: run-time extents.
    """
    loops, body = block_loops(kernel)
    grid = _Grid(tuple(evaluate(loop.stop, sizes) for loop in loops))
    known = {name: _number(value) for name, value in sizes.items()}
    known |= {loop.var: Bounds(axis, axis) for loop, axis in zip(loops, axes(len(loops)), strict=True)}
    out: dict[str, tuple[Span, ...]] = {}
    for box, spans in _touches(body, known, grid):
        if kernel.tensor(box.tensor).memory is Memory.GLOBAL:
            out[box.tensor] = _hull(out.get(box.tensor, spans), spans, grid)
    return out


@dataclass(frozen=True)
class _Grid:
    """Extents of the block loops."""

    extents: tuple[int, ...]

    def reach(self, value: Affine) -> tuple[int, int]:
        """The smallest and the largest number that ``value`` is."""
        far = [c * (n - 1) for c, n in zip_longest(value.tile, self.extents, fillvalue=0)]
        return value.const + sum(min(f, 0) for f in far), value.const + sum(max(f, 0) for f in far)

    def least(self, value: Affine) -> int:
        return self.reach(value)[0]

    def most(self, value: Affine) -> int:
        return self.reach(value)[1]


def _touches(
    body: tuple[Stmt, ...], known: dict[str, Bounds], grid: _Grid
) -> Iterator[tuple[Box, tuple[Span, ...]]]:
    """Boxes of statements, with the spans that they keep within. Conditions count as met."""
    for stmt in body:
        if isinstance(stmt, For):
            start, stop = _bounds(stmt.start, known, grid), _bounds(stmt.stop, known, grid)
            if grid.most(stop.hi) > grid.least(start.lo):
                yield from _touches(stmt.body, known | {stmt.var: Bounds(start.lo, stop.hi - 1)}, grid)
        elif isinstance(stmt, Block):
            yield from _touches(stmt.body, known, grid)
        else:
            for box in boxes(stmt):
                at = [_bounds(origin, known, grid) for origin in box.origin]
                yield box, tuple(Span(b.lo, b.hi + n) for b, n in zip(at, box.shape, strict=True))


def _hull(a: tuple[Span, ...], b: tuple[Span, ...], grid: _Grid) -> tuple[Span, ...]:
    pairs = zip(a, b, strict=True)
    return tuple(Span(_either(x.lo, y.lo, min, grid.least), _either(x.hi, y.hi, max, grid.most)) for x, y in pairs)


def _either(x: Affine, y: Affine, choose: Callable[[int, int], int], reach: Callable[[Affine], int]) -> Affine:
    """A bound for both of two indices: one of the two if they run in parallel, else a number."""
    if x.tile == y.tile:
        return x + (choose(x.const, y.const) - x.const)
    return Affine(choose(reach(x), reach(y)))


def _number(value: int) -> Bounds:
    return Bounds(Affine(value), Affine(value))


def _bounds(index: Index, known: Mapping[str, Bounds], grid: _Grid) -> Bounds:
    if isinstance(index, Const):
        return _number(index.value)
    if isinstance(index, Var):
        return known[index.name]
    assert isinstance(index, Binary)
    a, b = _bounds(index.left, known, grid), _bounds(index.right, known, grid)
    match index.op:
        case IndexOp.ADD:
            return Bounds(a.lo + b.lo, a.hi + b.hi)
        case IndexOp.SUB:
            return Bounds(a.lo - b.hi, a.hi - b.lo)
        case IndexOp.MIN:  # at most either of them: the tighter one
            return Bounds(_either(a.lo, b.lo, min, grid.least), min(a.hi, b.hi, key=grid.most))
        case IndexOp.MAX:
            return Bounds(max(a.lo, b.lo, key=grid.least), _either(a.hi, b.hi, max, grid.most))
    if b.lo == b.hi and not b.lo.tile:
        factor = b.lo.const
        if index.op is IndexOp.MUL:
            ends = (a.lo * factor, a.hi * factor)
            return Bounds(*(ends if factor >= 0 else reversed(ends)))
        if index.op is IndexOp.FLOORDIV and all(c % factor == 0 for c in (*a.lo.tile, *a.hi.tile)):
            return Bounds(_quotient(a.lo, factor), _quotient(a.hi, factor))
    elif index.op is IndexOp.MUL and a.lo == a.hi and not a.lo.tile:
        return _bounds(Binary(index.op, index.right, index.left), known, grid)
    return _numbers(index.op, a, b, grid)


def _quotient(value: Affine, divisor: int) -> Affine:
    """Rounded down, where every factor of a coordinate is a multiple of the divisor."""
    return Affine(value.const // divisor, tuple(c // divisor for c in value.tile))


def _numbers(op: IndexOp, a: Bounds, b: Bounds, grid: _Grid) -> Bounds:
    """Bounds as numbers, of a product, a quotient or a rest."""
    lefts, rights = ((grid.least(x.lo), grid.most(x.hi)) for x in (a, b))
    if op is IndexOp.MOD:
        return Bounds(Affine(0), Affine(rights[1] - 1))
    ends = [x * y if op is IndexOp.MUL else x // max(y, 1) for x, y in product(lefts, rights)]
    return Bounds(Affine(min(ends)), Affine(max(ends)))

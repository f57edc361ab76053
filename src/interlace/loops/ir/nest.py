"""Statements with their enclosing scopes, and the loop nest that a ring (circular buffer) is carried through.

Worked example: ``for b in block 8: for t in 3: for k in K: load s``. The nest of the load is ``(t, k)``. Its step
number ``k_step = t * K + k`` counts loads over the whole nest, so slots and parities continue from one ``t`` to the
next. There are ``k_steps = 3 * K`` steps. The loop variables of step ``flat`` are ``t = flat // K``, ``k = flat % K``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from interlace.loops.ir.index import Const, Index, Var, evaluate, find_names, is_never_negative, maximum
from interlace.loops.ir.statements import Block, For, Let, LoopKernel, LoopKind, Stmt


@dataclass(frozen=True)
class Site:
    """A statement with its enclosing statements, outermost first, and its position in program order."""

    stmt: Stmt
    enclosing: tuple[Stmt, ...]
    position: int


def walk_sites(body: tuple[Stmt, ...]) -> Iterator[Site]:
    """Yield every statement with its enclosing statements, outer before inner, in program order."""
    stack: list[tuple[Stmt, tuple[Stmt, ...]]] = [(s, ()) for s in reversed(body)]
    place = 0
    while stack:
        stmt, around = stack.pop()
        yield Site(stmt, around, place)
        place += 1
        if isinstance(stmt, Block):
            stack += [(s, (*around, stmt)) for s in reversed(stmt.body)]


def split_block_loops(kernel: LoopKernel) -> tuple[tuple[For, ...], tuple[Stmt, ...]]:
    """Return the loops that are bound to thread blocks, outermost first, and the body that one block runs."""
    loops: list[For] = []
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind is LoopKind.BLOCK:
        loops.append(body[0])
        body = body[0].body
    return tuple(loops), body


def iterate_blocks(kernel: LoopKernel, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the values of the block loops' variables, block by block."""
    loops, _ = split_block_loops(kernel)
    for at in product(*(range(evaluate(loop.stop, sizes)) for loop in loops)):
        yield {loop.var: value for loop, value in zip(loops, at, strict=True)}


@dataclass(frozen=True)
class Nest:
    """The loops that one ring is carried through, outermost first."""

    loops: tuple[For, ...]

    @property
    def root(self) -> For:
        """The outermost loop: barriers are initialised before it and invalidated after it."""
        return self.loops[0]

    @property
    def steps(self) -> Index:
        """Number of loads that the whole nest issues."""
        return self.root.stop if len(self.loops) == 1 else Var(f"{self.loops[-1].var}_steps")

    @property
    def flat(self) -> Index:
        """Number of the current step."""
        return Var(self.root.var) if len(self.loops) == 1 else Var(f"{self.loops[-1].var}_step")

    def compute_variables(self, flat: Index) -> dict[str, Index]:
        """Return the loop variables of step ``flat``."""
        values: dict[str, Index] = {}
        for loop in reversed(self.loops[1:]):
            values[loop.var] = flat % _find_divisor(loop)
            flat = flat // _find_divisor(loop)
        return {self.root.var: flat} | values

    def define_before(self) -> tuple[Let, ...]:
        """Return the names to define before the nest: inner extents and the number of steps."""
        if len(self.loops) == 1:
            return ()
        lets = [
            Let(f"{loop.var}_extent", _count_iterations(loop))
            for loop in self.loops[1:]
            if _find_extent(loop) != loop.stop
        ]
        total = _count_iterations(self.root)
        for loop in self.loops[1:]:
            total = total * _find_extent(loop)
        return (*lets, Let(f"{self.loops[-1].var}_steps", total))

    def define_inside(self) -> tuple[Let, ...]:
        """Return the step number, to define first in the innermost loop."""
        if len(self.loops) == 1:
            return ()
        flat: Index = Var(self.root.var)
        for loop in self.loops[1:]:
            flat = flat * _find_extent(loop) + Var(loop.var)
        return (Let(f"{self.loops[-1].var}_step", flat),)


def _find_extent(loop: For) -> Index:
    """Return the iterations of an inner loop: the extent itself if it is a number or a symbol, else its name."""
    return loop.stop if isinstance(loop.stop, Const | Var) else Var(f"{loop.var}_extent")


def _find_divisor(loop: For) -> Index:
    """Return ``_find_extent``, but 1 where a number or a symbol is 0: without iterations, no step needs a number."""
    extent = _find_extent(loop)
    return maximum(extent, 1) if extent == loop.stop else extent


def _count_iterations(loop: For) -> Index:
    return loop.stop if is_never_negative(loop.stop) else maximum(loop.stop, 0)


def find_nest(around: tuple[Stmt, ...]) -> Nest | None:
    """Return the nest of a load with these enclosing statements, or None if no loop directly contains it.

    The nest extends outward while loops follow each other without a condition between them and no inner extent
    depends on an outer variable. Under these conditions, steps can be numbered in advance.
    """
    loops: list[For] = []
    for stmt in reversed(around):
        if not isinstance(stmt, For) or stmt.kind in (LoopKind.BLOCK, LoopKind.THREAD):
            break
        if any(stmt.var in find_names(inner.stop) for inner in loops):
            break
        loops.insert(0, stmt)
    return Nest(tuple(loops)) if loops else None

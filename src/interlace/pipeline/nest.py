"""Where statements stand, and the loop nest that a ring is carried through.

Worked example: ``for b in block 8: for t in 3: for k in K: load s``. The nest of the load is ``(t, k)``; its step
number ``flat = t * K + k`` counts loads over all of it, so that slots and parities go on from one ``t`` to the next.
From step number back to loop variables: ``t = flat // K``, ``k = flat % K``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from interlace.pipeline.index import Const, Index, Var, maximum, names, never_negative
from interlace.pipeline.ir import Block, For, LoopKind, Stmt


@dataclass(frozen=True)
class Site:
    """A statement with the statements around it, outermost first, and its place in program order."""

    stmt: Stmt
    around: tuple[Stmt, ...]
    place: int


def sites(body: tuple[Stmt, ...]) -> Iterator[Site]:
    """Every statement with its surroundings, outer before inner, in program order."""
    stack: list[tuple[Stmt, tuple[Stmt, ...]]] = [(s, ()) for s in reversed(body)]
    place = 0
    while stack:
        stmt, around = stack.pop()
        yield Site(stmt, around, place)
        place += 1
        if isinstance(stmt, Block):
            stack += [(s, (*around, stmt)) for s in reversed(stmt.body)]


@dataclass(frozen=True)
class Nest:
    """Loops that one ring is carried through, outermost first."""

    loops: tuple[For, ...]

    @property
    def root(self) -> For:
        """The outermost loop: barriers are initialised before it and invalidated after it."""
        return self.loops[0]

    @property
    def steps(self) -> Index:
        """How many loads the whole nest issues."""
        total: Index = Const(1)
        for loop in self.loops:
            total = total * (loop.stop if never_negative(loop.stop) else maximum(loop.stop, 0))
        return total

    @property
    def flat(self) -> Index:
        """The number of the current step."""
        flat: Index = Const(0)
        for loop in self.loops:
            flat = flat * loop.stop + Var(loop.var)
        return flat

    def variables(self, flat: Index) -> dict[str, Index]:
        """The loop variables of step ``flat``."""
        values: dict[str, Index] = {}
        for loop in reversed(self.loops[1:]):
            values[loop.var] = flat % loop.stop
            flat = flat // loop.stop
        return {self.root.var: flat} | values


def nest_of(around: tuple[Stmt, ...]) -> Nest | None:
    """The nest of a load with these statements around it; None if no loop holds it directly.

    It goes outward as long as loops follow each other without a condition between them and no inner extent depends
    on an outer variable: then steps can be numbered in advance.
    """
    loops: list[For] = []
    for stmt in reversed(around):
        if not isinstance(stmt, For) or stmt.kind is LoopKind.BLOCK:
            break
        if any(stmt.var in names(inner.stop) for inner in loops):
            break
        loops.insert(0, stmt)
    return Nest(tuple(loops)) if loops else None

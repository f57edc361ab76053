"""Extents at which a proof checks a kernel: few and small, but enough to cover every path through its loops.

Slots and parities of a ring repeat after twice as many steps as it has stages, and the last ``prefetch`` steps do not
load ahead. So what happens at any number of steps also happens at one from 0 to the sum of these plus one. The search
begins with extents of 1 and of two iterations of each loop, changes one extent at a time, and covers:

- each of these numbers of steps of a ring's loop nest, if its loops can have it (of very deep rings, those around
  which something changes);
- each loop with zero, one, two and three iterations, and each block loop with the same numbers of blocks;
- each statement, under any enclosing conditions;
- for each of these extents, the one before it, the last with nothing new: a tail, or just none.

Constant loops that are longer than that count as extents up to their constant (``general``).

Worked example, a matmul in steps of 64 with rings of 4 stages: depths of 0, 1, 64, 65, 128, ..., 705 have 0 to 12
steps; 129 rows or columns have a second block.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from math import prod

from interlace.core.errors import PipelineError
from interlace.loops.ir.index import evaluate, is_true
from interlace.loops.ir.nest import split_block_loops
from interlace.loops.ir.statements import For, If, LoopKind, Stmt
from interlace.loops.proof.general import (
    ITERATIONS,
    GeneralKernel,
    Sizes,
    list_statements,
    sample_blocks,
    sample_indices,
)

#: An occurrence at some extents: its kind, its subject, and its count.
CoverageItem = tuple[str, Hashable, int]
CoverageItems = frozenset[CoverageItem]
#: If an extent brings nothing new when it grows by 2 to this power, the search assumes that it never does.
LARGEST_POWER = 30
#: Maximum iterations of a loop that are all visited to find extents.
FEW = 64
#: Maximum number of statements of a block that is still followed.
LONGEST = 20_000


def find_small_extents(general: GeneralKernel) -> list[Sizes]:
    """Return extents at which everything to be covered happens, as far as any extents reach it."""
    return _Search(general).find()


class _Search:
    def __init__(self, general: GeneralKernel) -> None:
        self.general = general
        self.kernel = general.kernel
        self.symbols = self.kernel.symbols
        self.seen: set[CoverageItem] = set()
        self.selected: list[Sizes] = []
        self._known: dict[tuple[int, ...], CoverageItems] = {}

    def find(self) -> list[Sizes]:
        ones = dict.fromkeys(self.symbols, 1)
        twos = self._grow(ones, lambda kind: 0 if kind == "nest" else 2)
        bases = [ones, twos, self._grow(twos, lambda kind: 2 if kind == "loop" else None)]
        while bases:
            base = bases.pop(0)
            self._take(base)
            for symbol in self.symbols:
                self._scan(base, symbol)
            if not bases and (entered := self._find_entering(twos)) is not None:
                bases.append(entered)
        return self.selected

    def _take(self, sizes: Sizes) -> None:
        if sizes not in self.selected and self._find_covered(sizes):
            self.selected.append(sizes)
            self.seen |= self._find_covered(sizes)

    def _scan(self, base: Sizes, symbol: str) -> None:
        """Take every value of one extent that brings something new over smaller ones, and the last value before it."""
        sizes = {**base, symbol: self.general.find_lowest(symbol)}
        if not self._find_covered(sizes) <= self.seen:
            self._take(sizes)
        while (more := self._find_growth(sizes, (symbol,), lambda happens: not happens <= self.seen)) is not None:
            self._take({**more, symbol: more[symbol] - 1})
            self._take(more)
            sizes = more

    def _find_entering(self, base: Sizes) -> Sizes | None:
        """Return extents at which some statement is reached for the first time."""
        missing = {("does", self._find_position(stmt), 1) for stmt in list_statements(self.kernel.body)} - self.seen
        if not missing:
            return None
        candidates = (*((symbol,) for symbol in self.symbols), *((a, b) for a in self.symbols for b in self.symbols))
        return self._find_first_growth(base, (*candidates, self.symbols), lambda happens: bool(happens & missing))

    def _grow(self, sizes: Sizes, most: Callable[[str], int | None]) -> Sizes:
        """Grow ``sizes`` until everything iterates as often as counts, each time by the least growth of one extent."""
        grown: Sizes | None = sizes
        while grown is not None:
            sizes = grown
            more = partial(_exceeds, most=most, amount=_sum_counts(self._find_covered(sizes), most))
            candidates = (*((symbol,) for symbol in sorted(sizes, key=lambda s: sizes[s])), self.symbols)
            grown = self._find_first_growth(sizes, candidates, more)
        return sizes

    def _find_first_growth(
        self, sizes: Sizes, candidates: Iterable[tuple[str, ...]], enough: Callable[[CoverageItems], bool]
    ) -> Sizes | None:
        """Return the result of the first candidate growth that is ever enough."""
        further = (self._find_growth(sizes, growing, enough) for growing in candidates)
        return next((more for more in further if more is not None), None)

    def _find_growth(
        self, sizes: Sizes, growing: tuple[str, ...], enough: Callable[[CoverageItems], bool]
    ) -> Sizes | None:
        """Return the least joint growth of some extents that is enough, if any."""

        def grow_by(by: int) -> Sizes:
            return {s: self._cap(s, n + by) if s in growing else n for s, n in sizes.items()}

        def is_enough(by: int) -> bool:
            return enough(self._find_covered(grow_by(by)))

        power = next((p for p in range(LARGEST_POWER + 1) if is_enough(1 << p)), None)
        if power is None:
            return None
        low, high = (1 << power) // 2, 1 << power  # low is not enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return grow_by(high)

    def _cap(self, symbol: str, value: int) -> int:
        return min(value, self.general.constants.get(symbol, value))

    def _find_covered(self, sizes: Sizes) -> CoverageItems:
        """Return what happens at these extents; nothing if the kernel does not accept them."""
        key = tuple(sizes.values())
        if key not in self._known:
            try:
                self._known[key] = frozenset(self._walk_covered(sizes))
            except PipelineError:  # a divisor is not positive, or a block is too long to follow
                self._known[key] = frozenset()
        return self._known[key]

    def _estimate_length(self, body: tuple[Stmt, ...], values: Sizes) -> int:
        """Estimate the number of statements that a block executes."""
        length = 0
        for stmt in body:
            if isinstance(stmt, For) and stmt.kind is not LoopKind.THREAD:
                extent = evaluate(stmt.stop, values)
                ends = sample_indices(extent)[:1] + sample_indices(extent)[-1:]
                length += extent * max(
                    (self._estimate_length(stmt.body, {**values, stmt.var: at}) for at in ends), default=0
                )
            else:
                length += 1 if not isinstance(stmt, If) else self._estimate_length(stmt.body, values)
        return length

    def _walk_covered(self, sizes: Sizes) -> Iterator[CoverageItem]:
        loops, body = split_block_loops(self.kernel)
        for loop in loops:
            yield "block", loop.var, min(evaluate(loop.stop, sizes), ITERATIONS)
        for values in sample_blocks(self.kernel, sizes, self.general.control_variables):
            if self._estimate_length(body, values) > LONGEST:
                raise PipelineError("a block is too long")
            yield from self._walk_body(body, values)

    def _walk_body(self, body: tuple[Stmt, ...], values: Sizes) -> Iterator[CoverageItem]:
        for stmt in body:
            match stmt:
                case For() if stmt.kind is LoopKind.THREAD:
                    if evaluate(stmt.stop, values) > 0:
                        yield from (("does", self._find_position(inner), 1) for inner in list_statements(stmt.body))
                case For():
                    yield from self._walk_loop(stmt, values)
                case If():
                    if is_true(stmt.condition, values):
                        yield from self._walk_body(stmt.body, values)
                case _:
                    yield "does", self._find_position(stmt), 1

    def _find_position(self, stmt: Stmt) -> int:
        return self.general.positions[id(stmt)]

    def _walk_loop(self, loop: For, values: Sizes) -> Iterator[CoverageItem]:
        extent = max(evaluate(loop.stop, values), 0)
        yield "loop", loop.var, min(extent, ITERATIONS)
        for name, (nest, tells) in self.general.nests.items():
            if nest[0] is loop:
                # Inner extents of a nest depend on none of its variables.
                extents = [max(evaluate(n.stop, values), 0) for n in nest]
                steps = prod(extents)
                yield "nest", (name, *(n > 1 for n in extents)), max(n for n in tells if n <= steps)
        if loop.var not in self.general.control_variables:
            iterations: list[int] | range = range(min(extent, 1))
        else:
            iterations = range(extent) if extent <= FEW else sample_indices(extent)
        for at in iterations:
            yield from self._walk_body(loop.body, {**values, loop.var: at})


def _sum_counts(happens: CoverageItems, most: Callable[[str], int | None]) -> int:
    """Return the sum of the largest counts of all items; each kind counts up to its maximum."""
    largest: dict[tuple[str, Hashable], int] = {}
    for kind, name, number in happens:
        limit = most(kind)
        largest[kind, name] = max(largest.get((kind, name), 0), number if limit is None else min(number, limit))
    return sum(largest.values())


def _exceeds(happens: CoverageItems, most: Callable[[str], int | None], amount: int) -> bool:
    return _sum_counts(happens, most) > amount

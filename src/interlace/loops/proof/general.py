"""The generalised kernel of a proof: long constant loops become run-time extents, with the step counts to cover.

Worked example, a ring of 4 stages, prefetch 3, in a loop of the constant 4096: the loop becomes an extent from 1 to
4096, of which 0 to 12 steps cover all cases (``covering_step_counts``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from interlace.loops.ir.index import BinaryIndex, Const, Index, IndexOp, Var, evaluate, find_names, is_never_negative
from interlace.loops.ir.nest import find_nest, split_block_loops, walk_sites
from interlace.loops.ir.statements import Block, For, If, Let, Load, LoopKernel, LoopKind, Ring, Stmt
from interlace.loops.ir.traverse import walk

Sizes = dict[str, int]
#: Iterations of a loop that cover all cases, if no ring goes through it.
ITERATIONS = 3
#: Maximum stages of a ring for which every number of steps is checked.
DEEP = 16


@dataclass(frozen=True)
class GeneralKernel:
    """A kernel with its long constant loops as run-time extents.

    Attributes:
        constants: original constants of those extents, which are also their upper bounds.
    """

    kernel: LoopKernel
    constants: Mapping[str, int]

    def find_lowest(self, symbol: str) -> int:
        """Return the lower bound of an extent."""
        return 1 if symbol in self.constants else 0

    @cached_property
    def nests(self) -> dict[str, tuple[tuple[For, ...], tuple[int, ...]]]:
        """The loop nests that rings go through, by name, and the numbers of steps that cover all cases."""
        found: dict[str, tuple[tuple[For, ...], tuple[int, ...]]] = {}
        for site in walk_sites(self.kernel.body):
            if isinstance(site.stmt, Load) and (ring := self.kernel.find_ring(site.stmt.dst.tensor)) is not None:
                nest = find_nest(site.enclosing)
                if nest is not None:
                    name = f"{nest.root.var} {nest.loops[-1].var}"
                    _, others = found.get(name, ((), ()))
                    found[name] = nest.loops, tuple(sorted({*others, *covering_step_counts(ring)}))
        return found

    @cached_property
    def positions(self) -> dict[int, int]:
        """Position of each statement in program order, by object identity."""
        return {id(stmt): place for place, stmt in enumerate(walk(self.kernel.body))}

    @cached_property
    def control_variables(self) -> frozenset[str]:
        """The variables and extents that loops and conditions depend on."""
        return find_control_variables(self.kernel)


def covering_step_counts(ring: Ring) -> list[int]:
    """Return the numbers of steps that cover all cases of a ring; of a deep one, those around which something changes.

    Worked example, 100 stages, prefetch 99: 0, 1, 99, 100, 101, 300.
    """
    most = find_max_step_count(ring)
    if ring.stages <= DEEP:
        return list(range(most + 1))
    return sorted({0, 1, ring.prefetch, ring.prefetch + 1, ring.stages, ring.stages + 1, most})


def find_max_step_count(ring: Ring) -> int:
    """Return a number of steps at which loads ahead pass through every slot and parity and begin again."""
    return 2 * ring.stages + 1 + ring.prefetch


def generalise(source: LoopKernel) -> GeneralKernel:
    """Replace each constant loop that is longer than its rings need for coverage by one with a run-time extent."""
    most = max(map(find_max_step_count, source.rings), default=ITERATIONS)
    constants: dict[str, int] = {}

    def cut(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Block):
            return stmt
        stmt = replace(stmt, body=tuple(map(cut, stmt.body)))
        kept = not isinstance(stmt, For) or stmt.kind is LoopKind.THREAD
        if kept or not isinstance(stmt, For) or not isinstance(stmt.stop, Const) or stmt.stop.value <= most:
            return stmt
        name = f"extent of {stmt.var}"  # a name that no kernel has
        constants[name] = stmt.stop.value
        return replace(stmt, stop=Var(name))

    body = tuple(map(cut, source.body))
    return GeneralKernel(replace(source, body=body, symbols=(*source.symbols, *constants)), constants)


def find_control_variables(kernel: LoopKernel) -> frozenset[str]:
    """Return the variables and extents that the loops and conditions of a kernel depend on."""
    found: set[str] = set()
    for stmt in walk(kernel.body):
        match stmt:
            case For():
                found |= find_names(stmt.start) | find_names(stmt.stop)
            case If():
                found |= find_names(stmt.condition.left) | find_names(stmt.condition.right)
            case Let():
                found |= find_names(stmt.value)
    return frozenset(found)


def list_statements(body: tuple[Stmt, ...]) -> list[Stmt]:
    """Return all statements without nested ones, except in loops and conditions that are never entered."""

    def inside(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
        for stmt in body:
            if _is_never_entered(stmt):
                continue
            if isinstance(stmt, Block):
                yield from inside(stmt.body)
            else:
                yield stmt

    return list(inside(body))


def _is_never_entered(stmt: Stmt) -> bool:
    """Return True if a loop is known never to run, or a condition never to hold."""
    if isinstance(stmt, If):
        return is_never_negative(stmt.condition.left) and _is_never_positive(stmt.condition.right)
    return isinstance(stmt, For) and _is_never_positive(stmt.stop)


def _is_never_positive(index: Index) -> bool:
    """Return True if ``index`` is known to be 0 or less."""
    if isinstance(index, BinaryIndex) and index.op in (IndexOp.MIN, IndexOp.MAX):
        return (any if index.op is IndexOp.MIN else all)(map(_is_never_positive, (index.left, index.right)))
    return isinstance(index, Const) and index.value < 1


def sample_blocks(kernel: LoopKernel, sizes: Mapping[str, int], decide: frozenset[str]) -> list[Sizes]:
    """Return blocks at the ends and middle of each block loop that affects control flow, at the ends of the others."""
    loops, _ = split_block_loops(kernel)
    blocks: dict[tuple[int, ...], None] = {}
    for last in (False, True):
        along = []
        for loop in loops:
            extent = evaluate(loop.stop, sizes)
            along.append(
                sample_indices(extent)
                if loop.var in decide
                else sample_indices(extent)[-1:]
                if last
                else sample_indices(extent)[:1]
            )
        blocks |= dict.fromkeys(product(*along))
    return [{**sizes, **{loop.var: at for loop, at in zip(loops, block, strict=True)}} for block in blocks]


def sample_indices(extent: int) -> list[int]:
    """Return two of the numbers below ``extent`` at each end and one in the middle."""
    return sorted({n for n in (0, 1, extent // 2, extent - 2, extent - 1) if 0 <= n < extent})

"""The proof that the rewrite of a kernel has no hazard, at extents that are found here: few steps, but enough to tell.

Slots and parities of a ring repeat after twice as many steps as it has stages, so one step more passes through every
combination. Loops of constant extent are shortened to what that takes, in a copy of the kernel that is rewritten alike;
run-time extents begin at 1 and grow in turn until every ring has its steps, or no more. Blocks that do the same, but
for where in the tensors, are explored once; of large grids, those at the ends and in the middle of every block loop.

Worked example, a matmul in steps of 64 with rings of 4 stages, which need 9 steps: rows and columns change no number
of steps and stay at 1; the depth grows by 64 at a time, to 513. Were it the constant 4096, its 64 steps would become 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod

from interlace.pipeline.circular import lower
from interlace.pipeline.hazards import Explored, check_hazards
from interlace.pipeline.index import Const, evaluate
from interlace.pipeline.ir import Block, Copy, For, Kernel, Load, Memory, Stmt
from interlace.pipeline.nest import Nest, block_loops, nest_of, sites

#: An extent that brings no further step when it grows by 2 to this power brings none at all.
LARGEST_POWER = 30
#: Most steps of a ring that threads fill: each agent's copies land at any time there, and states multiply. Of such
#: rings those of one or two stages pass through all slots and parities.
THREAD_STEPS = 5


@lru_cache(maxsize=256)
def prove(source: Kernel, *, warp_specialised: bool = False) -> Explored:
    """Explore what ``circular.lower`` makes of ``source``.

    Raises:
        HazardError: see ``hazards.check_hazards``.
        PipelineError: a rule is broken, see ``circular.lower``; or even so few steps have too many states.
    """
    small = shortened(source)
    sizes = small_extents(small)
    return check_hazards(small, lower(small, warp_specialised=warp_specialised), sizes, some_blocks(small, sizes))


def shortened(source: Kernel) -> Kernel:
    """``source`` with no more iterations of loops of constant extent than its rings need; of an inner loop two or more.

    Worked example, a ring of 4 stages in a loop of 40 in one of 50: 9 steps are needed, so 5 and 2 iterations remain.
    Of loops around, on which extents may depend, as many remain as there are steps, and one: at most 10 blocks.
    """
    most: dict[str, int] = {}

    def keep(loop: For, needed: int) -> int:
        most[loop.var] = max(most.get(loop.var, 0), needed)
        return min(loop.stop.value, needed) if isinstance(loop.stop, Const) else needed

    for nest, steps in _demands(source):
        for loop in _around(source, nest):
            keep(loop, steps + 1)
        for loop in reversed(nest.loops):
            have = keep(loop, steps if loop is nest.root else max(2, -(-steps // 2)))
            steps = -(-steps // max(have, 1))

    def cut(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, Block):
            return stmt
        body = tuple(map(cut, stmt.body))
        if isinstance(stmt, For) and stmt.var in most and isinstance(stmt.stop, Const):
            return replace(stmt, stop=Const(min(stmt.stop.value, most[stmt.var])), body=body)
        return replace(stmt, body=body)

    return replace(source, body=tuple(map(cut, source.body)))


def small_extents(source: Kernel) -> dict[str, int]:
    """Run-time extents at which every ring of ``source`` passes through its slots and parities, if its loops can."""
    demands = _demands(source)
    sizes = dict.fromkeys(source.symbols, 1)
    grown: dict[str, int] | None = sizes
    while grown is not None:
        sizes = grown
        have = [(nest, most_steps(source, nest, sizes)) for nest, _ in demands]
        short = [(nest, n) for (nest, n), (_, enough) in zip(have, demands, strict=True) if n < enough]
        # The one that is smallest so far first, and all together if none alone brings a step.
        candidates = (*((symbol,) for symbol in sorted(sizes, key=lambda s: sizes[s])), source.symbols)
        steps = (
            {s: n + (1 << power if s in growing else 0) for s, n in sizes.items()}
            for growing in candidates
            for power in range(LARGEST_POWER + 1)
        )
        grown = next((more for more in steps if any(most_steps(source, nest, more) > n for nest, n in short)), None)
    return sizes


def most_steps(source: Kernel, nest: Nest, sizes: Mapping[str, int]) -> int:
    """The most steps that a nest has in a block and an iteration of the loops around it."""
    return max((_steps(nest, values) for values in _iterations(_around(source, nest), dict(sizes))), default=0)


def _around(source: Kernel, nest: Nest) -> list[For]:
    """The loops around a nest, outermost first."""
    (around,) = (site.around for site in sites(source.body) if site.stmt == nest.root)
    return [loop for loop in around if isinstance(loop, For)]


def _steps(nest: Nest, values: Mapping[str, int]) -> int:
    # Inner extents of a nest depend on none of its variables.
    return prod(max(evaluate(loop.stop, values), 0) for loop in nest.loops)


def _iterations(loops: list[For], values: dict[str, int]) -> Iterator[dict[str, int]]:
    """``values`` with those of the variables of nested loops: the first and last ones and a middle one of each."""
    if not loops:
        yield values
        return
    loop, *inner = loops
    for value in _some(evaluate(loop.stop, values)):
        yield from _iterations(inner, values | {loop.var: value})


def some_blocks(source: Kernel, sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Blocks at the ends and in the middle of every block loop, by the values of extents and of these variables."""
    loops, _ = block_loops(source)
    return list(_iterations(list(loops), dict(sizes)))


def _some(extent: int) -> list[int]:
    """Of the numbers below ``extent`` two at each end and one in the middle."""
    return sorted({n for n in (0, 1, extent // 2, extent - 2, extent - 1) if 0 <= n < extent})


def _demands(source: Kernel) -> list[tuple[Nest, int]]:
    """Nests of loads into shared memory, with how many steps tell all: of a ring, or of a load on its own."""
    demands = []
    for site in sites(source.body):
        if not isinstance(site.stmt, Load) or source.tensor(site.stmt.dst.tensor).memory is not Memory.SHARED:
            continue
        ring, nest = source.ring(site.stmt.dst.tensor), nest_of(site.around)
        if nest is not None:
            steps = 3 if ring is None else 2 * ring.stages + 1
            demands.append((nest, steps if site.stmt.by is Copy.TMA else min(steps, THREAD_STEPS)))
    return demands

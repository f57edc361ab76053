"""The proof that a rewritten kernel has no hazard, at extents that are found here: few steps, but enough to tell.

Slots and parities of a ring repeat after twice as many steps as it has stages, so one step more passes through every
combination. Extents begin at 1 and grow in turn until every ring has that many steps in block 0, or no more.

Worked example, a matmul in steps of 64 with rings of 4 stages, which need 9 steps: rows and columns change no number
of steps and stay at 1; the depth grows by 64 at a time, to 513.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from interlace.pipeline.check import check_ring
from interlace.pipeline.hazards import Explored, check_hazards
from interlace.pipeline.index import evaluate
from interlace.pipeline.ir import Copy, For, Kernel, Load, Ring
from interlace.pipeline.nest import Nest
from interlace.pipeline.traverse import walk

#: An extent that brings no further step when it grows by 2 to this power brings none at all.
LARGEST_TILE = 20
#: Most steps of a ring that threads fill: each agent's copies land at any time there, and states multiply. Of such
#: rings those of one or two stages pass through all slots and parities.
THREAD_STEPS = 5


@lru_cache(maxsize=256)
def prove(source: Kernel, rewritten: Kernel) -> Explored:
    """Explore ``rewritten``, which ``circular.lower`` made of ``source``.

    Raises:
        HazardError: see ``hazards.check_hazards``.
        PipelineError: even so few steps have too many states.
    """
    return check_hazards(source, rewritten, small_extents(source))


def small_extents(source: Kernel) -> dict[str, int]:
    """Run-time extents at which every ring of ``source`` passes through its slots and parities, if its loops can."""
    nests = [(check_ring(source, ring), _enough(source, ring)) for ring in source.rings]
    sizes = dict.fromkeys(source.symbols, 1)
    grown = True
    while grown:
        grown = False
        for symbol in source.symbols:
            short = [nest for nest, enough in nests if _steps(source, nest, sizes) < enough]
            more = (sizes | {symbol: sizes[symbol] + (1 << power)} for power in range(LARGEST_TILE + 1))
            larger = (s for s in more if any(_steps(source, n, s) > _steps(source, n, sizes) for n in short))
            if (found := next(larger, None)) is not None:
                sizes, grown = found, True
    return sizes


def _enough(source: Kernel, ring: Ring) -> int:
    steps = 2 * ring.stages + 1
    loads = [s for s in walk(source.body) if isinstance(s, Load) and s.dst.tensor == ring.tensor]
    return steps if all(load.by is Copy.TMA for load in loads) else min(steps, THREAD_STEPS)


def _steps(source: Kernel, nest: Nest, sizes: dict[str, int]) -> int:
    """Of block 0, with the first extent of every loop."""
    values = {s.var: 0 for s in walk(source.body) if isinstance(s, For)} | sizes
    return prod(max(evaluate(loop.stop, values), 0) for loop in nest.loops)

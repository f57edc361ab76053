"""Random kernels: what the rewrite makes means what the plain loops mean, and no interleaving goes wrong."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from interlace.loops.meaning.interpret import interpret
from interlace.loops.proof.hazards import check_hazards
from interlace.loops.rewrite.circular import lower

from ..draws import EXAMPLES, RANDOM
from .loops import Case, cases

#: Draws of each of four tests, and how many of them differ from each other.
DRAWS, DIFFERENT = (200, 156) if RANDOM else (100, 78)


@pytest.mark.parametrize("nested", [False, True], ids=["loop", "nest"])
@pytest.mark.parametrize("warp_specialised", [False, True], ids=["block", "specialised"])
def test_rewritten_kernels_mean_what_the_loops_mean(nested: bool, warp_specialised: bool) -> None:
    seen = set()

    @settings(EXAMPLES, max_examples=DRAWS)
    @given(cases(nested=nested, all_rings=warp_specialised), st.data())
    def check(case: Case, data: st.DataObject) -> None:
        inner = data.draw(st.integers(0, 8 if nested else 40), "inner")
        outer = data.draw(st.integers(0, min(40 // max(inner, 1), 8)), "outer") if nested else 1
        steps = inner * outer
        tail = data.draw(st.integers(0, case.tile - 1), "tail")
        n = max(steps * case.tile - tail, 0)
        event(f"steps: {'none' if not steps else 'fewer than stages' if _shallow(case, steps) else 'more'}")
        kernel = case.kernel()
        rewritten = lower(kernel, warp_specialised=warp_specialised)
        sizes = case.sizes(n, inner, outer)
        xs = {
            f"x{i}": np.arange(n, dtype=np.float32) % 13 - 3 * i for i in range(len(case.inputs))
        }  # small integers: sums are exact in any order
        plain = interpret(kernel, xs, sizes)
        result = interpret(rewritten, xs, sizes, seed=data.draw(st.integers(0, 3), "seed"))
        y, z = case.compute_expected(xs, inner, outer)
        for got in (plain, result):
            np.testing.assert_array_equal(got["y"], y)
            np.testing.assert_array_equal(got["z"], z)
        _check_accepted(case, warp_specialised, *_limit_extents(inner, outer))
        seen.add((case, n, inner, outer))

    check()
    assert len(seen) >= DIFFERENT


def _shallow(case: Case, steps: int) -> bool:
    return steps < max(how.stages for how in case.inputs)


def _limit_extents(inner: int, outer: int) -> tuple[int, int]:
    """Few extents, so that cases repeat: twelve steps, past the first round of every ring."""
    inner = min(inner, 12)
    return inner, min(outer, 12 // max(inner, 1))


@cache
def _check_accepted(case: Case, warp_specialised: bool, inner: int, outer: int) -> None:
    kernel = case.kernel()
    sizes = case.sizes(inner * outer * case.tile, inner, outer)
    check_hazards(kernel, lower(kernel, warp_specialised=warp_specialised), sizes)

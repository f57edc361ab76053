"""Random kernels on the emulator: their text means what their loops mean, and no schedule of it races.

These are some by fixed numbers, a hundred with ``make thorough``. For thousands of others, made smaller where they go
wrong:

    python -m tests.emulator --seed 1000 --kernels 2000 --prove
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from interlace.core.errors import PipelineError
from interlace.loops.ir.statements import Copy

from ..emulator.build import MISSING
from ..emulator.random_kernels import Load, Loop, Out, Step, Tile, Tree, build_tree
from ..emulator.search import draw_kernel, search
from ..emulator.shrink import shrink
from ..thorough import some

#: Numbers of kernels in all, those that are run, and in one test; so many of these, at least, keep the rules.
NUMBERS, RUN, TOGETHER, KERNELS = 320, 160, 40, 26


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("first", some(range(0, RUN, TOGETHER), lambda first: first == 0))
def test_the_text_of_random_kernels_is_right_and_free_of_races(first: int) -> None:
    count, wrong = search(range(first, first + TOGETHER))
    assert count >= KERNELS
    assert wrong == [], "\n".join(trouble for _, troubles in wrong for trouble in troubles)


def _steps(body: tuple[Step, ...]) -> Iterator[Step]:
    for step in body:
        yield step
        yield from _steps(getattr(step, "body", ()))


def test_the_random_kernels_have_every_kind_of_step_copy_and_ring() -> None:
    every = [found.plan for number in range(NUMBERS) if (found := draw_kernel(number)) is not None]
    trees = [plan for plan in every if isinstance(plan, Tree)]
    steps = [step for tree in trees for step in _steps(tree.body)]
    assert {type(step).__name__ for step in steps} == {"Loop", "Load", "Assign", "Out", "Total", "Add"}
    assert {step.by for step in steps if isinstance(step, Load)} == set(Copy)
    assert {step.how for step in steps if isinstance(step, Out)} == {"assign", "turned", "store", "tma"}
    assert {(s.kind, s.form) for s in steps if isinstance(s, Loop)} >= {("serial", "shrinks"), ("when", "symbol")}
    rings = [tile for tree in trees for tile in tree.tiles.values() if tile.stages]
    assert {tile.stages for tile in rings} == {1, 2, 3, 4}
    assert {tile.stages - 1 - tile.prefetch for tile in rings} == {0, 1, 2, 3}
    assert {tree.warp_specialised for tree in trees} == {False, True}
    assert len(every) > len(trees) >= 200


def test_a_failing_tree_is_cut_down_to_what_fails() -> None:
    tiles = {
        name: Tile((64,), stages=stages, prefetch=max(stages - 1, 0))
        for name, stages in (("s0", 4), ("s1", 2), ("s2", 0))
    }
    inner = (Load("s1", Copy.CP_ASYNC), Out(("s1", "s0"), "turned"), Out(("s1",), "tma"))
    outer = (Load("s2", Copy.PLAIN), Load("s0", Copy.TMA), Loop("j", 3, "symbol", "serial", inner))
    tree = Tree(128, False, 2, tiles, (Loop("i", 5, "symbol", "serial", outer),))

    def failing(trees: Sequence[Tree]) -> list[bool]:
        """A store by TMA out of a ring."""
        out = []
        for one in trees:
            try:
                kernel, _ = build_tree(one)
            except PipelineError:
                kernel = None
            stored = kernel and any(isinstance(s, Out) and s.how == "tma" for s in _steps(one.body))
            out.append(bool(stored and kernel and kernel.find_ring("s1")))
        return out

    least = shrink(tree, failing)
    assert [type(step).__name__ for step in _steps(least.body)] == ["Loop", "Load", "Out"]
    assert least.tiles == {"s1": Tile((64,), stages=1)}
    assert (least.blocks, least.threads) == (1, 32)

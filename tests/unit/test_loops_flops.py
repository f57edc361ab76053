"""FLOPs of loops whose extents depend on outer loops or on the block."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from interlace.core.dtypes import fp32
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.index import Index, Var, ceil_div, maximum
from interlace.loops.ir.statements import LoopKernel
from interlace.loops.ops.flops import count_block_flops


def build_additions(outer: str, extent: Callable[[Var], Index]) -> LoopKernel:
    """In each of ``n`` blocks or steps, ``extent`` additions of 256 numbers."""
    k = Builder("causal")
    n = k.symbol("n")
    x, r = k.input("x", (n, 256), fp32), k.register("r", (1, 256), fp32)
    s = k.shared("s", (1, 256), fp32)
    with getattr(k, outer)("o", n) as o, k.serial("j", extent(o)) as j:
        k.load(s, x.at(j, 0))
        k.assign(r, r + s)
    return k.build_kernel()


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 64, 1001])
def test_affine_extents_count_exactly(n: int) -> None:
    triangle = 256 * n * (n - 1) / 2
    assert count_block_flops(build_additions("serial", lambda o: o + 0), {"n": n}) == pytest.approx(triangle)
    assert count_block_flops(build_additions("block", lambda o: o + 0), {"n": n}) == pytest.approx(triangle / n)
    assert count_block_flops(build_additions("block", lambda o: 2 * o + 3), {"n": n}) == pytest.approx(256 * (n + 2))
    assert count_block_flops(build_additions("block", lambda o: n - o), {"n": n}) == pytest.approx(256 * (n + 1) / 2)


def test_nested_and_cut_extents_count_nearly() -> None:
    k = Builder("pyramid")
    n = k.symbol("n")
    r = k.register("r", (1, 256), fp32)
    with k.serial("o", n) as o, k.serial("i", o) as i, k.serial("j", i):
        k.assign(r, r + 1)
    assert count_block_flops(k.build_kernel(), {"n": 100}) == pytest.approx(256 * 100 * 99 * 98 / 6, rel=0.02)
    windows = sum(max(o - 40, 0) for o in range(100)) * 256
    assert count_block_flops(build_additions("serial", lambda o: maximum(o - 40, 0)), {"n": 100}) == pytest.approx(
        windows, rel=0.1
    )
    tiles = sum(-(-(o + 1) // 8) for o in range(100)) * 256
    assert count_block_flops(build_additions("serial", lambda o: ceil_div(o + 1, 8)), {"n": 100}) == pytest.approx(
        tiles, rel=0.05
    )


def test_no_steps_and_no_blocks_have_none() -> None:
    for outer in ("serial", "block"):
        assert count_block_flops(build_additions(outer, lambda o: o + 1), {"n": 0}) == 0
        assert count_block_flops(build_additions(outer, lambda o: o - 5), {"n": 5}) == 0

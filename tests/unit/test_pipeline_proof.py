"""The proof finds extents that tell: every ring goes twice round its slots, and a planted fault is seen."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from interlace.core.dtypes import fp32
from interlace.core.errors import EarlyReadHazard
from interlace.pipeline import library
from interlace.pipeline.build import Builder
from interlace.pipeline.circular import circular_buffer, lower
from interlace.pipeline.hazards import check_hazards
from interlace.pipeline.index import Const, Index, IndexLike, Var, minimum
from interlace.pipeline.ir import Block, Copy, For, Kernel, Stmt, WaitParity
from interlace.pipeline.nest import nest_of, sites
from interlace.pipeline.proof import most_steps, prove, shortened, small_extents, some_blocks
from interlace.pipeline.traverse import walk


def sums(
    blocks: IndexLike | None, steps: object, *, outer: IndexLike | None = None, by: Copy = Copy.TMA, stages: int = 4
) -> Kernel:
    """A block sums ``steps(b, o, n, m)`` tiles, for each ``o`` of a loop around if there is one."""
    k = Builder("sums")
    n, m = k.symbol("n"), k.symbol("m")
    x, y = k.input("x", (n, 16), fp32), k.output("y", (n, 16), fp32)
    s, total = k.shared("s", (1, 16), fp32), k.register("total", (1, 16), fp32)

    def body(b: Index, o: Index) -> None:
        k.assign(total, 0)
        with k.serial("j", steps(b, o, n, m)) as j:  # type: ignore[operator]
            k.load(s, x.at(j, 0), by)
            k.assign(total, total + s)
        k.assign(y.at(b + o, 0), total)

    with k.block("b", n if blocks is None else blocks) as b:
        if outer is None:
            body(b, Const(0))
        else:
            with k.serial("o", outer) as o:
                body(b, o)
    return circular_buffer(k.kernel(), "s", stages)


KERNELS = {
    "causal over blocks": sums(None, lambda b, o, n, m: b),
    "causal in a block": sums(1, lambda b, o, n, m: o + 1, outer=Var("n")),
    "nested": sums(2, lambda b, o, n, m: m, outer=Var("n")),
    "the smaller of two": sums(2, lambda b, o, n, m: minimum(n, m)),
    "persistent, in large strides": sums(8448, lambda b, o, n, m: (n - b * 256 + 8448 * 256 - 1) // (8448 * 256)),
    "constant": sums(1, lambda b, o, n, m: 2800),
    "constants in constants": sums(3, lambda b, o, n, m: 40, outer=50),
    "a large grid": sums(20000, lambda b, o, n, m: b + 1),
}


def unflipped(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Every wait for the same parity."""
    return tuple(
        replace(s, body=unflipped(s.body))
        if isinstance(s, Block)
        else replace(s, parity=Const(0))
        if isinstance(s, WaitParity) and s.barrier.name == "s_full"
        else s
        for s in body
    )


@pytest.mark.parametrize("name", KERNELS)
def test_a_parity_that_never_flips_is_seen_whatever_the_loops(name: str) -> None:
    kernel = KERNELS[name]
    begin = time.perf_counter()
    assert prove(kernel).states > 50
    if name != "causal in a block":  # whose steps a loader cannot number
        assert prove(kernel, warp_specialised=True).states > 50
    small = shortened(kernel)
    rewritten, sizes = lower(small), small_extents(small)
    broken = replace(rewritten, body=unflipped(rewritten.body))
    with pytest.raises(EarlyReadHazard):
        check_hazards(small, broken, sizes, some_blocks(small, sizes))
    assert time.perf_counter() - begin < 5


def test_rings_get_the_steps_that_they_need_and_few_more() -> None:
    for name, kernel in KERNELS.items():
        small = shortened(kernel)
        (site,) = (s for s in sites(small.body) if type(s.stmt).__name__ == "Load")
        nest = nest_of(site.around)
        assert nest is not None
        assert 9 <= most_steps(small, nest, small_extents(small)) <= 12, name


def test_constant_loops_are_shortened_and_others_left_alone() -> None:
    loops = {s.var: s.stop for s in walk(shortened(KERNELS["constants in constants"]).body) if isinstance(s, For)}
    assert loops == {"b": Const(3), "o": Const(2), "j": Const(5)}
    assert shortened(library.matmul()) == library.matmul()


def test_extents_of_the_worked_example() -> None:
    matmul = circular_buffer(circular_buffer(library.matmul(), "a_s", 4), "b_s", 4)
    assert small_extents(matmul) == {"rows": 1, "columns": 1, "depth": 513}
    assert prove(matmul).blocks == 1


def test_deep_rings_that_threads_fill_are_explored_in_time() -> None:
    begin = time.perf_counter()
    kernel = sums(1, lambda b, o, n, m: 40, by=Copy.CP_ASYNC, stages=8)
    assert prove(kernel, warp_specialised=True).states > 10_000
    assert time.perf_counter() - begin < 10

"""Loops over threads: their rules, what they mean, and what the rewrite makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from interlace.core.devices import H200
from interlace.core.dtypes import fp32
from interlace.core.errors import CarriedError, OverwriteHazard, PipelineError
from interlace.loops.frontend.build import Builder, Handle
from interlace.loops.ir.index import Const, Less, Var
from interlace.loops.ir.smem import lay_out
from interlace.loops.ir.statements import Copy, For, LoopKernel, LoopKind, ReduceOp, Stmt, SyncScope
from interlace.loops.ir.text import print_kernel
from interlace.loops.meaning.interpret import interpret
from interlace.loops.proof.hazards import check_hazards
from interlace.loops.rewrite.circular import circular_buffer, lower

from .loops import edit

ONE = (1,)
Body = Callable[[Builder, dict[str, Handle], Var], object]


def kernel(body: Body, extent: int = 64) -> LoopKernel:
    """A loop that loads ``s`` from ``x``, and in it a loop over threads ``t`` that does ``body``."""
    k = Builder("shares")
    n = k.symbol("n")
    tensors = {
        "x": k.input("x", (n,), fp32),
        "y": k.output("y", (n,), fp32),
        "s": k.shared("s", (64,), fp32),
        "u": k.shared("u", (64,), fp32),
        "r": k.register("r", (64,), fp32),
    }
    with k.serial("i", n // 64) as i:
        k.load(tensors["s"], tensors["x"].at(i * 64))
        with k.thread("t", extent) as t:
            body(k, tensors, t)
    return k.build_kernel()


def _in_another(k: Builder, d: dict[str, Handle], t: Var) -> None:
    with k.thread("v", 4) as v:
        k.assign(d["y"].at(t * 4 + v, shape=ONE), 0)


def _in_a_block(k: Builder, d: dict[str, Handle], t: Var) -> None:
    with k.block("v", 4) as v:
        k.assign(d["y"].at(t * 4 + v, shape=ONE), 0)


def _of_an_inner_loop(k: Builder, d: dict[str, Handle], t: Var) -> None:
    with k.serial("j", t + 1) as j:
        k.assign(d["y"].at(j, shape=ONE), 0)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda k, d, t: k.load(d["u"], d["x"].at(t * 64)), "a load to 'u' takes all threads together; move it out"),
        (lambda k, d, t: k.load(d["u"].at(t, shape=ONE), d["x"].at(t), Copy.PLAIN), "a load to 'u' takes all threads"),
        (lambda k, d, t: k.store(d["y"].at(t * 64), d["s"], Copy.TMA), "a store to 'y' takes all threads"),
        (lambda k, d, t: k.reduce(d["r"].at(0, shape=ONE), ReduceOp.SUM, d["s"], (0,), (64,)), "a reduce to 'r' takes"),
        (lambda k, d, t: k.assign(d["r"].at(t, shape=ONE), 0), "'r' lies in registers of all threads; keep it in sh"),
        (lambda k, d, t: k.assign(d["y"].at(t * 64), d["r"]), "'r' lies in registers of all threads"),
        (_in_another, "another of them, 'v', stands in it; make that one serial"),
        (lambda k, d, t: k.assign(d["u"], 0), "every iteration writes the same box of 'u'; let its"),
        (_of_an_inner_loop, "every iteration writes the same box of 'y'"),
        (
            lambda k, d, t: k.assign(d["u"].at(t, shape=ONE), d["u"].at(63 - t, shape=ONE)),
            "it reads 'u', which its other iterations write; use another tensor",
        ),
    ],
)
def test_what_a_loop_over_threads_cannot_hold(body: Body, text: str) -> None:
    with pytest.raises(PipelineError, match=f"loop 't' over threads: {text}"):
        kernel(body)


def test_a_block_loop_stands_outside_of_all() -> None:
    with pytest.raises(PipelineError, match="block loop 'v' must stand alone at the outside"):
        kernel(_in_a_block)


def test_a_ring_is_not_written_by_threads() -> None:
    writes_ring = kernel(lambda k, d, t: k.assign(d["s"].at(t, shape=ONE), 0))
    with pytest.raises(CarriedError, match="'s': written 2 times in an iteration"):
        circular_buffer(writes_ring, "s", 2)


def test_two_iterations_that_write_one_element_are_caught_by_a_run() -> None:
    twice = kernel(lambda k, d, t: k.assign(d["y"].at(t // 2, shape=ONE), d["s"].at(t, shape=ONE)))
    text = r"'shares': iterations \d+ and \d+ of loop 't' over threads write the same element of 'y'"
    for form in (twice, lower(twice)):
        with pytest.raises(PipelineError, match=text):
            interpret(form, {"x": np.ones(64, np.float32)})
    wide = kernel(lambda k, d, t: k.assign(d["u"].at(t, shape=(2,)), 0), extent=63)
    with pytest.raises(PipelineError, match="of loop 't' over threads write the same element of 'u'"):
        interpret(wide, {"x": np.ones(64, np.float32)})
    late = kernel(lambda k, d, t: k.assign(d["y"].at(t // 2 + 128, shape=ONE), 0))
    interpret(late, {"x": np.ones(64, np.float32)})  # past the end nothing is written


def test_one_iteration_may_write_an_element_twice() -> None:
    def body(k: Builder, d: dict[str, Handle], t: Var) -> None:
        k.assign(d["y"].at(t, shape=ONE), 1)
        k.assign(d["y"].at(t, shape=ONE), d["s"].at(t, shape=ONE))

    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(interpret(kernel(body), {"x": x}, seed=3)["y"], x)


def test_a_box_that_leaves_its_tile_is_caught_by_a_run() -> None:
    shifted = kernel(lambda k, d, t: k.assign(d["y"].at(t, shape=ONE), d["s"].at(t + 1, shape=ONE)))
    with pytest.raises(PipelineError, match=r"a box of tile 's' covers 64 \.\. 64 of 0 \.\. 63; only global"):
        interpret(shifted, {"x": np.ones(64, np.float32)})


def triangle() -> LoopKernel:
    """``z[t, j] = x[t * 8 + j]`` for ``j <= t`` alone, but for t = 3; through a second tile that threads fill."""
    k = Builder("triangle")
    n = k.symbol("n")
    x, z = k.input("x", (n, 64), fp32), k.output("z", (n, 8, 8), fp32)
    s, u = k.shared("s", (1, 64), fp32), k.shared("u", (1, 64), fp32)
    with k.serial("i", n) as i:
        k.load(s, x.at(i, 0))
        with k.thread("p", 16) as p:
            k.assign(u.at(0, p * 4, shape=(1, 4)), s.at(0, p * 4, shape=(1, 4)) + 1)
        with k.thread("t", 8) as t, k.serial("j", t + 1) as j:
            for condition in (Less(t, Const(3)), Less(Const(3), t)):
                with k.when(condition):
                    k.assign(z.at(i, t, j, shape=(1, 1, 1)), u.at(0, t * 8 + j, shape=(1, 1)) - 1)
    return k.build_kernel()


def test_inner_loops_and_conditions_may_differ_between_iterations() -> None:
    x = np.arange(5 * 64, dtype=np.float32).reshape(5, 64)
    expected = np.where(np.tri(8, dtype=bool), x.reshape(5, 8, 8), np.nan)
    expected[:, 3] = np.nan
    marked = circular_buffer(triangle(), "s", 3)
    for form in (triangle(), lower(marked), lower(marked, warp_specialised=True)):
        np.testing.assert_array_equal(interpret(form, {"x": x}, seed=2)["z"], expected)


@pytest.mark.parametrize("warp_specialised", [False, True], ids=["block", "specialised"])
def test_threads_synchronise_around_a_loop_that_writes_shared_memory_and_not_inside(warp_specialised: bool) -> None:
    lines = print_kernel(lower(circular_buffer(triangle(), "s", 3), warp_specialised=warp_specialised)).splitlines()
    at = next(i for i, line in enumerate(lines) if "for p in 16, thread" in line)
    assert [line.strip() for line in lines[at - 1 : at + 5]] == [
        "sync",
        "for p in 16, thread:",
        "u[0 : +1, p * 4 : +4] = s{i % 3}[0 : +1, p * 4 : +4] + 1",
        "fence proxy",
        "sync",
        "for t in 8, thread:",
    ]
    last = "one thread of each warp: arrive s_empty{i % 3}" if warp_specialised else "sync"
    assert lines[at + 10].strip() == last


def test_a_tile_that_a_loop_fills_part_by_part_lives_through_the_loop() -> None:
    """``scaled`` is dead where ``kept`` is written, but the next step writes it anew, and ``kept`` is half full."""
    for threads in (False, True):
        k = Builder("parts")
        x, y = k.input("x", (256,), fp32), k.output("y", (256,), fp32)
        loaded, scaled, kept = (k.shared(name, (n,), fp32) for name, n in (("a", 64), ("b", 64), ("kept", 256)))
        with k.serial("i", 4) as i:
            k.load(loaded, x.at(i * 64))
            k.assign(scaled, loaded * 2)
            if threads:
                with k.thread("t", 64) as t:
                    k.assign(kept.at(i * 64 + t, shape=ONE), scaled.at(t, shape=ONE))
            else:
                k.assign(kept.at(i * 64, shape=(64,)), scaled)
        k.store(y.at(0), kept)
        layout = lay_out(lower(k.build_kernel()), H200)
        assert layout.find_placement("kept").first < layout.find_placement("a").first
        assert layout.total_bytes >= 1024 + 256 + 256


def test_readers_over_threads_count_as_all_threads_of_the_scope() -> None:
    """However many iterations, the proof looks at one; what stands under a condition is read."""

    def body(k: Builder, d: dict[str, Handle], t: Var) -> None:
        with k.when(Less(Const(7), t)):
            k.assign(d["y"].at(t, shape=ONE), d["s"].at(t % 64, shape=ONE))

    def released_before(stmt: Stmt) -> tuple[Stmt, ...] | None:
        """The sync at the end of a step moves before the loop over threads."""
        if not isinstance(stmt, For) or stmt.body[-1] != SyncScope():
            return None
        at = next(i for i, s in enumerate(stmt.body) if isinstance(s, For) and s.kind is LoopKind.THREAD)
        return (replace(stmt, body=(*stmt.body[:at], SyncScope(), *stmt.body[at:-1])),)

    states = set()
    for extent in (1, 64, 4096):
        marked = circular_buffer(kernel(body, extent), "s", 3)
        states.add(check_hazards(marked, lower(marked), {"n": 64 * 6}))
        with pytest.raises(OverwriteHazard, match=r"'s': slot \d is overwritten while .* may still read"):
            check_hazards(marked, edit(lower(marked), released_before), {"n": 64 * 6})
    assert len(states) == 1
    empty = circular_buffer(kernel(body, 0), "s", 3)
    check_hazards(empty, edit(lower(empty), released_before), {"n": 64 * 6})

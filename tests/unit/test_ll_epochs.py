"""Polls order no more than they show: words that nobody polls, and reads that no polled word shows to be over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

import interlace as il
from interlace.core.errors import DeadlockError, PlanError
from interlace.graph.access import ALL, Span, axes
from interlace.graph.dependencies import Dependencies
from interlace.kernels.bodies import Reference
from interlace.kernels.cuda_body import CudaBody
from interlace.kernels.megakernel_body import LLArguments
from interlace.megakernel.ll_epochs import UnpolledLL, find_unpolled, proves_reads_done
from interlace.megakernel.ll_proof import prove_ll
from interlace.megakernel.ll_search import _Search, select_ll_tensors
from interlace.megakernel.parts import build_bodies

from ..draws import FEWER

(I,) = axes(1)
ELEMENTS = 4
META = il.RunOptions("meta")


def kernel(name: str, writes: tuple[str, ...], reads: tuple[str, ...], **words: Any) -> il.Kernel:
    """A kernel whose results are the sum of what a tile reads and a number for each argument."""

    def finish(acc: None, regions: Any, params: Any) -> dict[str, Any]:
        total = sum(float(value.sum()) for value in regions.values())
        return {arg: np.full(params[f"n_{arg}"], total + n + len(name)) for n, arg in enumerate(writes)}

    text = f"DEVICE void {name}(const Tile& tile, const Arguments& a) {{ }}"
    ll = LLArguments(**{"outputs": writes, "inputs": reads} | words)
    return il.Kernel(name, reference=Reference(finish), megakernel=CudaBody(text, name, ll=ll))


def op(
    name: str,
    reads: dict[str, il.Tensor],
    writes: dict[str, il.Tensor],
    tiles: int = 1,
    polls_all: bool = True,
    **words: Any,
) -> il.Op:
    own = (I.block(ELEMENTS // tiles),)
    of = kernel(name, tuple(writes), tuple(reads), **words)
    return of.make_op(
        name,
        (tiles,),
        {arg: (tensor, (ALL,) if polls_all else own) for arg, tensor in reads.items()},
        {arg: (tensor, own) for arg, tensor in writes.items()},
        params={f"n_{arg}": ELEMENTS // tiles for arg in writes},
    )


def vectors(names: str) -> list[il.Tensor]:
    return [il.Tensor(name, (ELEMENTS,), il.fp32) for name in names]


def graph_of(*ops: il.Op, output: str) -> il.Graph:
    names = dict.fromkeys(access.tensor for o in ops for access in o.accesses)
    return il.Graph("g", tuple(il.Tensor(name, (ELEMENTS,), il.fp32) for name in names), ops, ("x",), (output,))


def dead_words() -> il.Graph:
    """A publishes p and q; M polls p alone; B, which polls what M makes of it, publishes q anew, and C polls that."""
    x, p, q, r, y = vectors("xpqry")
    return graph_of(
        op("A", {"x": x}, {"p": p, "q": q}, inputs=()),
        op("M", {"p": p}, {"r": r}),
        op("B", {"r": r}, {"q": q}),
        op("C", {"q": q}, {"y": y}, outputs=()),
        output="y",
    )


def runs_right(plan: il.Plan, seeds: range, words: tuple[str, ...] | None = None) -> None:
    given = {name: np.arange(float(ELEMENTS)) for name in plan.graph.inputs}
    right = il.ReferenceExecutor(plan).run(given)
    for seed in seeds:
        executor = il.ReferenceExecutor(plan, ll_tensors=words, seed=seed)
        for _ in range(2):
            found = executor.run(given)
            assert all(np.array_equal(found[name], right[name]) for name in right)


def test_words_that_nobody_polls_before_they_are_published_anew_are_none() -> None:
    plan = il.build(dead_words(), il.Schedule(4))
    assert {*prove_ll(plan, build_bodies(plan.graph), META).sizes} == {"r"}
    runs_right(plan, range(60))
    with pytest.raises(PlanError, match=r"tensors \['p', 'q'\] cannot be words"):
        il.ReferenceExecutor(plan, ll_tensors=("p", "q", "r"))


def test_the_proof_refuses_words_that_nobody_polls_whatever_the_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Search, "_drop_unpolled", lambda self: False)
    monkeypatch.setattr("interlace.megakernel.ll_search.proves_reads_done", lambda *of: True)
    plan = il.build(dead_words(), il.Schedule(4))
    assert "q" in select_ll_tensors(plan, build_bodies(plan.graph), META).sizes
    assert prove_ll(plan, build_bodies(plan.graph), META).sizes == {}
    says = "op 'B' overwrites words of 'q' that op 'A' publishes and no op between polls"
    with pytest.raises(PlanError, match=says):
        il.ReferenceExecutor(plan, ll_tensors=("p", "q", "r"))
    monkeypatch.setattr("interlace.megakernel.ll_proof._check_polls", lambda *of: None)
    with pytest.raises((AssertionError, DeadlockError)):  # what both checks prevent
        runs_right(plan, range(60))


@pytest.mark.parametrize(("elements", "left"), [(1, True), (2, True), (4, False)])
def test_each_word_is_polled_not_only_some_of_its_tensor(elements: int, left: bool) -> None:
    x, p, r, y = vectors("xpry")
    polls = op("M", {"p": p}, {"r": r})
    part = il.Kernel("part").make_op("M", (1,), {"p": (p, (I.block(elements),))}, {"r": (r, (ALL,))})
    graph = graph_of(
        op("A", {"x": x}, {"p": p}),
        part if elements < ELEMENTS else polls,
        op("B", {"r": r}, {"p": p}),
        op("C", {"p": p}, {"y": y}),
        output="y",
    )
    words = {0: {"p"}, 1: {"p"}, 2: {"p"}, 3: {"p"}}
    found = Dependencies(graph)
    assert find_unpolled(found, words, words) == (UnpolledLL("p", 0, 2) if left else None)
    assert find_unpolled(found, words, {}) == UnpolledLL("p", 0, 2)
    assert find_unpolled(found, {0: {"p"}}, {}) is None  # published once a run


def keeps_p_as_words(*, polls: str, beside: bool = False, gathers: bool = False, need: bool = False) -> bool:
    """Return True if C, which polls some words of A, may let B overwrite what A has read."""
    x, u, p, q, s, r, y = vectors("xupqsry")
    writes = {"p": p, "q": q} | ({"s": s} if beside else {})
    graph = graph_of(
        op("Z", {"x": x}, {"u": u}, outputs=(), inputs=()),
        op("A", {"u": u}, writes, inputs=(), outputs=("p", "q")),
        op("C", {name: {"p": p, "q": q}[name] for name in polls}, {"r": r}, outputs=()),
        *(() if "q" in polls else (op("D", {"q": q}, {"y": y}, outputs=()),)),
        *((op("E", {"s": s}, {"y": y}, outputs=(), inputs=()),) if beside and "q" in polls else ()),
        op("B", {"r": r}, {"u": u}, outputs=(), inputs=()),
        op("F", {"u": u, "r": r}, {"z": il.Tensor("z", (ELEMENTS,), il.fp32)}, outputs=(), inputs=()),
        output="z",
    )
    plan = il.build(graph, il.Schedule(8))
    bodies = list(build_bodies(graph))
    bodies[1] = replace(bodies[1], ll=replace(bodies[1].ll, reads_before_stores=lambda of: gathers, needs_reads=need))
    return "p" in prove_ll(plan, bodies, META).sizes


def test_one_of_two_words_shows_that_reads_are_over_where_no_word_is_stored_before() -> None:
    assert keeps_p_as_words(polls="pq")
    assert not keeps_p_as_words(polls="p")
    assert keeps_p_as_words(polls="p", gathers=True)


def test_all_words_show_it_where_a_tile_stores_nothing_else_or_its_words_need_all_that_it_reads() -> None:
    assert not keeps_p_as_words(polls="pq", beside=True)
    assert keeps_p_as_words(polls="pq", beside=True, need=True)
    assert not keeps_p_as_words(polls="p", beside=True, need=True)


def test_the_proof_checks_what_polls_show_whatever_the_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlace.megakernel.ll_search.proves_reads_done", lambda *of: True)
    assert not keeps_p_as_words(polls="p")
    plan = il.build(dead_words(), il.Schedule(4))
    monkeypatch.setattr("interlace.megakernel.ll_proof.find_unpolled", lambda *of: None)
    monkeypatch.setattr(_Search, "_drop_unpolled", lambda self: False)
    says = "op 'M' polls some words of op 'A', which does not show that its reads are over"
    with pytest.raises(PlanError, match=says):
        il.ReferenceExecutor(plan, ll_tensors=("p", "q", "r"))


@pytest.mark.parametrize(("first", "whole"), [(0, True), (2, False)])
def test_a_poll_from_the_middle_of_a_tile_on_is_not_of_all_of_it(first: int, whole: bool) -> None:
    x, p, y = (il.Tensor(name, (ELEMENTS, ELEMENTS), il.fp32) for name in "xpy")
    every, some = (ALL, ALL), (ALL, Span(I + first, I + ELEMENTS))
    ops = (
        il.Kernel("A").make_op("A", (1,), {"x": (x, every)}, {"p": (p, every)}),
        il.Kernel("C").make_op("C", (1,), {"p": (p, some)}, {"y": (y, every)}),
    )
    graph = il.Graph("g", (x, p, y), ops, ("x",), ("y",))
    found = Dependencies(graph)
    body = build_bodies(dead_words())[0]
    assert proves_reads_done(body, 0, found.find_links(1), found, {"p"}) == whole


@pytest.mark.parametrize("part", ["", "p", "q"])
def test_every_tensor_is_polled_whole(part: str) -> None:
    x, p, q, y = vectors("xpqy")
    publisher = op("A", {"x": x}, {"p": p, "q": q}, inputs=())
    half = (I.block(ELEMENTS // 2),)
    reads = {name: (tensor, half if name == part else (ALL,)) for name, tensor in (("p", p), ("q", q))}
    ops = (publisher, il.Kernel("C").make_op("C", (1,), reads, {"y": (y, (ALL,))}))
    graph = il.Graph("g", (x, p, q, y), ops, ("x",), ("y",))
    found = Dependencies(graph)
    body = build_bodies(dead_words())[0]
    assert proves_reads_done(body, 0, found.find_links(1), found, {"p", "q"}) == (not part)


@st.composite
def publishing(draw: Any) -> il.Graph:
    """Chains of ops that publish one or two of four tensors, again and again, of which others poll all or a part."""
    pool = vectors("pqrs")
    (x,) = vectors("x")
    ops: list[il.Op] = []
    written: list[il.Tensor] = []
    for n in range(draw(st.integers(3, 7))):
        known = written[-2:] or [x]
        some = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True))
        free = [tensor for tensor in pool if tensor not in some]
        outs = draw(st.lists(st.sampled_from(free), min_size=1, max_size=1 + draw(st.booleans()), unique=True))
        tiles, whole = draw(st.sampled_from((1, 2, 4))), draw(st.integers(0, 3)) > 0
        reads = {f"in{at}": tensor for at, tensor in enumerate(some)}
        made = {f"out{at}": tensor for at, tensor in enumerate(outs)}
        ops.append(op(f"o{n}", reads, made, tiles, whole, inputs=tuple(reads) if draw(st.integers(0, 7)) else ()))
        written = [*(tensor for tensor in written if tensor not in outs), *outs]
    last = il.Tensor("y", (ELEMENTS,), il.fp32)
    ops.append(op("last", {f"in{at}": tensor for at, tensor in enumerate(written[-2:])}, {"out": last}, outputs=()))
    return graph_of(*ops, output="y")


@pytest.mark.thorough
@settings(FEWER, suppress_health_check=[HealthCheck.filter_too_much])
@given(publishing(), st.sampled_from((1, 2, 8)), st.integers(0, 1000))
def test_whatever_is_proved_to_be_words_runs_right_under_random_interleavings(
    graph: il.Graph, workers: int, seed: int
) -> None:
    plan = il.build(graph, il.Schedule(workers))
    found = prove_ll(plan, build_bodies(graph), META)
    assume(found.sizes)
    event(f"{len(found.sizes)} words")
    runs_right(plan, range(seed, seed + 6))

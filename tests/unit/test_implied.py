"""What is overwritten is not waited for where other waits imply that it is in no use any more, and else it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import CoverageError
from interlace.graph.access import ALL, Access, K, fixed
from interlace.graph.op import Op
from interlace.graph.ragged import BATCH
from interlace.plan import implied
from interlace.plan.plan import Plan
from interlace.workloads import LLAMAS, decode_graph

from . import oracle
from .graphs import drop_waits, pointwise, program, refused

N = 4


def ring(last: str, halo: int, before: int) -> il.Graph:
    """x -> p -> q -> r -> last, by tiles of one element; ``halo`` are those to each side that b and c read too."""
    ops = [
        pointwise("a", "x", "p", (N,), (1,)),
        pointwise("b", "p", "q", (N,), (1,), halo),
        pointwise("c", "q", "r", (N,), (1,), halo if before else 0),
        pointwise("d", "r", last, (N,), (1,), before),
    ]
    return program(dict.fromkeys({*"xpqr", last}, (N,)), *ops)


def awaited(plan: Plan, op: str) -> set[str]:
    """Ops that items of an op wait for."""
    ops, posts = plan.graph.ops, dict(zip(plan.items.post.tolist(), plan.items.op.tolist(), strict=True))
    waits, found = plan.waits, set()
    for item in np.flatnonzero(plan.items.op == plan.graph.op_index(op)).tolist():
        for row in range(int(waits.ptr[item]), int(waits.ptr[item + 1])):
            numbers = waits.first[row] + waits.stride[row] * np.arange(waits.count[row])
            found |= {ops[posts[n]].name for n in numbers.tolist()}
    return found


def without_waits_for(plan: Plan, op: str, producer: str) -> Plan:
    """The plan without all waits of one op that are for another alone."""
    posts = dict(zip(plan.items.post.tolist(), plan.items.op.tolist(), strict=True))
    mine = plan.items.op[plan.waits.item] == plan.graph.op_index(op)
    other = [posts[first] == plan.graph.op_index(producer) for first in plan.waits.first.tolist()]
    return drop_waits(plan, *np.flatnonzero(mine & np.array(other)).tolist())


@pytest.mark.parametrize("batch", [0, BATCH])
def test_a_wait_for_every_second_tile_implies_nothing_of_the_others(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One range of waits holds two tiles of b and two of e, as far from the first to the second as b has tiles."""
    monkeypatch.setattr(implied, "BATCH", batch)
    shape, half = (2, 2), (ALL, fixed(0, 1))
    a, b, e = (pointwise(*names, shape, (1, 1)) for names in (("a", "s", "x"), ("b", "x", "p"), ("e", "t", "r")))
    c = Op("c", "sum", (1,), (Access("in0", "p", half), Access("in1", "r", half)), (Access("out", "q", (ALL,)),))
    d = Op("d", "fill", (1,), (Access("in", "q", (ALL,)),), (Access("out", "x", (ALL, ALL)),))
    plan = il.build(program({**dict.fromkeys("sxptr", shape), "q": (1,)}, a, b, e, c, d), il.Choices(3))
    assert (4, 2) in zip(plan.waits.count.tolist(), plan.waits.stride.tolist(), strict=True)
    il.verify(plan)
    alone = drop_waits(plan, *range(int(plan.waits.ptr[-2]), len(plan.waits) - 1))
    assert awaited(alone, "d") == {"c"}
    assert oracle.races(alone) != []
    refused(alone, CoverageError, "op 'd'")


def test_what_has_ended_before_what_is_awaited_had_begun_is_not_awaited() -> None:
    plan = il.build(ring("p", N, 1), il.Choices(3))
    assert awaited(plan, "d") == {"c"}
    proof = il.verify(plan)
    assert proof.edges == proof.edges_by_wait == 2 * N * N + (3 * N - 2) + N * N + N  # a-b, b-c, c-d; b-d and a-d
    assert oracle.races(plan) == []
    assert oracle.unenforced(plan) != []
    apart = il.build(ring("other", N, 1), il.Choices(3))
    assert len(apart.waits) == len(plan.waits)


def test_what_others_imply_for_some_tiles_alone_is_awaited() -> None:
    plan = il.build(ring("p", 1, 0), il.Choices(3))
    assert awaited(plan, "d") == {"a", "b", "c"}
    il.verify(plan)
    first = int(np.flatnonzero(plan.items.op == 3)[0])
    rows = range(int(plan.waits.ptr[first]), int(plan.waits.ptr[first + 1]))
    for row in rows:
        refused(drop_waits(plan, row), CoverageError, "op 'd', tile (0)")


def test_without_the_waits_that_imply_it_an_overwriting_is_refused() -> None:
    """c no longer waits for the last tile of b, which d relies on too; what c reads is told first."""
    plan = il.build(ring("p", N, 1), il.Choices(3))
    first = int(np.flatnonzero(plan.items.op == 2)[0])
    refused(drop_waits(plan, int(plan.waits.ptr[first])), CoverageError, "op 'c', tile (0)")


def test_a_tile_that_nobody_awaits_is_not_known_to_have_ended() -> None:
    """c awaits all tiles of b but the last, and d all of c; d overwrites what that last one reads, and awaits it."""
    a, b, c, d = ring("p", 0, 0).ops
    c = replace(c, reads=(Access("in0", "q", (fixed(0, N - 1),)),))
    d = replace(d, reads=(Access("in0", "r", (ALL,)),))
    plan = il.build(program(dict.fromkeys("xpqr", (N,)), a, b, c, d), il.Choices(3))
    assert awaited(plan, "d") == {"a", "b", "c"}
    il.verify(plan)
    assert oracle.races(plan) == []
    without = without_waits_for(plan, "d", "b")
    assert oracle.races(without) != []
    refused(without, CoverageError, "op 'd'")


def test_who_awaits_one_tile_of_an_op_comes_behind_what_all_of_them_await_though_others_post_nothing() -> None:
    """c reads what one tile of b leaves; nobody awaits the others, b's first or those on both sides. c overwrites x."""
    for tile in range(N):
        a, b, c, _ = ring("p", N, 0).ops
        one = Access("in0", "q", (fixed(tile, tile + 1),))
        c = replace(c, grid=(1,), reads=(one,), writes=(Access("out", "x", (ALL,)),))
        graph = il.Graph("some", tuple(il.Tensor(name, (N,), il.fp32) for name in "xpq"), (a, b, c), ("x",), ("x", "q"))
        plan = il.build(graph, il.Choices(3))
        assert awaited(plan, "c") == {"b"}
        assert (plan.items.post[plan.items.op == 1] >= 0).tolist() == [n == tile for n in range(N)]
        il.verify(plan)
        assert oracle.races(plan) == []


def test_what_is_awaited_behind_the_first_chunk_has_not_ended_when_an_item_begins() -> None:
    """d awaits all of c, chunk by chunk, and overwrites what b reads from its start."""
    a, b, c, d = ring("p", 0, 0).ops
    d = replace(d, reads=(Access("in0", "r", (K,)),), reduction=il.Reduction(N, 1))
    graph = program(dict.fromkeys("xpqr", (N,)), a, b, c, d)
    plan = il.build(graph, il.Choices(3, chunk_waits=True))
    assert awaited(plan, "d") == {"a", "b", "c"}
    il.verify(plan)
    assert oracle.races(plan) == []
    without = without_waits_for(plan, "d", "b")
    assert oracle.races(without) != []
    refused(without, CoverageError, "op 'd'")


def test_layers_of_a_decode_step_share_memory_and_wait_for_nothing_else() -> None:
    model = replace(LLAMAS["llama3.1-8b"], layers=2, vocabulary=512)
    for batch in (1, 64):
        graph = decode_graph(model, batch, 1088, il.H200)
        plan = il.plan_graph(graph, il.H200, il.OneLaunchExecutor)
        graph = plan.graph
        for op in graph.ops:
            if op.name.endswith("append"):  # that nobody waits for
                continue
            read = {access.tensor for access in op.reads} - {*graph.inputs}
            before = graph.ops[: graph.op_index(op.name)]
            writers = {next(o.name for o in reversed(before) if name in {w.tensor for w in o.writes}) for name in read}
            assert awaited(plan, op.name) <= writers
    keys = {f"layers.{layer}.{name}_heads" for layer in range(2) for name in "kv"}
    assert {name for name in graph.intermediates if name.startswith("layers.")} == keys

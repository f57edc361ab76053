"""Waits before an overwrite are left out where other waits imply them, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import CoverageError
from interlace.graph.access import ALL, Access, K, constant_span
from interlace.graph.op import Op
from interlace.graph.ragged import BATCH_ENTRIES, compute_offsets
from interlace.plan import implied as implied_module
from interlace.plan.implied import ImpliedOrder
from interlace.plan.plan import Items, Plan, Waits
from interlace.workloads import LLAMAS, build_decode_graph

from ..thorough import some
from . import oracle
from .graphs import column, drop_waits, expect_refusal, pointwise, program

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


def list_awaited(plan: Plan, op: str) -> set[str]:
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


@pytest.mark.parametrize("batch", [0, BATCH_ENTRIES])
def test_a_wait_for_every_second_tile_implies_nothing_of_the_others(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One range of waits holds two tiles of b and two of e, as far from the first to the second as b has tiles."""
    monkeypatch.setattr(implied_module, "BATCH_ENTRIES", batch)
    shape, half = (2, 2), (ALL, constant_span(0, 1))
    a, b, e = (pointwise(*names, shape, (1, 1)) for names in (("a", "s", "x"), ("b", "x", "p"), ("e", "t", "r")))
    c = Op("c", "sum", (1,), (Access("in0", "p", half), Access("in1", "r", half)), (Access("out", "q", (ALL,)),))
    d = Op("d", "fill", (1,), (Access("in", "q", (ALL,)),), (Access("out", "x", (ALL, ALL)),))
    plan = il.build(program({**dict.fromkeys("sxptr", shape), "q": (1,)}, a, b, e, c, d), il.Schedule(3))
    assert (4, 2) in zip(plan.waits.count.tolist(), plan.waits.stride.tolist(), strict=True)
    il.verify(plan)
    alone = drop_waits(plan, *range(int(plan.waits.ptr[-2]), len(plan.waits) - 1))
    assert list_awaited(alone, "d") == {"c"}
    assert oracle.races(alone) != []
    expect_refusal(alone, CoverageError, "op 'd'")


def test_what_has_ended_before_what_is_awaited_had_begun_is_not_awaited() -> None:
    plan = il.build(ring("p", N, 1), il.Schedule(3))
    assert list_awaited(plan, "d") == {"c"}
    proof = il.verify(plan)
    assert proof.edges == proof.edges_by_wait == 2 * N * N + (3 * N - 2) + N * N + N  # a-b, b-c, c-d; b-d and a-d
    assert oracle.races(plan) == []
    assert oracle.find_unenforced(plan) != []
    apart = il.build(ring("other", N, 1), il.Schedule(3))
    assert len(apart.waits) == len(plan.waits)


def test_what_others_imply_for_some_tiles_alone_is_awaited() -> None:
    plan = il.build(ring("p", 1, 0), il.Schedule(3))
    assert list_awaited(plan, "d") == {"a", "b", "c"}
    il.verify(plan)
    first = int(np.flatnonzero(plan.items.op == 3)[0])
    rows = range(int(plan.waits.ptr[first]), int(plan.waits.ptr[first + 1]))
    for row in rows:
        expect_refusal(drop_waits(plan, row), CoverageError, "op 'd', tile (0)")


def test_without_the_waits_that_imply_it_an_overwriting_is_refused() -> None:
    """c no longer waits for the last tile of b, which d relies on too; what c reads is told first."""
    plan = il.build(ring("p", N, 1), il.Schedule(3))
    first = int(np.flatnonzero(plan.items.op == 2)[0])
    expect_refusal(drop_waits(plan, int(plan.waits.ptr[first])), CoverageError, "op 'c', tile (0)")


def test_a_tile_that_nobody_awaits_is_not_known_to_have_ended() -> None:
    """c awaits all tiles of b but the last, and d all of c; d overwrites what that last one reads, and awaits it."""
    a, b, c, d = ring("p", 0, 0).ops
    c = replace(c, reads=(Access("in0", "q", (constant_span(0, N - 1),)),))
    d = replace(d, reads=(Access("in0", "r", (ALL,)),))
    plan = il.build(program(dict.fromkeys("xpqr", (N,)), a, b, c, d), il.Schedule(3))
    assert list_awaited(plan, "d") == {"a", "b", "c"}
    il.verify(plan)
    assert oracle.races(plan) == []
    without = without_waits_for(plan, "d", "b")
    assert oracle.races(without) != []
    expect_refusal(without, CoverageError, "op 'd'")


def test_who_awaits_one_tile_of_an_op_comes_behind_what_all_of_them_await_though_others_post_nothing() -> None:
    """c reads what one tile of b leaves; nobody awaits the others, b's first or those on both sides. c overwrites x."""
    for tile in range(N):
        a, b, c, _ = ring("p", N, 0).ops
        one = Access("in0", "q", (constant_span(tile, tile + 1),))
        c = replace(c, grid=(1,), reads=(one,), writes=(Access("out", "x", (ALL,)),))
        graph = il.Graph("some", tuple(il.Tensor(name, (N,), il.fp32) for name in "xpq"), (a, b, c), ("x",), ("x", "q"))
        plan = il.build(graph, il.Schedule(3))
        assert list_awaited(plan, "c") == {"b"}
        assert (plan.items.post[plan.items.op == 1] >= 0).tolist() == [n == tile for n in range(N)]
        il.verify(plan)
        assert oracle.races(plan) == []


def test_what_is_awaited_behind_the_first_chunk_has_not_ended_when_an_item_begins() -> None:
    """d awaits all of c, chunk by chunk, and overwrites what b reads from its start."""
    a, b, c, d = ring("p", 0, 0).ops
    d = replace(d, reads=(Access("in0", "r", (K,)),), reduction=il.Reduction(N, 1))
    graph = program(dict.fromkeys("xpqr", (N,)), a, b, c, d)
    plan = il.build(graph, il.Schedule(3, chunk_waits=True))
    assert list_awaited(plan, "d") == {"a", "b", "c"}
    il.verify(plan)
    assert oracle.races(plan) == []
    without = without_waits_for(plan, "d", "b")
    assert oracle.races(without) != []
    expect_refusal(without, CoverageError, "op 'd'")


def test_layers_of_a_decode_step_share_memory_and_wait_for_nothing_else() -> None:
    model = replace(LLAMAS["llama3.1-8b"], layers=2, vocabulary=512)
    for batch in (1, 64):
        graph = build_decode_graph(model, batch, 1088, il.H200)
        plan = il.autoplan(graph, il.H200, il.MegakernelExecutor)
        graph = plan.graph
        for op in graph.ops:
            if op.name.endswith("append"):  # that nobody waits for
                continue
            read = {access.tensor for access in op.reads} - {*graph.inputs}
            before = graph.ops[: graph.op_index(op.name)]
            writers = {next(o.name for o in reversed(before) if name in {w.tensor for w in o.writes}) for name in read}
            assert list_awaited(plan, op.name) <= writers
    keys = {f"layers.{layer}.{name}_heads" for layer in range(2) for name in "kv"}
    assert {name for name in graph.intermediates if name.startswith("layers.")} == keys


# ---------------------------------------------------------------- against sets of items


@dataclass(frozen=True)
class Drawn:
    """Items of a few ops with random posts and waits; each item is a tile with a reduction of two chunks.

    Attributes:
        op, post: of each item.
        waits: of each item: first semaphore, count, stride and chunk.
        ops, semaphores: how many there are.
    """

    op: list[int]
    post: list[int]
    waits: list[list[tuple[int, int, int, int]]]
    ops: int
    semaphores: int

    @staticmethod
    def by(random: Random) -> Drawn:
        """Mostly ops whose tiles post semaphores of their own and await all of an earlier op or some of it."""
        sizes = [random.randint(1, 3) for _ in range(random.randint(2, 4))]
        op = [p for p, size in enumerate(sizes) for _ in range(size)]
        post = list(range(len(op))) if random.random() < 0.5 else sorted(random.randint(0, len(op) - 1) for _ in op)
        for _ in range(random.choice((0, 0, 1, 2))):
            post[random.randrange(len(op))] = random.randint(-1, len(op) - 1)
        waits: list[list[tuple[int, int, int, int]]] = []
        for p in op:
            before = [post[n] for n, q in enumerate(op) if q < p and post[n] >= 0]
            mine = waits[-1] if waits and op[len(waits) - 1] == p and random.random() < 0.6 else None
            if mine is None:
                mine = []
                for _ in range(random.choice((0, 1, 1, 1, 2)) if before else 0):
                    first, count = random.choice(before), random.choice((1, 1, 2, 2, 3))
                    stride = random.choice((1, 1, 1, 2)) if count > 1 else 1
                    count = min(count, (len(op) - 1 - first) // stride + 1)
                    # ``verify`` refuses waits for what nobody posts.
                    if {first + i * stride for i in range(count)} <= {*post}:
                        mine.append((first, count, stride, random.choice((0, 0, 0, 1))))
                mine.sort(key=lambda wait: wait[3])
            waits.append(mine)
        return Drawn(op, post, waits, len(sizes), len(op))

    def find_implied(self) -> ImpliedOrder:
        """Return the order that the package finds."""
        n = len(self.op)
        sizes = np.bincount(self.op, minlength=self.ops)
        base = compute_offsets(sizes.astype(np.int64))
        tile = np.arange(n) - base[self.op]
        op, post = column(*self.op), column(*self.post)
        items = Items(op, tile, np.zeros(n, np.int64), np.full(n, 2), np.full(n, -1), post)
        rows = [wait for waits in self.waits for wait in waits]
        first, count, stride, k = (column(*(row[c] for row in rows)) for c in range(4))
        ptr = compute_offsets(column(*map(len, self.waits)))
        return ImpliedOrder(items, Waits(ptr, first, count, stride, np.ones_like(first), k), post, base)

    def list_awaited(self, item: int, opening: bool, gaps: bool = True) -> set[int]:
        """Semaphores that an item awaits before it begins, or at all; without gaps, the first alone of those apart."""
        return {
            first + i * stride
            for first, count, stride, k in self.waits[item]
            if not opening or k == 0
            for i in range(count if gaps or stride == 1 else 1)
        }

    def items(self, op: int) -> list[int]:
        return [n for n, p in enumerate(self.op) if p == op]

    def orders(self) -> set[tuple[int, int]]:
        """Pairs of ops: all items of the first have ended before any of the second begins, in every run."""
        posters = {s: {n for n, post in enumerate(self.post) if post == s} for s in range(self.semaphores)}
        ended: list[set[int]] = [set() for _ in self.op]

        def after(item: int, opening: bool) -> set[int]:
            first = {m for s in self.list_awaited(item, opening) for m in posters[s]}
            return first.union(*(ended[m] for m in first))

        changed = True
        while changed:
            found = [after(item, False) for item in range(len(self.op))]
            changed, ended = found != ended, found
        return {
            (p, c)
            for p in range(self.ops)
            for c in range(self.ops)
            if p != c and all({*self.items(p)} <= after(n, True) for n in self.items(c))
        }

    def rules(self, gaps: bool) -> set[tuple[int, int]]:
        """Pairs of ops that the rules of the module give, on sets."""
        own = {p: {self.post[n] for n in self.items(p)} - {-1} for p in range(self.ops)}
        span = {p: set(range(min(s), max(s) + 1)) for p, s in own.items() if s}
        span = {p: s for p, s in span.items() if not any(s & other for q, other in own.items() if q != p)}
        complete = {p for p in span if all(self.post[n] >= 0 for n in self.items(p))}
        ended: dict[int, set[int]] = {p: set() for p in range(self.ops)}
        begun: dict[int, set[int]] = {}
        together: dict[int, set[int]] = {}
        for c in range(self.ops):
            every = set().union(*(self.list_awaited(n, False, gaps) for n in self.items(c)))
            together[c] = {p for p in complete if p != c and span[p] <= every}
            for opening, into in ((False, ended), (True, begun)):
                waits = [self.list_awaited(n, opening, gaps) for n in self.items(c)]
                found = {p for p in complete - {c} if all(span[p] <= some for some in waits)}
                for p in span.keys() - {c}:
                    if all(span[p] & some for some in waits):
                        found |= ended[p]
                more = found
                while more:
                    more = set().union(*(together.get(p, set()) for p in more)) - found
                    found = found | more
                into[c] = found
        return {(p, c) for c, found in begun.items() for p in found if p != c}


@pytest.mark.parametrize("rounds", some([range(800), range(800, 20_000)], lambda rounds: rounds.start == 0), ids=str)
@pytest.mark.parametrize("batch", [0, BATCH_ENTRIES])
def test_orders_of_ops_are_those_of_the_rules_and_hold_in_every_run(
    rounds: range, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(implied_module, "BATCH_ENTRIES", batch)
    found = 0
    for seed in rounds:
        drawn = Drawn.by(Random(seed))
        implied = drawn.find_implied()
        pairs = {
            (p, c)
            for p in range(drawn.ops)
            for c in range(drawn.ops)
            if p != c and implied.is_before(column(p), c).all()
        }
        assert pairs == drawn.rules(gaps=batch > 0), drawn
        assert pairs <= drawn.orders(), drawn
        found += len(pairs)
    assert found > len(rounds) // 4

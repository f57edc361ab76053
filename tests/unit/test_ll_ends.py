"""Waits for the end of an op that writes words alone: only items that polled all its words drop them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.kernels.bodies import NO_LL  # noqa: E402
from interlace.megakernel.ll_edges import LLEdges, WaitOwners  # noqa: E402
from interlace.megakernel.ll_search import select_ll_tensors  # noqa: E402
from interlace.megakernel.parts import build_bodies  # noqa: E402
from interlace.plan.plan import Plan, Waits  # noqa: E402

#: The first leaves words, the second polls them, the third and fourth do neither.
NAMES = "left", "polls", "later", "last"
LEFT, POLLS, LATER, LAST = range(4)
FOUND = LLEdges({}, {LEFT: NO_LL}, {POLLS: frozenset({LEFT})}, {LEFT: POLLS})
TILES = 4


def chain() -> Plan:
    """Four products one behind the other, of four tiles each, with a semaphore for each tile."""
    t = {name: il.Tensor(name, (16 * TILES, 16), il.fp32) for name in ("x", *NAMES)}
    t["w"] = il.Tensor("w", (16, 16), il.fp32)
    before = ("x", *NAMES)
    tile = il.MatmulTile(16, 16, 16)
    ops = [il.matmul(f"to_{name}", t[of], t["w"], t[name], tile=tile) for of, name in zip(before, NAMES, strict=False)]
    return il.build(il.Graph("chain", (*t.values(),), (*ops,), ("x", "w"), ("last",)), il.Schedule(2))


def semaphores(plan: Plan, op: int) -> list[int]:
    return sorted({*plan.items.post[plan.items.op == op].tolist()})


def with_waits(plan: Plan, rows: dict[int, tuple[int, int, int, int]]) -> Plan:
    """A plan whose items have these waits alone, as first, count, stride and threshold."""
    ptr = np.searchsorted([*rows], np.arange(len(plan.items) + 1))
    return replace(plan, waits=Waits(ptr, *zip(*rows.values(), strict=True), [0] * len(rows)))


def list_left_waits(plan: Plan) -> dict[int, tuple[int, int, int, int]]:
    """Return the wait of each item that still waits."""
    found = FOUND.drop_polled_waits(plan.waits, plan)
    columns = (found.item, found.first, found.count, found.stride, found.threshold)
    return {item: tuple(rest) for item, *rest in np.stack(columns, 1).tolist()}


def items(plan: Plan, op: int) -> list[int]:
    return np.flatnonzero(plan.items.op == op).tolist()


@pytest.mark.parametrize("posts", [1, 2])
def test_who_waits_for_an_end_awaits_all_who_polled_it_if_it_begins_behind_them(posts: int) -> None:
    plan = chain()
    if posts == 2:  # every tile of who polls posts twice, as two parts of it do
        twice = np.sort(np.r_[np.arange(len(plan.items)), items(plan, POLLS)])
        plan = replace(plan, items=replace(plan.items, **{c: getattr(plan.items, c)[twice] for c in vars(plan.items)}))
    first, count = semaphores(plan, LEFT)[0], TILES
    of_polls = semaphores(plan, POLLS)
    behind = [i for i in items(plan, LAST) if i > max(items(plan, POLLS))]
    whole, part = (first, count, 1, 1), (first + 1, 1, 1, 1)
    assert of_polls == [*range(of_polls[0], of_polls[0] + TILES)]
    assert len(behind) >= 2
    found = list_left_waits(with_waits(plan, {behind[0]: whole, behind[1]: part}))
    assert found == dict.fromkeys(behind[:2], (of_polls[0], TILES, 1, posts))


def test_who_begins_before_one_who_polls_waits_as_it_did() -> None:
    plan = chain()
    order = np.r_[items(plan, LEFT), items(plan, POLLS)[:2], items(plan, LATER)[:1], items(plan, POLLS)[2:]]
    order = np.r_[order, items(plan, LATER)[1:], items(plan, LAST)]
    plan = replace(plan, items=replace(plan.items, **{c: getattr(plan.items, c)[order] for c in vars(plan.items)}))
    between, whole = items(plan, LATER)[0], (semaphores(plan, LEFT)[0], TILES, 1, 1)
    assert min(items(plan, POLLS)) < between < max(items(plan, POLLS))
    assert list_left_waits(with_waits(plan, {between: whole})) == {between: whole}


def test_waits_of_who_polls_are_gone_and_those_for_others_are_what_they_were() -> None:
    plan = chain()
    whole = {op: (semaphores(plan, op)[0], TILES, 1, 1) for op in range(4)}
    beside = (semaphores(plan, LEFT)[0], 2 * TILES, 1, 1)  # of two ops
    assert semaphores(plan, LEFT) + semaphores(plan, POLLS) == [*range(beside[0], beside[0] + 2 * TILES)]
    a, b, c = items(plan, LAST)[:3]
    rows = {items(plan, POLLS)[0]: whole[LEFT], a: whole[POLLS], b: beside, c: whole[LATER]}
    assert list_left_waits(with_waits(plan, rows)) == {a: whole[POLLS], b: beside, c: whole[LATER]}


@pytest.mark.parametrize("how", ["apart", "another's", "unlike"])
def test_an_end_is_awaited_itself_where_who_polled_it_is_no_run_of_semaphores_of_its_own(how: str) -> None:
    plan = chain()
    post = plan.items.post.copy()
    if how == "apart":
        post *= 2
    elif how == "another's":
        post[items(plan, LATER)[0]] = semaphores(plan, POLLS)[1]
    else:  # one of them counts two tiles, and another is of none
        post[items(plan, POLLS)[1]] = semaphores(plan, POLLS)[0]
        post[items(plan, POLLS)[2]] = semaphores(plan, POLLS)[1]
        post[items(plan, POLLS)[3]] = semaphores(plan, POLLS)[2]
    plan = replace(plan, items=replace(plan.items, post=post), semaphores=2 * plan.semaphores)
    step = 2 if how == "apart" else 1
    last, whole = items(plan, LAST)[-1], (semaphores(plan, LEFT)[0], TILES, step, 1)
    assert list_left_waits(with_waits(plan, {last: whole})) == {last: whole}


def test_waits_are_selected_by_the_owners_of_all_their_semaphores() -> None:
    plan, random = chain(), np.random.default_rng(0)
    post = plan.items.post.copy()
    post[items(plan, LATER)[0]] = semaphores(plan, POLLS)[1]  # a semaphore of two ops
    first, count, stride = (random.integers(low, high, 200) for low, high in ((0, 6), (1, 4), (1, 4)))
    waits = Waits(np.r_[0, np.full(len(plan.items), 200)], first, count, stride, np.ones(200), np.zeros(200))
    plan = replace(plan, items=replace(plan.items, post=post), waits=waits)
    posters = {s: {*plan.items.op[post == s].tolist()} for s in range(plan.semaphores)}
    owners, rows = WaitOwners.from_waits(plan.waits, plan), np.arange(0, 200, 2)

    def covers(row: int, ops: tuple[int, ...]) -> bool:
        awaited = [posters[first[row] + stride[row] * n] for n in range(count[row])]
        return all(len(of) == 1 and of <= {*ops} for of in awaited)

    for ops in ((LEFT,), (POLLS,), (LEFT, POLLS), (LEFT, LATER), (LEFT, POLLS, LATER)):
        expected = [row for row in rows.tolist() if covers(row, ops)]
        assert owners.select(rows, ops).tolist() == expected
        assert 0 < len(expected) < len(rows)
    mask = np.arange(200) % 3 > 0
    alone = owners.group_by_op(mask, 4)
    assert [alone[op].tolist() for op in range(4)] == [
        [row for row in np.flatnonzero(mask).tolist() if covers(row, (op,))] for op in range(4)
    ]


def tensor(name: str) -> il.Tensor:
    return il.Tensor(name, (16 * TILES // (2 if name == "half" else 1), 16), il.fp32)


def make_copy_op(of: str, *to: str, block: int = 16) -> il.Op:
    """As many tiles as results have rows in blocks of these, each of which is made of its own."""
    rows = (il.axes(1)[0].block(block), il.ALL)
    writes = {("out", "beside")[n]: (tensor(name), rows) for n, name in enumerate(to)}
    return il.Kernel("copied").make_op(
        f"to_{to[0]}", (tensor(to[0]).shape[0] // block,), {"x": (tensor(of), rows)}, writes
    )


def words(*ops: il.Op, outputs: tuple[str, ...] = ("a",), keeps: bool = False, gathers: bool | None = None) -> LLEdges:
    """Find the LL edges of a graph in which any result may be words; next to them all is stored, or nothing."""
    names = dict.fromkeys(access.tensor for op in ops for access in op.accesses)
    graph = il.Graph("ends", (*map(tensor, names),), ops, ("x",), outputs)
    body = build_bodies(chain().graph)[0]
    reads_before_stores = None if gathers is None else lambda op: gathers
    changes = {"inputs": ("x",), "outputs": ("out",), "has_tensor_copy": keeps, "can_use": None, "count_trips": None}
    ll = replace(body.ll, **changes, reads_before_stores=reads_before_stores)
    bodies = [replace(body, ll=ll)] * len(ops)
    return select_ll_tensors(il.build(graph, il.Schedule(16)), bodies, il.RunOptions("meta"))


def list_ended(*ops: il.Op, outputs: tuple[str, ...] = ("a",), keeps: bool = False) -> dict[str, str]:
    """Return, by op, the op whose polls show its end."""
    found = words(*ops, outputs=outputs, keeps=keeps).end_pollers
    return {ops[o].name: ops[by].name for o, by in found.items()}


def test_an_end_is_seen_by_one_op_that_polls_every_tile_and_by_no_other() -> None:
    left, a, b = make_copy_op("x", "left"), make_copy_op("left", "a"), make_copy_op("left", "b")
    assert list_ended(left, a) == {"to_left": "to_a"}
    assert list_ended(left, a, keeps=True) == {}
    assert list_ended(left, a, b, outputs=("a", "b")) == {}
    assert list_ended(left, make_copy_op("left", "half"), outputs=("half",)) == {}
    assert list_ended(make_copy_op("x", "left", "b"), a, outputs=("a", "b")) == {}


@pytest.mark.parametrize(("block", "gathers", "able"), [
    (16, None, True), (32, None, True), (8, None, False), (8, False, False), (8, True, True)
])  # fmt: skip
def test_some_words_of_a_tile_are_polled_where_they_tell_that_all_it_reads_has_come(
    block: int, gathers: bool | None, able: bool
) -> None:
    found = words(make_copy_op("x", "left"), make_copy_op("left", "a", block=block), gathers=gathers)
    assert ("left" in found.sizes) == able

"""Ops whose parts share the sums of their tiles; none waits for ever: plans run step by step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import PlanError
from interlace.megakernel.fix_up import CooperativeFixup, count_parts
from interlace.megakernel.parts import find_cooperative_ops
from interlace.megakernel.table import DeviceTables, build_worker_tables
from interlace.workloads import LLAMAS, build_decode_graph

from .test_partials import chain

STATIC = il.Dispatch.STATIC


@cache
def decode(batch: int) -> il.Plan:
    graph = build_decode_graph(replace(LLAMAS["llama3.2-1b"], layers=2), batch, 1088, il.H200)
    return il.autoplan(graph, il.H200, il.MegakernelExecutor)


def residual(workers: int) -> il.Plan:
    """The third product waits for two ops at once, of which one is split, and so for unlike numbers of posts."""
    x, y, z = (il.Tensor(name, (24, 128), il.bf16) for name in ("x", "y", "z"))
    out = il.Tensor("out", (24, 128), il.bf16)
    weights = [il.Tensor(f"w{n}", (128, 128), il.bf16) for n in range(3)]
    tile = il.MatmulTile(24, 64, 64, swap_ab=True)
    ops = (
        il.matmul("first", x, weights[0], y, tile=tile),
        il.matmul("second", y, weights[1], z, tile=tile),
        il.matmul("third", z, weights[2], out, residual=y, tile=tile),
    )
    graph = il.Graph("residual", (x, y, z, out, *weights), ops, ("x", *(w.name for w in weights)), ("out",))
    return il.build(graph, il.Schedule(workers, STATIC, split={"first": il.SplitK(2)}, policy=il.KernelSync()))


def shares_of(plan: il.Plan) -> CooperativeFixup:
    return CooperativeFixup.from_proof(il.verify(plan), find_cooperative_ops(plan.graph, count_parts(plan)))


def table_of(plan: il.Plan, shares: CooperativeFixup) -> DeviceTables:
    return build_worker_tables(plan, [True] * len(plan.graph.ops), parts_wait=True, cooperative=shares)


def stuck(plan: il.Plan, shares: CooperativeFixup) -> int:
    """Items that never end, where each worker runs its list and every thread waits as in the launch."""
    table = table_of(plan, shares)
    items, waits = table.items, table.waits
    seen = np.zeros(table.semaphores, np.int64)
    lists = [[*range(low, high)] for low, high in zip(table.worker_rows, table.worker_rows[1:], strict=False)]
    left, moved = [False] * len(items), True

    def is_met(item: np.void) -> bool:
        rows = waits[item["wait_lo"] : item["wait_hi"]]
        spans = (slice(w["first"], w["first"] + w["count"] * w["stride"], w["stride"]) for w in rows)
        return all((seen[span] >= w["threshold"]).all() for span, w in zip(spans, rows, strict=True))

    while moved:
        moved = False
        for mine in lists:
            while mine:
                item, shared = items[mine[0]], int(items[mine[0]]["op"]) in shares.ops
                if not left[mine[0]]:
                    if not is_met(item):
                        break
                    left[mine[0]] = moved = True
                    if item["parts"] > 1 and (shared or item["split"] >= 0):
                        seen[item["split"] if item["split"] >= 0 else ~item["split"]] += 1
                if item["split"] < 0 and seen[~item["split"]] < item["parts"] - (not shared):
                    break
                if item["post"] >= 0 and (item["parts"] == 1 or item["split"] < 0):
                    seen[item["post"]] += 1
                mine.pop(0)
                moved = True
    return sum(map(len, lists))


PLANS = {
    "chain": lambda: il.build(chain(4), il.Schedule(4, STATIC, split=il.SplitK(2))),
    "chain, posts of a row together": lambda: il.build(
        chain(4), il.Schedule(4, STATIC, split=il.SplitK(2), policy=il.RowSync())
    ),
    "an op and the residual of another awaited at once": lambda: residual(4),
    "decode": lambda: decode(64),
}


@pytest.mark.parametrize("name", PLANS)
def test_shared_ops_come_to_their_end_and_waits_are_for_all_posts(name: str) -> None:
    plan = PLANS[name]()
    shares = shares_of(plan)
    assert len(shares.ops) == sum(parts > 1 for parts in count_parts(plan)) > 0
    assert stuck(plan, shares) == 0
    table = table_of(plan, shares)
    alone = (table.items["parts"] == 1) | (table.items["split"] < 0)
    posts = np.bincount(table.items["post"][alone & (table.items["post"] >= 0)], minlength=plan.semaphores)
    waits = shares.waits
    for first, count, stride, threshold in zip(waits.first, waits.count, waits.stride, waits.threshold, strict=True):
        assert set(posts[first : first + count * stride : stride]) == {threshold}
    assert sum(plan.waits.count) == sum(waits.count), "no semaphore is left out, and none waited for twice"


def test_two_parts_of_an_op_on_one_worker_would_wait_for_ever() -> None:
    plan = il.build(chain(4), il.Schedule(2, STATIC, split=il.SplitK(2)))
    assert shares_of(plan).ops == frozenset()
    assert stuck(plan, CooperativeFixup(frozenset(), plan.waits)) == 0
    forced = shares_of(il.build(chain(4), il.Schedule(4, STATIC, split=il.SplitK(2))))
    assert stuck(plan, forced) > 0


@pytest.mark.parametrize("dispatch", [d for d in il.Dispatch if d not in (STATIC, il.Dispatch.SPAWN)])
def test_only_lists_of_static_dispatch_are_shared(dispatch: il.Dispatch) -> None:
    assert shares_of(il.build(chain(2), il.Schedule(4, dispatch, split=il.SplitK(2)))).ops == frozenset()


def test_an_op_of_which_a_worker_has_two_items_or_tiles_unlike_parts_is_not_shared() -> None:
    whole = il.build(chain(1), il.Schedule(8, STATIC, split=il.SplitK(2)))
    assert shares_of(whole).ops == {0}
    twice = whole.items.worker.copy()
    twice[1] = twice[0]
    assert shares_of(replace(whole, items=replace(whole.items, worker=twice))).ops == frozenset()
    levelled = il.build(chain(1), il.Schedule(8, STATIC, split=il.SplitTail(1, 1)))
    assert shares_of(levelled).ops == frozenset(), "tiles of unlike parts"


def aside(parts: int) -> il.Plan:
    """Two workers: "down" waits for "up" behind it in the sequence, which is safe, and "aside" has parts on both."""
    shapes = {"x": (24, 128), "h": (24, 64), "out": (24, 64), "z": (24, 64)}
    shapes |= {"w_up": (64, 128), "w_down": (64, 64), "w": (64, 128)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    tile = il.MatmulTile(24, 64, 64, swap_ab=True)
    ops = (
        il.matmul("up", t["x"], t["w_up"], t["h"], tile=tile),
        il.matmul("down", t["h"], t["w_down"], t["out"], tile=tile),
        il.matmul("aside", t["x"], t["w"], t["z"], tile=tile),
    )
    graph = il.Graph("aside", tuple(t.values()), ops, ("x", "w_up", "w_down", "w"), ("out", "z"))
    sequence = il.ExplicitInterleaving((1, 2, 3, 0) if parts == 2 else (1, 2, 0))
    split = {"aside": il.SplitK(parts)}
    plan = il.build(graph, il.Schedule(2, STATIC, split=split, interleaving=sequence))
    return replace(plan, items=replace(plan.items, worker=np.array((1, 1, 0, 0) if parts == 2 else (1, 1, 0))))


def test_parts_that_wait_for_each_other_beside_waits_for_later_items_are_refused() -> None:
    """The proof is right, and yet the last part would wait for one behind an item that waits for one behind itself."""
    assert [il.verify(aside(parts)).in_sequence for parts in (1, 2)] == [False, False]
    il.MegakernelExecutor(aside(1), il.RunOptions(device="meta"))
    with pytest.raises(PlanError, match="op 'aside' is split, and in the megakernel the last part of a tile waits"):
        il.MegakernelExecutor(aside(2), il.RunOptions(device="meta"))

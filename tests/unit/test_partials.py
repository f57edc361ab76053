"""Where partial sums of split tiles lie in the workspace of the megakernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import interlace as il
from interlace.kernels.bodies import ROW_FLOATS
from interlace.megakernel import partials
from interlace.megakernel.constants import LEAVES_SUMS
from interlace.workloads import LLAMAS, FeedForward, FFNLayers, build_decode_graph


def chain(ops: int) -> il.Graph:
    """Products of 24 tokens, each of the one before."""
    rows = [il.Tensor(f"y{n}", (24, 128), il.bf16) for n in range(ops + 1)]
    weights = [il.Tensor(f"w{n}", (128, 128), il.bf16) for n in range(ops)]
    tile = il.MatmulTile(24, 64, 64, swap_ab=True)
    made = tuple(il.matmul(f"op{n}", rows[n], weights[n], rows[n + 1], tile=tile) for n in range(ops))
    return il.Graph("chain", (*rows, *weights), made, ("y0", *(w.name for w in weights)), (f"y{ops}",))


PLANS: dict[str, Callable[[], il.Plan]] = {
    "decode": lambda: il.autoplan(
        build_decode_graph(replace(LLAMAS["llama3.2-1b"], layers=2), 64, 1088, il.H200), il.H200, il.MegakernelExecutor
    ),
    "ffn": lambda: il.autoplan(FeedForward(64, 4096, 11008).build_graph(il.H200), il.H200, il.MegakernelExecutor),
    "layers": lambda: il.autoplan(FFNLayers(3, 2048, 8192, 64).build_graph(il.H200), il.H200, il.MegakernelExecutor),
    "chain, waits by chunk": lambda: il.build(
        chain(5), il.Schedule(4, il.Dispatch.STEALING, split=il.SplitK(2), chunk_waits=True)
    ),
    "chain, waits for semaphores of rows": lambda: il.build(
        chain(5), il.Schedule(4, split=il.SplitK(2), policy=il.RowSync())
    ),
}
#: Of the others one has two ops alone, and one parts that begin when a tile has ended, of which not all is known.
SHARED = {"decode", "layers", "chain, waits for semaphores of rows"}


@cache
def launch(name: str) -> il.MegakernelExecutor:
    return il.MegakernelExecutor(PLANS[name](), il.RunOptions(device="meta"))


def items_of(run: il.MegakernelExecutor) -> np.ndarray:
    """Return the items of split tiles."""
    return run._table.items[run._table.items["parts"] > 1]


def left_by(run: il.MegakernelExecutor) -> list[tuple[int, int, int]]:
    """The op of each item that leaves sums, and the rows in which it does, from one to another, of each share."""
    items = items_of(run)
    partial = [run._count_partial_elements(op) // ROW_FLOATS for op in run.plan.graph.ops]
    share = [part.tile.shared_elements // ROW_FLOATS for part in run.lowered.ops]
    left = []
    for item in items:
        op, part, parts, slot = (int(item[name]) for name in ("op", "part", "parts", "slot"))
        if share[op]:  # as share_of in kernels/matmul/megakernel_body.py
            others = [s for s in range(parts) if s != part]
            at = [slot + (s * (parts - 1) + part - (part > s)) * share[op] for s in others]
            left += [(op, row, row + share[op]) for row in at]
        elif item["code"] & LEAVES_SUMS:
            left.append((op, slot, slot + partial[op]))
    return left


@pytest.mark.parametrize("name", PLANS)
def test_sums_of_an_op_lie_side_by_side(name: str) -> None:
    run = launch(name)
    left = left_by(run)
    assert left
    for op in {op for op, _, _ in left}:
        taken = np.concatenate([np.arange(low, high) for o, low, high in left if o == op])
        low = int(taken.min())
        assert np.array_equal(np.sort(taken), np.arange(low, low + len(taken))), "each row once, and none between"
        assert low + len(taken) <= run._table.slots


@pytest.mark.parametrize("name", PLANS)
def test_the_last_part_finds_sums_of_the_others_in_order(name: str) -> None:
    run = launch(name)
    items = items_of(run)
    share = np.array([part.tile.shared_elements > 0 for part in run.lowered.ops])[items["op"]]
    assert share.any() == (name in ("decode", "layers"))
    assert not (items["code"][share] & LEAVES_SUMS).any(), "each finds those of its share"
    items = items[~share]
    rows = np.array([run._count_partial_elements(op) for op in run.plan.graph.ops])[items["op"]] // ROW_FLOATS
    leaves = (items["code"] & LEAVES_SUMS) > 0
    tile = np.where(items["split"] < 0, ~items["split"], items["split"])
    asked_for = run.plan.dispatch is il.Dispatch.STEALING
    assert run._table.semaphores - run.plan.semaphores == asked_for * len(np.unique(tile))
    assert set(items["split"][leaves] >= 0) <= {asked_for}
    assert asked_for or set(items["post"][leaves]) <= {-1}
    for closes, n in zip(items[~leaves], rows[~leaves], strict=True):
        others = items[leaves & (tile == ~closes["split"])]
        others = others[np.argsort(others["part"])]
        assert len(others) == closes["parts"] - 1
        assert others["slot"].tolist() == [closes["slot"] + r * n for r in range(len(others))]


def ended_before(plan: il.Plan) -> list[int]:
    """For each item the tiles that have ended when it begins, as bits, by waits alone."""
    items, waits = plan.items, plan.waits
    tile = plan.tile_of_item
    posters: dict[int, list[int]] = {}
    for i, semaphore in enumerate(items.post.tolist()):
        posters.setdefault(semaphore, []).append(i)
    when_begun, when_ended = [0] * len(items), [0] * len(items)
    for i in range(len(items)):  # every item waits for earlier ones alone
        for row in range(waits.ptr[i], waits.ptr[i + 1]):
            first, count, stride = int(waits.first[row]), int(waits.count[row]), int(waits.stride[row])
            known = 0
            for semaphore in range(first, first + count * stride, stride):
                for j in posters[semaphore]:
                    known |= when_ended[j] | 1 << int(tile[j])
            when_ended[i] |= known
            if waits.k[row] <= items.k_lo[i]:
                when_begun[i] |= known
    return when_begun


def overwritten(run: il.MegakernelExecutor) -> tuple[int, int]:
    """How many pairs of ops share rows, and how many items of the later may begin before a tile of the earlier ends."""
    plan = run.plan
    begun, base, left = ended_before(plan), plan.compute_tile_base(), left_by(run)
    spans = {
        o: (min(low for op, low, _ in left if op == o), max(high for op, _, high in left if op == o))
        for o in sorted({op for op, _, _ in left})
    }
    pairs = early = 0
    for p in spans:
        every = sum(1 << t for t in range(int(base[p]), int(base[p + 1])))
        for c in spans:
            if p < c and spans[p][0] < spans[c][1] and spans[c][0] < spans[p][1]:
                pairs += 1
                early += sum(begun[i] & every != every for i in np.flatnonzero(plan.items.op == c))
    return pairs, early


@pytest.mark.parametrize("name", PLANS)
def test_ops_share_rows_only_with_ops_that_have_ended_by_then(name: str) -> None:
    pairs, early = overwritten(launch(name))
    assert (pairs > 0, early) == (name in SHARED, 0)


def test_ops_that_all_began_at_the_first_row_would_be_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partials, "_place_rows", lambda sizes, ended: np.zeros_like(sizes))
    for name in ("decode", "chain, waits by chunk"):
        run = il.MegakernelExecutor(launch(name).plan, il.RunOptions(device="meta"))
        assert overwritten(run)[1] > 0, name


def test_more_layers_take_no_more_rows() -> None:
    def slots(layers: int) -> int:
        graph = build_decode_graph(replace(LLAMAS["llama3.1-8b"], layers=layers), 64, 1088, il.H200)
        plan = il.autoplan(graph, il.H200, il.MegakernelExecutor)
        return il.MegakernelExecutor(plan, il.RunOptions(device="meta"))._table.slots

    assert [slots(layers) * ROW_FLOATS * 4 for layers in (2, 5)] == [1 << 20] * 2

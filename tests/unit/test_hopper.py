"""The tables of the Hopper executor count one post per warpgroup."""

from __future__ import annotations

import pytest

import interlace as il
from interlace.executors.table import for_workers


@pytest.mark.parametrize("policy", [il.TileSync(), il.RowSync()], ids=["tile", "row"])
@pytest.mark.parametrize("chunk_waits", [False, True])
def test_thresholds_count_one_post_per_warpgroup_and_nothing_else_changes(
    policy: il.SyncPolicy, chunk_waits: bool
) -> None:
    tile = il.MatmulTile(64, 64, 64)
    graph = il.workloads.ffn(300, il.workloads.FFNShape(256, 512, il.Activation.RELU, False), il.bf16, tile, tile)
    plan = il.build(graph, il.Choices(8, policy=policy, split=il.SplitK(2), chunk_waits=chunk_waits))
    one, two = (for_workers(plan, [True, True], shares) for shares in (1, 2))
    count = len(plan.waits)
    assert count > 0
    assert (two.waits["threshold"][:count] == 2 * plan.waits.threshold).all()
    assert (one.waits["threshold"][:count] == plan.waits.threshold).all()
    others = ["first", "count", "stride", "k"]
    assert (one.waits[others] == two.waits[others]).all()
    assert (one.items == two.items).all()
    assert (one.slots, one.splits, one.chunked) == (two.slots, two.splits, two.chunked)
    assert one.parts.tolist() == two.parts.tolist() == [2, 2]


def test_of_the_parts_of_a_tile_the_last_in_the_sequence_waits_for_the_others() -> None:
    tile = il.MatmulTile(64, 64, 64)
    graph = il.workloads.ffn(100, il.workloads.FFNShape(256, 512, il.Activation.RELU, False), il.bf16, tile, tile)
    for dispatch in il.Dispatch:
        plan = il.build(graph, il.Choices(8, dispatch, split={"down": il.StreamK(5)}))
        table = for_workers(plan, [True, True], 2, parts_wait=True)
        number = table.items["number"]
        tiles = {(int(plan.items.op[n]), int(plan.items.tile[n])) for n in number[table.items["parts"] > 1]}
        assert len(tiles) == table.splits > 0
        assert table.semaphores == plan.semaphores + 2 * table.splits
        found = set()
        for op, at in tiles:
            rows = table.items[(plan.items.op[number] == op) & (plan.items.tile[number] == at)]
            *others, last = rows[rows["number"].argsort()]["split"].tolist()
            assert last < 0
            assert others == [~last] * len(others)
            found.add(~last)
        assert found == {*range(plan.semaphores, table.semaphores, 2)}

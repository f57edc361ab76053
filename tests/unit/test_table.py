"""The tables that launches read: parts of split tiles, and which items are the last."""

from __future__ import annotations

import interlace as il
from interlace.megakernel.table import build_worker_tables


def test_of_the_parts_of_a_tile_the_last_in_the_sequence_waits_for_the_others() -> None:
    tile = il.MatmulTile(64, 64, 64)
    graph = il.workloads.ffn(100, il.workloads.FFNShape(256, 512, il.Activation.RELU, False), il.bf16, tile, tile)
    for dispatch in il.Dispatch:
        plan = il.build(graph, il.Schedule(8, dispatch, split={"down": il.StreamK(5)}))
        table = build_worker_tables(plan, [True, True], parts_wait=True)
        number = table.items["number"]
        tiles = {(int(plan.items.op[n]), int(plan.items.tile[n])) for n in number[table.items["parts"] > 1]}
        assert len(tiles) == table.splits > 0
        assert table.semaphores == plan.semaphores + table.splits
        found = set()
        for op, at in tiles:
            rows = table.items[(plan.items.op[number] == op) & (plan.items.tile[number] == at)]
            *others, last = rows[rows["number"].argsort()]["split"].tolist()
            assert last < 0
            assert others == [~last] * len(others)
            found.add(~last)
        assert found == {*range(plan.semaphores, table.semaphores)}


def test_the_last_items_are_those_that_wait_one_for_each_worker() -> None:
    up, down = il.MatmulTile(64, 64, 64), il.MatmulTile(64, 16, 64)
    graph = il.workloads.ffn(5, il.workloads.FFNShape(128, 128, il.Activation.RELU, False), il.bf16, up, down)
    for workers, last in ((1, [9]), (3, [7, 8, 9]), (20, [*range(2, 10)])):
        table = build_worker_tables(il.build(graph, il.Schedule(workers)), [True, True])
        assert table.items["op"].tolist() == [0, 0, *[1] * 8]
        assert table.last_waiting_mask.nonzero()[0].tolist() == last

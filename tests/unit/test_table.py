"""The tables that launches read: parts of split tiles."""

from __future__ import annotations

import interlace as il
from interlace.executors.table import for_workers


def test_of_the_parts_of_a_tile_the_last_in_the_sequence_waits_for_the_others() -> None:
    tile = il.MatmulTile(64, 64, 64)
    graph = il.workloads.ffn(100, il.workloads.FFNShape(256, 512, il.Activation.RELU, False), il.bf16, tile, tile)
    for dispatch in il.Dispatch:
        plan = il.build(graph, il.Choices(8, dispatch, split={"down": il.StreamK(5)}))
        table = for_workers(plan, [True, True], parts_wait=True)
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

"""Where partial sums of split tiles lie in the workspace of the one launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import interlace as il
from interlace.executors.sums import ROW_FLOATS
from interlace.workloads import FFN, LLAMAS, decode_graph

GRAPHS = {
    "decode": lambda: decode_graph(replace(LLAMAS["llama3.2-1b"], layers=2), 64, 1088, il.H200),
    "ffn": lambda: FFN(64, 4096, 11008).graph(il.H200),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_parts_leave_their_sums_side_by_side_and_the_last_finds_them_in_order(name: str) -> None:
    plan = il.plan_graph(GRAPHS[name](), il.H200, il.OneLaunchExecutor)
    run = il.OneLaunchExecutor(plan, il.Options(device="meta"))
    items = run._table.items[run._table.items["parts"] > 1]
    assert len(items)
    rows = np.array([run._accumulator_size(op) for op in run.plan.graph.ops])[items["op"]] // ROW_FLOATS
    leaves = items["split"] >= 0
    taken = np.concatenate([np.arange(a, a + n) for a, n in zip(items["slot"][leaves], rows[leaves], strict=True)])
    assert np.array_equal(np.sort(taken), np.arange(run._table.slots)), "each row once, and none between"
    for closes, n in zip(items[~leaves], rows[~leaves], strict=True):
        others = items[items["split"] == ~closes["split"]]
        others = others[np.argsort(others["part"])]
        assert len(others) == closes["parts"] - 1
        assert others["slot"].tolist() == [closes["slot"] + r * n for r in range(len(others))]

"""Block-sparse products under the Triton interpreter: right for any table, and nothing undeclared is touched."""

from __future__ import annotations

import pytest
import torch

import interlace as il

from ..block_sparse import break_table, build_product, compute_exact, draw_table, make_inputs
from ..cases import TORCH, relative_error
from .cases import executor

#: m, n, k, number of blocks, extents of a block, dtype; tile.
CASES = {
    "whole blocks": ((5, 128, 96, 5, (32, 16), il.fp32), il.MatmulTile(16, 32, 16)),
    "half a block row, half a block deep": ((33, 128, 96, 5, (32, 32), il.bf16), il.MatmulTile(16, 16, 16)),
    "a stage deeper than a block": ((5, 128, 96, 5, (32, 16), il.fp32), il.MatmulTile(16, 32, 64)),
}


def run(executor: il.executors.device.DeviceExecutor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    out = executor.plan.graph.tensor("out")
    value = torch.full(out.shape, float("nan"), dtype=TORCH[out.dtype.name])
    executor.run({**given, "out": value})
    return value


@pytest.mark.parametrize("broken", [False, True], ids=["table", "broken table"])
@pytest.mark.parametrize("name", CASES)
def test_any_table_is_right(name: str, broken: bool) -> None:
    shape, tile = CASES[name]
    _, n, k, count, (height, depth), dtype = shape
    graph = build_product(*shape, tile=tile)
    columns, rows = draw_table(n // height, k // depth, count, 1)
    if broken:
        columns, rows = break_table(columns, rows, k // depth)
    given = make_inputs(graph, columns, rows)
    out = run(il.SerialExecutor(il.build(graph, il.Schedule(3)), il.RunOptions("cpu")), given)
    assert relative_error(out, compute_exact(graph, given)) < (1e-6 if dtype is il.fp32 else 4 * dtype.epsilon)


@pytest.mark.parametrize("name", ["semaphore_streams-chunked", "static", "ticket"])
def test_an_executor_reads_a_table_that_the_graph_writes_after_its_waits(name: str) -> None:
    graph = build_product(5, 64, 48, 2, (32, 16), il.fp32, il.MatmulTile(16, 32, 16), writes_table=True)
    given = make_inputs(graph, *draw_table(2, 3, 2, 0))
    assert relative_error(run(executor(name, graph), given), compute_exact(graph, given)) < 1e-6


def test_nothing_undeclared_is_touched_whatever_tables_hold() -> None:
    shape, tile = CASES["half a block row, half a block deep"]
    graph = build_product(*shape, tile=tile)
    for device in ("cpu", "reference"):
        assert il.check_footprint(graph, "product", device=device, tiles=(0, 23)).tiles == (0, 23)

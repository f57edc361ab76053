"""Independent matmuls: what they compute, who runs them, and that streams and one launch run them side by side."""

from __future__ import annotations

import numpy as np

import interlace as il
from interlace.executors import EXECUTORS
from interlace.graph.uses import find_predecessors
from interlace.kernels.matmul.tile import TileShape
from interlace.planner.predict import predict
from interlace.workloads import Dag

QUARTERS = Dag.from_fields({}, gpu=True)


def test_a_quarter_of_the_sms_each() -> None:
    graph = QUARTERS.build_graph(il.H200)
    assert [op.tiles for op in graph.ops] == [32] * 64
    assert il.H200.sms // 4 == 33
    assert find_predecessors(graph) == (frozenset(),) * 64
    assert QUARTERS.flops == 64 * 2 * 1024 * 512 * 2048
    assert QUARTERS.title == "64 independent matmuls of 1024 x 512 x 2048, bf16"


def test_each_matmul_is_of_the_same_input_and_a_weight_of_its_own() -> None:
    problem = Dag(3, 20, 40, 24)
    inputs, graph = problem.make_inputs(0), problem.build_graph(il.CPU, TileShape(16, 16, 16))
    assert problem.weights == ("w0", "w1", "w2")
    assert set(inputs) == {"x", "w0", "w1", "w2"}
    found = il.ReferenceExecutor(il.build(graph, il.Schedule(4)), seed=3).run(inputs)
    right = problem.run_dense(np, {name: value.astype(np.float64) for name, value in inputs.items()})
    for name, value in right.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12)


def test_every_executor_runs_a_few_and_says_why_it_does_not_run_many() -> None:
    few, many = Dag(4, 1024, 512, 2048).build_graph(il.H200), QUARTERS.build_graph(il.H200)
    assert {e.name: e.fallback_reason(few, il.H200) for e in EXECUTORS if e.fallback_reason(few, il.H200)} == {}
    left_out = {e.name for e in EXECUTORS if e.fallback_reason(many, il.H200)}
    assert left_out == {"persistent-static", "persistent-ticket"}
    for executor in (il.StreamsExecutor, il.MegakernelExecutor):
        assert executor.prove(il.autoplan(many, il.H200, executor)).plan.graph.name == "dag"


def test_streams_are_predicted_to_take_a_quarter_of_the_time_of_one() -> None:
    plan = il.autoplan(QUARTERS.build_graph(il.H200), il.H200, il.StreamsExecutor)
    one, side_by_side = (
        predict(plan, il.H200, executor.build_mode(plan.graph, il.H200)).us
        for executor in (il.CudaGraphExecutor, il.StreamsExecutor)
    )
    assert 3.5 < one / side_by_side < 4.5


def test_one_launch_takes_tiles_for_all_of_them_together() -> None:
    alone = il.autoplan(Dag(1, 1024, 512, 2048).build_graph(il.H200), il.H200, il.MegakernelExecutor).graph
    graph = il.autoplan(QUARTERS.build_graph(il.H200), il.H200, il.MegakernelExecutor).graph
    assert {(op.param("BM"), op.param("BN")) for op in graph.ops} == {(128, 256)}
    assert alone.ops[0].param("BN") == 64  # more tiles, for one matmul has the SMs to itself

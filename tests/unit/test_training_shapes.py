"""The benchmark of the products after attention: its orders, and what they are predicted to read."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.devices import CPU
from interlace.core.errors import ShapeError
from interlace.kernels.matmul import Activation
from interlace.planner.intervals import predict_read_interval
from interlace.planner.predict import count_traffic
from interlace.planner.proof_cache import prove_schedule
from interlace.workloads import OutputFFN, output_ffn

from ..benchmarks import BENCHMARKS, load_script


@pytest.fixture(scope="module")
def script() -> Any:
    return SimpleNamespace(**load_script("training_shapes"))


def test_rows_and_slices_follow_each_other(script: Any) -> None:
    shape = il.workloads.FFNShape(64, 128, Activation.RELU, False)
    graph = output_ffn(64, shape, tile=il.MatmulTile(32, 32, 32))
    schedule = il.Schedule(2, split={"down": il.SplitK(2)}, interleaving=script.RowSlices(2, 2))
    items = il.build(graph, schedule).items
    names = [graph.ops[op].name for op in items.op]
    assert names == (["output"] * 2 + (["up"] * 2 + ["down"] * 2) * 2) * 2
    rows = [graph.ops[op].compute_coords(np.array([tile]))[0, 0] for op, tile in zip(items.op, items.tile, strict=True)]
    assert rows == [0] * 10 + [1] * 10
    parts = [lo for op, lo in zip(names, items.k_lo, strict=True) if op == "down"]
    assert parts[:2] == [0, 0]
    assert min(parts[2:4]) > 0


def test_every_order_is_proved_and_differs_from_the_others(script: Any) -> None:
    for preset in script.PRESETS:
        graph = script.make_workload(preset).build_graph(il.H200)
        orders = script.list_orders(graph, il.H200)
        assert set(script.ORDERS) - set(orders) <= {"op by op, as planned"}
        sequences = set()
        for schedule in orders.values():
            plan = prove_schedule(graph, schedule).plan
            columns = plan.items.op, plan.items.tile, plan.items.k_lo
            sequences.add((plan.dispatch, *(np.asarray(column).tobytes() for column in columns)))
        assert len(sequences) == len(orders)


def test_rows_first_reads_the_intermediate_from_memory_unless_it_is_cut_in_slices(script: Any) -> None:
    row = script.predict_orders("relu")
    hidden = {name: order["read_bytes"].get("hidden", 0) for name, order in row["orders"].items()}
    nbytes = script.TOKENS * 4 * 4096 * 2
    assert hidden["op by op"] > 1.5 * nbytes
    assert 0.7 * nbytes < hidden["rows first, 1024 tokens"] <= nbytes
    assert hidden["rows first, 1024 tokens, 8 slices"] < 0.2 * nbytes


def read_counts(preset: str) -> dict[str, float]:
    """Return the bytes that an H200 read from memory, by order."""
    rows = json.loads((BENCHMARKS / "results" / "training-shapes-h200.json").read_text())["rows"]
    (row,) = (row for row in rows if row["preset"] == preset)
    return {name: counts["dram_read_bytes"] for name, counts in row["counted"].items()}


@pytest.mark.parametrize(
    ("preset", "order"),
    [
        ("relu", "op by op"),
        ("relu", "rows first, 1024 tokens"),
        ("relu", "rows first, 1024 tokens, lag"),
        ("relu", "rows first, 4096 tokens"),
        ("llama3-8b", "op by op, as planned"),
    ],
)
def test_weights_to_evict_first_are_read_as_often_as_an_h200_counted(script: Any, preset: str, order: str) -> None:
    """Without the policy, or without the pairs of static queues, 24 to 28 % fewer bytes are predicted."""
    graph = script.make_workload(preset).build_graph(il.H200)
    mode = il.MegakernelExecutor.build_mode(graph, il.H200)
    plan = il.build(graph, script.list_orders(graph, il.H200)[order])
    counted = read_counts(preset)[order]
    assert count_traffic(plan, il.H200, mode).traffic.dram_read == pytest.approx(counted, rel=0.1)
    if "planned" not in order and "lag" not in order:
        return
    plain = replace(il.H200, l2=replace(il.H200.l2, evict_first_bytes=il.H200.l2.side_bytes))
    assert count_traffic(plan, plain, mode).traffic.dram_read < 0.8 * counted


@pytest.mark.thorough
def test_every_count_is_within_7_percent_of_its_interval(script: Any) -> None:
    errors = {}
    for preset in script.PRESETS:
        graph = script.make_workload(preset).build_graph(il.H200)
        mode = il.MegakernelExecutor.build_mode(graph, il.H200)
        counts = read_counts(preset)
        for order, schedule in script.list_orders(graph, il.H200).items():
            interval = predict_read_interval(il.build(graph, schedule), il.H200, mode)
            errors[preset, order] = interval.compute_error(counts[order])
    assert len(errors) == 19
    assert {case: error for case, error in errors.items() if abs(error) > 0.07} == {}


def test_the_products_after_attention_need_silu_with_a_gate_and_draw_activations_of_deviation_one() -> None:
    with pytest.raises(ShapeError, match="a gated FFN uses silu, not relu"):
        OutputFFN(72, 136, gated=True, activation=Activation.RELU)
    inputs = OutputFFN.from_fields({"m": 64}, gpu=False).make_inputs(0)
    assert {name: round(float(inputs[name].std()), 1) for name in ("attended", "residual", "w_o")} == {
        "attended": 1.0,
        "residual": 1.0,
        "w_o": 0.1,
    }
    assert OutputFFN.from_fields({}, gpu=False).build_graph(CPU).inputs[:3] == ("attended", "residual", "w_o")


def test_tables_show_each_order_once_as_predicted_and_as_measured() -> None:
    tables = SimpleNamespace(**load_script("report")).training
    predicted, measured = (
        json.loads((BENCHMARKS / "results" / f"training-shapes-{kind}.json").read_text())
        for kind in ("predicted", "h200")
    )
    for preset in ("relu", "llama3-8b"):
        row, forecast = (tables.find_row(record, preset) for record in (measured, predicted))
        lines = [line.split(" | ") for line in tables.orders_table(preset, predicted, measured).splitlines()]
        found = {cells[0].removeprefix("| "): cells for cells in lines[2:]}
        assert set(found) == {*forecast["orders"], "PyTorch eager", row["library"]}
        assert set(forecast["orders"]) == set(row["counted"]) - {"PyTorch eager"}
        counted = row["counted"]["op by op"]
        assert found["op by op"][6] == f"{counted['dram_read_bytes'] / 1e9:.2f}"
        assert found["op by op"][8] == f"{100 * counted['l2_hits'] / counted['l2_sectors']:.1f}"
    line = tables.rows_first_line(predicted, measured)
    gains = [row["timed"]["rows first, 1024 tokens, lag"]["over_op_by_op"] for row in measured["rows"]]
    assert f"{min(gains):.3f} to {max(gains):.3f} times" in line

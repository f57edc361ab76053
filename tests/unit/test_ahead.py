"""Tiles of the megakernel that take weights into registers before their tokens are there."""

import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import interlace as il
from interlace.kernels.matmul.tilings import select_matmuls
from interlace.workloads import Decode, FeedForward


def launch(graph: il.Graph) -> il.MegakernelExecutor:
    return il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), il.RunOptions(device="meta"))


def count_held_stages(run: il.MegakernelExecutor) -> dict[str, int]:
    """Return the most stages that tiles take ahead, by op."""
    types = [part.tile.type for part in run.lowered.ops]
    found = [re.search(r"::Ahead<(\d+)>$", name) for name in types]
    return {op.name: int(f[1]) for op, f in zip(run.plan.graph.ops, found, strict=True) if f}


def step(model: str, batch: int) -> il.Graph:
    return Decode.from_fields({"batch": batch, "context": 1024, "layers": 2}, True, model).build_graph(il.H200)


def test_items_keep_a_stage_in_the_ring_and_ops_that_share_code_hold_as_many() -> None:
    run = launch(step("qwen3-0.6b", 64))
    least = dict(zip((op.name for op in run.plan.graph.ops), run._table.min_extents.tolist(), strict=True))
    assert (least["layers.1.x_attended"], least["layers.1.x"]) == (2 * 128, 3 * 128)
    assert count_held_stages(run)["layers.1.x_attended"] == count_held_stages(run)["layers.1.x"] == 1
    assert count_held_stages(launch(step("llama3.2-1b", 64)))["layers.1.x"] == 3


def test_queries_keys_and_values_hold_none() -> None:
    run = launch(step("llama3.2-1b", 64))
    alone = {f"layers.{n}.{name}" for n in range(2) for name in ("x_attended", "inner", "x")} | {"logits"}
    assert set(count_held_stages(run)) == alone
    heads = {f"layers.{n}.{x}_heads" for n in range(2) for x in "qkv"}
    assert {op.name for op in select_matmuls(run.plan.graph)} == alone | heads


def test_tiles_of_two_warpgroups_hold_none_and_items_of_one_stage_neither() -> None:
    assert count_held_stages(launch(FeedForward.from_fields({"m": 300}, True, "relu").build_graph(il.H200))) == {}
    for k, most in ((64, {}), (128, {"up": 1})):
        shapes = {"x": (32, k), "w": (64, k), "y": (32, 64)}
        t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
        up = il.matmul("up", *t.values(), tile=il.MatmulTile(32, 64, 64, swap_ab=True))
        graph = il.Graph("one", (*t.values(),), (up,), ("x", "w"), ("y",))
        run = il.MegakernelExecutor(il.build(graph, il.Schedule(1)), il.RunOptions(device="meta"))
        assert count_held_stages(run) == most
        assert run.binary.warnings == ()  # no product waits for the one before

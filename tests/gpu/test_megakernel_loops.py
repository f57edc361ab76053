"""Loops, products and texts in one launch: right under every dispatch, with delays, and run after run."""

from __future__ import annotations

import pytest
import torch

import interlace as il
from interlace import loops

from ..cases import check_missing_posts, relative_error
from ..loops_graphs import mark_rings
from ..megakernel_loops import chain, compute_exact, inputs_of, library, twice

TOLERANCE = 8e-3  # of bf16, which is rounded to three times
TILE = il.MatmulTile(128, 64, 64, num_warps=8)


def on_gpu(graph: il.Graph, seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: value.cuda() for name, value in inputs_of(graph, seed).items()}


def poison_tensors(run: il.MegakernelExecutor) -> dict[str, torch.Tensor]:
    for name in run.plan.graph.intermediates:
        run.get_intermediate(name).fill_(float("nan"))
    return {name: run.allocate_tensor(name).fill_(float("nan")) for name in run.plan.graph.outputs}


@pytest.mark.parametrize("jitter_s", [0.0, 3e-6])
@pytest.mark.parametrize("kind", ["static", "tickets", "dependent"])
def test_loops_products_and_texts_pass_data_to_each_other(kind: str, jitter_s: float) -> None:
    dispatch = il.Dispatch.STATIC if kind == "static" else il.Dispatch.TICKET
    plan = il.build(chain(1000, TILE), il.Schedule(132, dispatch, policy=il.TileSync()))
    run = il.MegakernelExecutor(plan, il.RunOptions(jitter_s=jitter_s, dependent_launch=kind == "dependent"))
    for seed in range(10):
        inputs, outputs = on_gpu(plan.graph, seed), poison_tensors(run)
        run.run({**inputs, **outputs})
        run.synchronize()
        assert relative_error(outputs["out"], compute_exact(inputs)) < TOLERANCE


@pytest.mark.parametrize("warps", [4, 8])
def test_kernels_of_the_library_mean_in_the_launch_what_their_loops_mean(warps: int) -> None:
    graph = library() if warps == 8 else twice(300)
    run = il.MegakernelExecutor(il.build(graph, il.Schedule(132)))
    inputs, outputs = on_gpu(graph), poison_tensors(run)
    run.run({**inputs, **outputs})
    run.synchronize()
    right = il.ReferenceExecutor(run.plan).run({name: value.double().cpu().numpy() for name, value in inputs.items()})
    for name, value in outputs.items():
        error = relative_error(value, torch.from_numpy(right[name]).cuda())
        assert error < (4e-3 if value.dtype == torch.bfloat16 else 1e-5), name


def test_a_deep_product_of_loops_is_the_same_bit_by_bit_in_every_run() -> None:
    m, n, depth = 1000, 1536, 4104
    a, b, c = (il.Tensor(name, shape, il.bf16) for name, shape in (("a", (m, depth)), ("b", (n, depth)), ("c", (m, n))))
    kernel = mark_rings(loops.library.matmul(), a_s=4, b_s=4)
    op = loops.as_op("product", kernel, {"a": a, "b": b, "c": c}, weights=("b",))
    run = il.MegakernelExecutor(
        il.build(il.Graph("product", (a, b, c), (op,), ("a", "b"), ("c",)), il.Schedule(132)),
        il.RunOptions(dependent_launch=True, jitter_s=1e-6),
    )
    inputs = on_gpu(run.plan.graph)
    first = poison_tensors(run)
    run.run({**inputs, **first})
    run.synchronize()
    assert relative_error(first["c"], inputs["a"].double() @ inputs["b"].double().T) < 3e-3
    again = poison_tensors(run)
    for _ in range(300):
        run.run({**inputs, **again})
        assert torch.equal(first["c"], again["c"])
    run.synchronize()


@pytest.mark.parametrize("op", ["up", "gelu"])
def test_a_missing_post_is_named_and_the_next_run_is_right(op: str) -> None:
    plan = il.build(chain(300, TILE), il.Schedule(132))
    run = il.MegakernelExecutor(plan, il.RunOptions(timeout_s=0.05))
    inputs, outputs = on_gpu(plan.graph), poison_tensors(run)
    struck = int((plan.items.op == plan.graph.op_index(op)).argmax())
    # The wait that expires may be behind the one for it.
    check_missing_posts(run, {**inputs, **outputs}, [struck], rf"op '{op}', tile .* never posted")
    assert relative_error(outputs["out"], compute_exact(inputs)) < TOLERANCE

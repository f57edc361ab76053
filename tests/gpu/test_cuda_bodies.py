"""Texts and products in one launch, captured runs of tensors that come anew, and hundreds of ops."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

import interlace as il

from ..cases import TORCH, check_missing_posts, relative_error
from ..cuda_bodies import chain

TOLERANCE = 6e-3  # of bf16, which is rounded to three times


def inputs_of(graph: il.Graph) -> dict[str, torch.Tensor]:
    tensors = map(graph.tensor, graph.inputs)
    return {t.name: torch.randn(t.shape, device="cuda").to(TORCH[t.dtype.name]) for t in tensors}


def compute_exact(t: Mapping[str, torch.Tensor]) -> torch.Tensor:
    d = {name: value.double() for name, value in t.items()}
    h = d["x"] @ d["w_up"].T
    return h * (h.square().mean(1, keepdim=True) + 1e-5).rsqrt() * d["scale"] @ d["w_down"].T


def poison_output(run: il.MegakernelExecutor) -> torch.Tensor:
    for name in run.plan.graph.intermediates:
        run.get_intermediate(name).fill_(float("nan"))
    return run.allocate_tensor("out").fill_(float("nan"))


@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("dispatch", il.Dispatch)
@pytest.mark.parametrize("jitter_s", [0.0, 3e-6])
def test_texts_and_products_pass_data_to_each_other(dispatch: il.Dispatch, warps: int, jitter_s: float) -> None:
    tile = il.MatmulTile(16 * warps, 40, 64, num_warps=warps)
    plan = il.build(chain(1000, tile, bm=5), il.Schedule(132, dispatch, policy=il.TileSync()))
    run = il.MegakernelExecutor(plan, il.RunOptions(jitter_s=jitter_s))
    for _ in range(20):
        inputs, out = inputs_of(plan.graph), poison_output(run)
        run.run({**inputs, "out": out})
        run.synchronize()
        assert relative_error(out, compute_exact(inputs)) < TOLERANCE


def test_a_missing_post_is_named_and_the_next_run_is_right() -> None:
    plan = il.build(chain(200, il.MatmulTile(64, 64, 64)), il.Schedule(132))
    run = il.MegakernelExecutor(plan, il.RunOptions(timeout_s=0.05))
    inputs, out = inputs_of(plan.graph), poison_output(run)
    struck = int((plan.items.op == 1).argmax())
    check_missing_posts(run, {**inputs, "out": out}, [struck], r"op 'norm', tile .* never posted")
    assert relative_error(out, compute_exact(inputs)) < TOLERANCE


@pytest.mark.parametrize("dependent", [False, True], ids=["after", "dependent"])
def test_runs_of_new_tensors_are_captured_and_other_runs_between_replays_leave_them_alone(dependent: bool) -> None:
    plan = il.build(chain(64, il.MatmulTile(64, 64, 64)), il.Schedule(132))
    run = il.MegakernelExecutor(plan, il.RunOptions(dependent_launch=dependent))
    sets, outs = [inputs_of(plan.graph) for _ in range(4)], [run.allocate_tensor("out") for _ in range(4)]
    golds = [compute_exact(inputs) for inputs in sets]
    run.run({**sets[0], "out": outs[0]})
    run.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for inputs, out in zip(sets[:3], outs, strict=False):
            run.run({**inputs, "out": out})
    for _ in range(30):
        for out in outs:
            out.fill_(float("nan"))
        captured.replay()
        run.run({**sets[3], "out": outs[3]})
        _ = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in (512, 1024, 2048, 4096)]
        run.synchronize()
        assert all(relative_error(out, gold) < TOLERANCE for out, gold in zip(outs, golds, strict=True))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("shape", [(777, 1001), (300, 400)])
def test_copies_alone_run_in_one_launch(dtype: str, shape: tuple[int, int]) -> None:
    graph = il.workloads.two_copies(*shape, il.dtype(dtype))
    run = il.MegakernelExecutor(il.build(graph, il.Schedule(132)))
    x = torch.randn(shape, device="cuda").to(TORCH[dtype])
    (name,) = graph.outputs
    out = run.allocate_tensor(name).fill_(float("nan"))
    run.run({"x": x, name: out})
    run.synchronize()
    assert torch.equal(x, out)


def test_hundreds_of_ops_stand_in_one_launch() -> None:
    n, width = 300, 256
    x = [il.Tensor(f"x{i}", (64, width), il.bf16) for i in range(n + 1)]
    w = [il.Tensor(f"w{i}", (width, width), il.bf16) for i in range(n)]
    ops = tuple(il.matmul(f"op{i}", x[i], w[i], x[i + 1], tile=il.MatmulTile(64, 64, 64)) for i in range(n))
    graph = il.Graph("long", (*x, *w), ops, ("x0", *(t.name for t in w)), (f"x{n}",))
    run = il.MegakernelExecutor(il.build(graph, il.Schedule(132)))
    tensors = {t.name: (torch.randn(t.shape, device="cuda") / width**0.5).bfloat16() for t in w}
    tensors["x0"] = plain = torch.randn(64, width, device="cuda").bfloat16()
    gold = plain.double()
    for t in w:
        plain, gold = plain @ tensors[t.name].T, gold @ tensors[t.name].double().T
    out = run.allocate_tensor(f"x{n}").fill_(float("nan"))
    run.run({**tensors, f"x{n}": out})
    run.synchronize()
    assert relative_error(out, gold) <= 1.5 * relative_error(plain, gold)

"""Causal attention with its output product on a GPU: ragged sequences on every executor, as right as PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.workloads import PrefillAttention
from interlace.workloads.prefill import pack_sequences, prefill_attention

from ..cases import TORCH, relative_error
from ..prefill import Arrays, compute_exact, inputs

#: No multiples of a tile, several in one tile, more than a tile, and padding behind.
LENGTHS, ROWS = (1, 127, 300, 5, 64, 400), 1000
EXECUTORS: tuple[tuple[type[DeviceExecutor], il.Schedule], ...] = (
    (il.SerialExecutor, il.Schedule(132)),
    (il.CudaGraphExecutor, il.Schedule(132)),
    (il.PdlExecutor, il.Schedule(132)),
    (il.SemaphoreStreamsExecutor, il.Schedule(132, policy=il.RowSync())),
    (il.PersistentExecutor, il.Schedule(132, chunk_waits=True)),
    (il.PersistentExecutor, il.Schedule(132, il.Dispatch.STATIC, interleaving=il.RowPanels(1))),
)


def graph(head_dim: int, heads: int, kv_heads: int, dtype: il.DType = il.bf16, longest: int | None = None) -> il.Graph:
    """In the tiles that the rules take on an H200."""
    made = prefill_attention(ROWS, 400, heads, kv_heads, head_dim, dtype, longest=longest)
    return il.SerialExecutor.iter_tilings(made, il.H200)[0]


def tensors(g: il.Graph, t: Arrays) -> dict[str, torch.Tensor]:
    out = {n: torch.from_numpy(v).to("cuda", TORCH[g.tensor(n).dtype.name]) for n, v in t.items()}
    return out | {"out": torch.full((ROWS, 400), float("nan"), device="cuda", dtype=out["q"].dtype)}


def gold(t: dict[str, torch.Tensor], head_dim: int, window: int = ROWS) -> torch.Tensor:
    """In float64, of the inputs as the dtype holds them."""
    held = {name: value.double().cpu().numpy() for name, value in t.items() if name != "out"}
    return torch.from_numpy(compute_exact(held, head_dim, window)).cuda()


def check(run: DeviceExecutor, t: dict[str, torch.Tensor], right: torch.Tensor) -> torch.Tensor:
    t["out"].fill_(float("nan"))
    for name in run.plan.graph.intermediates:
        run.get_intermediate(name).fill_(float("nan"))
    run.run(t)
    run.synchronize()
    assert relative_error(t["out"], right) < 2 * run.plan.graph.tensor("out").dtype.epsilon
    assert not t["out"][sum(LENGTHS) :].any()
    return t["out"].clone()


@pytest.mark.parametrize("dtype", [il.bf16, il.fp16], ids=str)
@pytest.mark.parametrize(("head_dim", "heads", "kv_heads"), [(64, 8, 8), (128, 8, 2), (128, 8, 1), (32, 4, 2)])
def test_ragged_sequences_are_right_on_every_executor_and_alike_in_launches_op_by_op(
    head_dim: int, heads: int, kv_heads: int, dtype: il.DType
) -> None:
    g = graph(head_dim, heads, kv_heads, dtype)
    t = tensors(g, inputs(g, pack_sequences(LENGTHS, ROWS)))
    right, launched = gold(t, head_dim), []
    for cls, schedule in EXECUTORS:
        run = cls(il.build(g, schedule), il.RunOptions(timeout_s=10.0))
        first, second = check(run, t, right), check(run, t, right)
        assert torch.equal(first, second)
        launched += [] if cls is il.PersistentExecutor else [first]
    assert all(torch.equal(each, launched[0]) for each in launched)


@pytest.mark.parametrize("dtype", [il.bf16, il.fp16], ids=str)
@pytest.mark.parametrize(("head_dim", "heads", "kv_heads"), [(64, 8, 8), (128, 8, 2), (128, 4, 1)])
def test_the_one_launch_is_right_for_ragged_sequences_run_after_run(
    head_dim: int, heads: int, kv_heads: int, dtype: il.DType
) -> None:
    (g, *_) = il.MegakernelExecutor.iter_tilings(
        prefill_attention(ROWS, 400, heads, kv_heads, head_dim, dtype), il.H200
    )
    t = tensors(g, inputs(g, pack_sequences(LENGTHS, ROWS)))
    right, results = gold(t, head_dim), []
    for dependent, jitter_s in ((False, 0.0), (True, 0.0), (True, 1e-5)):
        options = il.RunOptions(timeout_s=10.0, dependent_launch=dependent, jitter_s=jitter_s)
        run = il.MegakernelExecutor(il.build(g, il.Schedule(132, policy=il.RowSync())), options)
        results += [check(run, t, right) for _ in range(3)]
    assert all(torch.equal(each, results[0]) for each in results)


def test_lengths_are_data_for_one_plan_and_one_captured_graph() -> None:
    g = graph(128, 8, 2)
    run = il.CudaGraphExecutor(il.build(g, il.Schedule(132)))
    t = tensors(g, inputs(g, pack_sequences((ROWS,))))
    for lengths in ((ROWS,), (500, 500), (1,) * ROWS):
        t["first"].copy_(torch.from_numpy(pack_sequences(lengths, ROWS)))
        right = gold(t, 128)
        t["out"].fill_(float("nan"))
        run.run(t)
        run.synchronize()
        assert relative_error(t["out"], right) < 2 * il.bf16.epsilon


@pytest.mark.parametrize("executor", [il.PersistentExecutor, il.MegakernelExecutor], ids=lambda e: e.name)
def test_a_window_slides(executor: type[DeviceExecutor]) -> None:
    g = executor.iter_tilings(graph(64, 4, 2, longest=150), il.H200)[0]
    t = tensors(g, inputs(g, pack_sequences(LENGTHS, ROWS)))
    check(executor(il.build(g, il.Schedule(132))), t, gold(t, 64, 150))


@pytest.mark.parametrize(("tokens", "batch"), [(512, 8), (2048, 1), (777, 3)])
def test_prompts_of_a_published_model_are_as_right_as_pytorch(tokens: int, batch: int) -> None:
    work = PrefillAttention.from_fields({"tokens": tokens, "batch": batch}, True, "llama3.1-8b")
    g = work.build_graph(il.H200)
    drawn = {name: torch.from_numpy(np.asarray(value)) for name, value in work.make_inputs(0).items()}
    t = {name: value.to("cuda", TORCH[g.tensor(name).dtype.name]) for name, value in drawn.items()}
    right = work.run_dense(torch, {n: v.double() for n, v in t.items()})["out"]
    limit = 1.5 * relative_error(work.run_dense(torch, t)["out"], right)
    t["out"] = torch.full_like(right, float("nan"), dtype=t["q"].dtype)
    for cls in (il.SerialExecutor, il.PersistentExecutor, il.MegakernelExecutor):
        run = cls(il.build(cls.iter_tilings(g, il.H200)[0], il.Schedule(132)), il.RunOptions(timeout_s=10.0))
        run.run(t)
        run.synchronize()
        assert relative_error(t["out"], right) <= limit

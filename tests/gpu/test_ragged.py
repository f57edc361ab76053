"""Attention over sequences of mixed length on a GPU: any lengths under one plan, on every executor and dispatch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.workloads.ragged import Lengths, RaggedAttention

from ..cases import TORCH, relative_error

NAN = float("nan")
EXECUTORS: tuple[tuple[type[DeviceExecutor], il.Schedule], ...] = (
    (il.SerialExecutor, il.Schedule(132)),
    (il.StreamsExecutor, il.Schedule(132)),
    (il.SemaphoreStreamsExecutor, il.Schedule(132, policy=il.ConsumerSync())),
    (il.PersistentExecutor, il.Schedule(132)),
    *((il.MegakernelExecutor, il.Schedule(132, dispatch, policy=il.ConsumerSync())) for dispatch in il.Dispatch),
)


def tensors(graph: il.Graph, problem: RaggedAttention, seed: int) -> dict[str, torch.Tensor]:
    """Inputs, with NaN in the caches behind each sequence, and a poisoned output."""
    drawn = problem.make_inputs(seed)
    t = {n: torch.from_numpy(v).to("cuda", TORCH[graph.tensor(n).dtype.name]) for n, v in drawn.items()}
    for b, at in enumerate(problem.cached_lengths):
        for name in ("k_cache", "v_cache"):
            t[name][b, :, at:] = NAN
    return t | {"out": torch.full_like(t["q"], NAN)}


@pytest.mark.parametrize(("executor", "schedule"), EXECUTORS, ids=lambda e: getattr(e, "name", ""))
@pytest.mark.parametrize(
    ("shares", "head_dim", "heads", "dtype"),
    [(9, 64, 8, il.bf16), (9, 128, 6, il.fp16), (9, 32, 4, il.bf16), (0, 64, 8, il.bf16)],
)
def test_any_lengths_are_as_right_as_pytorch(
    executor: type[DeviceExecutor], schedule: il.Schedule, shares: int, head_dim: int, heads: int, dtype: il.DType
) -> None:
    problem = RaggedAttention(heads, 2, head_dim, 6, 700, shares=shares, dtype=dtype)
    graph = problem.build_graph(il.H200)
    assert graph.op("attend").grid == ((15, 2, 1) if shares else (6, 2, 11))
    run = executor(il.build(graph, schedule), il.RunOptions(timeout_s=10.0))
    for seed, kind in enumerate(Lengths):
        mixed = replace(problem, lengths=kind)
        assert mixed.build_graph(il.H200) == graph
        t = tensors(graph, mixed, seed)
        for name in graph.intermediates:
            run.get_intermediate(name).fill_(NAN)
        run.run(t)
        run.synchronize()
        out = t.pop("out")
        gold = mixed.run_dense(torch, {name: value.double() for name, value in t.items()})["out"]
        assert relative_error(out, gold) <= 1.5 * relative_error(mixed.run_dense(torch, t)["out"], gold)

"""Attention over sequences of mixed length under the Triton interpreter: by shares and by splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import interlace as il
from interlace.workloads.ragged import RaggedAttention

from ..cases import TORCH, relative_error

SMALL = RaggedAttention.from_fields({"batch": 4, "longest": 140, "dtype": il.fp32}, gpu=False)


@pytest.mark.parametrize(("shares", "dtype"), [(None, il.bf16), (0, il.fp32)])
def test_every_sequence_attends_to_its_own_positions(shares: int | None, dtype: il.DType) -> None:
    problem = replace(SMALL, shares=shares, dtype=dtype)
    graph = problem.build_graph(replace(il.CPU, sms=16))
    assert graph.op("attend").grid == ((4, 2, 2) if shares == 0 else (problem.num_splits + 4, 2, 1))
    inputs = problem.make_inputs(0)
    for name in ("k_cache", "v_cache"):
        for b, at in enumerate(problem.cached_lengths):
            inputs[name][b, :, at:] = np.nan
    t = {name: torch.from_numpy(inputs[name]).to(TORCH[graph.tensor(name).dtype.name]) for name in graph.inputs}
    right = problem.run_dense(np, {name: value.double().numpy() for name, value in t.items()})["out"]
    for kind in (il.SerialExecutor, il.SemaphoreStreamsExecutor):
        t["out"] = torch.full(graph.tensor("out").shape, float("nan"), dtype=TORCH[dtype.name])
        kind(il.build(graph, il.Schedule(3)), il.RunOptions("cpu")).run(t)
        assert relative_error(t["out"], torch.from_numpy(right)) < (1e-5 if dtype is il.fp32 else 8 * dtype.epsilon)


@pytest.mark.parametrize("op", ["attend", "combine"])
def test_ops_touch_what_they_declare_whatever_the_table_says(op: str) -> None:
    graph = SMALL.build_graph(il.CPU)
    for device in ("reference", "cpu"):
        il.check_footprint(graph, op, device=device, tiles=(graph.op(op).tiles - 1,))

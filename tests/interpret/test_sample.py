"""Tokens drawn under the Triton interpreter are those that NumPy draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interlace as il
from interlace.executors.reference import ReferenceExecutor

from ..cases import TORCH
from ..sampling import WAYS, sampling_graph, sampling_inputs


@pytest.mark.parametrize("dtype", [il.bf16, il.fp32], ids=str)
def test_triton_draws_what_numpy_draws(dtype: il.DType) -> None:
    columns = 2500
    graph = sampling_graph(len(WAYS), columns, dtype, 4096 if dtype is il.bf16 else 2048)
    t = {n: torch.from_numpy(v).to(TORCH[graph.tensor(n).dtype.name]) for n, v in sampling_inputs(columns).items()}
    t["x"][1, :2000] = -float("inf")
    plan = il.build(graph, il.Schedule(3))
    right = ReferenceExecutor(plan).run({n: v.double().numpy() for n, v in t.items()})
    t |= {n: torch.zeros(graph.tensor(n).shape, dtype=TORCH[graph.tensor(n).dtype.name]) for n in graph.outputs}
    il.SerialExecutor(plan, il.RunOptions("cpu")).run(t)
    assert t["next"].tolist() == right["next"].tolist()
    assert t["least"].tolist() == right["least"].astype(np.float32).tolist()


@pytest.mark.parametrize("op", ["outline", "cutoff", "noisy"])
def test_draws_touch_what_they_declare(op: str) -> None:
    graph = sampling_graph(2, 2100, il.fp32, 4096)
    for device in ("reference", "cpu"):
        il.check_footprint(graph, op, device=device, tiles=(graph.op(op).tiles - 1,))

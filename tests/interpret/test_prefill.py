"""Causal attention with its output product under the Triton interpreter: ragged sequences, and what a tile touches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.kernels.causal_attention import AttentionTile
from interlace.workloads.prefill import pack_sequences, prefill_attention

from ..cases import TORCH, relative_error
from ..prefill import Arrays, compute_exact, inputs
from .cases import EXECUTORS, executor

PRODUCT = il.MatmulTile(16, 16, 16)


def graph(
    rows: int, group: int, tile: AttentionTile, dtype: il.DType = il.fp32, longest: int | None = None
) -> il.Graph:
    heads = max(2, group), max(2, group) // group
    return prefill_attention(rows, 24, *heads, 16, dtype, longest=longest, tile=tile, product=PRODUCT)


def run(executor: DeviceExecutor, t: Arrays) -> torch.Tensor:
    graph = executor.plan.graph
    tensors = {name: torch.from_numpy(value).to(TORCH[graph.tensor(name).dtype.name]) for name, value in t.items()}
    out = graph.tensor("out")
    tensors["out"] = torch.full(out.shape, float("nan"), dtype=TORCH[out.dtype.name])
    executor.run(tensors)
    return tensors["out"]


def round_tensors(t: Arrays, dtype: il.DType) -> Arrays:
    """As the dtype holds them."""
    return {name: torch.from_numpy(value).to(TORCH[dtype.name]).double().numpy() for name, value in t.items()}


@pytest.mark.parametrize(
    ("group", "lengths", "rows", "window", "tile", "dtype"),
    [
        (1, (37,), 37, 37, AttentionTile(16, 16), il.fp32),  # no multiple of a tile
        (4, (5, 1, 40, 16), 70, 70, AttentionTile(32, 16), il.bf16),  # several in a tile, and padding
        (8, (32, 32), 64, 32, AttentionTile(16, 32), il.fp32),  # of the same length, with blocks that are whole
        (2, (60,), 60, 21, AttentionTile(16, 16), il.fp32),  # a sliding window
    ],
)
def test_sequences_of_any_lengths_are_right(
    group: int, lengths: tuple[int, ...], rows: int, window: int, tile: AttentionTile, dtype: il.DType
) -> None:
    g = graph(rows, group, tile, dtype, window)
    t = round_tensors(inputs(g, pack_sequences(lengths, rows)), dtype)
    out = run(il.SerialExecutor(il.build(g, il.Schedule(3)), il.RunOptions("cpu")), t)
    limit = 1e-6 if dtype is il.fp32 else 4 * dtype.epsilon
    assert relative_error(out, torch.from_numpy(compute_exact(t, 16, window))) < limit
    assert not out[sum(lengths) :].any()


@pytest.mark.parametrize("name", ["semaphore_streams-chunked", "static", "ticket", "ticket-split"])
def test_every_executor_computes_the_same(name: str) -> None:
    g = graph(40, 2, AttentionTile(16, 16))
    t = inputs(g, pack_sequences((25, 9), 40))
    assert name in EXECUTORS
    assert relative_error(run(executor(name, g), t), torch.from_numpy(compute_exact(t, 16, 40))) < 1e-6


def test_nothing_beyond_what_is_declared_is_touched_whatever_rows_say() -> None:
    """Random numbers in ``first`` are no sequences at all."""
    g = graph(60, 2, AttentionTile(16, 16), longest=21)
    for device in ("reference", "cpu"):
        assert il.check_footprint(g, "attention", device=device, tiles=(0, 3, 7)).tiles == (0, 3, 7)


def test_what_stands_between_sequences_is_not_read() -> None:
    first = np.array([0] * 10 + [99] * 7 + [17] * 13 + [99] * 2 + [32] * 8, np.int32)
    g = graph(40, 2, AttentionTile(32, 16))
    t = inputs(g, first)
    out = run(il.SerialExecutor(il.build(g, il.Schedule(3)), il.RunOptions("cpu")), t)
    assert relative_error(out, torch.from_numpy(compute_exact(t, 16, 40))) < 1e-6

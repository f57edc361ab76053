"""Logits of several sequences with different sampling parameters, and the ops that sample from them."""

from __future__ import annotations

import numpy as np

import interlace as il
from interlace.kernels.argmax import COLUMNS, reduce_argmax
from interlace.kernels.sample import cutoff, gumbel_argmax, segment_stats
from interlace.kernels.sample.segments import count_segments

#: temperature, top_k, top_p
WAYS = ((0.0, 3, 0.5), (1.0, 0, 1.0), (0.7, 20, 1.0), (1.3, 0, 0.9), (1.0, 7, 0.8), (2.0, 10**6, 0.999), (50.0, 0, 0.9))


def sampling_graph(batch: int, columns: int, dtype: il.DType, of_tile: int = COLUMNS) -> il.Graph:
    def tensor(name: str, *shape: int, of: il.DType = il.fp32) -> il.Tensor:
        return il.Tensor(name, (batch, *shape), of)

    x, temperature, top_p = tensor("x", columns, of=dtype), tensor("temperature"), tensor("top_p")
    top_k, position, key = tensor("top_k", of=il.int32), tensor("position", of=il.int32), tensor("key", 2, of=il.int32)
    peak, weight = tensor("peak", count_segments(columns)), tensor("weight", count_segments(columns))
    tiles = -(-columns // of_tile)
    best, at = tensor("best", tiles), tensor("at", tiles, of=il.int32)
    least, out = tensor("least"), tensor("next", of=il.int32)
    ops = (
        segment_stats("outline", x, temperature, peak, weight, of_tile),
        cutoff("cutoff", x, peak, weight, temperature, top_k, top_p, least),
        gumbel_argmax("noisy", x, least, temperature, position, key, best, at, of_tile),
        reduce_argmax("next", best, at, out),
    )
    given = (x, temperature, top_k, top_p, position, key)
    made = (peak, weight, least, best, at, out)
    return il.Graph("sample", (*given, *made), ops, tuple(t.name for t in given), ("least", "next"))


def sampling_inputs(columns: int, ways: tuple[tuple[float, int, float], ...] = WAYS) -> dict[str, np.ndarray]:
    """Return the inputs of one sequence for each set of sampling parameters."""
    random, number = np.random.default_rng(columns), np.arange(len(ways))
    temperature, top_k, top_p = (np.array(each) for each in zip(*ways, strict=True))
    return {
        "x": 2 * random.standard_normal((len(ways), columns)),
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "position": number + 5,
        "key": np.stack([number * 77, number], axis=1),
    }

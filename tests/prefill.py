"""Causal attention over packed sequences in float64, one sequence and one head at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

import interlace as il

Arrays = dict[str, NDArray[np.float64]]


def inputs(graph: il.Graph, first: NDArray[np.int32], seed: int = 0) -> Arrays:
    """Return random inputs of a graph of attention and its output matmul, with NaN in rows without a token."""
    random = np.random.default_rng(seed)
    drawn = {name: random.standard_normal(graph.tensor(name).shape) for name in graph.inputs if name != "first"}
    for name in ("q", "k", "v"):
        drawn[name][first > np.arange(len(first))] = np.nan
    return {**drawn, "first": first.astype(np.float64)}


def compute_exact(t: Mapping[str, NDArray[np.float64]], head_dim: int, window: int) -> NDArray[np.float64]:
    """Compute the output of the graph."""
    first, (rows, wide) = t["first"].astype(int), t["q"].shape
    group, out = wide // t["k"].shape[1], np.zeros((rows, wide))
    for begin in np.unique(first[first <= np.arange(rows)]):
        of = np.flatnonzero(first == begin)
        of = of[of >= begin]
        back = of[:, None] - of
        for head in range(wide // head_dim):
            mine, shared = (slice(h * head_dim, (h + 1) * head_dim) for h in (head, head // group))
            scores = t["q"][of, mine] @ t["k"][of, shared].T / head_dim**0.5
            scores = np.where((back >= 0) & (back < window), scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[of, mine] = weights @ t["v"][of, shared] / weights.sum(axis=1, keepdims=True)
    return out @ t["o"].T

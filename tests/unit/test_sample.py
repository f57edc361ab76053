"""Tokens drawn from logits: the random numbers, the distribution, which logits are drawn from, and bodies alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import DTypeError, ShapeError
from interlace.executors.reference import ReferenceExecutor
from interlace.kernels.sample import compute_gumbel_noise, cutoff, find_cutoff, segment_stats
from interlace.kernels.sample.philox import generate_words, to_uniform

from ..sampling import WAYS, sampling_graph, sampling_inputs


def test_random_words_are_those_of_philox() -> None:
    """The known answer of Random123 for a counter and a key of zeros."""
    zero = np.zeros(4, np.int64)
    assert generate_words(np.arange(4), zero, zero, zero).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_random_words_are_of_all_that_they_depend_on() -> None:
    grid = np.meshgrid(np.arange(9), [0, 1, 700], [0, 1, 2**31 - 1], [0, 1, 5], indexing="ij")
    found = generate_words(*(axis.ravel() for axis in grid))
    assert len(np.unique(found)) == found.size
    assert found.min() >= 0
    assert found.max() < 1 << 32
    ends = to_uniform(np.array([0, 2**32 - 1]))
    assert ends.tolist() == [2.0**-33, 1 - 2.0**-24]
    assert np.isfinite(np.log(-np.log1p(-ends.astype(np.float32)))).all()


def sample_tokens(x: np.ndarray, count: int, temperature: float, top_k: int, top_p: float, seed: int = 1) -> np.ndarray:
    """Tokens from the same logits at the positions 0, 1, ... of one sequence."""
    least = find_cutoff(x, temperature, top_k, top_p)
    scores = x / temperature + compute_gumbel_noise(np.arange(len(x)), np.arange(count)[:, None], np.array([seed, 0]))
    return np.where(x >= least, scores, -np.inf).argmax(axis=1)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.5, 5, 1.0), (1.0, 0, 0.8)]
)
def test_tokens_come_as_often_as_their_probability_says(temperature: float, top_k: int, top_p: float) -> None:
    """Pearson's chi-squared, at the quantile 0.999 by Wilson and Hilferty."""
    logits = np.array([1.5, -0.5, 0.3, 1.1, -2.0, 0.0, 0.9, -1.0])
    count = 20_000
    found = np.bincount(sample_tokens(logits, count, temperature, top_k, top_p), minlength=len(logits))
    share = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    order = np.argsort(-share)
    left = order[: top_k or len(order)]
    left = left[np.cumsum(share[left] / share[left].sum()) - share[left] / share[left].sum() < top_p]
    expected = np.zeros(len(logits))
    expected[left] = count * share[left] / share[left].sum()
    assert found[expected == 0].sum() == 0
    free = len(left) - 1
    statistic = ((found[left] - expected[left]) ** 2 / expected[left]).sum()
    assert statistic < free * (1 - 2 / (9 * free) + 3.09 * (2 / (9 * free)) ** 0.5) ** 3


def test_equal_logits_stay_together_and_the_likeliest_stays_always() -> None:
    x = np.array([1.0, 3.0, 2.0, 3.0, 2.0, 0.0])
    assert find_cutoff(x, 1.0, 1, 1.0) == 3.0
    assert find_cutoff(x, 1.0, 3, 1.0) == 2.0
    assert find_cutoff(x, 1.0, 0, 1e-9) == 3.0
    assert find_cutoff(x, 1.0, 6, 1.0) == find_cutoff(x, 0.0, 2, 0.5) == -np.inf
    # Of the three largest, 3 3 2 2: the first two have 0.731 of what is left.
    assert find_cutoff(x, 1.0, 3, 0.73) == 3.0
    assert find_cutoff(x, 1.0, 3, 0.74) == 2.0


@pytest.mark.parametrize(("columns", "of_tile"), [(5, 2048), (64, 2048), (2049, 2048), (5000, 4096)])
def test_the_ops_find_the_token_that_the_definition_gives(columns: int, of_tile: int) -> None:
    given = sampling_inputs(columns)
    graph = sampling_graph(len(WAYS), columns, il.fp32, of_tile)
    graph = replace(graph, outputs=(*graph.outputs, "peak", "weight"))
    found = ReferenceExecutor(il.build(graph, il.Schedule(3)), seed=1).run(given)
    for row, (temperature, top_k, top_p) in enumerate(WAYS):
        x = given["x"][row]
        assert found["least"][row] == find_cutoff(x, temperature, top_k, top_p)
        assert np.isinf(found["peak"][row]).all() == (temperature == 0) == (not found["weight"][row].any())
        scores = x
        if temperature > 0:
            scores = x / temperature + compute_gumbel_noise(
                np.arange(columns), given["position"][row : row + 1], given["key"][row]
            )
        assert found["next"][row] == np.where(x >= found["least"][row], scores, -np.inf).argmax()


def test_what_is_no_draw_says_so() -> None:
    x, ids = il.Tensor("x", (2, 100), il.bf16), il.Tensor("x", (2, 100), il.int32)
    peak, weight = (il.Tensor(name, (2, 2), il.fp32) for name in ("peak", "weight"))
    heat, other = il.Tensor("t", (2,), il.fp32), il.Tensor("t", (3,), il.fp32)
    with pytest.raises(ShapeError, match="has no numbers to draw by"):
        segment_stats("o", ids, heat, peak, weight)
    with pytest.raises(ShapeError, match=r"temperature .* must have shape \(2,\)"):
        segment_stats("o", x, other, peak, weight)
    with pytest.raises(ShapeError, match="tiles of 3072 columns; use a multiple of 2048"):
        segment_stats("o", x, heat, peak, weight, 3072)
    with pytest.raises(DTypeError, match=r"top_k .* must be int32"):
        cutoff("c", x, peak, weight, heat, heat, heat, heat)


@pytest.mark.parametrize("columns", [5000, 2501])  # rows by 16 bytes, and not
def test_one_launch_draws_what_numpy_draws(columns: int) -> None:
    """On the emulator."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from ..cases import TORCH
    from ..emulator.build import MISSING
    from ..emulator.programs import EmulatedLaunch, prepare

    if MISSING:
        pytest.skip(MISSING)
    graph = sampling_graph(len(WAYS), columns, il.bf16, 4096)
    run = EmulatedLaunch(il.autoplan(graph, il.H200, il.MegakernelExecutor, workers=1), stages=3)
    prepare([run])
    t = {n: torch.from_numpy(v).to(TORCH[graph.tensor(n).dtype.name]) for n, v in sampling_inputs(columns).items()}
    t["x"][1, :2000] = -float("inf")
    right = ReferenceExecutor(il.build(graph, il.Schedule(3))).run({n: v.double().numpy() for n, v in t.items()})
    t |= {n: run.allocate_tensor(n) for n in graph.outputs}
    for seed in range(2):
        run.seed = seed
        run.run(t)
        assert [str(fault) for fault in run.faults] == []
        assert t["next"].tolist() == right["next"].tolist()
        assert t["least"].tolist() == right["least"].astype(np.float32).tolist()
        peak = run.get_intermediate("peak")
        assert peak.isneginf().all(dim=1).tolist() == [heat == 0 for heat, *_ in WAYS]

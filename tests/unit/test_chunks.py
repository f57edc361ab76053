"""Steps that read chunks of prompts: their rows, their ops, and whole steps against sequences that are read alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import InterlaceError, ShapeError
from interlace.kernels.append import append
from interlace.kernels.causal_attention import AttentionTile
from interlace.kernels.chunk_attention import chunk_attention
from interlace.kernels.rotate import rotate, select_rows
from interlace.models.forward_numpy import compute_attention, compute_logits
from interlace.models.step_rows import CHUNKS, PromptSegment, build_step_rows, select_chunk
from interlace.models.weights import list_weights
from interlace.workloads import LlamaShape, build_decode_graph
from interlace.workloads.decode import build_rope_table

from ..chunks import compute_chunk_attention, draw_chunk_inputs

SHAPE = LlamaShape(2, 32, 48, 4, 2, 16, 40, qk_norm=True, tied=True)
CAPACITY, BATCH = 80, 3
NAN = float("nan")


def test_rows_of_a_step_are_those_of_the_module() -> None:
    rows = build_step_rows(3, 6, 80, {1: (9, 41)}, [PromptSegment(2, 70, (1, 2, 3)), PromptSegment(0, 0, (4, 5))])
    assert {name: values.tolist() for name, values in rows.items()} == {
        "tokens": [0, 9, 0, 1, 2, 3, 4, 5, 0],
        "position": [0, 41, 0, 70, 71, 72, 0, 1, 0],
        "sequence": [-1, 1, -1, 2, 2, 2, 0, 0, -1],
        "first": [0, 0, 0, 3, 3, 6],
        "wanted": [7, 1, 5],
        "wanted_position": [1, 41, 72],
    }


@pytest.mark.parametrize(
    ("decoded", "segments", "message"),
    [
        ({}, [], "a step without a token; give a sequence that decodes"),
        ({}, [PromptSegment(0, 0, (1,) * 7)], "7 tokens of prompts has a chunk of 6; read fewer"),
        ({3: (0, 0)}, [], "a step of 3 sequences names 3; name each from 0 to 2 at most once"),
        ({1: (0, 5)}, [PromptSegment(1, 5, (1,))], "names 1; name each from 0 to 2 at most once"),
        ({1: (0, 80)}, [], "positions 80 to 81 of sequence 1, which has 80"),
        ({}, [PromptSegment(1, 77, (1, 2, 3, 4))], "positions 77 to 81 of sequence 1, which has 80"),
        ({}, [PromptSegment(1, -1, (1,))], "positions -1 to 0 of sequence 1"),
        ({0: (1, 2)}, [PromptSegment(1, 4, ())], "positions 4 to 4 of sequence 1, .* give at least one token"),
    ],
)
def test_rows_that_no_step_has_are_refused(decoded: dict, segments: list, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        build_step_rows(3, 6, 80, decoded, segments)


def test_the_smallest_chunk_that_suffices_is_selected() -> None:
    assert [select_chunk(n) for n in (0, 1, 16, 17, 512)] == [0, 16, 16, 32, 512]
    with pytest.raises(ShapeError, match="513 tokens of prompts; chunks have at most 512"):
        select_chunk(513)


# ---------------------------------------------------------------- ops


@pytest.mark.parametrize(("page", "group", "d"), [(0, 1, 16), (32, 4, 24)])
def test_a_chunk_attends_to_caches_and_to_itself(page: int, group: int, d: int) -> None:
    graph, given = draw_chunk_inputs(il.fp32, d, group, page, AttentionTile(16, 16))
    found = il.ReferenceExecutor(il.build(graph, il.Schedule(3)), seed=0).run(given)["out"]
    right = compute_chunk_attention(graph, given)
    np.testing.assert_allclose(found[-len(right) :], right, rtol=0, atol=1e-12)
    assert not right[given["first"] > np.arange(len(right))].any()


@pytest.mark.parametrize("tile_rows", [4, 16])
def test_heads_of_the_last_rows_are_rotated(tile_rows: int) -> None:
    random, d = np.random.default_rng(0), 16
    tensors = {"x": il.Tensor("x", (20, 3 * d), il.fp32), "position": il.Tensor("position", (20,), il.int32)}
    tensors |= {"rope": il.Tensor("rope", (50, d), il.fp32), "norm": il.Tensor("norm", (d,), il.fp32)}
    tensors["out"] = il.Tensor("out", (18, 3 * d), il.fp32)
    op = rotate("rotate", **tensors, head_dim=d, eps=1e-5, tile_rows=tile_rows)
    assert op.tiles == -(-18 // tile_rows)
    given = {"x": random.standard_normal((20, 3 * d)), "norm": random.standard_normal(d)}
    given |= {"position": random.integers(0, 50, 20), "rope": build_rope_table(50, d).astype(float)}
    graph = il.Graph("rotate", (*tensors.values(),), (op,), tuple(given), ("out",))
    found = il.ReferenceExecutor(il.build(graph, il.Schedule(2)), seed=0).run(given)["out"]
    heads = given["x"][2:].reshape(18, 3, d)
    heads = heads / np.sqrt((heads**2).mean(axis=2, keepdims=True) + 1e-5) * given["norm"]
    cos, sin = np.split(given["rope"][given["position"][2:]][:, None], 2, axis=2)
    turned = (heads[..., : d // 2] + 1j * heads[..., d // 2 :]) * (cos + 1j * sin)
    right = np.concatenate([turned.real, turned.imag], axis=2)
    np.testing.assert_allclose(found.reshape(right.shape), right, atol=1e-12)


def test_rotation_makes_one_wave_of_tiles_where_it_can() -> None:
    assert [select_rows(*case, 132) for case in ((39, 8), (39, 32), (112, 32), (512, 8), (512, 32))] == [4, 4, 8, 8, 16]
    tensors = {"x": il.Tensor("x", (9, 16), il.fp32), "position": il.Tensor("position", (9,), il.int32)}
    tensors |= {"rope": il.Tensor("rope", (50, 16), il.fp32), "out": il.Tensor("out", (9, 16), il.fp32)}
    with pytest.raises(ShapeError, match="tiles of 6 rows; use a power of two"):
        rotate("rotate", **tensors, head_dim=16, tile_rows=6)


@pytest.mark.parametrize("page", [0, 32])
def test_rows_are_appended_to_the_sequences_that_they_name(page: int) -> None:
    random, d, rows, batch = np.random.default_rng(1), 16, 9, 2
    each = 64 // page if page else 0
    cache = (batch * each, 1, page, d) if page else (batch, 1, 64, d)
    made = {name: il.Tensor(name, (rows, d), il.fp32) for name in "kv"}
    made |= {name: il.Tensor(name, (rows,), il.int32) for name in ("position", "sequence")}
    made |= {"rope": il.Tensor("rope", (64, d), il.fp32)}
    made |= {name: il.Tensor(name, cache, il.fp32) for name in ("k_cache", "v_cache")}
    given: dict[str, Any] = {name: random.standard_normal((rows, d)) for name in "kv"}
    given |= dict.fromkeys(("k_cache", "v_cache"), np.full(cache, NAN)) | {"rope": build_rope_table(64, d)}
    given |= {"position": np.array([30, 31, 32, 33, 0, 7, 0, 1, 2])}
    given |= {"sequence": np.array([1, 1, 1, 1, -1, 2, 0, 0, 0])}  # 2 is none
    if page:
        made["table"] = il.Tensor("table", (batch, each), il.int32)
        given["table"] = np.array([[3, 0], [2, 1]])
    op = append("append", **made)
    graph = il.Graph("append", (*made.values(),), (op,), tuple(made), ("k_cache", "v_cache"))
    found = il.ReferenceExecutor(il.build(graph, il.Schedule(2)), seed=0).run(given)["v_cache"]
    if page:
        found = found[given["table"]].transpose(0, 2, 1, 3, 4).reshape(batch, 1, 64, d)
    np.testing.assert_array_equal(found[1, 0, 30:34], given["v"][:4])
    np.testing.assert_array_equal(found[0, 0, :3], given["v"][6:])
    assert np.isfinite(found[..., 0]).sum() == 7


# ---------------------------------------------------------------- whole steps


@cache
def steps(page: bool, sampling: bool = False) -> il.ReferenceExecutor:
    graph = build_decode_graph(
        SHAPE, BATCH, CAPACITY, il.CPU, dtype=il.fp32, chunk=16, pages=7 if page else None, has_sampling=sampling
    )
    kept = tuple(name for name in graph.inputs if name.endswith("_cache"))
    return il.ReferenceExecutor(il.build(replace(graph, outputs=(*graph.outputs, *kept)), il.Schedule(4)), seed=3)


@cache
def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(extents) * 0.3 for name, extents in list_weights(SHAPE).items()}


class Sequences:
    """Sequences in poisoned caches of a decoder of steps, and the logits that they have alone."""

    def __init__(self, page: bool) -> None:
        self.run = steps(page)
        graph = self.run.plan.graph
        self.state: dict[str, Any] = {**weights(), "rope": build_rope_table(CAPACITY, SHAPE.head_dim).astype(float)}
        self.state |= {n: np.full(graph.tensor(n).shape, NAN) for n in graph.inputs if n.endswith("_cache")}
        if page:
            self.state["table"] = np.array([[4, 1], [6, 0], [5, 2]])

    def step(self, decoded: Mapping[int, tuple[int, int]], segments: Sequence[PromptSegment]) -> np.ndarray:
        rows = build_step_rows(BATCH, 16, CAPACITY, decoded, segments)
        graph = self.run.plan.graph
        given = {name: value for name, value in {**self.state, **rows}.items() if name in graph.inputs}
        found = self.run.run(given)
        self.state |= {name: found[name] for name in graph.outputs if name.endswith("_cache")}
        assert (found["next"] == found["logits"].argmax(axis=1)).all()
        return found["logits"]


@cache
def read_alone(tokens: tuple[int, ...]) -> np.ndarray:
    """Logits (n, V) of one sequence."""

    def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
        keys, values = k.transpose(1, 0, 2), v.transpose(1, 0, 2)
        return np.stack([compute_attention(row, keys[:, : n + 1], values[:, : n + 1]) for n, row in enumerate(q)])

    angles = build_rope_table(CAPACITY, SHAPE.head_dim).astype(float)[: len(tokens)]
    return np.asarray(compute_logits(SHAPE, weights(), np.array(tokens), angles, attend))


PROMPT = tuple(np.random.default_rng(5).integers(0, SHAPE.vocabulary, 70).tolist())
OTHER = tuple(np.random.default_rng(6).integers(0, SHAPE.vocabulary, 24).tolist())


def assert_near(found: np.ndarray, right: np.ndarray) -> None:
    assert np.linalg.norm(found - right) < 1e-11 * np.linalg.norm(right)


@pytest.mark.parametrize("page", [False, True], ids=["plain", "pages"])
def test_a_prompt_cut_anywhere_has_the_logits_of_the_whole_while_others_decode(page: bool) -> None:
    """Each cut of a prompt of 9 tokens; a second sequence decodes in each step, a third prompt shares the chunk."""
    prompt, right, other = PROMPT[:9], read_alone(PROMPT[:9]), read_alone(OTHER)
    sequences, at = Sequences(page), 5
    assert_near(sequences.step({}, [PromptSegment(1, 0, OTHER[:at])])[1], other[at - 1])
    for cut in range(1, len(prompt) + 1):
        pieces = [(0, cut), (cut, len(prompt))]
        for low, high in (piece for piece in pieces if piece[0] < piece[1]):
            segments = [PromptSegment(0, low, prompt[low:high]), PromptSegment(2, 0, prompt[: cut // 2 + 1])]
            logits = sequences.step({1: (OTHER[at], at)}, segments if cut % 2 else segments[::-1])
            assert_near(logits[0], right[high - 1])
            assert_near(logits[1], other[at])
            assert_near(logits[2], right[cut // 2])
            at += 1


@pytest.mark.parametrize("page", [False, True], ids=["plain", "pages"])
def test_a_prompt_of_many_chunks_crosses_blocks_of_the_cache_and_goes_on(page: bool) -> None:
    sequences, right = Sequences(page), read_alone(PROMPT)
    at = 0
    for count in (16, 15, 16, 14, 1, 7):
        logits = sequences.step({}, [PromptSegment(2, at, PROMPT[at : at + count])])
        at += count
        assert_near(logits[2], right[at - 1])
    assert_near(sequences.step({2: (PROMPT[at], at)}, [])[2], right[at])
    written = sequences.state["layers.0.k_cache"]
    assert np.isfinite(written).sum() == (at + 1) * SHAPE.kv_heads * SHAPE.head_dim  # and nothing else


def test_a_chunk_of_a_prompt_is_proved_and_read_from_a_plan_file() -> None:
    for pages in (None, 7):
        graph = build_decode_graph(SHAPE, BATCH, 128, il.H200, chunk=64, pages=pages, has_sampling=True)
        plan = il.build(graph, il.Schedule(il.H200.sms))
        assert il.read_plan(plan.to_json()) == plan
        il.verify(plan)
        assert graph.tensor("logits").shape == (BATCH, SHAPE.vocabulary)
    lengths = [build_decode_graph(SHAPE, BATCH, 128, il.H200, chunk=chunk) for chunk in (0, 16)]
    assert lengths[0] == build_decode_graph(SHAPE, BATCH, 128, il.H200)
    assert {*lengths[1].inputs} - {*lengths[0].inputs} == {"sequence", "first", "wanted"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": (46, 40)}, "for each of 2 heads of keys as many"),
        ({"k": (47, 32)}, "k .* have R rows at most"),
        ({"k": (40, 64)}, r"k .* must have shape \(40, 32\)"),
        ({"v": (40, 32)}, r"v .* must have shape \(46, 32\)"),
        ({"rope": (64, 32)}, r"rope .* must have shape \(64, 16\)"),
        ({"q_norm": (32,)}, r"q_norm .* must have shape \(16,\)"),
        ({"first": (46,)}, r"first .* must have shape \(40,\)"),
        ({"sequence": (40,)}, r"sequence .* must have shape \(46,\)"),
    ],
)
def test_tensors_that_make_no_chunk_are_refused(change: dict[str, tuple[int, ...]], message: str) -> None:
    shapes: dict[str, tuple[int, ...]] = {"q": (46, 64), "k": (40, 32), "v": (46, 32), "out": (46, 64)}
    shapes |= {"first": (40,), "position": (46,), "sequence": (46,), "rope": (64, 16), "q_norm": (16,)}
    shapes |= dict.fromkeys(("k_cache", "v_cache"), (6, 2, 64, 16))
    whole = {"first", "position", "sequence"}
    made = {
        name: il.Tensor(name, shape, il.int32 if name in whole else il.fp32)
        for name, shape in (shapes | change).items()
    }
    with pytest.raises(InterlaceError, match=message):
        chunk_attention("a", **made)


def test_a_chunk_of_a_negative_number_is_refused() -> None:
    with pytest.raises(ShapeError, match="chunk -1; use a positive number, or 0 for a decode step"):
        build_decode_graph(SHAPE, 1, 64, il.CPU, chunk=-1)
    assert CHUNKS[0] == 0

"""Triton bodies of chunks of prompts under the interpreter: attention, rotation, appended rows, and a whole step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import interlace as il
from interlace.kernels.causal_attention import AttentionTile
from interlace.models.step_rows import PromptSegment, build_step_rows
from interlace.workloads import LlamaShape, build_decode_graph
from interlace.workloads.decode import build_rope_table

from ..cases import TORCH
from ..chunks import compute_chunk_attention, draw_chunk_inputs

SHAPE = LlamaShape(1, 32, 48, 4, 2, 24, 40, qk_norm=True)


def run(graph: il.Graph, given: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    kept = {name: torch.from_numpy(np.array(v)).to(TORCH[graph.tensor(name).dtype.name]) for name, v in given.items()}
    written = (name for name in graph.outputs if name not in kept)
    tensors = {
        name: torch.full(graph.tensor(name).shape, -1, dtype=TORCH[graph.tensor(name).dtype.name]) for name in written
    }
    il.SerialExecutor(il.build(graph, il.Schedule(3)), il.RunOptions("cpu")).run({**kept, **tensors})
    return {**kept, **tensors}


@pytest.mark.parametrize(
    ("page", "group", "d", "tile"), [(0, 2, 24, AttentionTile(32, 16)), (32, 1, 16, AttentionTile(16, 32))]
)
def test_a_chunk_attends_to_caches_and_to_itself(page: int, group: int, d: int, tile: AttentionTile) -> None:
    graph, given = draw_chunk_inputs(il.fp32, d, group, page, tile)
    found = run(graph, given)["out"].numpy()
    right = compute_chunk_attention(graph, given)
    np.testing.assert_allclose(found[-len(right) :], right, rtol=1e-5, atol=1e-5)
    assert np.isnan(found[: -len(right)]).all()


def test_a_tile_touches_nothing_beyond_what_is_declared_whatever_rows_say() -> None:
    graph, _ = draw_chunk_inputs(il.fp32, 16, 1, 32, AttentionTile(16, 16))
    assert il.check_footprint(graph, "attention", device="cpu", tiles=(0, 4)).tiles == (0, 4)


@pytest.mark.parametrize("pages", [None, 5])
def test_a_step_with_a_chunk_is_that_of_the_reference(pages: int | None) -> None:
    graph = build_decode_graph(
        SHAPE, 2, 128, il.CPU, dtype=il.fp32, chunk=16, pages=pages, tile=il.MatmulTile(16, 16, 16)
    )
    caches = tuple(name for name in graph.inputs if name.endswith("_cache"))
    graph = il.Graph(graph.name, graph.tensors, graph.ops, graph.inputs, (*graph.outputs, *caches))
    random = np.random.default_rng(0)
    rows = build_step_rows(2, 16, 128, {0: (3, 70)}, [PromptSegment(1, 30, (1, 2, 3, 4, 5))])
    given = {name: random.standard_normal(graph.tensor(name).shape) * 0.3 for name in graph.inputs}
    given |= {name: value for name, value in rows.items() if name in given} | {"rope": build_rope_table(128, 24)}
    if pages:
        given["table"] = np.array([[4, 1], [0, -1]])
    plan = il.build(graph, il.Schedule(3))
    right = il.ReferenceExecutor(plan, seed=0).run({name: np.asarray(v, float) for name, v in given.items()})
    found = run(graph, given)
    for name in ("logits", *caches):
        np.testing.assert_allclose(found[name].numpy(), right[name], rtol=1e-4, atol=1e-4)

"""Attention of chunks of prompts in the megakernel, on the emulator: right, free of races, and planted faults found."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.kernels.causal_attention import AttentionTile  # noqa: E402
from interlace.models.step_rows import PromptSegment, build_step_rows  # noqa: E402
from interlace.workloads import LlamaShape, build_decode_graph  # noqa: E402
from interlace.workloads.decode import build_rope_table  # noqa: E402

from ..cases import TORCH, relative_error  # noqa: E402
from ..chunks import DECODED, compute_chunk_attention, draw_chunk_inputs  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.programs import EmulatedLaunch, kinds_of_faults, prepare  # noqa: E402

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

#: dtype, elements of a head, positions of a page, warpgroups, keys of a block.
CASES = {
    "plain, two warpgroups": (il.fp16, 64, 0, 2, 64),
    "pages, wide heads": (il.bf16, 128, 64, 1, 32),
    "heads end inside a panel, pages": (il.bf16, 80, 64, 2, 64),
    "heads of 112": (il.fp16, 112, 0, 1, 32),
    "queries take two stages, pages": (il.fp16, 160, 32, 2, 32),
    "queries lie in the scratch": (il.bf16, 256, 0, 2, 16),
    "queries lie in the scratch, pages": (il.bf16, 208, 64, 1, 64),
}
#: Heads of queries to one of keys, by elements of a head; else 1.
GROUPS = {80: 3, 256: 2}

_PIN = "      if (WARPGROUPS > 1) pin_before_wait(rows.total[0] + rows.total[1]);\n"
_WAIT, _RELEASE = "      wgmma_wait<0>();\n      settle(accumulators);\n", "      release(stage, before);\n"
_MULTIPLY = "      clear(op, stage.slot, blocks, visible);\n      wgmma_fence();\n"
_TURNED, _TURNS_END = "(int)highs[3]));\n      }\n", "      fence_proxy_async();\n      synchronise();\n"
FAULTS = {
    "values are handed back while they are multiplied": (_PIN + _WAIT + _RELEASE, _PIN + _RELEASE + _WAIT),
    "queries are multiplied before they are turned in the scratch": (_TURNED + _TURNS_END, _TURNED),
    "a block of a cache is multiplied before it has come": (
        "      await_stage(stage);\n" + _MULTIPLY,
        "      await(load_full(stage.slot), stage.phase);\n" + _MULTIPLY,
    ),
}
FAULTY = dict.fromkeys(FAULTS, "pages, wide heads") | {
    "queries are multiplied before they are turned in the scratch": "queries lie in the scratch, pages"
}


def draw(case: str) -> tuple[il.Graph, dict[str, np.ndarray]]:
    dtype, d, page, groups, keys = CASES[case]
    return draw_chunk_inputs(dtype, d, GROUPS.get(d, 1), page, AttentionTile(64 * groups, keys, 1, 4 * groups))


SHAPE, BATCH, CAPACITY = LlamaShape(1, 64, 64, 2, 1, 64, 97, qk_norm=True, tied=True), 3, 128
#: Steps of two prompts of 20 and 13 tokens in chunks, and a sequence of 70 tokens that decodes.
STEPS = (
    [PromptSegment(0, 0, tuple(range(5, 17)))],
    [PromptSegment(0, 12, tuple(range(17, 25))), PromptSegment(2, 0, (3, 1, 4, 1, 5, 9))],
    [PromptSegment(2, 6, (2, 6, 5, 3, 5, 8, 9))],
)


def build_step() -> il.Graph:
    return build_decode_graph(SHAPE, BATCH, CAPACITY, il.H200, chunk=16, pages=6)


@cache
def launches() -> dict[str, EmulatedLaunch]:
    made = {case: EmulatedLaunch(il.build(draw(case)[0], il.Schedule(1)), stages=3) for case in CASES}
    plan = il.autoplan(build_step(), il.H200, il.MegakernelExecutor, workers=1)
    made["step"] = EmulatedLaunch(plan, stages=3)
    for name, change in FAULTS.items():
        made[name] = EmulatedLaunch(il.build(draw(FAULTY[name])[0], il.Schedule(1)), stages=2, change=change)
    prepare([*made.values()])
    return made


@pytest.mark.parametrize("case", CASES)
def test_segments_of_any_lengths_are_right_run_after_run(case: str) -> None:
    run, (graph, given) = launches()[case], draw(case)
    t = {name: torch.from_numpy(np.array(v)).to(TORCH[graph.tensor(name).dtype.name]) for name, v in given.items()}
    exact = {name: (v.double() if v.is_floating_point() else v).numpy() for name, v in t.items()}
    right = compute_chunk_attention(graph, exact)
    for seed in range(2):
        run.seed = seed
        t["out"] = torch.full_like(t["out"], float("nan"))
        run.run(t)
        assert [str(fault) for fault in run.faults] == []
        found = t["out"].double().numpy()
        assert np.isnan(found[:DECODED]).all()
        assert np.linalg.norm(found[DECODED:] - right) < 2 * graph.tensor("out").dtype.epsilon * np.linalg.norm(right)
        assert not found[DECODED:][given["first"] > np.arange(len(right))].any()


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_hand_off_of_blocks_is_found(name: str) -> None:
    graph, given = draw(FAULTY[name])
    t = {each: torch.from_numpy(np.array(v)).to(TORCH[graph.tensor(each).dtype.name]) for each, v in given.items()}
    assert "race" in kinds_of_faults(launches()[name], t, range(3))


def draw_step(run: EmulatedLaunch) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Draw tensors of a step with a sequence of 70 tokens in poisoned caches; return them and the caches' names."""
    graph, random = run.plan.graph, np.random.default_rng(0)
    caches = [name for name in graph.inputs if name.endswith("_cache")]
    given = {name: random.standard_normal(graph.tensor(name).shape) * 0.3 for name in graph.inputs}
    given |= {"table": np.array([[5, -1], [0, 3], [1, -1]]), "rope": build_rope_table(CAPACITY, SHAPE.head_dim)}
    for name in caches:
        given[name][...] = np.nan
        given[name][[0, 3]] = random.standard_normal((2, *given[name].shape[1:]))
    t = {name: torch.from_numpy(value).to(TORCH[graph.tensor(name).dtype.name]) for name, value in given.items()}
    return {**t, **{name: run.allocate_tensor(name) for name in graph.outputs}}, caches


def test_steps_that_read_prompts_are_those_of_the_reference() -> None:
    run = launches()["step"]
    graph, (t, caches) = run.plan.graph, draw_step(run)
    for step, segments in enumerate(STEPS):
        rows = build_step_rows(BATCH, 16, CAPACITY, {1: (7, 70 + step)}, segments)
        t |= {name: torch.from_numpy(value) for name, value in rows.items() if name in t}
        exact = {name: (v.double() if v.is_floating_point() else v).numpy() for name, v in t.items()}
        right = il.ReferenceExecutor(run.plan).run({name: exact[name] for name in graph.inputs})
        for name in (*graph.intermediates, "logits"):
            value = t[name] if name in t else run.get_intermediate(name)
            value.fill_(float("nan") if value.is_floating_point() else -1)
        run.seed = step
        run.run(t)
        assert [str(fault) for fault in run.faults] == []
        wanted = [1, *(segment.sequence for segment in segments)]
        assert relative_error(t["logits"][wanted], torch.from_numpy(right["logits"][wanted])) < 8e-3
        assert (t["next"].numpy() == t["logits"].float().argmax(dim=1).numpy()).all()
    written = t[caches[0]][[5, 1], 0, :, 0].isfinite().sum(dim=1).tolist()
    assert written == [20, 13]


@pytest.mark.thorough
def test_a_prompt_cut_anywhere_has_the_logits_of_the_whole() -> None:
    """Each step reads the head of a prompt in one slot, and what the step before has left of it in another."""
    run, prompt, left = launches()["step"], (5, 9, 2, 6, 5, 3, 5, 8), []
    t, _ = draw_step(run)
    for turn, cut in enumerate((*range(len(prompt), 0, -1), None)):
        slot = 2 * (turn % 2)
        segments = [*left, *([] if cut is None else [PromptSegment(slot, 0, prompt[:cut])])]
        t |= {n: torch.from_numpy(v) for n, v in build_step_rows(BATCH, 16, CAPACITY, {}, segments).items() if n in t}
        run.seed = turn
        run.run(t)
        assert [str(fault) for fault in run.faults] == []
        if cut == len(prompt):
            right = t["logits"][slot].double()
            continue
        for segment in left:
            assert relative_error(t["logits"][segment.sequence], right) < 8e-3
        left = [] if cut is None else [PromptSegment(slot, cut, prompt[cut:])]

"""The benchmark of an engine, on the CPU with a small shape: what it measures, and what time leaves out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from ..benchmarks import load_script  # noqa: E402
from .engines import SMALL  # noqa: E402

LLM = SimpleNamespace(**load_script("llm"))
SIZES = LLM.Sizes(first=(4, 9), context=20, new=6, requests=5, ids=3, more=7, firsts=2, repeats=2)


def make_case(**changes: object) -> object:
    parts = {"model": "small", "batches": (1, 3), "slots": None, "chunk": 8, "has_blocks": True, "seconds": 200.0}
    return LLM.Case(**{**parts, **changes})


@pytest.mark.parametrize("slots", [None, 4])
def test_every_part_of_the_protocol_is_measured(slots: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    row = LLM.measure_shape(SMALL, make_case(slots=slots, has_blocks=slots is None), SIZES, "cpu")
    assert row["left_out"] == {}
    assert [*row["first_token"]] == ["4", "9"]
    assert [*row["latency"]] == ["1", "3"]
    assert [*row["throughput"]] == ["5:3:7"]
    for times in row["first_token"].values():
        assert 0 < times["best_ms"] <= times["median_ms"]
    for found in row["latency"].values():
        assert len(found["pairs_us"]) == 2
    assert [*row["prefix"]] == ([] if slots else ["no cache", "prefix cache"])
    assert [*row["request"]] == ["3:7"]
    assert row["request"]["3:7"]["token_us"] > 0
    (found,) = row["throughput"].values()
    assert found["tokens_per_s"] == pytest.approx(35 / min(found["seconds"]))
    engines = ["4"] if slots else ["1", "3"]
    assert [*row["build_s"]] == engines
    assert len(capsys.readouterr().out.splitlines()) == len(engines) + 2 + 1 + len(row["prefix"]) + 2 + 1


def test_nothing_begins_after_the_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    row = LLM.measure_shape(SMALL, make_case(seconds=-1.0), SIZES, "cpu")
    assert row["left_out"] == {"batch 1": "no time left", "batch 3": "no time left"}
    assert row["latency"] == row["throughput"] == {}
    assert capsys.readouterr().out.splitlines() == [f"  left out: batch {n}: no time left" for n in (1, 3)]


def test_the_time_of_a_run_is_that_of_all_its_tokens() -> None:
    asked = []

    class Model:
        def generate(self, prompts: list[list[int]], params: object) -> list[object]:
            asked.append((len(prompts), len(prompts[0]), params.max_tokens, params.ignore_eos, params.temperature))
            output = SimpleNamespace(token_ids=[0] * params.max_tokens)
            return [SimpleNamespace(outputs=[output]) for _ in prompts]

    runs = LLM.Runs(Model(), 42, lambda: None)
    runs.measure_first_token(512, LLM.Sizes())
    runs.measure_request(LLM.Sizes())
    runs.measure_prefix(LLM.Sizes())
    runs.measure_latency(16, LLM.Sizes())
    runs.measure_throughput(LLM.Sizes())
    greedy = True, 0.0
    assert asked == [
        *[(1, 512, 1, *greedy)] * 6,
        (1, 32, 8, *greedy),
        *[(1, 32, 128, *greedy)] * 5,
        *[(1, 1056, 1, *greedy)] * 6,
        (16, 1024, 1, *greedy),
        (16, 1024, 4, *greedy),
        *[(16, 1024, 1, *greedy), (16, 1024, 129, *greedy)] * 3,
        (64, 32, 8, *greedy),
        *[(64, 32, 128, *greedy)] * 3,
    ]


def test_a_request_counts_its_best_run_over_its_tokens_and_a_prefix_all_runs_but_the_first() -> None:
    runs = LLM.Runs(None, 42, lambda: None)
    seconds = iter([9.0, 0.5, 0.25, 9.0, 0.4, 0.2, 0.3])
    runs.time_s = lambda prompts, new: next(seconds)
    sizes = LLM.Sizes(more=100, firsts=2)
    assert runs.measure_request(sizes) == {"token_us": pytest.approx(2500)}
    found = runs.measure_prefix(LLM.Sizes(firsts=3))
    assert found == {"best_ms": pytest.approx(200), "median_ms": pytest.approx(300)}


def test_prompts_of_a_prefix_begin_alike_and_end_in_ids_of_their_own() -> None:
    asked = []
    runs = LLM.Runs(None, 1 << 20, lambda: None)
    runs.time_s = lambda prompts, new: asked.extend(prompts) or 1.0
    runs.measure_prefix(LLM.Sizes(context=50, ids=8, firsts=2))
    assert [len(prompt) for prompt in asked] == [58] * 3
    assert len({tuple(prompt[:50]) for prompt in asked}) == 1
    assert len({tuple(prompt[50:]) for prompt in asked}) == 3

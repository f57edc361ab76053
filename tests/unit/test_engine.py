"""An engine's texts: those of each prompt alone, whatever else runs, and how they end."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from interlace.core.errors import ArgumentError, BusyError, DecodeError, LengthError, PromptError, RequestError  # noqa: E402
from interlace.engine import SamplingParams  # noqa: E402
from interlace.nn import Decoder  # noqa: E402

from .engines import collect, find_end, generate_alone, join_tokens, make_engine, make_model  # noqa: E402

GREEDY = {"temperature": 0.0}
AHEAD = pytest.mark.parametrize("runs_ahead", [False, True])


@AHEAD
@pytest.mark.parametrize("num_blocks", [None, 2])
@pytest.mark.parametrize("seed", range(4))
def test_texts_are_those_of_each_prompt_alone(runs_ahead: bool, num_blocks: int | None, seed: int) -> None:
    """Requests of random lengths come and go between steps; some are aborted."""
    draw = random.Random(seed)
    engine = make_engine(batch=3, num_blocks=num_blocks, max_num_batched_tokens=5, runs_ahead=runs_ahead)
    requests: dict[str, tuple[list[int], int]] = {}
    aborted: set[str] = set()
    results: dict[str, Any] = {}
    while len(requests) < 12 or engine.has_unfinished:
        if len(requests) < 12 and draw.random() < 0.5:
            name = f"r{len(requests)}"
            requests[name] = [draw.randrange(42) for _ in range(draw.randint(1, 20))], draw.randint(1, 12)
            prompt, count = requests[name]
            engine.add_request(name, prompt, SamplingParams(max_tokens=count, **GREEDY))
        if requests and draw.random() < 0.1:
            name = draw.choice([*requests])
            engine.abort(name)
            if name not in results or not results[name][-1].finished:
                aborted.add(name)
        for news in engine.step():
            results.setdefault(news.request_id, []).append(news)
    assert results.keys() == requests.keys()
    for name, (prompt, count) in requests.items():
        alone, made = generate_alone(prompt, count), join_tokens(results[name])
        reason = find_end(results[name])[0]
        assert [news.finished for news in results[name]] == [False] * (len(results[name]) - 1) + [True]
        if reason == "abort":
            assert name in aborted
            assert made == [*alone, 3][: len(made)]
        else:
            assert made == ([*alone, 3] if reason == "stop" else alone)
            assert len(made) == count or reason == "stop"
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.block_usage) == (0, 0, 0.0)
    assert stats.prompt_tokens_total == sum(len(prompt) for prompt, _ in requests.values())
    assert stats.generation_tokens_total == sum(len(join_tokens(news)) for news in results.values())


@AHEAD
def test_a_step_ahead_costs_one_dropped_token_at_stops_only(runs_ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    engine = make_engine(runs_ahead=runs_ahead)
    step = engine.decoder._step
    monkeypatch.setattr(engine.decoder, "_step", lambda: (steps.append(1), step()))
    for prompt, ends in (([1, 2], []), ([1, 2], None)):
        steps.clear()
        alone = generate_alone(prompt, 6, ())
        ids = [alone[3]] if ends is None else ends
        engine.add_request("a", prompt, SamplingParams(max_tokens=6, stop_token_ids=ids, ignore_eos=True, **GREEDY))
        made = join_tokens(collect(engine)["a"])
        assert made == alone[: alone.index(ids[0]) + 1 if ids else 6]
        assert len(steps) == len(made) + (runs_ahead and bool(ids))


def test_ends_and_their_reasons() -> None:
    engine = make_engine(capacity=16)
    alone = generate_alone([7, 8], 20 - 6, ())
    token = alone[2]
    first = alone.index(token)
    for params, reasons, count in (
        (SamplingParams(max_tokens=4, ignore_eos=True, **GREEDY), ("length", None), 4),
        (SamplingParams(max_tokens=None, ignore_eos=True, **GREEDY), ("length", None), 14),
        (SamplingParams(stop_token_ids=[token], ignore_eos=True, **GREEDY), ("stop", token), first + 1),
    ):
        engine.add_request("a", [7, 8], params)
        news = collect(engine)["a"]
        assert (find_end(news), join_tokens(news)) == (reasons, alone[:count])
    engine.decoder.stop_token_ids = (token,)
    engine.add_request("a", [7, 8], SamplingParams(**GREEDY))
    assert find_end(collect(engine)["a"]) == ("stop", None), "the model's own stop tokens are no stop reason"


@AHEAD
def test_an_aborted_request_ends_with_the_next_step_and_frees_its_slot(runs_ahead: bool) -> None:
    engine = make_engine(batch=1, runs_ahead=runs_ahead)
    engine.abort("unknown")
    engine.add_request("a", [1, 2], SamplingParams(max_tokens=30, n=2, ignore_eos=True, **GREEDY))
    engine.step()
    engine.step()
    engine.abort("a")
    (news,) = engine.step()
    assert (news.request_id, news.finished) == ("a", True)
    assert {part.index: part.finish_reason for part in news.outputs} == {0: "abort", 1: "abort"}
    engine.step()
    assert not engine.has_unfinished
    engine.add_request("a", [4], SamplingParams(max_tokens=3, ignore_eos=True, **GREEDY))
    assert join_tokens(collect(engine)["a"]) == generate_alone([4], 3, ())


def test_requests_are_served_in_the_order_of_their_arrival() -> None:
    engine = make_engine(batch=2, max_num_batched_tokens=2)
    for number in range(6):
        engine.add_request(f"r{number}", [1] * (9 - number), SamplingParams(max_tokens=4, ignore_eos=True, **GREEDY))
    begun: list[str] = []
    while engine.has_unfinished:
        begun += [news.request_id for news in engine.step() if news.request_id not in begun]
    assert begun == [f"r{number}" for number in range(6)]


def test_n_texts_of_a_sampled_request_differ_and_repeat_by_their_seed() -> None:
    engine = make_engine(batch=3)
    params = SamplingParams(n=3, seed=5, max_tokens=8, ignore_eos=True)
    texts = []
    for others in (0, 4):
        for number in range(others):
            engine.add_request(f"other{number}", [number + 1], SamplingParams(max_tokens=3 + number))
        engine.add_request("a", [9, 8, 7], params)
        news = collect(engine)["a"]
        texts.append([join_tokens(news, index) for index in range(3)])
    assert texts[0] == texts[1], "whatever else is in the batch"
    assert len({tuple(text) for text in texts[0]}) == 3
    engine.add_request("a", [9, 8, 7], SamplingParams(n=3, max_tokens=8, ignore_eos=True))
    assert [join_tokens(collect(engine)["a"], 0)] != texts[0][:1], "without a seed texts are new"


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ([], {}, PromptError, "a prompt has no ids"),
        ([1, 42], {}, PromptError, r"ids\[1\] is 42; the vocabulary has ids 0 to 41"),
        ("text", {}, PromptError, "'text', and the engine has no tokenizer; give ids"),
        ([1] * 64, {}, LengthError, "the prompt has 64 tokens, and max_model_len is 64; give at most 63"),
        ([1], {"stop": "x"}, RequestError, "stop needs a tokenizer"),
    ],
)
def test_a_request_that_cannot_run_is_refused_and_changes_nothing(
    prompt: Any, params: dict[str, Any], error: type, message: str
) -> None:
    engine = make_engine()
    with pytest.raises(error, match=message):
        engine.add_request("a", prompt, SamplingParams(**params))
    assert not engine.has_unfinished
    assert engine.stats().prompt_tokens_total == 0
    engine.add_request("a", [1], SamplingParams(max_tokens=1))
    with pytest.raises(RequestError, match="request_id 'a' is in use") as caught:
        engine.add_request("a", [1], SamplingParams(max_tokens=1))
    assert caught.value.param == "request_id"
    with pytest.raises(ArgumentError, match=r"params is \{\}"):
        engine.add_request("b", [1], {})  # type: ignore[arg-type]
    assert len(collect(engine)) == 1


def test_a_prompt_that_needs_more_blocks_than_there_are_is_refused() -> None:
    engine = make_engine(capacity=256, num_blocks=2)
    with pytest.raises(LengthError, match="it takes 3 blocks of 2"):
        engine.add_request("a", [1] * 128, SamplingParams(max_tokens=2))
    engine.add_request("a", [1] * 120, SamplingParams(max_tokens=9, ignore_eos=True, **GREEDY))
    assert len(join_tokens(collect(engine)["a"])) == 9


@AHEAD
@pytest.mark.parametrize("prompt", [1, 8])
def test_the_last_token_of_the_longest_text_needs_no_position(runs_ahead: bool, prompt: int) -> None:
    engine = make_engine(capacity=8, max_model_len=9, runs_ahead=runs_ahead)
    engine.add_request("a", [1] * prompt, SamplingParams(max_tokens=None, ignore_eos=True, **GREEDY))
    assert join_tokens(collect(engine)["a"]) == generate_alone([1] * prompt, 9 - prompt, stop=())
    with pytest.raises(ArgumentError, match="max_model_len is 10, and the decoder has 8 positions; give at most 9"):
        make_engine(capacity=8, max_model_len=10)
    with pytest.raises(ArgumentError, match="max_model_len is 0"):
        make_engine(capacity=8, max_model_len=0)


def test_an_engine_keeps_its_decoder_to_itself_until_it_is_closed() -> None:
    decoder = Decoder.from_model(make_model(), batch=2, max_seq_len=32)
    engine = make_engine()
    with pytest.raises(BusyError, match="an engine is under way"):
        engine.decoder.add([1])
    engine.add_request("a", [1], SamplingParams(max_tokens=9))
    engine.step()
    engine.close()
    assert engine.decoder.active_slots == ()
    with pytest.raises(DecodeError, match="the engine is closed"):
        engine.add_request("b", [1], SamplingParams())
    assert engine.decoder.generate([1], 3, stop_token_ids=[]) == decoder.generate([1], 3, stop_token_ids=[])

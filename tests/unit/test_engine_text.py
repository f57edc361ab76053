"""Texts of an engine and of ``LLM``: whole characters, stop strings, chats, and the models that are refused."""

from __future__ import annotations

import json
import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import interlace as il  # noqa: E402
from interlace.core.errors import (  # noqa: E402
    ArgumentError,
    DecodeError,
    ModelFileError,
    PromptError,
    RequestError,
    UnsupportedModelError,
)
from interlace.engine.text import SequenceText, StopStringMatcher  # noqa: E402
from interlace.models.notices import MissingSettingWarning  # noqa: E402
from interlace.models.pretrained import load_model  # noqa: E402
from interlace.models.tokenizer import IncrementalDecoder, TextTokenizer, open_tokenizer  # noqa: E402

from .engines import SMALL, collect, find_end, join_text, join_tokens, write_model  # noqa: E402
from .llama import ToyForCausalLM, stored_names  # noqa: E402
from .model_files import config, write_folder  # noqa: E402


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture(scope="module")
def llm(path: Path) -> il.LLM:
    return il.LLM(path, max_num_seqs=3, max_model_len=64, device="cpu")


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> TextTokenizer:
    return open_tokenizer(path, load_model(path).gguf)


@pytest.mark.parametrize("seed", range(20))
def test_stop_strings_are_found_however_the_text_is_cut(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        text = "".join(draw.choices("ab", k=draw.randint(0, 12)))
        stops = tuple("".join(draw.choices("ab", k=draw.randint(1, 4))) for _ in range(draw.randint(1, 3)))
        keeps = draw.random() < 0.5
        matcher, given, found = StopStringMatcher(stops, keeps), "", None
        pieces = []
        while text[len("".join(pieces)) :] and found is None:
            at = len("".join(pieces))
            pieces.append(text[at : at + draw.randint(1, 3)])
            new, found = matcher.push(pieces[-1])
            given += new
            seen = "".join(pieces)
            if found is None:
                held = seen[len(given) :]
                assert not held or any(stop.startswith(held) and stop != held for stop in stops)
        seen = "".join(pieces)
        first = min(((seen.find(stop), stop) for stop in stops if stop in seen), default=None)
        if found is None:
            assert first is None
            assert given + matcher.finish() == text
        else:
            assert first is not None
            assert given == seen[: first[0]] + first[1] * keeps
            assert found in (stop for stop in stops if seen.startswith(stop, first[0]))


def test_a_text_has_whole_characters_only(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("é é!")
    stream = IncrementalDecoder(tokenizer)
    pieces = [stream.push(id) for id in [*ids, ids[0]]]
    assert "".join(pieces) == "é é!"
    assert "" in pieces, "é is two tokens"
    assert stream.finish() == "\ufffd", "half a character"
    text = SequenceText(IncrementalDecoder(tokenizer), ("!",), False)
    found = [text.push(id, True) for id in ids]
    assert ("".join(piece for piece, _ in found), found[-1][1]) == ("é é", "!")


def test_a_text_goes_on_where_the_packages_stream_fails(tokenizer: TextTokenizer) -> None:
    class Stream:
        def step(self, *given: object) -> str:
            raise Exception("Invalid prefix encountered")

    ids = tokenizer.encode("hello wé é!")
    for failing in range(len(ids)):
        text = IncrementalDecoder(tokenizer)
        pieces = [text.push(id) for id in ids[:failing]]
        text._stream = Stream()
        assert "".join([*pieces, *(text.push(id) for id in ids[failing:])]) == "hello wé é!"


def test_generate_takes_texts_and_ids_and_gives_texts(llm: il.LLM, tokenizer: TextTokenizer) -> None:
    params = il.SamplingParams(temperature=0, max_tokens=9)
    prompts = ["hello w", "abc"]
    results = llm.generate(prompts, params)
    assert [result.prompt_token_ids for result in results] == [tokenizer.encode(prompt) for prompt in prompts]
    for result in results:
        (output,) = result.outputs
        ids = output.token_ids[:-1] if output.finish_reason == "stop" else output.token_ids
        assert (output.text, result.finished) == (tokenizer.decode(ids), True)
        (alone,) = llm.generate(result.prompt_token_ids, params)
        assert alone.outputs == [output]
        assert "".join(part.text for part in llm.stream(result.prompt_token_ids, params)) == output.text
    each = llm.generate(prompts, [params, il.SamplingParams(temperature=0, max_tokens=2)])
    assert [len(result.outputs[0].token_ids) for result in each] == [len(results[0].outputs[0].token_ids), 2]
    assert llm.generate([]) == []
    with pytest.raises(RequestError, match="1 params and 2 prompts; give as many"):
        llm.generate(prompts, [params])
    with pytest.raises(PromptError):
        llm.generate(["a", [99]], params)
    news = collect(llm.engine)
    assert [find_end(each)[0] for each in news.values()] == ["abort"], "nothing of a call that fails goes on"


def test_stop_strings_end_a_text_and_are_not_part_of_it(llm: il.LLM) -> None:
    whole = llm.generate("hello", il.SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))[0].outputs[0].text
    stop = whole[4:7]
    at = whole.find(stop)
    for keeps in (False, True):
        params = il.SamplingParams(
            temperature=0, max_tokens=20, stop=["zzzz", stop], include_stop_str_in_output=keeps, ignore_eos=True
        )
        output = llm.generate("hello", params)[0].outputs[0]
        assert (output.text, output.finish_reason, output.stop_reason) == (
            whole[:at] + stop * keeps,
            "stop",
            stop,
        )
    params = il.SamplingParams(temperature=0, max_tokens=20, min_tokens=20, stop=stop, ignore_eos=True)
    output = llm.generate("hello", params)[0].outputs[0]
    assert (output.text, output.finish_reason) == (whole, "length")


def test_a_stream_that_is_closed_ends_its_text(llm: il.LLM) -> None:
    stream = llm.stream("hello", il.SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    assert next(stream).token_ids
    stream.close()
    collect(llm.engine)
    stats = llm.engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)


def test_a_chat_is_rendered_by_the_models_template(llm: il.LLM) -> None:
    pytest.importorskip("jinja2")
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "a"}]
    result = llm.chat(messages, il.SamplingParams(temperature=0, max_tokens=3))
    assert result.prompt_token_ids == llm.engine.tokenizer.encode("<|start|>hello<|end|><|start|>a<|end|>", whole=True)
    for wrong in ([], "hello", [1]):
        with pytest.raises(RequestError, match=r"messages are .*; give a list such as") as caught:
            llm.chat(wrong)  # type: ignore[arg-type]
        assert caught.value.param == "messages"
    loop: list[object] = []
    loop.append(loop)
    for content in (object(), loop):
        with pytest.raises(RequestError, match="messages or tools are no JSON"):
            llm.chat([{"role": "user", "content": content}])
    with pytest.raises(RequestError, match="messages or tools are no JSON"):
        llm.chat(messages, tools=5)


def test_a_model_without_a_chat_template_takes_prompts_only(tmp_path: Path) -> None:
    path = write_model(tmp_path / "plain.gguf", **{"tokenizer.chat_template": 1})
    llm = il.LLM(path, max_model_len=16, device="cpu")
    with pytest.raises(RequestError, match=r"'plain.gguf' has no chat template; send a prompt instead"):
        llm.chat([{"role": "user", "content": "hello"}])


def test_a_model_of_another_family_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**config(SMALL), "model_type": "gemma9"}))
    with pytest.raises(UnsupportedModelError, match="gemma9") as caught:
        il.LLM(tmp_path)
    assert "llama" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_news_of_all_requests_add_up_to_their_texts(llm: il.LLM) -> None:
    params = il.SamplingParams(max_tokens=12, seed=3, n=2, ignore_eos=True)
    whole = llm.generate("hello w", params)[0]
    llm.engine.add_request("a", "hello w", params)
    news = collect(llm.engine)["a"]
    for output in whole.outputs:
        assert join_text(news, output.index) == output.text
        assert join_tokens(news, output.index) == output.token_ids
        assert find_end(news, output.index) == (output.finish_reason, output.stop_reason)


@pytest.mark.parametrize("prompts", [None, 5, {"a": 1}, {"a"}, np.array(5), torch.tensor(5), [1, "a"], ["a", 1], [[]]])
def test_what_is_no_prompt_is_refused(llm: il.LLM, prompts: object) -> None:
    with pytest.raises(PromptError):
        llm.generate(prompts)  # type: ignore[arg-type]


def test_the_generation_config_has_the_default_parameters(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    stored = dict(stored_names(ToyForCausalLM(SMALL, dtype=torch.float32)))
    folder = write_folder(tmp_path / "folder", stored, config(SMALL))
    (folder / "tokenizer.json").write_text(tokenizer.to_json())
    settings = {"temperature": 0.6, "top_k": 7, "repetition_penalty": 1.5}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingSettingWarning)
        warnings.filterwarnings("ignore", ".*eos_token_id")
        llm = il.LLM(folder, max_num_seqs=1, max_model_len=32, device="cpu")
    assert llm.default_params == il.SamplingParams(**settings)
    assert il.LLM(llm.engine).default_params == il.SamplingParams()
    seen: list[il.SamplingParams] = []
    llm.engine.add_request = lambda id, prompt, params: seen.append(params)  # type: ignore[method-assign]
    llm._add("hello", None)
    llm._add("hello", il.SamplingParams(top_k=2))
    assert seen == [llm.default_params, il.SamplingParams(top_k=2)]
    (folder / "generation_config.json").write_text('{"temperature": "hot"}')
    with pytest.raises(ModelFileError, match=r"generation_config.json of .*: temperature is 'hot'; give a"):
        il.LLM(folder)


def test_options_do_not_go_with_an_engine(llm: il.LLM) -> None:
    with pytest.raises(ArgumentError, match="max_num_seqs cannot change an engine"):
        il.LLM(llm.engine, max_num_seqs=2)


def test_streams_and_other_calls_share_a_model(llm: il.LLM) -> None:
    greedy = il.SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    prompts = ("hello", "we", "low")
    alone = [llm.generate(prompt, greedy)[0].outputs[0].token_ids for prompt in prompts]
    streams = [llm.stream(prompt, greedy) for prompt in prompts]
    tokens: list[list[int]] = [[], [], []]
    for parts in zip_longest(*streams):
        assert llm.generate("hello", greedy)[0].outputs[0].token_ids == alone[0]
        for found, part in zip(tokens, parts, strict=True):
            found += part.token_ids if part is not None else []
    assert tokens == alone
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda prompt: llm.generate(prompt, greedy)[0].outputs[0].token_ids, prompts * 5)
        assert [*found] == alone * 5
    assert llm._news == {}
    assert llm.engine.stats().num_running == 0


def test_a_stream_that_fails_yields_what_came_and_says_why(llm: il.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.engine.step
    parts: list[str] = []

    def fail_at_the_second() -> list[Any]:
        news = step()
        for each in news:
            each.finished = each.finished or bool(parts)
            each.error = "the grammar admits no token" if parts else None
        return news

    def read() -> None:
        for part in llm.stream([1, 2, 3], il.SamplingParams(max_tokens=8, ignore_eos=True)):
            parts.append(part.text)

    monkeypatch.setattr(llm.engine, "step", fail_at_the_second)
    with pytest.raises(DecodeError, match="the grammar admits no token"):
        read()
    assert len(parts) == 2
    monkeypatch.undo()
    assert llm.generate([[1, 2, 3]], il.SamplingParams(max_tokens=2))[0].finished

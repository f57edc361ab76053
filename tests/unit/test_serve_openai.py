"""``interlace serve`` in a process of its own, and the client that its users have."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
for package in ("jinja2", "prometheus_client", "pydantic", "starlette", "tokenizers", "uvicorn"):
    pytest.importorskip(package)
openai = pytest.importorskip("openai")

from interlace.engine import LLM, SamplingParams  # noqa: E402

from .engines import write_model  # noqa: E402

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
)
HELLO: Any = [{"role": "user", "content": "hello"}]
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@dataclass
class ServedModel:
    """A server's process, a client of it, and the same model in this process."""

    process: subprocess.Popen[str]
    curl: str
    client: Any
    llm: LLM


@pytest.fixture(scope="module")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    path = write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", **{"tokenizer.chat_template": TEMPLATE})
    options = ["--port", "0", "--max-num-seqs", "3", "--api-key", "secret", "--served-model-name", "tiny"]
    command = [sys.executable, "-m", "interlace", "serve", str(path), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+/v1) serves tiny \(Ctrl-C ends it\)\n", address)
        if found is None:
            process.kill()
            pytest.fail(address + process.communicate()[1])
        curl = process.stdout.readline()
        client = openai.OpenAI(base_url=found[1], api_key="secret", max_retries=0, timeout=60)
        yield ServedModel(process, curl, client, LLM(path, device="cpu"))
        client.close()
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")
    assert errors == f"note: loading {path}\n", "neither a traceback nor a prompt"


def test_models_are_listed(model_server: ServedModel) -> None:
    assert [model.id for model in model_server.client.models.list()] == ["tiny"]
    assert model_server.client.models.retrieve("tiny").owned_by == "interlace"


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.9, "seed": 7, "top_p": 0.8}])
def test_completions_are_those_of_the_engine(model_server: ServedModel, params: dict[str, Any]) -> None:
    prompts = ["hello w", "low"]
    expected = [
        each.outputs[0]
        for each in model_server.llm.generate(prompts, SamplingParams(max_tokens=12, ignore_eos=True, **params))
    ]
    fields: Any = {"model": "tiny", "max_tokens": 12, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
    whole = model_server.client.completions.create(prompt=prompts, **fields, **params)
    assert [choice.text for choice in whole.choices] == [each.text for each in expected]
    assert [choice.token_ids for choice in whole.choices] == [each.token_ids for each in expected]
    texts = ["", ""]
    for chunk in model_server.client.completions.create(prompt=prompts, stream=True, **fields, **params):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [each.text for each in expected]
    assert whole.usage.completion_tokens == 24


def test_chats_are_those_of_the_engine_whole_and_streamed(model_server: ServedModel) -> None:
    expected = model_server.llm.chat(HELLO, SamplingParams(temperature=0, max_tokens=10))
    fields: Any = {"model": "tiny", "messages": HELLO, "temperature": 0, "max_completion_tokens": 10}
    whole = model_server.client.chat.completions.create(**fields)
    assert whole.choices[0].message.content == expected.outputs[0].text
    assert whole.choices[0].finish_reason == expected.outputs[0].finish_reason
    assert whole.usage.prompt_tokens == len(expected.prompt_token_ids)
    options: Any = {"include_usage": True}
    chunks = [*model_server.client.chat.completions.create(**fields, stream=True, stream_options=options)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected.outputs[0].text
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_tools_reach_the_template(model_server: ServedModel) -> None:
    fields: Any = {"model": "tiny", "messages": HELLO, "temperature": 0, "max_tokens": 3}
    without, tools = (
        model_server.client.chat.completions.create(**fields, **more).usage.prompt_tokens
        for more in ({}, {"tools": [ADD]})
    )
    assert tools == without + len("add")
    none = model_server.client.chat.completions.create(**fields, tools=[ADD], tool_choice="none")
    assert none.usage.prompt_tokens == without


def test_log_probabilities_are_those_of_the_engine(model_server: ServedModel) -> None:
    (result,) = model_server.llm.generate("hello", SamplingParams(temperature=0, max_tokens=4, logprobs=2))
    expected = result.outputs[0]
    assert expected.logprobs is not None
    fields: Any = {"model": "tiny", "temperature": 0, "max_tokens": 4}
    found = model_server.client.completions.create(prompt="hello", logprobs=2, **fields).choices[0].logprobs
    chosen = [each[id] for id, each in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert found.tokens == [each.decoded_token for each in chosen]
    assert found.token_logprobs == pytest.approx([each.logprob for each in chosen], abs=1e-4)
    assert found.text_offset == [len("".join(found.tokens[:n])) for n in range(len(chosen))]
    chat = model_server.client.chat.completions.create(messages=HELLO, logprobs=True, top_logprobs=3, **fields)
    for token in chat.choices[0].logprobs.content:
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob), "greedy"
        assert [each.logprob for each in token.top_logprobs] == sorted(each.logprob for each in token.top_logprobs)[
            ::-1
        ]
        assert bytes(token.bytes).decode() == token.token
        assert len(token.top_logprobs) == 3


def test_answers_follow_schemas_and_expressions(model_server: ServedModel) -> None:
    pytest.importorskip("llguidance")
    fields: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 9}
    schema: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 1221}}}
    chat = model_server.client.chat.completions.create(**fields, response_format=schema)
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("1221", "stop")
    regex: Any = {"structured_outputs": {"regex": "(he|wo){3}"}}
    chat = model_server.client.chat.completions.create(**fields, extra_body=regex)
    assert re.fullmatch("(he|wo){3}", chat.choices[0].message.content)
    schema["json_schema"]["schema"] = {"type": "nonsense"}
    with pytest.raises(openai.BadRequestError, match="json_schema is invalid") as refused:
        model_server.client.chat.completions.create(**fields, response_format=schema)
    assert refused.value.param == "response_format"


def test_errors_are_the_clients_own(model_server: ServedModel) -> None:
    def ask(**fields: Any) -> Any:
        return model_server.client.completions.create(**{"model": "tiny", "prompt": "a", **fields})

    with pytest.raises(openai.BadRequestError, match="temperature is -1") as refused:
        ask(temperature=-1)
    assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="foo is not supported") as refused:
        ask(extra_body={"foo": 1})
    assert refused.value.param == "foo"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'") as missing:
        ask(model="gpt")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="max_model_len is 128") as long:
        ask(prompt="a" * 200)
    assert (long.value.param, long.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.AuthenticationError):
        model_server.client.with_options(api_key="wrong").models.list()


def test_a_stream_that_is_left_does_not_disturb_others(model_server: ServedModel) -> None:
    fields: Any = {"model": "tiny", "prompt": "hello", "temperature": 0, "extra_body": {"ignore_eos": True}}
    for _ in range(4):
        stream = model_server.client.completions.create(**fields, max_tokens=100, stream=True)
        next(iter(stream))
        stream.close()
    (expected,) = model_server.llm.generate("hello", SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    assert model_server.client.completions.create(**fields, max_tokens=9).choices[0].text == expected.outputs[0].text


def test_the_printed_command_works(model_server: ServedModel) -> None:
    command = shlex.split(model_server.curl)
    assert command[0] == "curl"
    url, headers, body = command[1], command[2:-2:1], json.loads(command[-1])
    assert url == f"{model_server.client.base_url}chat/completions"
    assert headers == ["-H", "content-type: application/json", "-H", "authorization: Bearer $INTERLACE_API_KEY"]
    assert model_server.client.chat.completions.create(**body, max_tokens=2).choices[0].finish_reason in (
        "length",
        "stop",
    )

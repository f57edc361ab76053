"""The HTTP API over a deterministic engine: answers, streams, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("torch")
pytest.importorskip("pydantic")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

from pydantic import ValidationError

from interlace.serve.requests import ChatRequest, CompletionRequest

from ..api_server import RunningServer, run_server
from ..fake_engine import FakeEngine

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_server(FakeEngine()) as running:
        yield running


def parse_events(text: str) -> list[Any]:
    """Return the data of server-sent events; the last must end the stream."""
    *events, end, rest = text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def check_error(response: Any, status: int, param: str | None, words: str) -> None:
    """Assert that a response has an error's status and its body in OpenAI's form."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["param"], words in error["message"]) == (param, True), error
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")


@pytest.mark.parametrize(
    ("prompt", "texts", "length", "cached"),
    [
        ("abc", ["abcab"], 3, 1),
        (["ab", "c"], ["ababa", "ccccc"], 3, 1),
        ([97, 98], ["ababa"], 2, 1),
        ([[97], [98, 99]], ["aaaaa", "bcbcb"], 3, 1),
    ],
)
def test_a_completion_answers_each_kind_of_prompt(
    server: RunningServer, prompt: Any, texts: list[str], length: int, cached: int
) -> None:
    answer = server.post("/v1/completions", prompt=prompt, max_tokens=5).json()
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == [*range(len(texts))]
    assert (answer["object"], answer["model"], answer["id"][:5]) == ("text_completion", "fake", "cmpl-")
    assert answer["usage"] == {
        "prompt_tokens": length,
        "completion_tokens": 5 * len(texts),
        "total_tokens": length + 5 * len(texts),
        "prompt_tokens_details": {"cached_tokens": cached},
    }


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"logprobs": True}, {"return_token_ids": True}, {"stop": ["o"]}])
def test_a_stream_adds_up_to_the_whole_answer(server: RunningServer, path: str, fields: dict[str, Any]) -> None:
    is_chat = "chat" in path
    body = {"messages": HELLO} if is_chat else {"prompt": "hello"}
    if not is_chat and "logprobs" in fields:
        fields = {"logprobs": 2}
    body |= {"max_tokens": 7, **fields}
    whole = server.post(path, **body).json()
    events = parse_events(server.post(path, **body, stream=True, stream_options={"include_usage": True}).text)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]
    assert all(event["usage"] is None for event in events[:-1])
    assert len({event["id"] for event in events}) == 1
    for choice in whole["choices"]:
        parts = [each for event in events for each in event["choices"] if each["index"] == choice["index"]]
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        if is_chat:
            assert parts[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(part["delta"]["content"] for part in parts) == choice["message"]["content"]
            found = [part["logprobs"]["content"] for part in parts if part["logprobs"]]
            assert [*chain(*found)] == (choice["logprobs"] or {"content": []})["content"]
        else:
            assert "".join(part["text"] for part in parts) == choice["text"]
            for key, value in (choice["logprobs"] or {}).items():
                assert [*chain(*(part["logprobs"][key] for part in parts))] == value
        if "return_token_ids" in fields:
            ids = [*chain(*(part["token_ids"] for part in parts))]
            assert ids == choice["token_ids"] == [*map(ord, "hellohe")]


def test_fields_reach_the_engine_as_sampling_params_over_the_models_defaults() -> None:
    engine = FakeEngine()
    with run_server(engine, default_params={"temperature": 0.6, "top_p": 0.9}) as server:
        fields = {"temperature": 0.0, "top_k": 5, "min_p": 0.1, "seed": -4, "min_tokens": 1, "ignore_eos": True}
        fields |= {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1}
        fields |= {"stop_token_ids": [3], "skip_special_tokens": False, "include_stop_str_in_output": True}
        server.post("/v1/completions", prompt="a", **fields, logit_bias={"97": -1}, stop="b", logprobs=2)
        server.post("/v1/chat/completions", messages=HELLO, max_completion_tokens=3, logprobs=True, top_logprobs=4)
        server.post("/v1/chat/completions", messages=HELLO, temperature=None)
        server.post("/v1/completions", prompt="a")
    first, second, third, fourth = engine.params
    assert {name: getattr(first, name) for name in fields} == fields
    assert (first.logit_bias, first.stop, first.logprobs, first.top_p) == ({97: -1.0}, ["b"], 2, 0.9)
    assert (second.temperature, second.max_tokens, second.logprobs) == (0.6, 3, 4)
    assert (third.temperature, third.max_tokens, third.logprobs) == (0.6, None, None)
    assert fourth.max_tokens == 16, "as OpenAI and vLLM have it for completions"
    assert all(name == "engine" for name in engine.threads)


def test_a_schema_reaches_the_engine_from_each_field_that_takes_one() -> None:
    engine, schema = FakeEngine(), {"type": "object", "properties": {"a": {"type": "integer"}}}
    with run_server(engine) as server:
        for form in (
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
        ):
            assert server.post("/v1/chat/completions", messages=HELLO, response_format=form).status_code == 200
        server.post("/v1/completions", prompt="a", structured_outputs={"json": schema})
        server.post("/v1/completions", prompt="a", structured_outputs={"regex": "a+"})
    assert [params.json_schema for params in engine.params] == [None, {"type": "object"}, schema, schema, None]
    assert engine.params[-1].regex == "a+"
    assert engine.threads == {"engine", "encode"}, "grammars are compiled between the event loop and the steps"


def test_chat_templates_get_texts_and_arguments_as_objects() -> None:
    engine = FakeEngine()
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "tool_calls": [call], "refusal": None, "audio": None, "annotations": []},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]
    with run_server(engine) as server:
        assert server.post("/v1/chat/completions", messages=messages, max_tokens=1).status_code == 200
    ((rendered, tools),) = engine.rendered
    assert tools is None
    assert rendered[0] == {"role": "system", "content": "one\ntwo"}
    assert rendered[1]["content"] is None
    assert rendered[1]["tool_calls"] == [{**call, "function": {"name": "add", "arguments": {"a": 1}}}]
    assert rendered[2] == {"role": "tool", "tool_call_id": "c", "content": "3"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": None}, "prompt", "give a text"),
        ({"prompt": []}, "prompt", "give a text"),
        ({"prompt": [1, "a"]}, "prompt", "give a text"),
        ({"prompt": [[1], ["a"]]}, "prompt", "give a text"),
        ({"prompt": [True]}, "prompt", "give a text"),
        ({"prompt": ""}, "prompt", "no tokens"),
        ({"prompt": [-1]}, "prompt", "out of the vocabulary"),
        ({"prompt": [1 << 70]}, "prompt", "out of the vocabulary"),
        ({"prompt": "a" * 3000}, "prompt", "3000 ids"),
        ({"max_tokens": "5"}, "max_tokens", "integer"),
        ({"max_tokens": 2.5}, "max_tokens", "integer"),
        ({"max_tokens": 0}, "max_tokens", "give 1 to"),
        ({"max_tokens": -1}, "max_tokens", "give 1 to 2147483647"),
        ({"max_tokens": 10**30}, "max_tokens", "give 1 to 2147483647"),
        ({"max_tokens": 5000}, "prompt", "5000 new ones"),
        ({"n": 0}, "n", "give 1 to 1024"),
        ({"n": 2000}, "n", "give 1 to 1024"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": -1}, "temperature", "give a number from 0"),
        ({"top_p": 2}, "top_p", "give a number"),
        ({"seed": 1 << 64}, "seed", "give -9223372036854775808 to"),
        ({"stop": 3}, "stop", "array"),
        ({"stop": ["a", 3]}, "stop[1]", "string"),
        ({"stop_token_ids": [1, -2]}, "stop_token_ids", "token ids"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "'a' is no token id"),
        ({"logit_bias": {"5": "x"}}, "logit_bias", "numbers from -100 to 100"),
        ({"logit_bias": [5]}, "logit_bias", "numbers by token id"),
        ({"logit_bias": {"": 1}}, "logit_bias", "'' is no token id"),
        ({"logprobs": 21}, "logprobs", "less"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"stream": True, "stream_options": {"chunk": 1}}, "stream_options.chunk", "not supported"),
        ({"echo": True}, "echo", "not supported"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"best_of": 2}, "best_of", "not supported"),
        ({"use_beam_search": True}, "use_beam_search", "not supported"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar", "not supported"),
    ],
)
def test_a_completions_field_that_makes_no_sense_is_refused_by_name(
    server: RunningServer, fields: dict[str, Any], param: str | None, words: str
) -> None:
    check_error(server.post("/v1/completions", **{"prompt": "a", **fields}), 400, param, words)
    assert server.post("/v1/completions", prompt="a", echo=False, suffix=None, best_of=1).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hello"}, "messages", "array"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role", "'user'"),
        ({"messages": [*HELLO, {"role": "user", "content": 3}]}, "messages[1].content", "give a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "'image_url'"),
        ({"messages": [{"role": "user", "content": "x", "images": []}]}, "messages[0].images", "not supported"),
        ({"messages": [{"role": "user", "content": "raise"}]}, "messages", "the chat template fails"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "leave one out"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "pattern"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "give json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema", "miss"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": "some"}, "tool_choice", "give 'none'"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"bad": 1}}}},
            "response_format",
            "inval",
        ),
        ({"structured_outputs": {"regex": "bad"}}, "structured_outputs", "invalid"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", "not supported"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "not supported"),
        (
            {
                "response_format": {"type": "json_object"},
                "structured_outputs": {"regex": "a"},
            },
            "structured_outputs",
            "twice",
        ),
    ],
)
def test_a_chats_field_that_makes_no_sense_is_refused_by_name(
    server: RunningServer, fields: dict[str, Any], param: str, words: str
) -> None:
    check_error(server.post("/v1/chat/completions", **{"messages": HELLO, **fields}), 400, param, words)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "fake", "prompt": "\xff"}',
        b'{"model": "fake", "prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"model": "fake", "prompt": "a", "structured_outputs": {"json": ' + b'{"a": ' * 5000 + b"1" + b"}" * 5002,
    ],
)
def test_a_body_that_is_no_json_is_refused(server: RunningServer, body: bytes) -> None:
    check_error(server.http.post("/v1/completions", content=body), 400, None, "the body is no JSON")


@pytest.mark.parametrize("field", ["stop", "stop_token_ids", "logit_bias", "messages", "tools", "prompt"])
def test_only_the_first_of_many_faults_is_looked_for(field: str) -> None:
    faults: Any = {str(-n): None for n in range(1, 1000)} if field == "logit_bias" else [None] * 1000
    kind = ChatRequest if field in ("messages", "tools") else CompletionRequest
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(json.dumps({"model": "fake", "prompt": "a", "messages": HELLO, field: faults}))
    assert len([error for error in refused.value.errors() if error["loc"][0] == field]) == 1


def test_bodies_of_other_types_are_refused(server: RunningServer) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = server.http.post("/v1/completions", content=b"{}", headers={"content-type": kind})
        check_error(response, 415, None, "application/json")
    response = server.post("/v1/completions", prompt="a")
    assert response.request.headers["content-type"] == "application/json"


def test_other_models_and_paths_are_not_found(server: RunningServer) -> None:
    check_error(server.http.post("/v1/completions", json={"model": "gpt", "prompt": "a"}), 404, "model", "'gpt'")
    check_error(server.http.get("/v1/models/gpt"), 404, "model", "this server has 'fake'")
    check_error(server.http.get("/v1/embeddings"), 404, None, "/v1/embeddings")
    check_error(server.http.get("/v1/completions"), 405, None, "Method Not Allowed")
    (model,) = server.http.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("fake", "model", 2048)
    assert server.http.get("/v1/models/fake").json() == model


def test_a_model_without_a_tokenizer_takes_ids_alone() -> None:
    with run_server(FakeEngine(tokenizer=None)) as server:
        answer = server.post("/v1/completions", prompt=[7, 8], max_tokens=3, return_token_ids=True).json()
        assert answer["choices"][0]["token_ids"] == [7, 8, 7]
        check_error(server.post("/v1/completions", prompt="a"), 400, "prompt", "no tokenizer")
        check_error(server.post("/v1/chat/completions", messages=HELLO), 400, "messages", "no tokenizer")


def test_metrics_have_the_names_and_counts_of_vllm() -> None:
    with run_server(FakeEngine()) as server:
        server.post("/v1/completions", prompt="abc", max_tokens=5)
        server.post("/v1/chat/completions", messages=HELLO)
        lines = server.http.get("/metrics").text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    label = '{model_name="fake"}'
    expected = {
        f"vllm:num_requests_running{label}": 0,
        f"vllm:num_requests_waiting{label}": 0,
        f"vllm:kv_cache_usage_perc{label}": 0,
        f"vllm:prompt_tokens_total{label}": 7,
        f"vllm:generation_tokens_total{label}": 10,
        f"vllm:prefix_cache_queries_total{label}": 20,
        f"vllm:prefix_cache_hits_total{label}": 10,
        f"vllm:num_preemptions_total{label}": 1,
        f"vllm:time_to_first_token_seconds_count{label}": 2,
        f"vllm:inter_token_latency_seconds_count{label}": 8,
        f"vllm:e2e_request_latency_seconds_count{label}": 2,
        'vllm:request_success_total{finished_reason="length",model_name="fake"}': 1,
        'vllm:request_success_total{finished_reason="stop",model_name="fake"}': 1,
    }
    assert {name: float(found[name]) for name in expected} == expected


def test_prompts_are_logged_only_when_asked_for() -> None:
    log: list[str] = []
    with run_server(FakeEngine(), log_prompt=log.append) as server:
        server.post("/v1/completions", prompt=["secret", "b"])
        server.post("/v1/completions", prompt=[7])
        server.post("/v1/chat/completions", messages=HELLO)
    assert log == ["secret", "b", "[7]", "hello"]


def test_a_fault_of_the_server_reaches_neither_client_nor_log_with_the_prompt() -> None:
    class BrokenTokenizer:
        def encode(self, text: str, whole: bool = False) -> list[int]:
            raise RuntimeError(f"cannot encode {text}")

    with run_server(FakeEngine(tokenizer=BrokenTokenizer())) as server:
        check_error(server.post("/v1/completions", prompt="secret"), 500, None, "the server failed")
        line = server.faults.pop()
        assert line.startswith("RuntimeError in encode, ")
        assert "secret" not in line
        assert server.http.get("/health").status_code == 200

"""Tool calls: found in texts however they arrive, demanded by a schema, and refused where they contradict."""

from __future__ import annotations

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("torch")
pytest.importorskip("pydantic")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")
from hypothesis import given
from hypothesis import strategies as st

from interlace.serve.tool_calls import ToolCall, ToolCallParser

from ..api_server import run_server
from ..fake_engine import FakeEngine

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": PARAMETERS}}
SUB = {"type": "function", "function": {"name": "sub"}}
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD_1, SUB_0 = ToolCall("add", '{"a": 1}'), ToolCall("sub", "{}")

TEXTS = [
    ("no call at all", "no call at all", []),
    (HERMES, "", [ADD_1]),
    (f"Let me see. \n{HERMES}", "Let me see.", [ADD_1]),
    (f'{HERMES}\n<tool_call>{{"name": "sub", "arguments": {{}}}}</tool_call>', "", [ADD_1, SUB_0]),
    (HERMES.removesuffix("\n</tool_call>"), "", [ADD_1]),
    ('{"name": "add", "parameters": {"a": 1}}', "", [ADD_1]),
    ('<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 1}}', "", [ADD_1]),
    ('{"name": "add", "parameters": {"a": 1}}; {"name": "sub", "parameters": {}}', "", [ADD_1, SUB_0]),
    ('{"name": "rm", "parameters": {}}', '{"name": "rm", "parameters": {}}', []),
    ('{"name": "add", "parameters": {"a": 1', '{"name": "add", "parameters": {"a": 1', []),
    ('{"answer": 3} and more ', '{"answer": 3} and more ', []),
    ("<tool_call>{broken</tool_call> yes", "<tool_call>{broken</tool_call> yes", []),
    ("<tool_call>{cut", "<tool_call>{cut", []),
    ("a < b <tool <tool_calls> ", "a < b <tool <tool_calls> ", []),
    ('<tool_call>{"name": "add", "arguments": 3}</tool_call>', None, []),
]


def parse_pieces(pieces: list[str]) -> tuple[str, list[ToolCall]]:
    """Return content and calls of a text that arrives in pieces."""
    parser, content, calls = ToolCallParser(["add", "sub"]), "", []
    for number, piece in enumerate(pieces):
        text, found = parser.feed(piece, is_last=number == len(pieces) - 1)
        content += text
        calls += found
    return content, calls


@pytest.mark.parametrize(("text", "content", "calls"), TEXTS)
def test_calls_are_found_whole_and_character_by_character(
    text: str, content: str | None, calls: list[ToolCall]
) -> None:
    assert parse_pieces([text]) == (text if content is None else content, calls)
    assert parse_pieces([*text]) == (text if content is None else content, calls)
    assert parse_pieces([*text, ""]) == (text if content is None else content, calls)


@given(st.sampled_from(TEXTS), st.sets(st.integers(0, 80)))
def test_calls_do_not_depend_on_where_a_text_is_cut(
    case: tuple[str, str | None, list[ToolCall]], cuts: set[int]
) -> None:
    text, content, calls = case
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    assert parse_pieces(pieces) == (text if content is None else content, calls)


def test_a_text_without_a_call_is_not_kept_back() -> None:
    parser = ToolCallParser(["add"])
    assert [parser.feed(piece, False)[0] for piece in ("Hel", "lo", " wo", "rld <b", ">")] == [
        "Hel",
        "lo",
        " wo",
        "rld <b",
        ">",
    ]
    parser = ToolCallParser(["add"])
    assert [parser.feed(piece, False)[0] for piece in ("{", '"x', '": 1')] == ["", "", '{"x": 1']


def ask(engine: FakeEngine, stream: bool = False, **fields: Any) -> Any:
    with run_server(engine) as server:
        body = {"messages": [{"role": "user", "content": "go"}], "tools": [ADD, SUB], **fields}
        response = server.post("/v1/chat/completions", **body, stream=stream)
        if not stream or response.status_code != 200:
            return response.json()
        return [json.loads(event[6:]) for event in response.text.split("\n\n")[:-2]]


def test_an_answer_has_the_calls_that_the_model_wrote() -> None:
    engine = FakeEngine(script={"go": f"Adding.\n{HERMES}"})
    (choice,) = ask(engine)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Adding.")
    assert (call["type"], call["function"], call["id"][:5]) == (
        "function",
        {"name": "add", "arguments": '{"a": 1}'},
        "call_",
    )
    assert engine.rendered[0][1] == [ADD, SUB]


def test_a_stream_has_each_call_once_with_its_index() -> None:
    second = '<tool_call>{"name": "sub", "arguments": {}}</tool_call>'
    events = ask(FakeEngine(script={"go": f"Adding.\n{HERMES}\n{second}"}), stream=True)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content", "") for delta in deltas) == "Adding."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [(call["index"], call["function"]["name"]) for call in calls] == [(0, "add"), (1, "sub")]
    assert [event["choices"][0]["finish_reason"] for event in events if event["choices"][0]["finish_reason"]] == [
        "tool_calls"
    ]


def test_required_and_named_tools_are_a_schema_of_the_call() -> None:
    text = '{"name": "add", "arguments": {"a": 1}}'
    calls = {
        name: {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": parameters},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, parameters in (("add", PARAMETERS), ("sub", {"type": "object"}))
    }
    named = {"type": "function", "function": {"name": "add"}}
    for choice, schema, reason in (
        ("required", {"anyOf": [*calls.values()]}, "tool_calls"),
        (named, calls["add"], "stop"),
    ):
        engine = FakeEngine(script={"go": text})
        (answer,) = ask(engine, tool_choice=choice)["choices"]
        assert engine.params[0].json_schema == schema
        assert answer["finish_reason"] == reason
        assert answer["message"]["content"] is None
        assert answer["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}


def test_definitions_of_parameters_move_to_the_top_of_the_schema() -> None:
    parameters = {"type": "object", "properties": {"x": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("f", "g")]
    engine = FakeEngine()
    ask(engine, tools=tools, tool_choice="required")
    schema = engine.params[0].json_schema
    assert isinstance(schema, dict)
    assert schema["$defs"] == {"P": {"type": "string"}}
    assert "$defs" not in schema["anyOf"][0]["properties"]["arguments"]
    other = {**parameters, "$defs": {"P": {"type": "integer"}}}
    tools[1]["function"]["parameters"] = other
    assert (
        "defines" in (message := ask(FakeEngine(), tools=tools, tool_choice="required")["error"]["message"]) or message
    )


def test_definitions_that_are_no_object_are_refused() -> None:
    for wrong in ([], None, 5):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"$defs": wrong}}}
        error = ask(FakeEngine(), tools=[tool], tool_choice="required")["error"]
        assert (error["param"], error["message"]) == ("tools", "tool 'f': $defs must be an object")


def test_a_long_run_of_spaces_is_scanned_once() -> None:
    """A pattern that tries each way to divide the spaces would take hours here."""
    spaces = " \n" * 500_000
    for text, is_kept_back in ((spaces, True), (spaces + "<|python_tag|>" + spaces, True), (spaces + "no", False)):
        parser = ToolCallParser(["add"])
        assert parser.feed(text, is_last=False) == ("" if is_kept_back else text, [])


def test_no_tools_are_used_where_none_are_asked_for() -> None:
    engine = FakeEngine(script={"go": HERMES})
    (choice,) = ask(engine, tool_choice="none")["choices"]
    assert (choice["message"], choice["finish_reason"]) == ({"role": "assistant", "content": HERMES}, "stop")
    assert engine.rendered[0][1] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "mul"}}}, "tool_choice"),
        ({"tools": [ADD, ADD]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "add", "strict": True}}]}, "tools"),
        ({"tools": [], "tool_choice": "auto"}, "tool_choice"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "add", "parameters": {"bad": 1}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ],
)
def test_tools_that_contradict_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert ask(FakeEngine(), **fields)["error"]["param"] == param


def test_tools_are_refused_where_the_template_has_no_place_for_them() -> None:
    engine = FakeEngine(chat_template=SimpleNamespace(text="{{ messages }}"))
    assert ask(engine)["error"]["param"] == "tools"


def test_a_call_that_is_cut_off_stays_text() -> None:
    (choice,) = ask(FakeEngine(script={"go": HERMES}), max_tokens=20)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (HERMES[:20], "length")
    assert "tool_calls" not in choice["message"]

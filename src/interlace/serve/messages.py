"""Messages and tools of a chat, and the form in which chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from interlace.serve.errors import ApiError, make_value_error

T = TypeVar("T")
#: List whose first fault alone is looked for: errors of a body with millions of faults take gigabytes.
Items = Annotated[list[T], Field(fail_fast=True)]


def _parse_content(value: Any) -> str | None:
    """Return the text of a message: a string, or the text parts of a list, a line each."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise make_value_error("give a text, or a list of parts of type 'text'")
    texts = []
    for index, part in enumerate(value):
        fields = part if isinstance(part, dict) else {}
        if fields.get("type") != "text":
            raise make_value_error(f"part {index} is of type {str(fields.get('type'))[:40]!r}; this model reads text")
        if not isinstance(fields.get("text"), str) or fields.keys() != {"type", "text"}:
            raise make_value_error(f"part {index}: give a text under 'text', and nothing else")
        texts.append(fields["text"])
    return "\n".join(texts)


class RequestPart(BaseModel):
    """Part of a request, without conversions between types and without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class CalledFunction(RequestPart):
    """Function that an assistant called, with its arguments as a text of JSON."""

    name: str
    arguments: str


class MessageToolCall(RequestPart):
    """Call of a tool in an assistant's message."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(RequestPart):
    """Message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, PlainValidator(_parse_content)] = None
    name: str | None = None
    tool_calls: Items[MessageToolCall] | None = None
    tool_call_id: str | None = None
    # A message of an answer may be sent back as it came: these have no content there.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class FunctionDefinition(RequestPart):
    """Function that a model may call; ``parameters`` is a JSON schema."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestPart):
    """Tool that a model may call."""

    type: Literal["function"]
    function: FunctionDefinition


@dataclass(frozen=True)
class ToolChoice:
    """Choice of the tools that a model calls.

    Attributes:
        mode: ``none``, ``auto``, ``required`` or ``function``.
        name: name of the function, for ``function``.
    """

    mode: str
    name: str | None = None


def parse_tool_choice(value: Any) -> ToolChoice | None:
    """Return the choice in a request's ``tool_choice``, None for no choice."""
    if value is None:
        return None
    if value in ("none", "auto", "required"):
        return ToolChoice(value)
    match value:
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("function", name)
    raise make_value_error("give 'none', 'auto', 'required', or {'type': 'function', 'function': {'name': ...}}")


def convert_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages as chat templates take them: contents as texts, arguments of calls as objects.

    Raises:
        ApiError: the arguments of a call are no JSON object.
    """
    found = []
    for index, message in enumerate(messages):
        fields = message.model_dump(exclude_none=True)
        fields.setdefault("content", "" if message.tool_calls is None else None)
        for number, call in enumerate(fields.get("tool_calls", ())):
            call["function"]["arguments"] = _parse_arguments(call["function"]["arguments"], index, number)
        found.append(fields)
    return found


def _parse_arguments(text: str, message: int, call: int) -> Any:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        location = f"messages[{message}].tool_calls[{call}].function.arguments"
        raise ApiError(400, f"{location} is no JSON object", param=location, code="invalid_value")
    return arguments

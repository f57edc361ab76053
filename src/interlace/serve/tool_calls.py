"""Tool calls: the schema that makes a model call a tool, and calls found in its text.

Formats that are found, as chat templates of these families ask for them:

    Hermes, Qwen    some text <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>
    Llama 3         {"name": "add", "parameters": {"a": 1}}, several separated by semicolons

A text that only resembles a call, or names an unknown function, stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from interlace.serve.errors import ApiError
from interlace.serve.messages import FunctionDefinition

_BEGIN, _END = "<tool_call>", "</tool_call>"
#: Begin of a text that may be calls of Llama 3: an object whose first key is one of a call.
_OBJECT = re.compile(r'\s*(?:<\|python_tag\|>\s*)?\{\s*"(?:name|type|function|parameters|arguments)"\s*:')
#: Begin of such a text as far as it has arrived.
_MAYBE_OBJECT = re.compile(r'\s*(?:<[^>]{0,14}(?:>\s*)?)?(?:\{\s*(?:"[a-z]{0,10}"?\s*)?)?')


@dataclass(frozen=True)
class ToolCall:
    """Call of a function.

    Attributes:
        name: name of the function.
        arguments: its arguments, as a text of JSON.
        id: name of the call, by which a later message gives its result.
    """

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid4().hex}", compare=False)

    def to_data(self) -> dict[str, Any]:
        """Return the call as JSON data of an answer."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def build_call_schema(functions: Sequence[FunctionDefinition]) -> dict[str, Any]:
    """Return the JSON schema of a call of one of the functions: an object with name and arguments.

    Definitions (``$defs``) move to the top, where references of a schema look for them.

    Raises:
        ApiError: two functions define a name differently, or ``$defs`` is no object.
    """
    definitions: dict[str, Any] = {}
    calls = []
    for function in functions:
        parameters = dict(function.parameters or {"type": "object"})
        own = parameters.pop("$defs", {})
        if not isinstance(own, dict):
            raise ApiError(400, f"tool {function.name!r}: $defs must be an object", param="tools", code="invalid_value")
        for name, definition in own.items():
            if definitions.setdefault(name, definition) != definition:
                raise ApiError(400, f"tools define {name!r} twice, differently; rename one", param="tools")
        properties = {"name": {"const": function.name}, "arguments": parameters}
        required = ["name", "arguments"]
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**schema, "$defs": definitions} if definitions else schema


class ToolCallParser:
    """Splits a text that arrives in pieces into content and calls.

    Args:
        names: functions that there are.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._unread = ""
        self._is_begin = True  # nothing was emitted yet, so that the text may still be calls of Llama 3
        self._is_after_call = False  # spaces between calls are no content

    def feed(self, text: str, is_last: bool) -> tuple[str, list[ToolCall]]:
        """Return the content and the calls that are complete with a further piece of the text.

        Args:
            text: the piece.
            is_last: True if the text ends with it; then nothing is kept back.
        """
        self._unread += text
        if self._is_begin:
            if is_last and (calls := self._parse_objects(self._unread)):
                self._unread = ""
                return "", calls
            if not is_last and (_OBJECT.match(self._unread) or _MAYBE_OBJECT.fullmatch(self._unread)):
                return "", []
            self._is_begin = False
        content, calls = "", []
        while True:
            if self._is_after_call:
                self._unread = self._unread.lstrip()
                self._is_after_call = not self._unread
            before, begin, after = self._unread.partition(_BEGIN)
            if not begin:
                length = len(before) if is_last else _find_safe_length(before)
                self._unread = before[length:]
                return content + before[:length], calls
            inner, end, rest = after.partition(_END)
            text = before.rstrip()
            if not end and not is_last:
                self._unread = self._unread[len(text) :]
                return content + text, calls
            found = self._parse_objects(inner)
            content += text if found else before + begin + inner + end
            calls += found
            self._unread, self._is_after_call = rest, bool(found)

    def _parse_objects(self, text: str) -> list[ToolCall]:
        """Return the calls that a text consists of; none if it has anything else."""
        decoder, calls = json.JSONDecoder(), []
        text = text.strip().removeprefix("<|python_tag|>").lstrip()
        while text:
            try:
                value, end = decoder.raw_decode(text)
            except (ValueError, RecursionError):
                return []
            call = self._convert_call(value)
            if call is None:
                return []
            calls.append(call)
            text = text[end:].lstrip(" \r\n\t;")
        return calls

    def _convert_call(self, value: Any) -> ToolCall | None:
        if not isinstance(value, dict):
            return None
        name, arguments = value.get("name"), value.get("arguments", value.get("parameters"))
        if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
            return None
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _find_safe_length(text: str) -> int:
    """Return the number of characters that precede what may be the begin of a tag, and spaces before it."""
    at = text.rfind("<", max(0, len(text) - len(_BEGIN)))
    before = text[:at] if at >= 0 and _BEGIN.startswith(text[at:]) else text
    return len(before.rstrip())

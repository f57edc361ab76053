"""Use of tools in an answer, as a chat's ``tools`` and ``tool_choice`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from interlace.serve.errors import ApiError
from interlace.serve.requests import ChatRequest
from interlace.serve.tool_calls import build_call_schema


@dataclass(frozen=True)
class ToolUse:
    """How an answer uses tools.

    Attributes:
        tools: tools that the chat template gets, None for none.
        schema: JSON schema that the answer must follow, None for none.
        schema_param: field of the request that it comes from.
        parse_names: functions whose calls are found in the answer, None if none are looked for.
        call_reason: ``finish_reason`` of an answer with calls.
    """

    tools: Sequence[dict[str, Any]] | None = None
    schema: dict[str, Any] | None = None
    schema_param: str | None = None
    parse_names: Sequence[str] | None = None
    call_reason: str = "tool_calls"


def plan_tools(call: ChatRequest) -> ToolUse:
    """Return how the answer to a chat uses tools.

    Raises:
        ApiError: the choice needs a tool that there is not, or contradicts another field.
    """
    schema = call.response_format.find_schema() if call.response_format is not None else None
    param = None if schema is None else "response_format"
    mode = call.tool_choice.mode if call.tool_choice is not None else "auto" if call.tools else "none"
    if mode == "none":
        return ToolUse(None, schema, param)
    if not call.tools:
        raise ApiError(400, f"tool_choice {mode!r} needs tools", param="tool_choice", code="invalid_value")
    functions = [tool.function for tool in call.tools]
    tools = [tool.model_dump(exclude_none=True) for tool in call.tools]
    names = [function.name for function in functions]
    if len({*names}) < len(names):
        raise ApiError(400, "two tools have one name", param="tools", code="invalid_value")
    if mode == "auto":
        if any(function.strict for function in functions):
            message = "strict holds for tool_choice 'required' or a named function; leave it out for 'auto'"
            raise ApiError(400, message, param="tools", code="invalid_value")
        return ToolUse(tools, schema, param, names)
    if schema is not None:
        raise ApiError(
            400, f"tool_choice {mode!r} leaves no text for it", param="response_format", code="invalid_value"
        )
    if mode == "required":
        return ToolUse(tools, build_call_schema(functions), "tools", names)
    named = call.tool_choice.name if call.tool_choice is not None else None
    if named not in names:
        raise ApiError(400, f"tool_choice names {named!r}, which is none of tools", param="tool_choice")
    return ToolUse(tools, build_call_schema([functions[names.index(named)]]), "tools", [named], "stop")

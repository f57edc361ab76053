"""Errors of the HTTP API, with bodies as OpenAI's API has them.

    {"error": {"message": "...", "type": "invalid_request_error", "param": "max_tokens", "code": null}}

Source: https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from interlace.core.errors import InterlaceError, LengthError, RequestError

_MAX_MESSAGE = 1000  # characters of a message that are sent


class ApiError(InterlaceError):
    """A request that gets an error response.

    Attributes:
        status: HTTP status.
        param: name of the request's field that is at fault, such as ``messages[0].content``; None for no field.
        code: short name of the error, None for none.
        headers: headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The response's body as JSON data."""
        types = {429: "rate_limit_error"}
        kind = types.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        message = str(self)[:_MAX_MESSAGE]
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}


def make_shutdown_error() -> ApiError:
    """Return the response to a request that a server which ends does not answer."""
    headers = {"connection": "close", "retry-after": "10"}
    return ApiError(503, "the server is shutting down", code="shutting_down", headers=headers)


def convert_validation_error(error: ValidationError) -> ApiError:
    """Return the response to a body that is no JSON, or has an unknown field or a value that a field does not take."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param, kind = format_location(first["loc"]), first["type"]
    if kind == "json_invalid":
        return ApiError(400, f"the body is no JSON: {first['msg'].removeprefix('Invalid JSON: ')}", code="invalid_json")
    if kind == "extra_forbidden":
        return ApiError(400, f"{param} is not supported; leave it out", param=param, code="unsupported_parameter")
    if kind == "missing":
        return ApiError(400, f"{param} is missing", param=param, code="missing_required_parameter")
    reason = first["msg"].replace("Input should", "must")
    return ApiError(400, f"{param or 'the body'}: {reason}", param=param or None, code="invalid_value")


def format_location(parts: Iterable[int | str]) -> str:
    """Return the path of a field: ``("messages", 0, "content")`` becomes ``messages[0].content``."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def make_value_error(reason: str) -> PydanticCustomError:
    """Return the error that a validator of a request's field raises."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason})


def convert_engine_error(error: InterlaceError, param: str | None = None) -> ApiError:
    """Return the response to a request that the engine refuses; the engine's error may name the field itself."""
    code = "context_length_exceeded" if isinstance(error, LengthError) else "invalid_value"
    return ApiError(400, str(error), param=error.param if isinstance(error, RequestError) else param, code=code)

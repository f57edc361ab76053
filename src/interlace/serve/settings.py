"""Settings of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServerSettings:
    """Name, limits and defaults of a server.

    Attributes:
        model_name: name of the model in requests and answers.
        api_key: key that requests must send as a bearer token; None for no key.
        max_waiting: texts that may wait besides those of a full batch; more are refused.
        max_body_bytes: bytes of a request's body.
        body_timeout_s: seconds until the body of a request has arrived.
        answer_timeout_s: seconds until an answer is complete.
        default_params: arguments of ``SamplingParams`` that hold where a request gives none.
        log_prompt: function that gets each prompt's text, or its ids as text; None to keep prompts out of logs.
    """

    model_name: str
    api_key: str | None = None
    max_waiting: int = 1024
    max_body_bytes: int = 8 << 20
    body_timeout_s: float = 30.0
    answer_timeout_s: float = 600.0
    default_params: Mapping[str, Any] = field(default_factory=dict)
    log_prompt: Callable[[str], None] | None = None

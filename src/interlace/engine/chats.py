"""Chats as prompts: rendered by the model's template, then encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from interlace.core.arguments import format_value
from interlace.core.errors import RequestError
from interlace.models.chat import ChatTemplate
from interlace.models.tokenizer import TextTokenizer


def render_chat(
    template: ChatTemplate | None,
    tokenizer: TextTokenizer | None,
    model_name: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> list[int]:
    """Return the token ids of a chat that awaits the model's answer.

    Raises:
        RequestError: the model has no tokenizer or no chat template, or there are no messages, or they are no JSON.
        ModelFileError: the template fails.
    """
    if template is None or tokenizer is None:
        raise RequestError(f"{model_name!r} has no chat template; send a prompt instead", param="messages")
    is_list = isinstance(messages, Sequence) and not isinstance(messages, str)
    if not is_list or not messages or not all(isinstance(message, Mapping) for message in messages):
        value = format_value(messages)
        raise RequestError(
            f"messages are {value}; give a list such as [{{'role': 'user', 'content': 'Hi'}}]", param="messages"
        )
    try:
        text = template.render(messages, tools)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"messages or tools are no JSON ({error}); give texts, numbers, lists and mappings"
        raise RequestError(message, param="messages") from None
    return tokenizer.encode(text, whole=True)

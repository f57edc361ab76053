"""Prompts as token ids: texts are encoded, chats rendered and grammars compiled in threads next to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from interlace.core.errors import InterlaceError
from interlace.engine import Engine, SamplingParams
from interlace.models.tokenizer import TextTokenizer
from interlace.serve.errors import ApiError, convert_engine_error
from interlace.serve.messages import Message, convert_messages
from interlace.serve.requests import Prompt

_THREADS = 4
T = TypeVar("T")


class PromptEncoder:
    """Encoder of the prompts of requests.

    Args:
        engine: engine whose tokenizer, chat template and compiler are used; all may be called from any thread.
        log_prompt: function that gets every prompt as text, or None.
    """

    def __init__(self, engine: Engine, log_prompt: Callable[[str], None] | None) -> None:
        self._engine = engine
        self._log_prompt = log_prompt
        self._pool = ThreadPoolExecutor(_THREADS, "encode")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def encode_prompts(self, prompts: Sequence[Prompt]) -> list[Sequence[int]]:
        """Return the ids of the prompts of a completion.

        Raises:
            ApiError: there is no tokenizer for a text, or it fails on it.
        """
        if self._log_prompt is not None:
            for prompt in prompts:
                self._log_prompt(prompt if isinstance(prompt, str) else str(prompt))
        if not any(isinstance(prompt, str) for prompt in prompts):
            return [prompt for prompt in prompts if not isinstance(prompt, str)]
        encode = self._find_tokenizer("prompt").encode
        return await self._call("prompt", lambda: [encode(p) if isinstance(p, str) else p for p in prompts])

    async def encode_chat(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None) -> Sequence[int]:
        """Return the ids of a chat's prompt.

        Raises:
            ApiError: there is no tokenizer or no chat template, or the template raises.
        """
        tokenizer = self._find_tokenizer("messages")
        template = self._engine.chat_template
        if tools and template is not None and "tools" not in template.text:
            raise ApiError(400, "the model's chat template has no place for tools; leave them out", param="tools")
        converted = convert_messages(messages)

        def encode() -> Sequence[int]:
            ids = self._engine.render_chat(converted, tools)
            if self._log_prompt is not None:
                self._log_prompt(tokenizer.decode(ids, skip_special_tokens=False))
            return ids

        return await self._call("messages", encode)

    async def compile_grammar(self, params: SamplingParams, param: str) -> None:
        """Have the engine compile the schema or expression of a request, which it then has at hand.

        Raises:
            ApiError: it is invalid or too complex; the field ``param`` is at fault.
        """
        if params.json_schema is None and params.regex is None:
            return
        try:
            await self._call(param, lambda: self._engine.compile_grammar(params))
        except ApiError as error:
            raise ApiError(error.status, str(error), param=param, code=error.code) from None

    def _find_tokenizer(self, param: str) -> TextTokenizer:
        if self._engine.tokenizer is None:
            raise ApiError(400, "this model has no tokenizer; send token ids to /v1/completions", param=param)
        return self._engine.tokenizer

    async def _call(self, param: str, function: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        except InterlaceError as error:
            raise convert_engine_error(error, param) from None

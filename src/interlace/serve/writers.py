"""Answers as JSON: whole, and as chunks of a stream of server-sent events.

A chunk costs little Python: what stays the same within a request is written once, and only texts go through ``json``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import time
from typing import Any

from interlace.engine import CompletionOutput
from interlace.serve.engine_thread import AnswerStream, News
from interlace.serve.logprobs import build_chat_logprobs, build_completion_logprobs
from interlace.serve.requests import ChatRequest, CompletionRequest, GenerationRequest
from interlace.serve.tool_calls import ToolCall, ToolCallParser

LAST_EVENT = "data: [DONE]\n\n"


class AnswerWriter(ABC):
    """Writer of the answer to one request.

    Args:
        call: the request.
        stream: news of the engine on it.

    Attributes:
        stream: the same.
    """

    _kind: str
    _chunk_kind: str
    _id_prefix: str

    def __init__(self, call: GenerationRequest, stream: AnswerStream) -> None:
        self._call = call
        self.stream = stream
        self._has_ids = call.return_token_ids
        self._header = {"id": f"{self._id_prefix}-{stream.id}", "created": int(time()), "model": call.model}
        head = json.dumps({**self._header, "object": self._chunk_kind})
        self._head = f'data: {head[:-1]}, "choices": [{{"index": '
        self._tail = '}], "usage": null}\n\n' if call.has_usage_chunk else "}]}\n\n"

    def write_chunks(self, news: Sequence[News]) -> bytes:
        """Return the events of news."""
        count = self._call.count
        return "".join(
            self._write_chunk(index * count + output.index, output)
            for index, each in news
            for output in each.outputs
        ).encode()  # fmt: skip

    def write_end(self) -> bytes:
        """Return the events after the last chunk."""
        if not self._call.has_usage_chunk:
            return LAST_EVENT.encode()
        usage = {**self._header, "object": self._chunk_kind, "choices": [], "usage": self._count_tokens()}
        return f"data: {json.dumps(usage)}\n\n{LAST_EVENT}".encode()

    def build_whole(self, news: Sequence[News]) -> dict[str, Any]:
        """Return the whole answer as JSON data, given all news."""
        joined: dict[int, list[CompletionOutput]] = {}
        for index, each in news:
            for output in each.outputs:
                joined.setdefault(index * self._call.count + output.index, []).append(output)
        choices = [self._build_choice(index, _join_outputs(joined[index])) for index in sorted(joined)]
        return {**self._header, "object": self._kind, "choices": choices, "usage": self._count_tokens()}

    @abstractmethod
    def _write_chunk(self, index: int, output: CompletionOutput) -> str:
        """Return the event of one output, empty if there is nothing to say yet."""

    @abstractmethod
    def _build_choice(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        """Return one of the choices of a whole answer."""

    def _format_chunk(self, index: int, middle: str, logprobs: Any, reason: str | None, ids: Sequence[int]) -> str:
        numbers = json.dumps(logprobs) if logprobs is not None else "null"
        end = f'"{reason}"' if reason is not None else "null"
        more = f', "token_ids": {[*ids]}' if self._has_ids else ""
        return f'{self._head}{index}, {middle}, "logprobs": {numbers}, "finish_reason": {end}{more}{self._tail}'

    def _list_ids(self, output: CompletionOutput) -> dict[str, Any]:
        return {"token_ids": [*output.token_ids]} if self._has_ids else {}

    def _count_tokens(self) -> dict[str, Any]:
        prompt = sum(map(len, self.stream.prompts))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.stream.generated_tokens,
            "total_tokens": prompt + self.stream.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self.stream.cached_tokens},
        }


class CompletionWriter(AnswerWriter):
    """Writer of answers to ``/v1/completions``."""

    _kind = _chunk_kind = "text_completion"
    _id_prefix = "cmpl"

    def __init__(self, call: CompletionRequest, stream: AnswerStream) -> None:
        super().__init__(call, stream)
        self._logprobs = call.logprobs
        self._offsets: dict[int, int] = {}  # characters of each choice so far

    def _write_chunk(self, index: int, output: CompletionOutput) -> str:
        text = f'"text": {json.dumps(output.text)}'
        return self._format_chunk(
            index, text, self._build_logprobs(index, output), output.finish_reason, output.token_ids
        )

    def _build_choice(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        logprobs = self._build_logprobs(index, output)
        choice = {"index": index, "text": output.text, "logprobs": logprobs, "finish_reason": output.finish_reason}
        return {**choice, **self._list_ids(output)}

    def _build_logprobs(self, index: int, output: CompletionOutput) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        found, self._offsets[index] = build_completion_logprobs(output, self._logprobs, self._offsets.get(index, 0))
        return found


class ChatWriter(AnswerWriter):
    """Writer of answers to ``/v1/chat/completions``.

    Args:
        parse_names: names of the functions whose calls are found in the text; None if none are looked for.
        call_reason: ``finish_reason`` of an answer that calls functions.
    """

    _kind, _chunk_kind = "chat.completion", "chat.completion.chunk"
    _id_prefix = "chatcmpl"

    def __init__(
        self, call: ChatRequest, stream: AnswerStream, parse_names: Sequence[str] | None, call_reason: str
    ) -> None:
        super().__init__(call, stream)
        self._logprobs = (call.top_logprobs or 0) if call.logprobs else None
        self._names = parse_names
        self._call_reason = call_reason
        self._parsers: dict[int, ToolCallParser] = {}
        self._call_counts: dict[int, int] = {}  # calls of each choice so far
        self._begun: set[int] = set()  # choices whose first chunk was written

    def _write_chunk(self, index: int, output: CompletionOutput) -> str:
        begin = "" if index in self._begun else self._write_begin(index)
        logprobs = self._build_logprobs(output)
        reason: str | None = output.finish_reason
        if self._names is None:
            delta = f'"delta": {{"content": {json.dumps(output.text)}}}'
            return begin + self._format_chunk(index, delta, logprobs, reason, output.token_ids)
        parser = self._parsers.setdefault(index, ToolCallParser(self._names))
        text, calls = parser.feed(output.text, is_last=reason is not None)
        if not (text or calls or logprobs or reason or self._has_ids):
            return begin
        delta = json.dumps(self._build_delta(index, text, calls))
        if self._call_counts.get(index) and reason == "stop":
            reason = self._call_reason
        return begin + self._format_chunk(index, f'"delta": {delta}', logprobs, reason, output.token_ids)

    def _write_begin(self, index: int) -> str:
        self._begun.add(index)
        return self._format_chunk(index, '"delta": {"role": "assistant", "content": ""}', None, None, ())

    def _build_delta(self, index: int, text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        first = self._call_counts.get(index, 0)
        self._call_counts[index] = first + len(calls)
        numbered = [{"index": first + number, **call.to_data()} for number, call in enumerate(calls)]
        return ({"content": text} if text else {}) | ({"tool_calls": numbered} if calls else {})

    def _build_choice(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        text, calls = output.text, list[ToolCall]()
        reason: str | None = output.finish_reason
        if self._names is not None:
            text, calls = ToolCallParser(self._names).feed(text, is_last=True)
        message: dict[str, Any] = {"role": "assistant", "content": None if calls and not text else text}
        if calls:
            message["tool_calls"] = [call.to_data() for call in calls]
            reason = self._call_reason if reason == "stop" else reason
        choice = {"index": index, "message": message, "logprobs": self._build_logprobs(output), "finish_reason": reason}
        return {**choice, **self._list_ids(output)}

    def _build_logprobs(self, output: CompletionOutput) -> dict[str, Any] | None:
        return None if self._logprobs is None else build_chat_logprobs(output, self._logprobs)


def write_error(body: Mapping[str, Any]) -> bytes:
    """Return the events that end a stream with an error."""
    return f"data: {json.dumps(body)}\n\n{LAST_EVENT}".encode()


def _join_outputs(outputs: Sequence[CompletionOutput]) -> CompletionOutput:
    """Return all outputs of a choice as one."""
    if len(outputs) == 1:
        return outputs[0]
    return replace(
        outputs[-1],
        text="".join(each.text for each in outputs),
        token_ids=[id for each in outputs for id in each.token_ids],
        logprobs=[found for each in outputs for found in each.logprobs or ()],
    )

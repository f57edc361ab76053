"""A deterministic engine without a model, for tests of the server: an answer repeats its prompt, id by id."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from interlace.core.errors import LengthError, ModelFileError, PromptError, RequestError
from interlace.engine import CompletionOutput, EngineStats, Logprob, RequestOutput, SamplingParams
from interlace.engine.limits import RequestLimits


class CharacterTokenizer:
    """Tokenizer whose ids are code points."""

    def encode(self, text: str, whole: bool = False) -> list[int]:
        return [*map(ord, text)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))


class ContentTemplate:
    """Chat template that writes the contents of messages, a line each."""

    text = "{{ tools }}"

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Any = None) -> str:
        return "\n".join(str(message["content"]) for message in messages)


@dataclass
class _Request:
    ids: Sequence[int]
    params: SamplingParams
    answer: Sequence[int]
    done: int = 0


@dataclass
class FakeEngine:
    """Engine whose answers are the ids of ``script``, or of the prompt, again and again.

    Attributes:
        gate: each step takes one permit; None for steps that run freely.
        script: texts of answers by the last message or the prompt.
        fault: error that the next step raises.
        rendered: messages and tools of every chat.
        params: parameters of every request that was accepted.
    """

    model_name: str = "fake"
    tokenizer: Any = field(default_factory=CharacterTokenizer)
    chat_template: Any = field(default_factory=ContentTemplate)
    max_model_len: int = 2048
    max_num_seqs: int = 4
    gate: threading.Semaphore | None = None
    script: Mapping[str, str] = field(default_factory=dict)
    fault: Exception | None = None
    rendered: list[tuple[Any, Any]] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    requests: dict[str, _Request] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    tokens: int = 0

    @property
    def limits(self) -> RequestLimits:
        return RequestLimits(0x110000, self.max_model_len, None, True)

    def build_launches(self, progress: Any = iter) -> None:
        assert [*progress(["c"])] == ["c"]

    def render_chat(self, messages: Sequence[Mapping[str, Any]], tools: Any = None) -> list[int]:
        self.rendered.append((messages, tools))
        if "raise" in str(messages[-1]["content"]):
            raise ModelFileError("the chat template fails: no such role")
        return [*map(ord, "\n".join(str(message["content"]) for message in messages))]

    def compile_grammar(self, params: SamplingParams) -> None:
        self.threads.add(threading.current_thread().name.partition("_")[0])
        if "bad" in str(params.json_schema) + str(params.regex):
            raise RequestError("json_schema is invalid", param="json_schema")

    def add_request(self, request_id: str, prompt: str | Sequence[int], params: SamplingParams) -> None:
        self.threads.add(threading.current_thread().name)
        assert not isinstance(prompt, str)
        if not prompt or max(prompt) >= 0x110000 or min(prompt) < 0:
            raise PromptError("the prompt has no tokens, or one out of the vocabulary")
        room = self.max_model_len - len(prompt)
        if room < (params.max_tokens or 1):
            raise LengthError(f"{len(prompt)} ids and {params.max_tokens} new ones are more than {self.max_model_len}")
        text = "".join(map(chr, prompt))
        found = next((answer for key, answer in self.script.items() if text.endswith(key)), None)
        answer = [*map(ord, found)] if found is not None else [*prompt]
        self.params.append(params)
        self.requests[request_id] = _Request(prompt, params, answer)

    def abort(self, request_id: str) -> None:
        if self.requests.pop(request_id, None) is not None:
            self.aborted.append(request_id)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def step(self) -> list[RequestOutput]:
        self.threads.add(threading.current_thread().name)
        if self.gate is not None and not self.gate.acquire(timeout=0.02):
            return []
        if self.fault is not None:
            raise self.fault
        news = []
        for name in [*self.requests][: self.max_num_seqs]:
            request = self.requests[name]
            id = request.answer[request.done % len(request.answer)]
            request.done += 1
            self.tokens += request.params.n
            limit = request.params.max_tokens or len(request.answer)
            stops = [request.params.stop] if isinstance(request.params.stop, str) else request.params.stop or []
            reason = "stop" if chr(id) in stops or id in (request.params.stop_token_ids or ()) else None
            text = "" if reason else chr(id)
            if reason is None and request.done == limit:
                reason = "length" if request.params.max_tokens else "stop"
            outputs = [
                CompletionOutput(index, text, [id], self._make_logprobs(id, request.params), reason)
                for index in range(request.params.n)
            ]
            news.append(RequestOutput(name, request.ids, len(request.ids) // 2, outputs, reason is not None))
            if reason is not None:
                del self.requests[name]
        return news

    def stats(self) -> EngineStats:
        running = min(len(self.requests), self.max_num_seqs)
        waiting = len(self.requests) - running
        return EngineStats(running, waiting, running / self.max_num_seqs, 7, self.tokens, 20, 10, 1)

    def _make_logprobs(self, id: int, params: SamplingParams) -> list[dict[int, Logprob] | None] | None:
        if params.logprobs is None:
            return None
        others = {id + k: Logprob(-0.5 - k, k + 1, chr(id + k)) for k in range(params.logprobs)}
        return [{id: Logprob(-0.5, 1, chr(id)), **others}]

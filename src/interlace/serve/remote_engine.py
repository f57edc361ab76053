"""An engine in another process, as the server sees it: what HTTP costs a token is not added to what a step costs.

    engine's process    step 1   step 2   step 3         one thread; another one compiles grammars
                          |        |      ^ requests
                          v outputs v     |
    server's process    engine thread, event loop, threads that encode prompts

Requests are checked here, by the engine's limits. Each step sends one message, also without outputs, so that the engine
thread is never longer than a step away from its commands.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from interlace.engine import CompletionOutput, EngineStats, RequestOutput, SamplingParams
from interlace.engine.chats import render_chat
from interlace.engine.limits import RequestLimits
from interlace.models.chat import ChatTemplate
from interlace.models.tokenizer import TextTokenizer

#: Kinds of messages to the engine's process.
ADD, ABORT, REPORT, LOG_PROMPT = "add", "abort", "report", "log prompt"


class EngineProcessError(RuntimeError):
    """The engine has failed, or its process has ended. No request is at fault, so this is no ``InterlaceError``."""

    def __init__(self, reason: str = "its process has ended") -> None:
        super().__init__(f"the engine has failed: {reason}")


class StepMessage(NamedTuple):
    """Message of a step. Outputs are plain tuples: pickling them costs a step less than dataclasses do.

    Attributes:
        outputs: request, cached tokens, new parts, whether it has finished, and error of each.
        stats: counters after the step.
        failure: why the engine failed, None while it works.
    """

    outputs: list[tuple[str, int, list[tuple[Any, ...]], bool, str | None]]
    stats: EngineStats | None
    failure: str | None = None


@dataclass(frozen=True)
class EngineFacts:
    """Attributes of an engine that its server needs; see ``Engine``."""

    model_name: str
    tokenizer: TextTokenizer | None
    chat_template: ChatTemplate | None
    max_num_seqs: int
    limits: RequestLimits


def pack_outputs(outputs: Sequence[RequestOutput]) -> list[tuple[str, int, list[tuple[Any, ...]], bool, str | None]]:
    """Return outputs as they are sent, without the prompts."""
    return [
        (
            each.request_id,
            each.num_cached_tokens,
            [(o.index, o.text, o.token_ids, o.logprobs, o.finish_reason, o.stop_reason) for o in each.outputs],
            each.finished,
            each.error,
        )
        for each in outputs
    ]


class RemoteEngine:
    """Engine in another process. As of ``Engine``, all methods are called from one thread, if nothing else is said.

    Args:
        facts: what the server knows of the engine.
        connection: connection to the engine's thread.
        grammars: connection to the thread that compiles grammars.
    """

    def __init__(self, facts: EngineFacts, connection: Connection, grammars: Connection) -> None:
        self.model_name, self.max_num_seqs = facts.model_name, facts.max_num_seqs
        self.tokenizer, self.chat_template = facts.tokenizer, facts.chat_template
        self.max_model_len = facts.limits.max_model_len
        self._limits, self._connection, self._grammars = facts.limits, connection, grammars
        self._send_lock, self._grammar_lock = threading.Lock(), threading.Lock()
        self._unfinished: set[str] = set()
        self._stats = EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0)

    @property
    def has_unfinished(self) -> bool:
        """True if ``step`` has anything left to wait for."""
        return bool(self._unfinished)

    def add_request(self, request_id: str, prompt: Sequence[int], params: SamplingParams) -> None:
        """Add a request, as ``Engine.add_request`` does."""
        tokens = self._limits.read_prompt(prompt)
        self._limits.count_new_tokens(tokens, params)
        self._send(ADD, request_id, tokens, params)
        self._unfinished.add(request_id)

    def abort(self, request_id: str) -> None:
        """End a request, whose outputs nobody waits for any more."""
        if request_id in self._unfinished:
            self._unfinished.discard(request_id)
            self._send(ABORT, request_id)

    def step(self) -> list[RequestOutput]:
        """Wait for the next step of the engine, and return what is new.

        Raises:
            EngineProcessError: the engine has failed, or its process has ended.
        """
        try:
            message: StepMessage = self._connection.recv()
        except (EOFError, OSError):
            raise EngineProcessError() from None
        if message.failure is not None or message.stats is None:
            raise EngineProcessError(str(message.failure))
        self._stats = message.stats
        outputs = [
            RequestOutput(request_id, [], cached, [CompletionOutput(*part) for part in parts], finished, error)
            for request_id, cached, parts, finished, error in message.outputs
        ]
        self._unfinished.difference_update(each.request_id for each in outputs if each.finished)
        return outputs

    def stats(self) -> EngineStats:
        """Return the counters of the engine after its last step."""
        return self._stats

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Return the token ids of a chat, from any thread; see ``Engine.render_chat``."""
        return render_chat(self.chat_template, self.tokenizer, self.model_name, messages, tools)

    def compile_grammar(self, params: SamplingParams) -> None:
        """Have the engine compile a schema or an expression, from any thread; see ``Engine.compile_grammar``."""
        try:
            with self._grammar_lock:
                self._grammars.send(params)
                error = self._grammars.recv()
        except (EOFError, OSError):
            raise EngineProcessError() from None
        if error is not None:
            raise error

    def report(self, line: str) -> None:
        """Have the engine's process report a fault of the server, from any thread."""
        with suppress(EngineProcessError):
            self._send(REPORT, line)

    def log_prompt(self, text: str) -> None:
        """Have the engine's process log a prompt, from any thread."""
        with suppress(EngineProcessError):
            self._send(LOG_PROMPT, text)

    def _send(self, *message: object) -> None:
        try:
            with self._send_lock:
                self._connection.send(message)
        except OSError:
            raise EngineProcessError() from None

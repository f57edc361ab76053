"""Requests and their sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

from interlace.engine.outputs import CompletionOutput, FinishReason
from interlace.engine.params import SamplingParams
from interlace.engine.structured import GrammarMatcher
from interlace.engine.text import SequenceText


@dataclass(eq=False, slots=True)
class EngineSequence:
    """One text of a request.

    Attributes:
        request: request that it belongs to.
        index: number of the text within the request.
        text: text of the generated tokens, None for an engine without a tokenizer.
        seed: seed of the random numbers.
        tokens: prompt and generated tokens that have reached the host.
        arrival: number of the sequence in the order of arrival.
        slot: slot of the decoder, None while the sequence waits or after it has ended.
        num_enqueued: generated tokens including those that have not reached the host.
        hashes: hashes of the first full blocks of the tokens.
        num_entered: number of blocks that are in the prefix cache.
        grammar: state of structured output, None if the text is free.
        is_finished: True after the last token.
    """

    request: EngineRequest
    index: int
    text: SequenceText | None
    seed: int
    tokens: list[int]
    arrival: int
    slot: int | None = None
    num_enqueued: int = 0
    hashes: list[bytes] = field(default_factory=list)
    num_entered: int = 0
    grammar: GrammarMatcher | None = None
    is_finished: bool = False

    @property
    def num_generated(self) -> int:
        """Number of generated tokens that have reached the host."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def can_end(self) -> bool:
        """True if the next token may end the text."""
        return self.num_enqueued >= self.request.params.min_tokens

    def append(self, token: int) -> CompletionOutput:
        """Add a generated token, and return what is new."""
        request = self.request
        self.tokens.append(token)
        output = CompletionOutput(self.index, token_ids=[token])
        count = len(self.tokens) - len(request.prompt)
        may_stop = count >= request.params.min_tokens
        if self.grammar is not None:
            self.grammar.consume(token)
            if self.grammar.error is not None:  # which leaves no token but those that end a text
                request.error = self.grammar.error
                self.finish(output, "error")
                return output
        if may_stop and token in request.stop_token_ids:
            self._stop_by_token(token, output)
            return output
        if self.text is not None:
            output.text, stop = self.text.push(token, may_stop)
            if stop is not None:
                self._end(output, "stop", stop)
                return output
        if self.grammar is not None and self.grammar.is_complete:
            self.finish(output, "stop")
            return output
        if count >= request.max_tokens:
            self.finish(output, "length")
        return output

    def _stop_by_token(self, token: int, output: CompletionOutput) -> None:
        params = self.request.params
        if params.include_stop_str_in_output and self.text is not None:
            output.text, _ = self.text.push(token, False)
        self.finish(output, "stop", token if token in (params.stop_token_ids or ()) else None)

    def finish(self, output: CompletionOutput, reason: FinishReason, stop: int | str | None = None) -> None:
        """End the sequence, and add the rest of its text to an output."""
        rest, string = ("", None) if self.text is None else self.text.finish()
        output.text += rest
        if reason == "length" and string is not None:
            reason, stop = "stop", string
        self._end(output, reason, stop)

    def _end(self, output: CompletionOutput, reason: FinishReason, stop: int | str | None) -> None:
        output.finish_reason, output.stop_reason = reason, stop
        self.is_finished = True


@dataclass(eq=False, slots=True)
class EngineRequest:
    """Request to an engine.

    Attributes:
        request_id: id that the caller chose.
        prompt: token ids.
        params: sampling parameters.
        stop_token_ids: token ids that end a text.
        max_tokens: maximum number of generated tokens of each text.
        sequences: texts of the request.
        num_cached_tokens: number of prompt tokens that were in the prefix cache.
        error: why the request failed, None if it did not.
    """

    request_id: str
    prompt: list[int]
    params: SamplingParams
    stop_token_ids: frozenset[int]
    max_tokens: int
    sequences: list[EngineSequence] = field(default_factory=list)
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def is_finished(self) -> bool:
        """True if all texts have ended."""
        return all(sequence.is_finished for sequence in self.sequences)

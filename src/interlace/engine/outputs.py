"""Results of an engine's steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True)
class Logprob:
    """Log probability of a token.

    Attributes:
        logprob: natural logarithm of the probability by the model's own logits, before penalties and temperature.
        rank: 1 for the most probable token.
        decoded_token: text of the token.
    """

    logprob: float
    rank: int
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """New part of a text, or the whole text in the results of ``LLM``.

    Attributes:
        index: number of the text, 0 to n - 1.
        text: new text, whole characters only.
        token_ids: new tokens, including the one that ends the text. Their text may come later than they do.
        logprobs: for each new token, log probabilities by token id; None unless requested.
        finish_reason: ``stop`` after a stop token or string, ``length`` at the maximum number of tokens, ``abort``,
            ``error``; None while the text goes on.
        stop_reason: stop string, or stop token id other than the model's own; None otherwise.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """New parts of a request's texts, or the whole texts in the results of ``LLM``.

    Attributes:
        request_id: id of the request.
        prompt_token_ids: tokens of the prompt.
        num_cached_tokens: number of prompt tokens whose keys and values were in the prefix cache.
        outputs: new part of each text that has one.
        finished: True if all texts have ended.
        error: why the request failed, None if it did not.
    """

    request_id: str
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    error: str | None = None


@dataclass(frozen=True)
class EngineStats:
    """Counters of an engine.

    Attributes:
        num_running: sequences that hold slots.
        num_waiting: sequences that wait for a slot or for blocks.
        block_usage: share of the KV-cache blocks, or of the slots, that sequences hold, 0 to 1.
        prompt_tokens_total, generation_tokens_total: tokens of all prompts and texts so far.
        prefix_cache_queries_total, prefix_cache_hits_total: prompt tokens looked up and found in the prefix cache.
        num_preemptions_total: number of times that a sequence gave up its blocks, to be computed again.
    """

    num_running: int = 0
    num_waiting: int = 0
    block_usage: float = 0.0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    prefix_cache_queries_total: int = 0
    prefix_cache_hits_total: int = 0
    num_preemptions_total: int = 0

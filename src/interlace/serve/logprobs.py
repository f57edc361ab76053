"""Log-probabilities of tokens, in the two forms of OpenAI's API.

For a token "a" of log-probability -0.1 and one alternative "b":

    chat          {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": [{"token": "b", ...}]}
    completions   "tokens": ["a"], "token_logprobs": [-0.1], "top_logprobs": [{"b": -1.2}], "text_offset": [0]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlace.engine import CompletionOutput, Logprob

_LEAST = -9999.0  # in place of minus infinity, which JSON lacks


def build_chat_logprobs(output: CompletionOutput, count: int) -> dict[str, Any]:
    """Return the log-probabilities of an output's tokens, each with the ``count`` likeliest."""
    content = []
    for id, found in _pair_tokens(output):
        top = [_describe(each) for each in _select_top(found, count)]
        content.append({**_describe(found[id]), "top_logprobs": top})
    return {"content": content, "refusal": None}


def build_completion_logprobs(output: CompletionOutput, count: int, offset: int) -> tuple[dict[str, Any], int]:
    """Return the log-probabilities of an output's tokens, and the offset of the text after them in characters."""
    tokens, values, tops, offsets = [], [], [], []
    for id, found in _pair_tokens(output):
        token = found[id].decoded_token
        tokens.append(token)
        values.append(max(found[id].logprob, _LEAST))
        tops.append({each.decoded_token: max(each.logprob, _LEAST) for each in _select_top(found, count)})
        offsets.append(offset)
        offset += len(token)
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}, offset


def _pair_tokens(output: CompletionOutput) -> list[tuple[int, Mapping[int, Logprob]]]:
    return [
        (id, found) for id, found in zip(output.token_ids, output.logprobs or (), strict=False) if found is not None
    ]


def _select_top(found: Mapping[int, Logprob], count: int) -> list[Logprob]:
    return sorted((each for each in found.values() if each.rank <= count), key=lambda each: each.rank)


def _describe(found: Logprob) -> dict[str, Any]:
    token = found.decoded_token
    return {"token": token, "logprob": max(found.logprob, _LEAST), "bytes": [*token.encode()]}

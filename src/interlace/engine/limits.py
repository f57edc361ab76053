"""Limits of an engine's requests: checks that need numbers only, so that other processes make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from interlace.core.arguments import check_type
from interlace.core.errors import LengthError, RequestError
from interlace.engine.params import SamplingParams
from interlace.nn.decoder.ids import check_vocabulary, to_id_list
from interlace.nn.decoder.pages import PageAllocator


@dataclass(frozen=True)
class RequestLimits:
    """Limits of the requests of an engine.

    Attributes:
        vocabulary: number of token ids.
        max_model_len: most tokens of a prompt and its text.
        num_blocks: number of KV-cache blocks; None without blocks.
        has_tokenizer: True if texts can be stopped at strings.
    """

    vocabulary: int
    max_model_len: int
    num_blocks: int | None
    has_tokenizer: bool

    def read_prompt(self, ids: Sequence[int]) -> list[int]:
        """Return the token ids of a prompt.

        Raises:
            PromptError: the prompt is empty, or has ids out of the vocabulary.
        """
        if isinstance(ids, list) and {*map(type, ids)} == {int} and 0 <= min(ids) <= max(ids) < self.vocabulary:
            return [*ids]  # the checks below take a microsecond for each id
        tokens = to_id_list(ids)
        check_vocabulary(tokens, self.vocabulary)
        return tokens

    def count_new_tokens(self, tokens: Sequence[int], params: SamplingParams) -> int:
        """Return the most tokens of a text of a prompt.

        Raises:
            LengthError: the prompt leaves no room for a token, or with its text takes more blocks than there are.
            RequestError: a parameter is not supported.
            ArgumentError: ``params`` is no ``SamplingParams``.
        """
        check_type(params, SamplingParams, "Engine.add_request", "params", "SamplingParams(max_tokens=64)")
        room = self.max_model_len - len(tokens)
        if room < 1:
            raise LengthError(
                f"the prompt has {len(tokens)} tokens, and max_model_len is {self.max_model_len}; give at most "
                f"{self.max_model_len - 1}"
            )
        max_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
        blocks = PageAllocator.count_pages(len(tokens) + max_tokens - 1)
        if self.num_blocks is not None and blocks > self.num_blocks:
            raise LengthError(
                f"the prompt has {len(tokens)} tokens, and with {max_tokens} new ones it takes {blocks} blocks of "
                f"{self.num_blocks}; shorten either, or give the engine more blocks"
            )
        if params.stop_strings and not self.has_tokenizer:
            raise RequestError("stop needs a tokenizer, and the engine has none; use stop_token_ids", param="stop")
        bias = [id for id in params.logit_bias or {} if id >= self.vocabulary]
        if bias:
            raise RequestError(
                f"logit_bias names token {bias[0]}; the vocabulary has ids 0 to {self.vocabulary - 1}",
                param="logit_bias",
            )
        return max_tokens

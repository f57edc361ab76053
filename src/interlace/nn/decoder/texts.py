"""Texts of prompts, by a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlace.nn.decoder.generation import Steps, TextStream, run
from interlace.nn.decoder.ids import Prompts
from interlace.nn.decoder.padding import read_prompts
from interlace.nn.decoder.sampling import Sampling


class Texts:
    """Methods of a decoder that take whole prompts."""

    def generate(
        self: Steps,
        ids: Prompts,
        max_new_tokens: int,
        *,
        attention_mask: Any = None,
        stop: Sequence[int] | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> list[int] | list[list[int]]:
        """Return what follows a prompt: a list of ids, or for a list of prompts a list of such; see ``stream``."""
        prompts, single = read_prompts(ids, attention_mask, self.shape.vocabulary, self.padding)
        texts: list[list[int]] = [[] for _ in prompts]
        sampling, ends = Sampling(temperature, top_k, top_p, seed), self.stop if stop is None else stop
        for piece in run(self, prompts, max_new_tokens, ends, sampling, "Decoder.generate"):
            texts[piece.sequence].append(piece.token)
        return texts[0] if single else texts

    def stream(
        self: Steps,
        ids: Prompts,
        max_new_tokens: int,
        *,
        attention_mask: Any = None,
        stop: Sequence[int] | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> TextStream:
        """Return the same, token by token as they come, each with the number of its prompt.

        Prompts beyond the slots or the pages wait until a sequence has ended. Every prompt's tokens are those that it
        would have alone. From its first token to its end the decoder does nothing else, in any thread; an iterator that
        is closed or dropped frees its slots.

        Args:
            ids: a prompt, as a list or a tensor of ids, or a list of prompts, or what a tokenizer of ``transformers``
                returns: a mapping with ``input_ids``, and ``attention_mask`` if prompts are padded.
            max_new_tokens: for each prompt.
            attention_mask: 1 for tokens and 0 for pads, in the shape of the ids; pads are left out, wherever they are.
            stop: ids that end a sequence, and that are not given; by default the decoder's.
            temperature, top_k, top_p, seed: see ``Sampling``.

        Raises:
            PromptError, ArgumentError, SamplingError: arguments that mean nothing, or a tensor of prompts that look
                padded, without a mask; before anything runs.
            LengthError: a prompt and what may follow it are longer than the capacity, or take more pages than there
                are; before anything runs.
            BusyError: another call or stream is under way.
            SlotError: sequences that joined hold slots.
        """
        prompts, _ = read_prompts(ids, attention_mask, self.shape.vocabulary, self.padding)
        sampling, ends = Sampling(temperature, top_k, top_p, seed), self.stop if stop is None else stop
        return run(self, prompts, max_new_tokens, ends, sampling, "Decoder.stream")

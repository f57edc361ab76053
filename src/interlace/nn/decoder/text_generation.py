"""Text generation with a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interlace.nn.decoder.generation import DecoderProtocol, TokenStream, start_stream
from interlace.nn.decoder.ids import Prompts
from interlace.nn.decoder.padding import read_prompts
from interlace.nn.decoder.sampling import SlotSampling


class GenerationMixin:
    """Generation methods of a decoder, which take whole prompts."""

    def generate(
        self: DecoderProtocol,
        ids: Prompts,
        max_new_tokens: int,
        *,
        attention_mask: Any = None,
        stop_token_ids: Sequence[int] | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        chunked_prefill_size: int | None = None,
    ) -> list[int] | list[list[int]]:
        """Return the generated ids of a prompt, or a list of ids for each of several prompts; see ``stream``."""
        prompts, single = read_prompts(ids, attention_mask, self.shape.vocabulary, self.padding)
        texts: list[list[int]] = [[] for _ in prompts]
        sampling, size = SlotSampling(temperature, top_k, top_p, seed), chunked_prefill_size
        ends = self.stop_token_ids if stop_token_ids is None else stop_token_ids
        for piece in start_stream(self, prompts, max_new_tokens, ends, sampling, size, "Decoder.generate"):
            texts[piece.sequence].append(piece.token)
        return texts[0] if single else texts

    def stream(
        self: DecoderProtocol,
        ids: Prompts,
        max_new_tokens: int,
        *,
        attention_mask: Any = None,
        stop_token_ids: Sequence[int] | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        chunked_prefill_size: int | None = None,
    ) -> TokenStream:
        """Return an iterator over the generated tokens, each with the index of its prompt.

        Prompts that exceed the slots or pages wait until a sequence has ended. Each prompt gets the same tokens as it
        would alone, on a GPU up to rounding where chunks differ. From the first token of the stream to its end, the
        decoder refuses all other calls, in any thread.
        A stream that is closed or dropped frees its slots.

        Args:
            ids: prompt, as a list or a tensor of ids; list of prompts; or output of a ``transformers`` tokenizer: a
                mapping with ``input_ids``, and ``attention_mask`` if prompts are padded.
            max_new_tokens: maximum number of new tokens for each prompt.
            attention_mask: 1 for tokens and 0 for pads, in the shape of the ids; pads are removed at any position.
            stop_token_ids: token ids that end a sequence and are not returned; by default the decoder's.
            temperature, top_k, top_p, seed: see ``SlotSampling``.
            chunked_prefill_size: most tokens of prompts that a step reads while other texts go on; -1 to read each
                prompt whole, during which they wait. By default as ``read_in_chunks`` says, else automatic: chunks
                where launches run the steps of a GPU, whole prompts elsewhere.

        Raises:
            PromptError, ArgumentError, SamplingError: invalid arguments, or a tensor of prompts that look padded,
                without a mask; raised before anything runs.
            LengthError: a prompt and its new tokens may exceed the capacity or the total number of pages; raised
                before anything runs.
            BusyError: another call or stream is in progress.
            SlotError: sequences added by ``add`` hold slots.
        """
        prompts, _ = read_prompts(ids, attention_mask, self.shape.vocabulary, self.padding)
        sampling, size = SlotSampling(temperature, top_k, top_p, seed), chunked_prefill_size
        ends = self.stop_token_ids if stop_token_ids is None else stop_token_ids
        return start_stream(self, prompts, max_new_tokens, ends, sampling, size, "Decoder.stream")

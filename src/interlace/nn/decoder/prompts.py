"""How a decoder reads prompts: whole when they are added, or in chunks by its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from interlace.models.llama import LlamaShape
from interlace.nn.decoder.cache import KVCache, check_positive
from interlace.nn.decoder.chunks import ChunkLaunches, PromptQueue
from interlace.nn.decoder.exclusive_lock import ExclusiveLock
from interlace.nn.decoder.ids import Prompt
from interlace.nn.decoder.launch import StepLaunch, build_step_launch
from interlace.nn.decoder.library import LibraryReader
from interlace.nn.decoder.padding import Padding, read_prompt
from interlace.nn.decoder.pages import PageAllocator
from interlace.nn.decoder.sampling import SamplingState
from interlace.nn.decoder.slots import Slots


class PromptMixin:
    """Methods of a decoder that read prompts, and that build the launches of steps."""

    shape: LlamaShape
    batch: int
    max_seq_len: int
    num_blocks: int
    device: torch.device
    cache: KVCache
    logits: torch.Tensor
    next: torch.Tensor
    padding: Padding
    lock: ExclusiveLock
    _weights: Mapping[str, torch.Tensor]
    _rope: torch.Tensor
    _tokens: torch.Tensor
    _pages: PageAllocator | None
    _slots: Slots
    _sampling: SamplingState
    _is_sampling: bool
    _launch: StepLaunch | str
    _library: LibraryReader
    _prompts: PromptQueue
    _chunks: ChunkLaunches

    @torch.inference_mode()
    def prefill(self, ids: Prompt, slot: int, *, attention_mask: Any = None) -> torch.Tensor:
        """Append tokens to the sequence in a slot; return the logits (vocabulary,) of the last token.

        Raises:
            PromptError, BusyError: see ``add``.
            SlotError: the slot has no sequence; see ``add``.
            LengthError: the sequence would exceed the capacity.
            PageError: the tokens need more pages than are free.
        """
        tokens = read_prompt(ids, attention_mask, self.shape.vocabulary, self.padding)
        with self.lock.acquire("Decoder.prefill"):
            self._prompts.check_read(slot)
            length = self._slots.get_length(slot)
            self._slots.check_room(slot, length, len(tokens))
            self._slots.grow({slot: length + len(tokens)})
            return self._prefill_slot(tokens, slot, length)

    def _prefill_slot(self, tokens: list[int], slot: int, length: int) -> torch.Tensor:
        self._read_tokens(tokens, slot, length)
        self._slots.activate(slot, length + len(tokens))
        return self.logits[slot]

    def _read_tokens(self, tokens: list[int], slot: int, length: int) -> None:
        """Read tokens after the first ``length`` of a slot with PyTorch's own ops."""
        self._library.read(tokens, slot, length)
        if self._sampling.is_random(slot):
            slots, last = slice(slot, slot + 1), torch.full((1,), length + len(tokens) - 1, device=self.device)
            self.next[slots] = self._sampling.sample(self.logits[slots], last, slots)

    def _build_launch(self, chunk: int = 0, rows: Mapping[str, torch.Tensor] | None = None) -> StepLaunch | str:
        tensors = {"tokens": self._tokens, "position": self._slots.position, "rope": self._rope}
        tensors |= {"logits": self.logits, "next": self.next, **self._sampling.tensors}
        tensors |= {**self.cache.tensors, **self._weights, **(rows or {})}
        pages = None if self._pages is None else self.num_blocks
        advance = self._slots.advance if rows is None else torch.zeros_like(rows["position"])
        return build_step_launch(
            self.shape, self.batch, self.max_seq_len, tensors, advance, self._is_sampling, pages, chunk
        )

    def read_in_chunks(self, chunk: int | None) -> None:
        """Let steps read the prompts that are added from now on, while other sequences decode.

        ``add`` then only claims a slot and its pages. Each step reads at most ``chunk`` tokens of all prompts together;
        ``unread`` says what is left. ``logits`` and ``next`` of a slot mean nothing until its prompt is read.

        Args:
            chunk: most tokens of prompts that a step reads; None to read a prompt whole when it is added. Launches take
                fewer where tokens and slots then fill whole tiles.

        Raises:
            ArgumentError: the number of tokens is not positive.
            BusyError: another call or stream is in progress.
            SlotError: prompts of an earlier number of tokens are not read yet.
        """
        tokens = 0 if chunk is None else check_positive(chunk, "chunk")
        with self.lock.acquire("Decoder.read_in_chunks"):
            for slot in self._prompts.unread:
                self._prompts.check_read(slot)
            self._prompts.chunk = tokens
            self._build_chunks()
            if tokens and isinstance(self._launch, StepLaunch):
                self._prompts.chunk = min(tokens, max(ChunkLaunches.select_chunks(tokens, self.batch)))

    @property
    def unread(self) -> Mapping[int, int]:
        """Tokens of prompts that are left to read, by slot; empty unless steps read prompts in chunks."""
        return self._prompts.unread

    def _build_chunks(self) -> None:
        """Build launches of steps that read prompts."""
        chunk, launch = self._prompts.chunk, self._launch
        if not chunk or not isinstance(launch, StepLaunch):
            self._chunks = ChunkLaunches()
            return
        with torch.inference_mode(self.logits.is_inference()):  # same mode as when the decoder was built
            self._chunks.build(chunk, self.batch, self.device, self._build_launch, launch.step_us, self._time_prefill)

    @torch.inference_mode()
    def _time_prefill(self, tokens: int) -> float | None:
        """Return the microseconds in which PyTorch reads so many tokens; None without a GPU or in use."""
        if self.device.type != "cuda" or self._slots.active_slots or tokens > self.max_seq_len:
            return None
        return self._library.measure_us([0] * tokens, 0, (self.max_seq_len - tokens) // 2)

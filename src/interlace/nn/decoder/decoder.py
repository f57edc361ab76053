"""Decoder for language models: a KV cache with slots, and decode steps over all active sequences at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from interlace.core.arguments import check_type
from interlace.core.errors import ShapeError
from interlace.models.llama import PAGE_TOKENS, LlamaShape
from interlace.models.notices import warn_missing
from interlace.models.pretrained import PretrainedModel, load_model_quietly
from interlace.nn.decoder import step as plain
from interlace.nn.decoder.batches import BatchLaunches
from interlace.nn.decoder.cache import (
    KVCache,
    check_memory,
    count_cache_bytes,
    count_cache_positions,
    resolve_max_seq_len,
)
from interlace.nn.decoder.exclusive_lock import ExclusiveLock
from interlace.nn.decoder.family import ModelParts, find_parts
from interlace.nn.decoder.files import Progress, load_weights, select_device
from interlace.nn.decoder.ids import Prompt, check_stop_ids, make_step_ids
from interlace.nn.decoder.launch import StepLaunch, describe_launch
from interlace.nn.decoder.library import LibraryReader
from interlace.nn.decoder.mirror import MirroredTensors
from interlace.nn.decoder.padding import Padding, read_prompt
from interlace.nn.decoder.pages import PageAllocator, PagedKVCache
from interlace.nn.decoder.past_key_values import count_positions, extract_pairs, fill_slot
from interlace.nn.decoder.prompt_queue import PromptQueue
from interlace.nn.decoder.prompts import PromptMixin
from interlace.nn.decoder.sampling import GREEDY, SamplingState, SlotSampling
from interlace.nn.decoder.slot_cache import SlotCache
from interlace.nn.decoder.slots import Slots
from interlace.nn.decoder.step_result import StepReport, StepResult
from interlace.nn.decoder.text_generation import GenerationMixin
from interlace.nn.decoder.weights import build_rope_table, check_weights, count_streamed_bytes


class Decoder(PromptMixin, GenerationMixin):
    """Model of the Llama family with a static KV cache, built by one of the ``from_`` methods.

    Sequences are added and removed between steps: ``add`` claims a slot and prefills a prompt, ``step`` decodes one
    token of every sequence, and ``abort`` frees the slot. ``generate`` and ``stream`` do all of this for a list of
    prompts.

    Attributes:
        shape: dimensions of the model.
        batch: number of slots.
        max_seq_len: KV-cache capacity of each sequence, in tokens.
        num_blocks: number of blocks of 64 tokens that all slots share; 0 if each slot has its own memory.
        cache: KV cache of all layers.
        logits: (batch, vocabulary), logits of the last token of each slot.
        next: (batch,) int32, next token of each slot: greedy or sampled, as passed to ``add``.
        stop_token_ids: token ids that end a sequence.
        window: attention window in tokens, None if unlimited; the capacity never exceeds it.
        padding: token ids that identify padding in prompts.
        lock: lock that admits one user at a time.
    """

    def __init__(
        self,
        shape: LlamaShape,
        weights: Mapping[str, torch.Tensor],
        rope: torch.Tensor,
        batch: int,
        stop_token_ids: tuple[int, ...],
        num_blocks: int | None,
        window: int | None,
    ) -> None:
        self.shape, self.batch, self.max_seq_len = shape, batch, len(rope)
        self.stop_token_ids, self.window = stop_token_ids, window
        self.padding, self.lock = Padding(stop_token_ids=stop_token_ids), ExclusiveLock()
        self._weights = check_weights(shape, weights)
        self.device, self.dtype = self._weights["embed"].device, self._weights["embed"].dtype
        positions = count_cache_positions(batch, self.max_seq_len, num_blocks)
        slots = batch * (shape.vocabulary * self.dtype.itemsize + 4 * PageAllocator.count_pages(self.max_seq_len))
        check_memory("caches", count_cache_bytes(shape, positions, self.dtype) + slots, self.device)
        self._rope = rope.to(self.device, torch.float32).contiguous()
        self.num_blocks = num_blocks or 0
        fields = {**Slots.list_fields(batch), **SamplingState.list_fields(batch)}
        fields |= {} if num_blocks is None else PageAllocator.list_fields(batch, self.max_seq_len)
        mirror = MirroredTensors(fields, self.device)
        self._pages = None if num_blocks is None else PageAllocator(num_blocks, mirror)
        if self._pages is None:
            self.cache = KVCache.make(shape, batch, self.max_seq_len, self.dtype, self.device)
        else:
            self.cache = PagedKVCache.allocate(shape, self._pages, self.dtype)
        self.logits = torch.zeros(batch, shape.vocabulary, dtype=self.dtype, device=self.device)
        self.next, self._tokens = (torch.zeros(batch, dtype=torch.int32, device=self.device) for _ in range(2))
        self._slots = Slots(self.max_seq_len, mirror, self._pages, window)
        self._sampling = SamplingState(mirror)
        self._library = LibraryReader(shape, self._weights, self._rope, self.cache, self.logits, self.next)
        self._prompts = PromptQueue()
        self._launch = self._build_launch()
        self._batches = BatchLaunches(batch, self._launch, lambda slots: self._build_launch(slots=slots))
        self._build_reader()

    @classmethod
    def from_model(
        cls, model: nn.Module, *, batch: int = 1, max_seq_len: int | None = None, num_blocks: int | None = None
    ) -> Decoder:
        """Build a decoder on the weights of a ``transformers`` causal model.

        Supported are Llama, Mistral, Qwen 2 and 3, and models of the same type. Only non-contiguous weights are copied.
        Move or cast the model before this call, not after it.

        Args:
            batch: number of concurrent sequences.
            max_seq_len: KV-cache capacity of each sequence in tokens; by default the model's maximum length, limited to
                ``cache.DEFAULT_MAX_SEQ_LEN``.
            num_blocks: number of 64-token pages that all sequences share; by default each sequence has memory for the
                capacity.

        Raises:
            ArgumentError: the batch, capacity or number of pages is not a positive number.
            UnsupportedModelError: the model is of another family, or has adapters, quantised layers, hooks, biases
                that the family lacks, a window shorter than the capacity, or RoPE that depends on the length; the
                message names the cause.
            GraphError, ShapeError, DTypeError: the weights are inconsistent or have no data.
            DecodeError: the caches do not fit in memory.
        """
        parts = find_parts(model)
        max_seq_len = resolve_max_seq_len(max_seq_len, parts.max_positions, parts.window)
        warn_missing(parts.notices, stacklevel=1)
        padding = Padding.from_model(model, parts.stop_token_ids)
        return cls._build(parts, parts.weights, batch, max_seq_len, num_blocks, padding)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path | PretrainedModel,
        *,
        batch: int = 1,
        max_seq_len: int | None = None,
        num_blocks: int | None = None,
        device: str | torch.device | None = None,
        progress: Progress = iter,
    ) -> Decoder:
        """Build a decoder on the weights of a GGUF file, or of a folder with config.json and safetensors files.

        Weights are converted to bf16 on a GPU and to fp32 on a CPU. A ``MissingSettingWarning`` names the settings
        that the model lacks.

        Args:
            model: file or folder, or the result of ``models.pretrained.load_model`` for it.
            batch, max_seq_len, num_blocks: see ``from_model``.
            device: device of the weights; by default the current GPU, if there is one.
            progress: iterator over the names of the weights, which may display the progress.

        Raises:
            ArgumentError: the batch, capacity or number of pages is not a positive number.
            ModelFileError: the model is missing, damaged or lacks weights.
            UnsupportedModelError: the model is not of the Llama family, or has a feature that a step would compute
                incorrectly.
            NoDeviceError: the device does not exist on this machine.
            DecodeError: the model does not fit in memory.
        """
        check_type(model, (str, Path, PretrainedModel), "Decoder.from_pretrained", "model", "'FOLDER_OR_GGUF'")
        trained = model if isinstance(model, PretrainedModel) else load_model_quietly(model)
        max_seq_len = resolve_max_seq_len(max_seq_len, trained.max_positions, trained.window)
        positions = count_cache_positions(batch, max_seq_len, num_blocks)
        weights = load_weights(trained, select_device(device), positions, progress)
        warn_missing(() if trained is model else trained.notices, stacklevel=1)
        return cls._build(trained, weights, batch, max_seq_len, num_blocks, Padding.from_pretrained(trained))

    @classmethod
    def _build(
        cls,
        model: ModelParts | PretrainedModel,
        weights: Any,
        batch: int,
        max_seq_len: int,
        num_blocks: int | None,
        padding: Padding,
    ) -> Decoder:
        rope = build_rope_table(torch.as_tensor(model.inv_freq), max_seq_len, model.scaling)
        stop, window = model.stop_token_ids, model.window
        decoder = cls.from_weights(
            model.shape, weights, rope, batch=batch, stop_token_ids=stop, num_blocks=num_blocks, window=window
        )
        decoder.padding = padding
        return decoder

    @classmethod
    def from_weights(
        cls,
        shape: LlamaShape,
        weights: Mapping[str, torch.Tensor],
        rope: torch.Tensor,
        *,
        batch: int = 1,
        stop_token_ids: Sequence[int] = (),
        num_blocks: int | None = None,
        window: int | None = None,
    ) -> Decoder:
        """Build a decoder on weights that are named as in ``interlace.models.weights.list_weights``.

        Args:
            rope: (capacity, head_dim), table built by ``build_rope_table``.
            batch: number of concurrent sequences.
            stop_token_ids: token ids that end a sequence.
            num_blocks: see ``from_model``.
            window: attention window in tokens, None if unlimited.

        Raises:
            ArgumentError: the batch or number of pages is not positive, or ``stop_token_ids`` does not hold token ids.
            UnsupportedModelError: the capacity exceeds the window.
            GraphError, ShapeError, DTypeError: the weights do not match the shape or each other, or have no data.
            DecodeError: the caches do not fit in memory.
        """
        if rope.ndim != 2 or not len(rope) or rope.shape[1] != shape.head_dim:
            raise ShapeError(f"rope has shape {tuple(rope.shape)}; give (capacity, {shape.head_dim})")
        count_cache_positions(batch, resolve_max_seq_len(len(rope), len(rope), window), num_blocks)
        stop = check_stop_ids(stop_token_ids, "Decoder")
        return cls(shape, weights, rope, batch, stop, num_blocks, window)

    @property
    def active_slots(self) -> tuple[int, ...]:
        """Active slots, including those that a ``SlotCache`` holds."""
        return self._slots.active_slots

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of cached tokens of each slot; 0 for a free slot."""
        return self._slots.lengths

    def add(
        self, ids: Prompt, past_key_values: Any = None, sampling: SlotSampling = GREEDY, *, attention_mask: Any = None
    ) -> int:
        """Add a sequence: prefill its prompt into a free slot, and return the slot.

        Args:
            past_key_values: KV cache of the first ids, which are not prefilled again. Either a ``SlotCache`` made by
                ``kv_cache``, which has a slot already, or ``past_key_values`` as a ``transformers`` model
                returns them (one sequence without padding), which are copied. The last id is prefilled in any case.
            sampling: sampling parameters of the sequence.
            attention_mask: see ``stream``.

        Raises:
            PromptError: the prompt is empty, has ids out of the vocabulary, or has padding without a mask.
            BusyError: another call or stream is in progress.
            SlotError: no slot is free, or the past has ended or belongs to another decoder.
            LengthError: the prompt is longer than the capacity.
            PageError: the prompt needs more pages than are free.
            GraphError, ShapeError, DTypeError: the past is not a KV cache, or does not match this model.
            ArgumentError: ``sampling`` is not a ``SlotSampling``.
        """
        check_type(sampling, SlotSampling, "Decoder.add", "sampling", "SlotSampling(temperature=0.8)")
        tokens = read_prompt(ids, attention_mask, self.shape.vocabulary, self.padding, past_key_values)
        with self.lock.acquire("Decoder.add"):
            return self._add(tokens, past_key_values, sampling)

    @torch.inference_mode()
    def _add(self, tokens: list[int], past_key_values: Any, sampling: SlotSampling, pages: Sequence[int] = ()) -> int:
        self._slots.check_room(None, 0, len(tokens))
        pairs, own = None, isinstance(past_key_values, SlotCache)
        if isinstance(past_key_values, SlotCache):
            slot, length = past_key_values.slot, past_key_values.count_cached(len(tokens), self._slots)
        else:
            slot, pairs = self._slots.find_free(), None if past_key_values is None else extract_pairs(past_key_values)
            length = len(pages) * PAGE_TOKENS
            length = length if pairs is None else min(count_positions(pairs, self.cache), len(tokens) - 1)
        self._slots.grow({slot: len(tokens)}, {slot: pages})
        try:
            if pairs is not None:
                self._slots.upload()
                fill_slot(self.cache, slot, pairs, length)
            self._sampling.set(slot, sampling)
            if self._prompts.limits.decoding:
                self._slots.assign_reader(self._prompts, slot)
                self._slots.set(slot, length)
                self._prompts.add(slot, tokens, length)
            else:
                self._read_whole(tokens, slot, length)
        except BaseException:
            if not own:
                self._slots.clear(slot)
            raise
        return slot

    def abort(self, slot: int) -> None:
        """Remove the sequence or the ``SlotCache`` in a slot, and free the slot.

        Raises:
            BusyError: another call or stream is in progress.
            SlotError: the slot is not active.
        """
        with self.lock.acquire("Decoder.abort"):
            self._abort(slot)

    @torch.inference_mode()
    def _abort(self, slot: int) -> None:
        self._slots.clear(self._slots.check_active(slot))
        self._prompts.drop(slot)
        self._sampling.set(slot, GREEDY)

    def kv_cache(self, slot: int | None = None) -> SlotCache:
        """Return a slot's KV cache that a ``transformers`` model can fill: pass it as ``past_key_values``.

        The model writes keys and values directly into the memory that steps read. ``add(ids, kv_cache)`` then starts
        the sequence in that slot. Until then, steps skip the slot. Run steps between the model's forward passes, not
        during one: a step would overwrite what the first layers wrote.

        Args:
            slot: slot of a sequence to pause, so that a model can append tokens to it; by default a free slot.

        Raises:
            BusyError: another call or stream is in progress.
            SlotError: no slot is free, or the slot has no sequence.
        """
        with self.lock.acquire("Decoder.kv_cache"):
            if slot is not None:
                self._prompts.check_read(slot)
                self._slots.get_length(slot)
            return SlotCache(self.cache, self._slots, self._slots.find_free() if slot is None else slot)

    def step(self, tokens: Sequence[int] | torch.Tensor | None = None) -> StepResult:
        """Append one token to every sequence and compute the logits of the next token.

        The step copies nothing to the host and does not wait for the device.

        Args:
            tokens: (batch,), token of each slot, by default ``next``. Entries of free slots are ignored. Ids in a GPU
                tensor are not checked, but clamped to the vocabulary.

        Raises:
            BusyError: another call or stream is in progress.
            SlotError: no slot has a sequence.
            LengthError: a sequence has reached the capacity.
            PageError: the sequences need more new pages than are free.
            PromptError: an id is out of the vocabulary, or the number of ids differs from the number of slots.
        """
        with self.lock.acquire("Decoder.step"):
            return self._step(tokens)

    @torch.inference_mode()
    def _step(self, tokens: Sequence[int] | torch.Tensor | None = None) -> StepResult:
        taken, lengths = self._slots.stepped_slots, self._slots.lengths
        if not taken and not self._prompts.unread:
            self._slots.get_length(0)  # raises
        if not taken:
            tokens = None  # only prompts are read
        if tokens is not None:
            tokens = make_step_ids(tokens, taken, self.batch, self.shape.vocabulary, self.device)
        self._slots.grow_next()
        reading = self._select_reading(is_decoding=bool(taken))
        if taken:
            self._tokens.copy_(self.next if tokens is None else tokens)
        if reading is not None and reading.chunk is not None:
            self._run_reading(reading, {slot: lengths[slot] for slot in taken})
            if taken:
                self._slots.position += self._slots.advance
        else:
            self._decode(taken, lengths)
        self._slots.advance_lengths()
        if reading is not None:
            if reading.chunk is None:
                self._run_reading(reading)
            for segment in reading.segments:
                length, is_read = self._prompts.advance(segment)
                (self._slots.activate if is_read else self._slots.set)(segment.sequence, length)
        return StepResult(self.logits, self.next)

    def _decode(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Decode a token of the sequence in each of these slots, in ascending order; of no slot, do nothing."""
        if not slots:
            return
        self._slots.redirect_writes()
        if isinstance(self._launch, StepLaunch):
            self._batches.find(slots[-1] + 1).run()
        else:
            self._run_plain(max(lengths[slot] for slot in slots) + 1)

    def _run_plain(self, reach: int) -> None:
        """Run the step with PyTorch's own ops."""
        position = self._slots.position.long()
        logits = plain.decode(self.shape, self._weights, self._rope, self.cache, self._tokens.long(), position, reach)
        self.logits.copy_(logits)
        self.next.copy_(self._sampling.sample(self.logits, position, slice(None)))
        self._slots.position += self._slots.advance

    def count_pages(self, positions: int) -> int:
        """Return the number of pages that a sequence of this many tokens needs; 0 if each slot has its own memory."""
        return 0 if self._pages is None else self._pages.count_pages(positions)

    def explain(self) -> StepReport:
        """Return what runs the steps, why, and the minimum number of bytes that a step reads."""
        moved = count_streamed_bytes(self.shape, self._weights), self.cache.position_bytes * sum(self.lengths)
        name, why = describe_launch(self._launch)
        if self._reader is not None:
            why = f"{why}; {self._reader.describe(self._select_limits(None).decoding)}"
        return StepReport(name, why, *moved)

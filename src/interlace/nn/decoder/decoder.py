"""A language model that decodes: a cache with slots, and steps of all sequences in it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from interlace.core.arguments import check_type
from interlace.core.errors import ShapeError
from interlace.nn.decoder import step as plain
from interlace.nn.decoder.cache import Cache, cache_bytes, capacity_of, check_memory, positive
from interlace.nn.decoder.family import Parts, parts_of
from interlace.nn.decoder.files import Progress, device_of, read
from interlace.nn.decoder.ids import Prompt, step_ids, stop_ids
from interlace.nn.decoder.launch import StepLaunch, describe_launch, step_launch
from interlace.nn.decoder.own_past import Past
from interlace.nn.decoder.padding import Padding, read_prompt
from interlace.nn.decoder.pages import PagedCache, Pages
from interlace.nn.decoder.past import fill, pairs_of, positions_of
from interlace.nn.decoder.runs import Runs, Stepped
from interlace.nn.decoder.sampling import GREEDY, Sampling, Ways
from interlace.nn.decoder.slots import Slots
from interlace.nn.decoder.texts import Texts
from interlace.nn.decoder.turns import Turns
from interlace.nn.decoder.weights import checked, rope_table, streamed_bytes
from interlace.workloads.llama import PAGE, LlamaShape
from interlace.workloads.notices import warn_missing
from interlace.workloads.trained import Trained, read_model


class Decoder(Texts):
    """A model of the Llama family with a static cache. Make one by ``from_model`` or ``from_weights``.

    Sequences come and go between steps: ``join`` takes a slot and reads a prompt, ``step`` decodes a token of every
    sequence, ``leave`` frees the slot. ``generate`` and ``stream`` do all that for a list of prompts.

    Attributes:
        shape: of the model.
        batch: slots that there are.
        capacity: positions of a sequence that the cache holds.
        pages: of ``PAGE`` positions that all slots share, 0 where each has memory of its own.
        cache: keys and values.
        logits: (batch, vocabulary) of the last token of each slot's sequence.
        next: (batch,) int32, the next token of each: the likeliest, or drawn, as ``join`` was told.
        stop: ids that end a text.
        window: positions that attention looks back over, None for all; the capacity is no more.
        padding: ids by which padding of prompts is recognised.
        turns: who uses it.
    """

    def __init__(
        self,
        shape: LlamaShape,
        weights: Mapping[str, torch.Tensor],
        rope: torch.Tensor,
        batch: int,
        stop: tuple[int, ...],
        pages: int | None,
        window: int | None,
    ) -> None:
        self.shape, self.batch, self.capacity, self.stop, self.window = shape, batch, len(rope), stop, window
        self.padding, self.turns = Padding(stop=stop), Turns()
        self._weights = checked(shape, weights)
        first = self._weights["embed"]
        self.device, self.dtype = first.device, first.dtype
        positions = batch * self.capacity if pages is None else pages * PAGE
        slots = batch * (shape.vocabulary * self.dtype.itemsize + 4 * Pages.of(self.capacity))
        check_memory("caches", cache_bytes(shape, positions, self.dtype) + slots, self.device)
        self._rope = rope.to(self.device, torch.float32).contiguous()
        self.pages = pages or 0
        self._pages = None if pages is None else Pages(pages, batch, self.capacity, self.device)
        if self._pages is None:
            self.cache = Cache.make(shape, batch, self.capacity, self.dtype, self.device)
        else:
            self.cache = PagedCache.of(shape, self._pages, self.dtype)
        self.logits = torch.zeros(batch, shape.vocabulary, dtype=self.dtype, device=self.device)
        self.next, self._tokens = (torch.zeros(batch, dtype=torch.int32, device=self.device) for _ in range(2))
        self._slots = Slots(batch, self.capacity, self._pages, self.device, window)
        self._ways = Ways(batch, self.device)
        self._drawing = False  # whether the launches can draw
        self._launch = self._launches()

    @classmethod
    def from_model(
        cls, model: nn.Module, *, batch: int = 1, capacity: int | None = None, pages: int | None = None
    ) -> Decoder:
        """On the weights of a causal model of ``transformers``: Llama, Mistral, Qwen 2 and 3, and what has their type.

        Weights are not copied, unless one is not contiguous; move or cast the model before, not after.

        Args:
            batch: sequences at once.
            capacity: positions of each, by default as many as the model was made for, and at most ``CAPACITY``.
            pages: of 64 positions in memory that all share; by default each has memory for the capacity.

        Raises:
            ArgumentError: a batch, a capacity or pages that are no positive number.
            UnsupportedModelError: a model of another family, with adapters, quantised layers, hooks, biases that the
                family lacks, windows shorter than the capacity, or RoPE that changes with the length; says which.
            GraphError, ShapeError, DTypeError: weights that do not fit together, or without data.
            DecodeError: caches do not fit in memory.
        """
        parts = parts_of(model)
        capacity = capacity_of(capacity, parts.positions, parts.window)
        warn_missing(parts.notices, stacklevel=1)
        return cls._build(parts, parts.weights, batch, capacity, pages, Padding.of_model(model, parts.stop))

    @classmethod
    def from_file(
        cls,
        model: str | Path | Trained,
        *,
        batch: int = 1,
        capacity: int | None = None,
        pages: int | None = None,
        device: str | torch.device | None = None,
        progress: Progress = iter,
    ) -> Decoder:
        """On the weights of a GGUF file, or of a folder with config.json and safetensors files.

        They become bf16 on a GPU and fp32 on a CPU. A ``MissingSettingWarning`` names settings that the model lacks.

        Args:
            model: the file or folder, or what ``workloads.trained.open_model`` made of it.
            batch, capacity, pages: see ``from_model``.
            device: by default the current GPU, where there is one.
            progress: iterates over the names of weights, and may show how far that has come.

        Raises:
            ArgumentError: a batch, a capacity or pages that are no positive number.
            ModelFileError: there is no model, or it is damaged, or lacks weights.
            UnsupportedModelError: it is not of the Llama family, or has something that a step would get wrong.
            NoDeviceError: the device is not here.
            DecodeError: it does not fit in memory.
        """
        check_type(model, (str, Path, Trained), "Decoder.from_file", "model", "'FOLDER_OR_GGUF'")
        trained = model if isinstance(model, Trained) else read_model(model)
        capacity = capacity_of(capacity, trained.positions, trained.window)
        held = positive(batch, "batch") * capacity if pages is None else positive(pages, "pages") * PAGE
        weights = read(trained, device_of(device), held, progress)
        warn_missing(() if trained is model else trained.notices, stacklevel=1)
        return cls._build(trained, weights, batch, capacity, pages, Padding.of_file(trained))

    @classmethod
    def _build(
        cls,
        model: Parts | Trained,
        weights: Any,
        batch: int,
        capacity: int,
        pages: int | None,
        padding: Padding,
    ) -> Decoder:
        rope = rope_table(torch.as_tensor(model.inv_freq), capacity, model.scaling)
        stop, window = model.stop, model.window
        decoder = cls.from_weights(model.shape, weights, rope, batch=batch, stop=stop, pages=pages, window=window)
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
        stop: Sequence[int] = (),
        pages: int | None = None,
        window: int | None = None,
    ) -> Decoder:
        """On weights by the names of ``interlace.workloads.weights.wanted``.

        Args:
            rope: (capacity, head_dim), as ``rope_table`` makes it.
            batch: sequences at once.
            stop: ids that end a text.
            pages: see ``from_model``.
            window: positions that attention looks back over, None for all.

        Raises:
            ArgumentError: a batch or pages that are not positive, or stop has no ids.
            UnsupportedModelError: a capacity beyond the window.
            GraphError, ShapeError, DTypeError: weights that do not fit the shape or each other, or without data.
            DecodeError: caches do not fit in memory.
        """
        if rope.ndim != 2 or not len(rope) or rope.shape[1] != shape.head_dim:
            raise ShapeError(f"rope has shape {tuple(rope.shape)}; give (capacity, {shape.head_dim})")
        pages = None if pages is None else positive(pages, "pages")
        capacity_of(len(rope), len(rope), window)
        return cls(shape, weights, rope, positive(batch, "batch"), stop_ids(stop, "Decoder"), pages, window)

    @property
    def taken(self) -> tuple[int, ...]:
        """Slots that hold a sequence, those with a past among them."""
        return self._slots.taken

    @property
    def lengths(self) -> tuple[int, ...]:
        """Positions in the cache of each slot, 0 of a free one."""
        return self._slots.lengths

    def join(self, ids: Prompt, past: Any = None, sampling: Sampling = GREEDY, *, attention_mask: Any = None) -> int:
        """Let a sequence join: its prompt is read into a free slot, which is returned.

        The first whose tokens are drawn takes longer: launches that draw are made then, and used from then on.

        Args:
            past: keys and values of the first ids, which then need not be read again: what ``past`` made, which has
                a slot already, or else ``past_key_values`` as a model of ``transformers`` returns them, of one sequence
                without padding, to be copied. The last id is read in any case.
            sampling: how its tokens are drawn.
            attention_mask: see ``stream``.

        Raises:
            PromptError: no ids, or ids out of the vocabulary, or padding without a mask.
            BusyError: another call or a stream of texts is under way.
            SlotError: no slot is free, or the past is no more, or another decoder's.
            LengthError: the prompt is longer than the capacity.
            PageError: fewer pages are free than it takes.
            GraphError, ShapeError, DTypeError: a past that is none, or not of this model.
            ArgumentError: another way of sampling.
        """
        check_type(sampling, Sampling, "Decoder.join", "sampling", "Sampling(temperature=0.8)")
        tokens = read_prompt(ids, attention_mask, self.shape.vocabulary, self.padding, past)
        with self.turns.take("Decoder.join"):
            return self._join(tokens, past, sampling)

    @torch.inference_mode()
    def _join(self, tokens: list[int], past: Any, sampling: Sampling) -> int:
        self._slots.check_room(None, 0, len(tokens))
        pairs, own = None, isinstance(past, Past)
        if isinstance(past, Past):
            slot, length = past.slot, past.positions_for(len(tokens), self._slots)
        else:
            slot, pairs = self._slots.free(), None if past is None else pairs_of(past)
            length = 0 if pairs is None else min(positions_of(pairs, self.cache), len(tokens) - 1)
        self._slots.grow({slot: len(tokens)})
        try:
            if pairs is not None:
                fill(self.cache, slot, pairs, length)
            if sampling.temperature > 0 and isinstance(self._launch, StepLaunch) and not self._drawing:
                self._launch = "launches that draw are being made"  # without what holds the memory of a step
                self._drawing = True
                with torch.inference_mode(self.logits.is_inference()):  # as the decoder was made
                    self._launch = self._launches()
            self._ways.set(slot, sampling)
            self._read(tokens[length:], slot, length)
        except BaseException:
            if not own:
                self._slots.clear(slot)
            raise
        return slot

    def leave(self, slot: int) -> None:
        """Let the sequence in a slot go, or its past.

        Raises:
            BusyError: another call or a stream of texts is under way.
            SlotError: there is none.
        """
        with self.turns.take("Decoder.leave"):
            self._leave(slot)

    @torch.inference_mode()
    def _leave(self, slot: int) -> None:
        self._slots.clear(self._slots.check_taken(slot))
        self._ways.set(slot, GREEDY)

    def past(self, slot: int | None = None) -> Past:
        """Memory of a sequence for a model of ``transformers`` to read it into: pass it as ``past_key_values``.

        The model writes keys and values where steps find them. ``join(ids, past)`` lets the sequence begin, which takes
        none of its own then; until that, steps leave it alone. They come between its forwards, not during one, whose
        first layers they would overwrite.

        Args:
            slot: of a sequence that is to pause, for a model to read on behind it; by default a free one is taken.

        Raises:
            BusyError: another call or a stream of texts is under way.
            SlotError: no slot is free, or no sequence is there.
        """
        with self.turns.take("Decoder.past"):
            if slot is not None:
                self._slots.length(slot)
            return Past(self.cache, self._slots, self._slots.free() if slot is None else slot)

    @torch.inference_mode()
    def prefill(self, ids: Prompt, slot: int, *, attention_mask: Any = None) -> torch.Tensor:
        """Put tokens behind those of the sequence in a slot; returns the logits (vocabulary,) of the last one.

        Raises:
            PromptError, BusyError: see ``join``.
            SlotError: no sequence is there; see ``join``.
            LengthError: more than the capacity.
            PageError: fewer pages are free than they take.
        """
        tokens = read_prompt(ids, attention_mask, self.shape.vocabulary, self.padding)
        with self.turns.take("Decoder.prefill"):
            length = self._slots.length(slot)
            self._slots.check_room(slot, length, len(tokens))
            self._slots.grow({slot: length + len(tokens)})
            return self._read(tokens, slot, length)

    def _read(self, tokens: list[int], slot: int, length: int) -> torch.Tensor:
        ids = torch.tensor(tokens, device=self.device)
        logits = plain.prefill(self.shape, self._weights, self._rope, self.cache, ids, slot, length)
        self.logits[slot] = logits
        end, slots = length + len(tokens), slice(slot, slot + 1)
        last = torch.full((1,), end - 1, device=self.device)
        self.next[slots] = self._ways.tokens(self.logits[slots], last, slots)
        self._slots.join(slot, end)
        return self.logits[slot]

    def step(self, tokens: Sequence[int] | torch.Tensor | None = None) -> Stepped:
        """Decode a token of every sequence: it goes into the cache, and logits of what follows come out.

        Nothing is copied to the host, and nothing waits for the device.

        Args:
            tokens: (batch,) the token of each slot; of free ones they are not looked at. By default ``next``. Ids in a
                tensor on a GPU are not checked, but brought into the vocabulary.

        Raises:
            BusyError: another call or a stream of texts is under way.
            SlotError: no slot holds a sequence.
            LengthError: a sequence has as many positions as the cache.
            PageError: fewer pages are free than sequences need another of.
            PromptError: ids out of the vocabulary, or not as many as slots.
        """
        with self.turns.take("Decoder.step"):
            return self._step(tokens)

    @torch.inference_mode()
    def _step(self, tokens: Sequence[int] | torch.Tensor | None = None) -> Stepped:
        taken, lengths = self._slots.stepped, self._slots.lengths
        if not taken:
            self._slots.length(0)  # raises
        for slot in taken:
            self._slots.check_room(slot, lengths[slot], 1)
        chosen = self.next if tokens is None else self._chosen(tokens, taken)
        self._slots.grow({slot: lengths[slot] + 1 for slot in taken})
        self._slots.make_way()
        self._tokens.copy_(chosen)
        if isinstance(self._launch, StepLaunch):
            self._launch.run()
        else:
            self._plain(max(lengths[slot] for slot in taken) + 1)
        self._slots.move()
        return Stepped(self.logits, self.next)

    def _chosen(self, tokens: Sequence[int] | torch.Tensor, taken: Sequence[int]) -> torch.Tensor:
        return step_ids(tokens, taken, self.batch, self.shape.vocabulary, self.device)

    def _plain(self, reach: int) -> None:
        """The step in PyTorch's own ops."""
        position = self._slots.position.long()
        logits = plain.decode(self.shape, self._weights, self._rope, self.cache, self._tokens.long(), position, reach)
        self.logits.copy_(logits)
        self.next.copy_(self._ways.tokens(self.logits, position, slice(None)))
        self._slots.position += self._slots.advance

    def pages_of(self, positions: int) -> int:
        """Pages that so many positions of a sequence take; none where slots have memory of their own."""
        return 0 if self._pages is None else self._pages.of(positions)

    def _launches(self) -> StepLaunch | str:
        tensors = {
            "tokens": self._tokens,
            "position": self._slots.position,
            "rope": self._rope,
            "logits": self.logits,
            "next": self.next,
            **self.cache.tensors,
            **self._ways.tensors,
            **self._weights,
        }
        pages = None if self._pages is None else self.pages
        return step_launch(self.shape, self.batch, self.capacity, tensors, self._slots.advance, self._drawing, pages)

    def explain(self) -> Runs:
        """What runs the steps, why, and how many bytes a step reads at least."""
        moved = streamed_bytes(self.shape, self._weights), self.cache.position_bytes * sum(self.lengths)
        return Runs(*describe_launch(self._launch), *moved)

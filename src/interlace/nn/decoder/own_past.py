"""A sequence of a decoder as the cache of a model of ``transformers``, which reads a prompt straight into its slot.

That library is never imported: what its models ask of a ``Cache`` is here by its name, as its releases since 4.57 ask
it. A forward of 3 tokens behind 5 that are there, with pages or without:

    get_seq_length() -> 5, get_mask_sizes(3, 0) -> (8, 0)
    update(keys, values, layer) for each layer in turn: rows 5:8 of the slot are written, rows 0:8 given
    after the last layer: get_seq_length() -> 8

Until then the sequence has 5 positions, so that a forward which fails in any layer leaves it as it was, and another one
may follow.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from interlace.core.errors import DecodeError, DTypeError, GraphError, LengthError, ShapeError, SlotError
from interlace.nn.decoder.cache import Cache
from interlace.nn.decoder.slots import Slots


class Past:
    """One sequence of a decoder, which a model reads; ``Decoder.past`` makes it.

    Pass it as ``past_key_values``, to forwards one after another or to ``model.generate``, and then to
    ``Decoder.join``. ``Decoder.leave(past.slot)`` gives it up. Once it has joined or left, every call is a SlotError.

    Attributes:
        slot: where it is.
    """

    #: Keys come in as many rows as there are: ``generate`` does not compile a model for each number of these by itself.
    is_compileable = False

    def __init__(self, cache: Cache, slots: Slots, slot: int) -> None:
        self.slot = slot
        self._cache, self._slots = cache, slots
        # What is made in inference mode can be written there alone, and compiled models have none of their own.
        self._mode = torch.inference_mode if cache.k[0].is_inference() else nullcontext
        self._written = self._count = 0  # layers that this forward has written, and its positions
        slots.hand_to(self, slot)

    @property
    def length(self) -> int:
        """Positions that all layers have.

        Raises:
            SlotError: the sequence has joined, or left.
        """
        return self._slots.read_by(self.slot, self)

    def positions_for(self, count: int, slots: Slots) -> int:
        """How many positions of a prompt of so many ids need not be read again.

        Raises:
            SlotError: it has joined, or left, or is of another decoder.
            ShapeError: it has more than the prompt.
        """
        if slots is not self._slots:
            raise SlotError("past is of another decoder; join there")
        length = self.length
        if length > count:
            raise ShapeError(
                f"past has {length} positions, and {count} ids are given; give all ids that the model has read, "
                "without padding, or take the others out by past.crop"
            )
        return min(length, count - 1)

    # ---------------------------------------------------------------- what a model asks

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put keys, after RoPE, and values (1, kv_heads, t, head_dim) of a layer behind the sequence; returns all.

        Raises:
            SlotError: the sequence has joined, or left.
            ShapeError, DTypeError: of another model, or of several sequences.
            GraphError: gradients are wanted, or a layer has been left out.
            LengthError: more positions than the capacity; before anything is written.
            PageError: fewer pages are free than they take; before anything is written.
        """
        length, count = self.length, key_states.shape[-2]
        self._check(layer_idx, key_states, value_states)
        if layer_idx == 0:
            self._slots.check_room(self.slot, length, count)
            with self._mode():
                self._slots.grow({self.slot: length + count})
            self._count = count
        elif (layer_idx, count) != (self._written, self._count):
            due = f"layer {self._written}" + (f" with {self._count}" if self._written else "")
            raise GraphError(
                f"layer {layer_idx} of a model comes with {count} positions, and {due} is due; run one layer after the "
                "other"
            )
        with self._mode():
            self._cache.write(layer_idx, self.slot, length, key_states[0], value_states[0])
        self._written = (layer_idx + 1) % len(self._cache.k)
        if not self._written:
            self._slots.set(self.slot, length + count)
        if not length:
            return key_states, value_states
        return self._cache.read(layer_idx, self.slot, length + count)

    def _check(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        layers, own = len(self._cache.k), self._cache.k[0]
        if not 0 <= layer < layers:
            raise ShapeError(f"the model has a layer {layer}, the decoder's has layers 0 to {layers - 1}")
        for name, tensor in (("keys", keys), ("values", values)):
            if tensor.shape != (1, own.shape[1], keys.shape[-2], own.shape[3]):
                raise ShapeError(
                    f"{name} of layer {layer} have shape {tuple(tensor.shape)}; a past is of one sequence, without "
                    f"padding: (1, {own.shape[1]}, positions, {own.shape[3]})"
                )
            if tensor.dtype != own.dtype:
                raise DTypeError(f"{name} of layer {layer} are {tensor.dtype}, the decoder's {own.dtype}")
            if tensor.requires_grad:
                raise GraphError(
                    f"{name} of layer {layer} want gradients, which a decoder's memory does not keep; run the model "
                    "within torch.inference_mode()"
                )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions that all layers have."""
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Where the next tokens go."""
        return self.length

    def get_mask_sizes(self, query: int | torch.Tensor, layer_idx: int = 0) -> tuple[int, int]:
        """Rows that ``update`` will give, and the position of the first.

        Args:
            query: tokens of the forward, or as earlier releases have it the positions (t,) of these.
        """
        return self.length + (len(query) if isinstance(query, torch.Tensor) else query), 0

    @property
    def is_sliding(self) -> list[bool]:
        """No layer forgets positions: a decoder's windows leave nothing out."""
        return [False] * len(self._cache.k)

    def activate_past_recording(self) -> None:
        """Nothing to do: all positions can be taken back as it is."""

    def crop(self, count: int) -> None:
        """Take positions back, and pages.

        Args:
            count: negative: so many; positive, as earlier releases have it: all but so many; 0: none.

        Raises:
            SlotError: the sequence has joined, or left.
            LengthError: fewer than none would be left.
        """
        length = self.length
        left = length + count if count <= 0 else min(count, length)
        if left < 0:
            raise LengthError(f"past has {length} positions, of which {-count} cannot be taken")
        self._written = 0
        self._slots.shorten(self.slot, left)

    def reset(self) -> None:
        """Take all positions back."""
        self.crop(-self.length)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Refused, as whatever makes several sequences of one.

        Raises:
            DecodeError: always.
        """
        raise DecodeError(
            "a past of a decoder is of one sequence, and beams or several texts of a prompt are several; let generate "
            "make a cache of its own for these"
        )

    batch_repeat_interleave = batch_select_indices = reorder_cache

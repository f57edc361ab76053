"""Decoder slot as the ``KVCache`` of a ``transformers`` model, which prefills a prompt directly into the slot.

That library is never imported: this class has the methods of ``KVCache`` that models call in its releases since 4.57.
Example of a forward pass of 3 tokens after 5 cached ones, with pages or without:

    get_seq_length() -> 5, get_mask_sizes(3, 0) -> (8, 0)
    update(keys, values, layer) for each layer in turn: writes rows 5:8 of the slot, returns rows 0:8
    after the last layer: get_seq_length() -> 8

Until then the sequence has 5 positions. A forward pass that fails in any layer therefore does not change it, and can be
repeated.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from interlace.core.errors import DecodeError, DTypeError, GraphError, LengthError, ShapeError, SlotError
from interlace.nn.decoder.cache import KVCache
from interlace.nn.decoder.slots import Slots


class SlotCache:
    """KV cache of one decoder sequence that a model fills; built by ``Decoder.kv_cache``.

    Pass it as ``past_key_values`` to consecutive forward passes or to ``model.generate``, and then to
    ``Decoder.add``. ``Decoder.abort(past.slot)`` discards it. After ``add`` or ``abort``, every call raises a
    SlotError.

    Attributes:
        slot: slot of the sequence.
    """

    #: The number of key rows varies, so ``generate`` must not compile the model for each number on its own.
    is_compileable = False

    def __init__(self, cache: KVCache, slots: Slots, slot: int) -> None:
        self.slot = slot
        self._cache, self._slots = cache, slots
        # Tensors made in inference mode are writable only in that mode, and compiled models do not enable it.
        self._mode = torch.inference_mode if cache.k[0].is_inference() else nullcontext
        self._written = self._count = 0  # layers written by this forward pass, and its tokens
        slots.assign_reader(self, slot)

    @property
    def length(self) -> int:
        """Number of tokens that all layers hold.

        Raises:
            SlotError: the sequence has joined or left.
        """
        return self._slots.get_reader_length(self.slot, self)

    def count_cached(self, count: int, slots: Slots) -> int:
        """Return how many tokens of a prompt of ``count`` ids need no prefill.

        Raises:
            SlotError: the sequence has joined or left, or belongs to another decoder.
            ShapeError: the past has more tokens than the prompt.
        """
        if slots is not self._slots:
            raise SlotError("past is of another decoder; add it there")
        length = self.length
        if length > count:
            raise ShapeError(
                f"past has {length} positions, and {count} ids are given; give all ids that the model has read, "
                "without padding, or take the others out by past.crop"
            )
        return min(length, count - 1)

    # ---------------------------------------------------------------- interface of ``transformers`` caches

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append a layer's keys (after RoPE) and values (1, kv_heads, t, head_dim); return those of the whole sequence.

        Raises:
            SlotError: the sequence has joined or left.
            ShapeError, DTypeError: the tensors are of another model, or of several sequences.
            GraphError: the tensors require gradients, or a layer was skipped.
            LengthError: the sequence would exceed the capacity; raised before anything is written.
            PageError: the tokens need more pages than are free; raised before anything is written.
        """
        length, count = self.length, key_states.shape[-2]
        self._check(layer_idx, key_states, value_states)
        if layer_idx == 0:
            self._slots.check_room(self.slot, length, count)
            with self._mode():
                self._slots.grow({self.slot: length + count})
                self._slots.upload()
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
        """Return the number of tokens that all layers hold."""
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return the position of the next token."""
        return self.length

    def get_mask_sizes(self, query: int | torch.Tensor, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of rows that ``update`` will return, and the position of the first row.

        Args:
            query: number of tokens of the forward pass, or their positions (t,) as in earlier releases.
        """
        return self.length + (len(query) if isinstance(query, torch.Tensor) else query), 0

    @property
    def is_sliding(self) -> list[bool]:
        """False for each layer: windows are never shorter than the capacity, so no layer drops tokens."""
        return [False] * len(self._cache.k)

    def activate_past_recording(self) -> None:
        """Do nothing: all tokens can be removed without recording."""

    def crop(self, count: int) -> None:
        """Remove tokens from the end, and release their pages.

        Args:
            count: number of tokens to remove if negative, number to keep if positive (as in earlier releases); 0
                removes none.

        Raises:
            SlotError: the sequence has joined or left.
            LengthError: the sequence has fewer tokens than are to be removed.
        """
        length = self.length
        left = length + count if count <= 0 else min(count, length)
        if left < 0:
            raise LengthError(f"past has {length} positions, of which {-count} cannot be taken")
        self._written = 0
        self._slots.shorten(self.slot, left)

    def reset(self) -> None:
        """Remove all tokens."""
        self.crop(-self.length)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Refuse to make several sequences from one.

        Raises:
            DecodeError: always.
        """
        raise DecodeError(
            "a past of a decoder is of one sequence, and beams or several texts of a prompt are several; let generate "
            "make a cache of its own for these"
        )

    batch_repeat_interleave = batch_select_indices = reorder_cache

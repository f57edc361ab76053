"""Slots of a KV cache: active sequences, their lengths, and the positions that the launches of a step read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from interlace.core.arguments import check_int, safe_repr
from interlace.core.errors import LengthError, SlotError
from interlace.nn.decoder.mirror import MirroredTensors
from interlace.nn.decoder.pages import PageAllocator


def advise_capacity(max_seq_len: int, window: int | None) -> str:
    """Return the end of an error about a capacity that is too small, if a model looks back over this window."""
    if window is not None and max_seq_len >= window:
        return f" (its sliding window of {window} positions admits no larger max_seq_len)"
    return f", or build the decoder with a larger max_seq_len{'' if window is None else f', {window} at most'}"


class Slots:
    """Sequence lengths by slot. Every method raises before it changes anything.

    A slot is in one of three states: free; extended by steps; or paused while a model fills it (see ``SlotCache``).

    Args:
        max_seq_len: capacity of each slot in tokens.
        mirror: tensors by the names of ``list_fields``; changes reach the device by ``upload``.
        pages: pages that the slots share, None if each slot has its own memory.
        window: attention window in tokens, None if unlimited.

    Attributes:
        position: (batch,) int32 on the device, position at which a step writes the token of each slot.
        advance: (batch,) int32, increment of ``position`` in each step: 1 for slots that steps extend, otherwise 0.
    """

    def __init__(
        self, max_seq_len: int, mirror: MirroredTensors, pages: PageAllocator | None, window: int | None = None
    ) -> None:
        self.max_seq_len, self.window = max_seq_len, window
        self.position, self.advance = (mirror.tensors[name] for name in ("position", "advance"))
        self._position, self._advance = (mirror.host[name] for name in ("position", "advance"))
        self._mirror, self._pages = mirror, pages
        self._lengths: NDArray[np.int64] = np.zeros(len(self._position), np.int64)
        self._is_active, self._is_paused = (np.zeros(len(self._position), np.bool_) for _ in range(2))
        self._readers: dict[int, object] = {}

    @staticmethod
    def list_fields(batch: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shapes and dtypes of the mirrored tensors."""
        return {"position": ((batch,), torch.int32), "advance": ((batch,), torch.int32)}

    @property
    def active_slots(self) -> tuple[int, ...]:
        """Active slots."""
        return tuple(np.flatnonzero(self._is_active).tolist())

    @property
    def stepped_slots(self) -> tuple[int, ...]:
        """Active slots whose sequences steps extend."""
        return tuple(np.flatnonzero(self._is_active & ~self._is_paused).tolist())

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of cached tokens of each slot; 0 for a free slot."""
        return tuple(self._lengths.tolist())

    def upload(self) -> None:
        """Enqueue the copy of all changes to the device."""
        self._mirror.upload()

    def find_free(self) -> int:
        """Return the first free slot.

        Raises:
            SlotError: no slot is free.
        """
        free = np.flatnonzero(~self._is_active)
        if len(free):
            return int(free[0])
        raise SlotError(
            f"all {len(self._lengths)} slots hold sequences; abort one, or build the decoder with a larger batch"
        )

    def check_active(self, slot: int) -> int:
        """Return the slot if it is active.

        Raises:
            ArgumentError: the slot is not a whole number.
            SlotError: the slot does not exist, or has no sequence.
        """
        slot = check_int(slot, "Decoder", "slot")
        if not 0 <= slot < len(self._lengths):
            raise SlotError(f"there is no slot {safe_repr(slot)}; slots are 0 to {len(self._lengths) - 1}")
        if not self._is_active[slot]:
            raise SlotError(f"slot {slot} holds no sequence; add one with add(ids)")
        return slot

    def get_length(self, slot: int) -> int:
        """Return the length of the sequence in a slot that steps extend.

        Raises:
            ArgumentError, SlotError: see ``check_active``; also if a model fills the slot.
        """
        slot = self.check_active(slot)
        if slot in self._readers:
            raise SlotError(f"a model reads the sequence in slot {slot}; add(ids, past_key_values=past) continues it")
        return int(self._lengths[slot])

    def get_reader_length(self, slot: int, reader: object) -> int:
        """Return the length of the sequence in a slot that this reader fills.

        Raises:
            SlotError: the reader does not, or no longer, hold the slot.
        """
        if self._readers.get(slot) is not reader:
            raise SlotError(f"the sequence of this past has joined, or left slot {slot}; begin another by past()")
        return int(self._lengths[slot])

    def check_room(self, slot: int | None, length: int, more: int) -> None:
        """Raise LengthError if a sequence of this length has no room for ``more`` tokens."""
        if length + more > self.max_seq_len:
            where = f"a prompt of {more} tokens" if slot is None else f"slot {slot}, {length} positions and {more} more"
            raise LengthError(
                f"{where}: that is more than the max_seq_len of {self.max_seq_len}; shorten it or abort it"
                f"{advise_capacity(self.max_seq_len, self.window)}"
            )

    def grow(self, lengths: Mapping[int, int], shared: Mapping[int, Sequence[int]] | None = None) -> None:
        """Allocate pages so that each slot can hold the given number of tokens; ``upload`` brings them to the device.

        Args:
            shared: full pages of other sequences with which slots without pages begin.

        Raises:
            PageError: the slots need more pages than are free.
        """
        if self._pages is not None:
            self._pages.grow(lengths, shared)

    def grow_next(self) -> None:
        """Allocate pages for the next token of each sequence that steps extend.

        Raises:
            LengthError: a sequence has reached the capacity.
            PageError: the slots need more pages than are free.
        """
        stepped = self._is_active & ~self._is_paused
        for slot in np.flatnonzero(stepped & (self._lengths >= self.max_seq_len)).tolist():
            self.check_room(slot, int(self._lengths[slot]), 1)
        if self._pages is not None:
            self._pages.grow({slot: int(self._lengths[slot]) + 1 for slot in self.find_growing().tolist()})

    def find_growing(self) -> NDArray[np.int64]:
        """Return the slots whose next token needs a page."""
        if self._pages is None:
            return np.empty(0, np.int64)
        return np.flatnonzero(self._is_active & ~self._is_paused & (self._lengths >= self._pages.num_owned_tokens))

    def set(self, slot: int, length: int) -> None:
        """Set the length of the sequence in a slot that a model fills."""
        self._lengths[slot] = length

    def shorten(self, slot: int, length: int) -> None:
        """Truncate the sequence in a slot to its first ``length`` tokens, and release pages."""
        if self._pages is not None:
            self._pages.release(slot, length)
        self._lengths[slot] = length

    def redirect_writes(self) -> None:
        """Direct the writes of a step to an unused row in the slots that a model fills, and upload all changes.

        A step writes one row of every slot. In these slots it is the row after the sequence. A full sequence has no
        such row, so the step overwrites its last one, which is safe: ``activate`` always prefills the last id again.
        """
        for slot in self._readers:
            self._set_row(slot, min(int(self._lengths[slot]), self.max_seq_len - 1), 0)
        self.upload()

    def advance_lengths(self) -> None:
        """Increment the lengths of the sequences after a step; the step itself has advanced ``position``."""
        self._lengths += self._advance
        self._position += self._advance

    def assign_reader(self, reader: object, slot: int) -> None:
        """Give the sequence in a slot, or a new one, to a reader; steps then skip the slot."""
        self._readers[slot] = reader
        self._is_active[slot] = self._is_paused[slot] = True
        self._set_row(slot, int(self._position[slot]), 0)

    def activate(self, slot: int, length: int) -> None:
        """Let steps extend the sequence in a slot, which has this length."""
        self._readers.pop(slot, None)
        self._is_active[slot], self._is_paused[slot] = True, False
        self._lengths[slot] = length
        self._set_row(slot, length, 1)

    def clear(self, slot: int) -> None:
        """Free the slot."""
        self._readers.pop(slot, None)
        self._is_active[slot] = self._is_paused[slot] = False
        self._lengths[slot] = 0
        if self._pages is not None:
            self._pages.release(slot)
        self._set_row(slot, 0, 0)

    def _set_row(self, slot: int, position: int, advance: int) -> None:
        if (self._position[slot], self._advance[slot]) != (position, advance):
            self._position[slot], self._advance[slot] = position, advance
            self._mirror.mark()

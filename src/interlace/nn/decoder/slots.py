"""Slots of a KV cache: active sequences, their lengths, and the positions that the launches of a step read."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from interlace.core.arguments import check_int, safe_repr
from interlace.core.errors import LengthError, SlotError
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
        batch: number of slots.
        max_seq_len: capacity of each slot in tokens.
        pages: pages that the slots share, None if each slot has its own memory.
        window: attention window in tokens, None if unlimited.

    Attributes:
        position: (batch,) int32 on the device, position at which a step writes the token of each slot.
        advance: (batch,) int32, increment of ``position`` in each step: 1 for slots that steps extend, otherwise 0.
    """

    def __init__(
        self, batch: int, max_seq_len: int, pages: PageAllocator | None, device: torch.device, window: int | None = None
    ) -> None:
        self.max_seq_len, self.window = max_seq_len, window
        self.position, self.advance = (torch.zeros(batch, dtype=torch.int32, device=device) for _ in range(2))
        self._pages = pages
        self._lengths: list[int | None] = [None] * batch
        self._readers: dict[int, object] = {}

    @property
    def active_slots(self) -> tuple[int, ...]:
        """Active slots."""
        return tuple(slot for slot, length in enumerate(self._lengths) if length is not None)

    @property
    def stepped_slots(self) -> tuple[int, ...]:
        """Active slots whose sequences steps extend."""
        return tuple(slot for slot in self.active_slots if slot not in self._readers)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of cached tokens of each slot; 0 for a free slot."""
        return tuple(length or 0 for length in self._lengths)

    def find_free(self) -> int:
        """Return the first free slot.

        Raises:
            SlotError: no slot is free.
        """
        for slot, length in enumerate(self._lengths):
            if length is None:
                return slot
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
        if self._lengths[slot] is None:
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
        return self._lengths[slot] or 0

    def get_reader_length(self, slot: int, reader: object) -> int:
        """Return the length of the sequence in a slot that this reader fills.

        Raises:
            SlotError: the reader does not, or no longer, hold the slot.
        """
        if self._readers.get(slot) is not reader:
            raise SlotError(f"the sequence of this past has joined, or left slot {slot}; begin another by past()")
        return self._lengths[slot] or 0

    def check_room(self, slot: int | None, length: int, more: int) -> None:
        """Raise LengthError if a sequence of this length has no room for ``more`` tokens."""
        if length + more > self.max_seq_len:
            where = f"a prompt of {more} tokens" if slot is None else f"slot {slot}, {length} positions and {more} more"
            raise LengthError(
                f"{where}: that is more than the max_seq_len of {self.max_seq_len}; shorten it or abort it"
                f"{advise_capacity(self.max_seq_len, self.window)}"
            )

    def grow(self, lengths: Mapping[int, int]) -> None:
        """Allocate pages so that each slot can hold the given number of tokens.

        Raises:
            PageError: the slots need more pages than are free.
        """
        if self._pages is not None:
            self._pages.grow(lengths)

    def set(self, slot: int, length: int) -> None:
        """Set the length of the sequence in a slot that a model fills."""
        self._lengths[slot] = length

    @torch.inference_mode()
    def shorten(self, slot: int, length: int) -> None:
        """Truncate the sequence in a slot to its first ``length`` tokens, and release pages."""
        if self._pages is not None:
            self._pages.release(slot, length)
        self._lengths[slot] = length

    @torch.inference_mode()
    def redirect_writes(self) -> None:
        """Direct the writes of a step to an unused row in the slots that a model fills.

        A step writes one row of every slot. In these slots it is the row after the sequence. A full sequence has no
        such row, so the step overwrites its last one, which is safe: ``activate`` always prefills the last id again.
        """
        for slot in self._readers:
            self.position[slot].fill_(min(self.lengths[slot], self.max_seq_len - 1))

    def advance_lengths(self) -> None:
        """Increment the lengths of the sequences after a step; the step itself has advanced ``position``."""
        for slot, length in enumerate(self._lengths):
            if length is not None and slot not in self._readers:
                self._lengths[slot] = length + 1

    @torch.inference_mode()
    def assign_reader(self, reader: object, slot: int) -> None:
        """Give the sequence in a slot, or a new one, to a reader; steps then skip the slot."""
        self._readers[slot] = reader
        self.advance[slot].zero_()
        self._lengths[slot] = self._lengths[slot] or 0

    @torch.inference_mode()
    def activate(self, slot: int, length: int) -> None:
        """Let steps extend the sequence in a slot, which has this length."""
        self._readers.pop(slot, None)
        self._lengths[slot] = length
        self.position[slot].fill_(length)
        self.advance[slot].fill_(1)

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Free the slot."""
        self._lengths[slot] = None
        self._readers.pop(slot, None)
        if self._pages is not None:
            self._pages.release(slot)
        self.advance[slot].zero_()
        self.position[slot].zero_()

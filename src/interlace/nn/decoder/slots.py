"""Which slots of a cache hold sequences, how long these are, and what the launches of a step know of that."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from interlace.core.arguments import printed, whole
from interlace.core.errors import LengthError, SlotError
from interlace.nn.decoder.pages import Pages


def advise_capacity(capacity: int, window: int | None) -> str:
    """Return the end of an error about a capacity that is too small, if a model looks back over this window."""
    if window is not None and capacity >= window:
        return f" (its sliding window of {window} positions admits no larger capacity)"
    return f", or build the decoder with a larger capacity{'' if window is None else f', {window} at most'}"


class Slots:
    """Lengths by slot. Every method raises before it changes anything.

    A slot is free, or steps extend its sequence, or a model reads that (see ``Past``) and they leave it alone.

    Args:
        batch: slots that there are.
        capacity: positions of each.
        pages: that they share, None where each has memory of its own.
        window: positions that attention looks back over, None for all.

    Attributes:
        position: (batch,) int32 on the device, where a step puts the token of each slot.
        advance: (batch,) int32, what it adds to that: 1 where it extends a sequence.
    """

    def __init__(
        self, batch: int, capacity: int, pages: Pages | None, device: torch.device, window: int | None = None
    ) -> None:
        self.capacity, self.window = capacity, window
        self.position, self.advance = (torch.zeros(batch, dtype=torch.int32, device=device) for _ in range(2))
        self._pages = pages
        self._lengths: list[int | None] = [None] * batch
        self._readers: dict[int, object] = {}

    @property
    def taken(self) -> tuple[int, ...]:
        """Slots that hold a sequence."""
        return tuple(slot for slot, length in enumerate(self._lengths) if length is not None)

    @property
    def stepped(self) -> tuple[int, ...]:
        """Those of them whose sequences steps extend."""
        return tuple(slot for slot in self.taken if slot not in self._readers)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Positions in the cache of each slot, 0 of a free one."""
        return tuple(length or 0 for length in self._lengths)

    def free(self) -> int:
        """The first free slot.

        Raises:
            SlotError: none is.
        """
        for slot, length in enumerate(self._lengths):
            if length is None:
                return slot
        raise SlotError(
            f"all {len(self._lengths)} slots hold sequences; let one leave, or build the decoder with a larger batch"
        )

    def check_taken(self, slot: int) -> int:
        """The slot, if it holds a sequence.

        Raises:
            ArgumentError: no whole number.
            SlotError: there is no such slot, or no sequence in it.
        """
        slot = whole(slot, "Decoder", "slot")
        if not 0 <= slot < len(self._lengths):
            raise SlotError(f"there is no slot {printed(slot)}; slots are 0 to {len(self._lengths) - 1}")
        if self._lengths[slot] is None:
            raise SlotError(f"slot {slot} holds no sequence; one joins by join(ids)")
        return slot

    def length(self, slot: int) -> int:
        """Of the sequence in a slot, which steps extend.

        Raises:
            ArgumentError, SlotError: see ``check_taken``; or a model reads it.
        """
        slot = self.check_taken(slot)
        if slot in self._readers:
            raise SlotError(f"a model reads the sequence in slot {slot}; join(ids, past) lets it go on from there")
        return self._lengths[slot] or 0

    def read_by(self, slot: int, reader: object) -> int:
        """Length of the sequence in a slot that this reads.

        Raises:
            SlotError: it does not, or no more.
        """
        if self._readers.get(slot) is not reader:
            raise SlotError(f"the sequence of this past has joined, or left slot {slot}; begin another by past()")
        return self._lengths[slot] or 0

    def check_room(self, slot: int | None, length: int, more: int) -> None:
        """Raise LengthError unless a sequence of this length has room for so many more positions."""
        if length + more > self.capacity:
            where = f"a prompt of {more} tokens" if slot is None else f"slot {slot}, {length} positions and {more} more"
            raise LengthError(
                f"{where}: that is more than the capacity of {self.capacity}; shorten it or let it leave"
                f"{advise_capacity(self.capacity, self.window)}"
            )

    def grow(self, lengths: Mapping[int, int]) -> None:
        """Let slots have memory for so many positions.

        Raises:
            PageError: more pages than are free.
        """
        if self._pages is not None:
            self._pages.grow(lengths)

    def set(self, slot: int, length: int) -> None:
        """The sequence in a slot, which is being read, has this length."""
        self._lengths[slot] = length

    @torch.inference_mode()
    def shorten(self, slot: int, length: int) -> None:
        """The sequence in a slot has its first positions alone."""
        if self._pages is not None:
            self._pages.release(slot, length)
        self._lengths[slot] = length

    @torch.inference_mode()
    def make_way(self) -> None:
        """A step writes a row of every slot: of sequences that are being read, let it be the one behind them.

        Behind a full one there is none, and its last may go: whoever joins has the last id read again.
        """
        for slot in self._readers:
            self.position[slot].fill_(min(self.lengths[slot], self.capacity - 1))

    def move(self) -> None:
        """Sequences have a position more, where a step has put their tokens: it has moved ``position`` itself."""
        for slot, length in enumerate(self._lengths):
            if length is not None and slot not in self._readers:
                self._lengths[slot] = length + 1

    @torch.inference_mode()
    def hand_to(self, reader: object, slot: int) -> None:
        """From now on this reads the sequence in a slot, or a new one."""
        self._readers[slot] = reader
        self.advance[slot].zero_()
        self._lengths[slot] = self._lengths[slot] or 0

    @torch.inference_mode()
    def join(self, slot: int, length: int) -> None:
        """From now on steps extend the sequence in a slot, which has this length."""
        self._readers.pop(slot, None)
        self._lengths[slot] = length
        self.position[slot].fill_(length)
        self.advance[slot].fill_(1)

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """The slot is free."""
        self._lengths[slot] = None
        self._readers.pop(slot, None)
        if self._pages is not None:
            self._pages.release(slot)
        self.advance[slot].zero_()
        self.position[slot].zero_()

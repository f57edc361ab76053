"""Which slots of a cache hold sequences, and how long these are."""

from __future__ import annotations

from interlace.core.arguments import whole
from interlace.core.errors import LengthError, SlotError


class Slots:
    """Lengths by slot. Every method raises before it changes anything.

    Args:
        batch: slots that there are.
        capacity: positions of each.
    """

    def __init__(self, batch: int, capacity: int) -> None:
        self.capacity = capacity
        self._lengths: list[int | None] = [None] * batch

    @property
    def taken(self) -> tuple[int, ...]:
        """Slots that hold a sequence."""
        return tuple(slot for slot, length in enumerate(self._lengths) if length is not None)

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

    def length(self, slot: int) -> int:
        """Of the sequence in a slot.

        Raises:
            ArgumentError: no whole number.
            SlotError: there is no such slot, or no sequence in it.
        """
        slot = whole(slot, "Decoder", "slot")
        if not 0 <= slot < len(self._lengths):
            raise SlotError(f"there is no slot {slot}; slots are 0 to {len(self._lengths) - 1}")
        length = self._lengths[slot]
        if length is None:
            raise SlotError(f"slot {slot} holds no sequence; one joins by join(ids)")
        return length

    def check_room(self, slot: int | None, length: int, more: int) -> None:
        """Raise LengthError unless a sequence of this length has room for so many more positions."""
        if length + more > self.capacity:
            where = f"a prompt of {more} tokens" if slot is None else f"slot {slot}, {length} positions and {more} more"
            raise LengthError(
                f"{where}: that is more than the capacity of {self.capacity}; shorten it, let it leave, or build the "
                "decoder with a larger capacity"
            )

    def set(self, slot: int, length: int) -> None:
        """A slot, which was free or not, holds a sequence of this length."""
        self._lengths[slot] = length

    def clear(self, slot: int) -> None:
        """The slot is free."""
        self.length(slot)
        self._lengths[slot] = None

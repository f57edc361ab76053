"""Constants that host and device share; a launch gets them as generated C++."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.kernels.abi import ITEM

#: Maximum number of messages by which the loader is ahead of the other roles.
TICKETS = 4
#: Bytes of a message: a row of the item table; the run, a flag for an item, the position of its first stage; the kept
#: slots, the positions of the consumer warpgroups.
MESSAGE_BYTES = ITEM.size + 32
#: Maximum number of items that a block holds if it claims them late.
HELD = 2

#: Flags in column ``code`` of an item, above the number of its code. The storer releases the item's last slots after it
#: has posted the item.
KEEPS = 1 << 16
#: The item is a part of a split tile and stores its split-K partials for another part.
LEAVES_SUMS = 1 << 17
#: The previous item of its block belongs to the same op, and has left the scratch in the state that the op needs.
AGAIN = 1 << 18
#: The item waits and is among the last items, one per block: its block claims no further item before it begins.
LAST = 1 << 19

#: Flag of a launch that ends by a trap.
ENDED = 2
#: Codes in the watchdog's record in place of a semaphore. A worker found no item in the ready queue or its mailbox.
EMPTY = -2
#: A wait for LL words; ``expected`` and ``seen`` are epochs.
AWAITED = -3
#: Under spawn dispatch: no item arrived in a slot of the queue; an item found no slot; an item ran or arrived after
#: workers had detected that no item is outstanding.
LOST, OVERFLOW, EARLY = -3, -4, -5
#: Consumers (``expected`` 0) or the dependent loader (1) counted ``seen`` more stages than the loader.
MISCOUNTED = -8
#: An item did not end (``expected`` 1), or no item was sent after it (0).
UNFINISHED = -9

#: Constants of every launch, by their names in C++.
SHARED: Mapping[str, int] = {
    "TICKETS": TICKETS,
    "MESSAGE_BYTES": MESSAGE_BYTES,
    "HELD": HELD,
    "KEEPS": KEEPS,
    "LEAVES_SUMS": LEAVES_SUMS,
    "AGAIN": AGAIN,
    "LAST": LAST,
    "ENDED": ENDED,
    "AWAITED_WORDS": AWAITED,
    "MISCOUNTED": MISCOUNTED,
    "UNFINISHED": UNFINISHED,
}


def define_constants(values: Mapping[str, int]) -> str:
    """Return C++ that defines constants: int, or unsigned where an int does not hold a value."""
    return "".join(
        f"constexpr int {name} = {value};\n" if value < 1 << 31 else f"constexpr unsigned {name} = {value}u;\n"
        for name, value in values.items()
    )

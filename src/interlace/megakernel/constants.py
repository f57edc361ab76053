"""Constants that host and device share; a launch gets them as generated C++."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.kernels.abi import ITEM

#: Messages that the loader is ahead of the other roles.
TICKETS = 4
#: Bytes of a message: a row of the item table; the run, whether there is an item, the position of its first stage; the
#: slots that are kept, positions of the consumer warpgroups.
MESSAGE_BYTES = ITEM.size + 32
#: Items that a block holds at most if it claims them late.
HELD = 2

#: Flags in column ``code`` of an item, above the number of its code. The storer releases the item's last slots when it
#: has posted the item.
KEEPS = 1 << 16
#: The item is a part of a split tile and leaves its partial sums to another part.
LEAVES_SUMS = 1 << 17
#: The item before it on its block is of the same op, and left the scratch as that op needs it.
AGAIN = 1 << 18
#: The item waits and is among the last ones, one for each block: its block claims nothing after it before it begins.
LAST = 1 << 19

#: The flag of a launch that ends by a trap.
ENDED = 2
#: What the record has in place of a semaphore. A worker found nothing in the ready queue, or in its mailbox.
EMPTY = -2
#: A wait for LL words; ``expected`` and ``seen`` are epochs.
AWAITED = -3
#: Under spawn dispatch: no item came to a place of the queue; an item found no place; an item ran or came after workers
#: had found that nothing is outstanding.
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

"""What launches that are compiled here may use at most: a tenth more than they did when each limit was set, or so."""

from __future__ import annotations

from interlace.kernels.cuda.compiler import Resources

#: Registers that a thread can have in a block of 256 and of 384; whoever needs more spills, which tests limit too.
TWO_WARPGROUPS, THREE_WARPGROUPS = 255, 168


def assert_within(resources: Resources, registers: int, code_kib: float) -> None:
    """What a block does once an item is fetched cold, and all layers of a step go through all of the code.

    So words that carry tags took 9.5 % longer than counters where they made 207 KiB of code, and 3 % longer with 139
    (docs/tried.md).
    """
    assert resources.registers <= registers, resources
    assert resources.code_bytes <= code_kib * 1024, f"{resources.code_bytes / 1024:.1f} KiB of code: {resources}"

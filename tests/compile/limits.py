"""What launches that are compiled here may use at most: a tenth more than they did when each limit was set, or so."""

from __future__ import annotations

from interlace.kernels.cuda.compiler import KernelResources


def assert_within(resources: KernelResources, code_kib: float, registers: int | None = None) -> None:
    """What a block does once an item is fetched cold, and all layers of a step go through all of the code.

    So words that carry tags took 9.5 % longer than counters where they made 207 KiB of code, and 3 % longer with 139
    (benchmarks/notes/decode.md). Registers have limits where a launch has some left; one that has all spills if it
    needs more, of which tests have limits, too.
    """
    assert resources.code_bytes <= code_kib * 1024, f"{resources.code_bytes / 1024:.1f} KiB of code: {resources}"
    assert registers is None or resources.registers <= registers, resources

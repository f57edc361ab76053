"""Limits on resources of compiled launches: about a tenth above the use when each limit was set."""

from __future__ import annotations

from interlace.kernels.cuda.compiler import KernelResources


def assert_within(resources: KernelResources, code_kib: float, registers: int | None = None) -> None:
    """Check the code size of a launch and, if given, its registers.

    Code that a block runs once per item is fetched cold, and all layers of a step run all of the code. For example, LL
    words took 9.5 % longer than counters when they made 207 KiB of code, and 3 % longer with 139 KiB
    (benchmarks/notes/decode.md). Registers have a limit if a launch leaves some unused. A launch that uses all
    registers spills if it needs more; tests limit spills separately.
    """
    assert resources.code_bytes <= code_kib * 1024, f"{resources.code_bytes / 1024:.1f} KiB of code: {resources}"
    assert registers is None or resources.registers <= registers, resources

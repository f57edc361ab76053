"""The text of one launch, compiled with as many operands waiting in registers as do not spill.

A text that takes operands ahead of waits is first compiled with the most registers for these, then, if that spills,
with each of fewer, side by side. Of compilations that spill alike the first is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from interlace.core.errors import CompileError
from interlace.kernels.bodies import HELD_REGISTERS
from interlace.kernels.cuda.compiler import Binary, compile_text

_BYTES = 4 * 255  # of a thread; who spills more has less in registers than out of them
_MOST_STACK_BYTES = 512 << 10  # of a thread's local memory, by CUDA's programming guide


def compiled(
    text: str, name: str, architecture: str, *, preamble: str, holds: bool, kernels: Iterable[str]
) -> Binary:
    """The launch; needs no device.

    Args:
        text, name, architecture, preamble: as of ``compile_text``.
        holds: whether operands wait in registers.
        kernels: those of its ops, for messages.

    Raises:
        CompileError: the text does not compile, or takes more registers than a thread has.
        NoDeviceError: as of ``compile_text``.
    """
    made = [compile_text(text, name, architecture, preamble=preamble)]
    if holds and made[0].resources.spill_bytes:

        def with_fewer(registers: int) -> Binary:
            held = f"#define REGISTERS_TO_HOLD {registers}\n{preamble}"
            return compile_text(text, name, architecture, preamble=held)

        with ThreadPoolExecutor() as threads:
            made += threads.map(with_fewer, HELD_REGISTERS[1:])
    binary = min(made, key=lambda binary: binary.resources.spill_bytes)
    named = ", ".join(dict.fromkeys(kernels))
    if binary.resources.spill_bytes > _BYTES:
        raise CompileError(
            f"a launch of kernels {named} does not fit the registers: a thread has {_BYTES} "
            f"bytes of them, and moves {binary.resources.spill_bytes} bytes to and from memory; use smaller tiles"
        )
    if binary.resources.stack_bytes > _MOST_STACK_BYTES:
        raise CompileError(
            f"a launch of kernels {named} keeps {binary.resources.stack_bytes} bytes of each thread in local memory, "
            f"and CUDA has {_MOST_STACK_BYTES}; use smaller arrays, or scratch"
        )
    return binary

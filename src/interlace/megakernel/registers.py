"""Compilation of the megakernel with as many operands waiting in registers as fit without spills.

CUDA source that loads operands ahead of waits is first compiled with the most registers for these. If that spills, it
is compiled with each smaller number, in parallel. The first of the compilations with the fewest spills is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from interlace.core.errors import CompileError
from interlace.kernels.bodies import OPERAND_REGISTERS
from interlace.kernels.cuda.compiler import CudaBinary, compile_source

_REGISTER_FILE_BYTES = 4 * 255  # register file of a thread; a launch that spills more is rejected
_MAX_STACK_BYTES = 512 << 10  # of a thread's local memory, by CUDA's programming guide


def compile_launch(
    source: str, name: str, architecture: str, *, preamble: str, holds_operands: bool, kernels: Iterable[str]
) -> CudaBinary:
    """Return the compiled launch; needs no device.

    Args:
        source, name, architecture, preamble: as for ``compile_source``.
        holds_operands: True if operands wait in registers.
        kernels: kernels of the launch's ops, for messages.

    Raises:
        CompileError: the CUDA source does not compile, or needs more registers than a thread has.
        NoDeviceError: as for ``compile_source``.
    """
    made = [compile_source(source, name, architecture, preamble=preamble)]
    if holds_operands and made[0].resources.spill_bytes:

        def with_fewer(registers: int) -> CudaBinary:
            held = f"#define REGISTERS_TO_HOLD {registers}\n{preamble}"
            return compile_source(source, name, architecture, preamble=held)

        with ThreadPoolExecutor() as threads:
            made += threads.map(with_fewer, OPERAND_REGISTERS[1:])
    binary = min(made, key=lambda binary: binary.resources.spill_bytes)
    named = ", ".join(dict.fromkeys(kernels))
    if binary.resources.spill_bytes > _REGISTER_FILE_BYTES:
        raise CompileError(
            f"a launch of kernels {named} does not fit the registers: a thread has {_REGISTER_FILE_BYTES} "
            f"bytes of them, and moves {binary.resources.spill_bytes} bytes to and from memory; use smaller tiles"
        )
    if binary.resources.stack_bytes > _MAX_STACK_BYTES:
        raise CompileError(
            f"a launch of kernels {named} keeps {binary.resources.stack_bytes} bytes of each thread in local memory, "
            f"and CUDA has {_MAX_STACK_BYTES}; use smaller arrays, or scratch"
        )
    return binary

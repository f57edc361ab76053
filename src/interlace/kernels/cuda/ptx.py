"""The PTX instructions that kernel texts use, as CUDA C++ functions.

``PTX`` stands before every kernel; it needs no header. Addresses of shared memory are 32-bit, in the shared window
(``shared_address``). A wait on a barrier traps after ``WATCHDOG`` nanoseconds.

Loads ask for their policy in the L2 each in its place: ptxas makes constants of these, where one that all loads share
takes registers from end to end and made a launch spill. Hence ``volatile``.
"""

from __future__ import annotations

from interlace.core.dtypes import bf16
from interlace.csrc import read_header
from interlace.kernels.abi import TENSOR_MAP
from interlace.kernels.abi.struct import OFFSETOF

#: Registers of an SM, which one block may use, and the most that ptxas gives a thread.
_SM_REGISTERS, _THREAD_REGISTERS = 65536, 255

_FUNCTIONS = read_header("ptx.cuh")
PTX = OFFSETOF + TENSOR_MAP.source + _FUNCTIONS


def count_entry_registers(threads: int) -> int:
    """Registers that each thread of a block has when a kernel starts whose roles then deal them out.

    ``setmaxnreg`` raises one role by what others gave back: where the sum is more than that, it waits for ever.
    """
    return min(_THREAD_REGISTERS, _SM_REGISTERS // threads // 8 * 8)


def get_wgmma_name(n: int, kind: str) -> str:
    """The function that ``generate_wgmma`` defines."""
    return f"wgmma_m64n{n}k16" if kind == bf16.ptx else f"wgmma_m64n{n}k16_{kind}"


def generate_wgmma(n: int, kind: str) -> str:
    """A function: sum += A (64 x 16) * B (16 x n), both contiguous along k; fp32 accumulators.

    ``kind`` is the operands' element type in PTX.
    """
    count = n // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(sum[{i}])' for i in range(count))
    return (
        f"DEVICE void {get_wgmma_name(n, kind)}(float (&sum)[{count}], unsigned long long a, "
        f"unsigned long long b) {{\n"
        f'  asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} {{{registers}}}, '
        f'%{count}, %{count + 1}, 1, 1, 1, 0, 0;"\n'
        f'               : {operands} : "l"(a), "l"(b));\n'
        f"}}\n"
    )

"""CUDA C++ that precedes every kernel: PTX instructions as functions (``csrc/ptx.cuh``), and generated products."""

from __future__ import annotations

from interlace.core.dtypes import bf16
from interlace.csrc import include
from interlace.kernels.abi import TENSOR_MAP
from interlace.kernels.abi.struct import OFFSETOF

#: Registers of an SM, all of which a block may use, and most registers of a thread.
_SM_REGISTERS, _THREAD_REGISTERS = 65536, 255

#: Needs no header of CUDA.
PTX = OFFSETOF + TENSOR_MAP.source + include("ptx.cuh")


def count_entry_registers(threads: int) -> int:
    """Return the registers of each thread when a kernel starts whose roles then redistribute them.

    ``setmaxnreg`` raises one role by what others released. If the sum exceeds that, it waits forever.
    """
    return min(_THREAD_REGISTERS, _SM_REGISTERS // threads // 8 * 8)


def get_wgmma_name(n: int, kind: str) -> str:
    """Return the name of the function that ``generate_wgmma`` defines."""
    return f"wgmma_m64n{n}k16" if kind == bf16.ptx else f"wgmma_m64n{n}k16_{kind}"


def generate_wgmma(n: int, kind: str) -> str:
    """Return a function: sum += A (64 x 16) * B (16 x n), both contiguous along k, with fp32 accumulators.

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

"""What the tensor core multiplies in the one launch, in CUDA C++: elements, descriptors, operands in registers.

The 64-row operand may come out of registers. Weights of an item's first stages are there before its tokens are, so that
their slots fill with what comes behind; tokens that are normalised here are scaled there.
"""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.bodies import OPERAND_REGISTERS
from interlace.kernels.cuda.matrices import MATRICES

_OPERAND_REGISTERS = f"\n#ifndef REGISTERS_TO_HOLD\n#define REGISTERS_TO_HOLD {OPERAND_REGISTERS[0]}\n#endif"
OPERANDS_OF_PRODUCTS = MATRICES + _OPERAND_REGISTERS + include("ops/matmul/operands.cuh")


def generate_product(width: int) -> str:
    """``Product<width>``: sums += A (64 x 16) * B (16 x width), both contiguous along k; float32 sums.

    A comes from shared memory, or out of registers: lane l of warp w has of rows 16 w to 16 w + 15 what
    ``cuda/matrices`` says of a first operand.
    """
    count = width // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(sums[{i}])' for i in range(count))
    mma = f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32"
    return (
        f"template <> struct Product<{width}> {{\n"
        f"  DEVICE static void add(float (&sums)[{count}], unsigned long long a, unsigned long long b) {{\n"
        f'    asm volatile("{mma}." ELEMENT_PTX "." ELEMENT_PTX " {{{registers}}}, '
        f'%{count}, %{count + 1}, 1, 1, 1, 0, 0;"\n'
        f'                 : {operands} : "l"(a), "l"(b));\n'
        "  }\n"
        f"  DEVICE static void add(float (&sums)[{count}], const unsigned (&a)[4], unsigned long long b) {{\n"
        f'    asm volatile("{mma}." ELEMENT_PTX "." ELEMENT_PTX " {{{registers}}}, '
        f'{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}, %{count + 4}, 1, 1, 1, 0;"\n'
        f'                 : {operands} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));\n'
        "  }\n"
        "};\n"
    )

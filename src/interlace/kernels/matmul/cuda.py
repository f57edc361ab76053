"""CUDA source of matmul in the megakernel: its headers, and what is generated for each tile width.

``csrc/ops/matmul/matmul.cuh`` says how tiles of 64 weight rows or more are computed, ``skinny.cuh`` smaller ones.
"""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels import gelu
from interlace.kernels.bodies import OPERAND_REGISTERS

#: LL words of tokens that a lane of the loader polls at once.
POLLED_WORDS = 32
#: Most elements of a tile's LL tokens that a warpgroup of consumers polls. More of them arrive piece by piece, so those
#: of later stages had better arrive while products of earlier ones run (benchmarks/notes).
POLLED_BY_CONSUMERS = 2048
#: Tiles of fewer stages have a config for each number; of more, one for even numbers and one for odd.
FEW_TURNS = 4

_HELD = f"\n#ifndef REGISTERS_TO_HOLD\n#define REGISTERS_TO_HOLD {OPERAND_REGISTERS[0]}\n#endif"
_PARTS = ("operands", "accumulators", "epilogue", "folded_norm", "fix_up", "output", "matmul")
MATMUL = gelu.CUDA + include("ops/mma.cuh") + _HELD + include(*(f"ops/matmul/{part}.cuh" for part in _PARTS))

_LIMITS = f"\nconstexpr int POLLED_WORDS = {POLLED_WORDS}, FEW_TURNS = {FEW_TURNS};"
#: After ``MATMUL``.
SKINNY = _LIMITS + include("ops/matmul/skinny.cuh")


def product(width: int) -> str:
    """Return ``Product<width>`` (``csrc/ops/matmul/operands.cuh``), whose instruction names all of its registers."""
    count = width // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(accumulators[{i}])' for i in range(count))
    mma = f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32"
    return (
        f"template <> struct Product<{width}> {{\n"
        f"  DEVICE static void add(float (&accumulators)[{count}], unsigned long long a, unsigned long long b) {{\n"
        f'    asm volatile("{mma}." ELEMENT_PTX "." ELEMENT_PTX " {{{registers}}}, '
        f'%{count}, %{count + 1}, 1, 1, 1, 0, 0;"\n'
        f'                 : {operands} : "l"(a), "l"(b));\n'
        "  }\n"
        f"  DEVICE static void add(float (&accumulators)[{count}], const unsigned (&a)[4], unsigned long long b) {{\n"
        f'    asm volatile("{mma}." ELEMENT_PTX "." ELEMENT_PTX " {{{registers}}}, '
        f'{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}, %{count + 4}, 1, 1, 1, 0;"\n'
        f'                 : {operands} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));\n'
        "  }\n"
        "};\n"
    )

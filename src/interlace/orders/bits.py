"""Positions of set bits in a 64-bit word, one machine instruction each, for numba kernels.

``0b0110_1000`` has ``find_lowest_bit`` 3 and ``find_highest_bit`` 6. Neither is defined for zero. Python's
``int.bit_length`` does the same, but numba does not compile it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

WORD_BITS = 64
NONE_SET = np.uint64(0)
ALL_SET = np.uint64(2**64 - 1)
ONE = np.uint64(1)


def _emit_lowest_bit(typing: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


def _emit_highest_bit(typing: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zeros = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))
        return builder.sub(ir.Constant(zeros.type, WORD_BITS - 1), zeros)

    return types.int64(types.uint64), generate


# Signature as seen by kernels: one uint64 in, the bit's position out.
find_lowest_bit: Callable[[np.uint64], int] = cast(Any, intrinsic(_emit_lowest_bit))
find_highest_bit: Callable[[np.uint64], int] = cast(Any, intrinsic(_emit_highest_bit))

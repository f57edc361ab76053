"""Arithmetic that Triton's compiler and interpreter would do differently, made equal."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot(a, b, acc, INTERPRET: tl.constexpr):
    """Return ``acc + a @ b`` in float32; float32 operands are multiplied exactly, not as tf32.

    Triton 3.6's interpreter multiplies the bit patterns of bf16 operands, so they are widened first under it.
    """
    if INTERPRET:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision="ieee")
    return acc


@triton.jit
def narrow(value, dtype: tl.constexpr):
    """Convert a float32 block to a narrower dtype, rounding to nearest even; the interpreter would truncate."""
    if dtype == tl.float32:
        result = value
    else:
        result = value.to(dtype, fp_downcast_rounding="rtne")
    return result

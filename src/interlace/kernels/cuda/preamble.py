"""CUDA C++ that precedes kernels, after ``ptx.PTX``: element types, and semaphores and words to wait for each other.

``bf16`` and ``fp16`` are their bits, ``fp32`` is float; arithmetic is in float. NVRTC has none of the toolkit's
headers, so these replace ``cuda_bf16.h`` and the like.

    widened(x)          an element as a float
    rounded<bf16>(y)    a float rounded to the nearest element
"""

from __future__ import annotations

from interlace.core.dtypes import DTYPES, DType, bf16, fp32
from interlace.csrc import include
from interlace.kernels.abi import TABLES


def _declare_element(dtype: DType) -> str:
    """Return the C++ type of a dtype and its conversions; that of fp32 is float itself."""
    name, ptx = dtype.name, dtype.ptx
    if not dtype.is_floating_point:  # integers have no conversions
        return f"typedef int {name};\n"
    if dtype is fp32:
        return (
            f"typedef float {name};\n"
            f"template <> DEVICE {name} rounded<{name}>(float x) {{ return x; }}\n"
            f"DEVICE float widened({name} x) {{ return x; }}\n"
        )
    if dtype is bf16:  # the upper half of a float
        widened = "  return __uint_as_float((unsigned)x.bits << 16);\n"
    else:
        widened = f'  float y;\n  asm("cvt.f32.{ptx} %0, %1;" : "=f"(y) : "h"(x.bits));\n  return y;\n'
    return (
        f"struct {name} {{ unsigned short bits; }};\n"
        f"template <> DEVICE {name} rounded<{name}>(float x) {{\n"
        f"  {name} y;\n"
        f'  asm("cvt.rn.{ptx}.f32 %0, %1;" : "=h"(y.bits) : "f"(x));\n'
        "  return y;\n"
        "}\n"
        f"DEVICE float widened({name} x) {{\n{widened}}}\n"
    )


#: Types and conversions of all dtypes.
ELEMENTS = "template <class T> DEVICE T rounded(float);\n" + "".join(map(_declare_element, DTYPES))

#: Each byte of an empty word. As a float32 an empty word is a NaN; stores of this NaN store another NaN instead.
EMPTY_BYTE = 0xFF

#: CUDA source of semaphores in global memory.
SEMAPHORES = TABLES + include("semaphore.cuh")
#: CUDA source of polled data with a sentinel, the empty word.
WORDS = f"constexpr unsigned EMPTY_WORD = {EMPTY_BYTE}u * 0x01010101u;\n" + include("sentinel.cuh")

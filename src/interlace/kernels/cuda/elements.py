"""The element types of tensors in CUDA C++: ``bf16`` and ``fp16`` are their bits, ``fp32`` is float.

    widened(x)          the float that an element is
    rounded<bf16>(y)    the element next to a float

Arithmetic is in float. NVRTC has none of the toolkit's headers, so these stand for ``cuda_bf16.h`` and its like.
"""

from __future__ import annotations

from interlace.core.dtypes import DTYPES, DType, fp32


def _declare_element(dtype: DType) -> str:
    """The C++ type of a dtype and its conversions; that of fp32 is float itself."""
    name, ptx = dtype.name, dtype.ptx
    if not dtype.is_floating_point:  # whole numbers, which are not converted
        return f"typedef int {name};\n"
    if dtype is fp32:
        return (
            f"typedef float {name};\n"
            f"template <> DEVICE {name} rounded<{name}>(float x) {{ return x; }}\n"
            f"DEVICE float widened({name} x) {{ return x; }}\n"
        )
    if dtype.numpy is None:  # the upper half of a float
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


#: All of them.
ELEMENTS = "template <class T> DEVICE T rounded(float);\n" + "".join(map(_declare_element, DTYPES))

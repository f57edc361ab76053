"""C++ declarations of an op's arguments and params for a CUDA source.

    x: fp16 matrix that the op reads     const fp16*
    y: bf16 matrix that it writes        bf16*
    param eps = 1e-5                     float
    param BM = 8, a constant             constexpr int BM = 8;

Pointers and other params are members of ``Arguments``; constants are known at compile time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from ctypes import c_float

from interlace.core.errors import ParamError
from interlace.graph.op import Op, Param
from interlace.graph.tensor import Tensor

_INT32, _INT64 = 1 << 31, 1 << 63
_FLOAT_MAX, _FLOAT_MIN = (2 - 2**-23) * 2.0**127, 2.0**-126  # largest float32; smallest normal float32


def declare_pointers(op: Op, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the C++ type of each argument."""
    written = {access.arg for access in op.writes}
    names = dict.fromkeys(access.arg for access in op.accesses)
    return {name: f"{'' if name in written else 'const '}{tensors[name].dtype.name}*" for name in names}


def declare_type(op: Op, name: str, value: Param) -> str:
    """Return the C++ type of a number among an op's params.

    Raises:
        ParamError: a number that no such type holds.
    """
    if isinstance(value, float):
        if math.isfinite(value) and abs(value) > _FLOAT_MAX:
            raise ParamError(f"op {op.name!r} has {name} {value!r}, and a float of CUDA C++ ends at {_FLOAT_MAX:.7g}")
        return "float"
    if not -_INT64 <= int(value) < _INT64:
        raise ParamError(f"op {op.name!r} has {name} {value!r}, and an integer of CUDA C++ has 64 bits")
    return "int" if -_INT32 <= int(value) < _INT32 else "long long"


def define_constant(op: Op, name: str) -> str:
    """Return the definition of a param as a constant, such as ``constexpr int BM = 8;``.

    Raises:
        ParamError: a param that is no finite number, or one that no C++ type holds.
    """
    value = op.param(name)
    if isinstance(value, str) or not math.isfinite(value):
        raise ParamError(f"op {op.name!r} has {name} {value!r}, which is no constant of a text; give a finite number")
    kind = declare_type(op, name, value)
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};\n"
    if isinstance(value, float):
        # Numbers below float32's normal range become subnormal or 0; a compiler would reject them.
        return f"constexpr float {name} = {value if abs(value) >= _FLOAT_MIN else c_float(value).value!r}f;\n"
    return f"constexpr {kind} {name} = {value}{'ll' if kind != 'int' else ''};\n"

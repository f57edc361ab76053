"""The element types that tensors may have, without needing a framework to name them."""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.errors import DTypeError


@dataclass(frozen=True)
class DType:
    """An element type: its name, size in bytes, and unit round-off of one rounding to it."""

    name: str
    itemsize: int
    epsilon: float

    def __str__(self) -> str:
        return self.name


bf16 = DType("bf16", 2, 2.0**-8)
fp16 = DType("fp16", 2, 2.0**-11)
fp32 = DType("fp32", 4, 2.0**-24)

_BY_NAME = {d.name: d for d in (bf16, fp16, fp32)}
_BY_NAME |= {"bfloat16": bf16, "float16": fp16, "float32": fp32, "half": fp16, "float": fp32}


def dtype(name: str | DType) -> DType:
    """The DType called ``name`` (``bf16``, ``fp16``, ``fp32`` or a usual alias).

    Raises:
        DTypeError: no such dtype.
    """
    if isinstance(name, DType):
        return name
    if not isinstance(name, str) or name not in _BY_NAME:
        raise DTypeError(f"unknown dtype {name!r}; use one of bf16, fp16, fp32")
    return _BY_NAME[name]


def meant(value: object) -> str:
    """What to write for a name of a dtype, or for one of PyTorch's or NumPy's; of another one, any."""
    name = value.__name__ if isinstance(value, type) else str(value).removeprefix("torch.")
    return f"il.{_BY_NAME.get(name, fp32)}"

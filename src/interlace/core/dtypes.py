"""Element types of tensors, one row each, independent of any framework."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from interlace.core.errors import DTypeError


@dataclass(frozen=True)
class DType:
    """Element type, with its names in other systems.

    Attributes:
        name: name in this package, and of the type in emitted CUDA C++.
        itemsize: size of an element in bytes.
        epsilon: unit round-off of one rounding to the type, 0 for whole numbers.
        poison: bits of a NaN, for memory that must not be read; for whole numbers, an invalid index.
        rate: ratio of a GPU's FLOP/s in the type to those in bf16, used if a chip's data has no rate for it.
        torch: name in PyTorch.
        numpy: name in NumPy, or in ``ml_dtypes`` for a type that NumPy lacks.
        safetensors: name in checkpoints.
        gguf: number in GGUF files (``ggml_type``).
        ptx: name in PTX instructions.
        tensor_map: name in the driver's ``CU_TENSOR_MAP_DATA_TYPE_...``.
        on_tensor_cores: True if tensor cores multiply the type (``wgmma`` with float32 sums).
        aliases: other usual names.
    """

    name: str
    itemsize: int
    epsilon: float
    poison: int
    rate: float
    torch: str
    numpy: str
    safetensors: str
    gguf: int
    ptx: str
    tensor_map: str
    on_tensor_cores: bool
    aliases: tuple[str, ...] = ()

    @property
    def is_floating_point(self) -> bool:
        """True if values are rounded; False for whole numbers such as ids and positions."""
        return self.epsilon > 0

    @property
    def exponent_bits(self) -> int:
        """Number of exponent bits, 0 for whole numbers; a value has one sign bit and ``-log2(epsilon) - 1`` others."""
        return 8 * self.itemsize + round(log2(self.epsilon)) if self.is_floating_point else 0

    def __str__(self) -> str:
        return self.name


bf16 = DType("bf16", 2, 2.0**-8, 0xFF95, 1.0, "bfloat16", "bfloat16", "BF16", 30, "bf16", "BFLOAT16", True)
fp16 = DType("fp16", 2, 2.0**-11, 0xFC15, 1.0, "float16", "float16", "F16", 1, "f16", "FLOAT16", True, ("half",))
#: The ratio to the bf16 rate is that of the H200's data sheet, without tensor cores.
fp32 = DType(
    "fp32", 4, 2.0**-24, 0xFF95A5A5, 67 / 989, "float32", "float32", "F32", 0, "f32", "FLOAT32", False, ("float",)
)
#: Whole numbers: ids and positions. The ratio to the bf16 rate is half of that of fp32, as on the H200.
int32 = DType("int32", 4, 0.0, 0x80000000, 33.5 / 989, "int32", "int32", "I32", 26, "s32", "INT32", False, ("int",))

#: All dtypes.
DTYPES = (bf16, fp16, fp32, int32)
#: Names of the dtypes that arithmetic rounds to.
FLOATS = tuple(known.name for known in DTYPES if known.is_floating_point)


def dtype(name: str | DType) -> DType:
    """Return the DType called ``name`` (``bf16``, ``fp16``, ``fp32`` or a usual alias).

    Raises:
        DTypeError: unknown name.
    """
    if isinstance(name, DType):
        return name
    found = _find_dtype(name)
    if found is None:
        raise DTypeError(f"unknown dtype {name!r}; use one of {', '.join(d.name for d in DTYPES)}")
    return found


def suggest_dtype(value: object) -> str:
    """Return what to write for the name of a dtype, or for PyTorch's or NumPy's dtype; ``il.fp32`` if it is unknown."""
    name = value.__name__ if isinstance(value, type) else str(value).removeprefix("torch.")
    return f"il.{_find_dtype(name) or fp32}"


def _find_dtype(name: object) -> DType | None:
    return next((d for d in DTYPES if name in (d.name, d.torch, *d.aliases)), None)

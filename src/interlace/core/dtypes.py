"""The element types that tensors may have, one row each, without needing a framework to name them."""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.errors import DTypeError


@dataclass(frozen=True)
class DType:
    """An element type, with what every room calls it.

    Attributes:
        name: here, and of its type in emitted CUDA C++.
        itemsize: bytes.
        epsilon: unit round-off of one rounding to it, 0 of whole numbers.
        poison: bits of a NaN, for memory that nobody may read; of whole numbers, one that indexes nothing.
        rate: FLOP/s of a GPU in it over those in bf16, where a chip's data has no rate of its own.
        torch: its name in PyTorch.
        numpy: its name in NumPy; None for one that NumPy lacks, which is the upper half of a float32.
        safetensors: its name in checkpoints.
        ptx: its name in PTX instructions.
        tensor_map: its name in the driver's ``CU_TENSOR_MAP_DATA_TYPE_...``.
        on_tensor_cores: whether they multiply it (``wgmma`` with float32 sums).
        aliases: other usual names.
    """

    name: str
    itemsize: int
    epsilon: float
    poison: int
    rate: float
    torch: str
    numpy: str | None
    safetensors: str
    ptx: str
    tensor_map: str
    on_tensor_cores: bool
    aliases: tuple[str, ...] = ()

    @property
    def floating(self) -> bool:
        """Whether its values are rounded, rather than whole numbers such as ids and positions."""
        return self.epsilon > 0

    def __str__(self) -> str:
        return self.name


bf16 = DType("bf16", 2, 2.0**-8, 0xFF95, 1.0, "bfloat16", None, "BF16", "bf16", "BFLOAT16", True)
fp16 = DType("fp16", 2, 2.0**-11, 0xFC15, 1.0, "float16", "float16", "F16", "f16", "FLOAT16", True, ("half",))
#: Its share of the bf16 rate is that of the H200's data sheet, where it does not go through tensor cores.
fp32 = DType(
    "fp32", 4, 2.0**-24, 0xFF95A5A5, 67 / 989, "float32", "float32", "F32", "f32", "FLOAT32", False, ("float",)
)
#: Whole numbers: ids and positions. Its share of the rate is half of that of fp32, as on the H200.
int32 = DType("int32", 4, 0.0, 0x80000000, 33.5 / 989, "int32", "int32", "I32", "s32", "INT32", False, ("int",))

#: All of them.
DTYPES = (bf16, fp16, fp32, int32)
#: Names of those that arithmetic rounds to.
FLOATS = tuple(known.name for known in DTYPES if known.floating)


def dtype(name: str | DType) -> DType:
    """The DType called ``name`` (``bf16``, ``fp16``, ``fp32`` or a usual alias).

    Raises:
        DTypeError: no such dtype.
    """
    if isinstance(name, DType):
        return name
    found = _named(name)
    if found is None:
        raise DTypeError(f"unknown dtype {name!r}; use one of {', '.join(d.name for d in DTYPES)}")
    return found


def meant(value: object) -> str:
    """What to write for a name of a dtype, or for one of PyTorch's or NumPy's; of another one, any."""
    name = value.__name__ if isinstance(value, type) else str(value).removeprefix("torch.")
    return f"il.{_named(name) or fp32}"


def _named(name: object) -> DType | None:
    return next((d for d in DTYPES if name in (d.name, d.torch, *d.aliases)), None)

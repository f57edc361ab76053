"""Structs that the host fills and device code reads: one list of fields, laid out for C, ctypes and NumPy.

    STEP = Struct("Step", (("count", "int"), ("values", "const float*")))
    STEP.source     # struct Step {int count; const float* values;}; and checks of its size and offsets
    STEP.ctype      # the same for ctypes; a pointer is an address
    STEP.dtype      # the same for NumPy

    field      count   (padding)   values
    offset     0       4           8          size 16

A kind is a C type of ``SCALARS``, a pointer (any string that ends in ``*``), another struct, or a pair of one of
these and a count. Offsets follow the rules of C; the compiler checks them wherever the source is compiled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from interlace.csrc import include

#: C types with their ctypes class and NumPy format.
SCALARS: dict[str, tuple[Any, str]] = {
    "unsigned char": (ctypes.c_ubyte, "u1"),
    "int": (ctypes.c_int, "i4"),
    "unsigned": (ctypes.c_uint, "u4"),
    "float": (ctypes.c_float, "f4"),
    "long long": (ctypes.c_longlong, "i8"),
    "unsigned long long": (ctypes.c_ulonglong, "u8"),
}
#: Source that precedes the sources of structs: NVRTC without its headers has no ``offsetof``.
OFFSETOF = include("offsetof.cuh")
_POINTER = (ctypes.c_void_p, "u8")


@dataclass(frozen=True)
class Struct:
    """A struct in memory that the host and the device share.

    Attributes:
        name: name in C.
        fields: (name, kind) in the order of their offsets.
        align: lower bound of the alignment in bytes; the size is a multiple of it.
    """

    name: str
    fields: tuple[tuple[str, Any], ...]
    align: int = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the fields: cached ctypes classes cannot be sent to another process, and follow from these."""
        return Struct, (self.name, self.fields, self.align)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(name for name, _ in self.fields)

    @cached_property
    def alignment(self) -> int:
        """Alignment in bytes."""
        return max(self.align, *(_get_alignment(kind) for _, kind in self.fields))

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Offset of each field in bytes."""
        offsets, end = {}, 0
        for name, kind in self.fields:
            offsets[name] = _align_up(end, _get_alignment(kind))
            end = offsets[name] + _get_size(kind)
        return offsets

    @cached_property
    def size(self) -> int:
        """Size in bytes, padding included."""
        last, kind = self.fields[-1]
        return _align_up(self.offsets[last] + _get_size(kind), self.alignment)

    @cached_property
    def ctype(self) -> type[ctypes.Structure]:
        """The struct as a ctypes class; padding that ctypes would not insert has its own fields."""
        fields: list[tuple[str, Any]] = []
        end = 0

        def pad(until: int) -> None:
            if until > end:
                fields.append((f"_{end}", ctypes.c_ubyte * (until - end)))

        for name, kind in self.fields:
            pad(self.offsets[name])
            fields.append((name, _get_ctype(kind)))
            end = self.offsets[name] + _get_size(kind)
        pad(self.size)
        return type(self.name, (ctypes.Structure,), {"_fields_": fields})

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The struct as a structured NumPy dtype."""
        formats = [_get_numpy_format(kind) for _, kind in self.fields]
        offsets = [self.offsets[name] for name in self.names]
        return np.dtype({"names": list(self.names), "formats": formats, "offsets": offsets, "itemsize": self.size})

    @cached_property
    def source(self) -> str:
        """The struct in CUDA C++, followed by assertions of its layout, which need ``OFFSETOF``."""
        natural = max(_get_alignment(kind) for _, kind in self.fields)
        align = f"__align__({self.alignment}) " if self.alignment > natural else ""
        body = "".join(f"  {_declare_field(name, kind)};\n" for name, kind in self.fields)
        checks = [f"sizeof({self.name}) == {self.size}"]
        checks += [f"offsetof({self.name}, {name}) == {offset}" for name, offset in self.offsets.items()]
        return f"struct {align}{self.name} {{\n{body}}};\n" + "".join(f"static_assert({c});\n" for c in checks)

    def pack(self, **values: Any) -> bytes:
        """Pack a struct with these fields; a value with ``data_ptr()`` is its address, None the null pointer.

        A bytes value is the contents of an array or a struct, with that size.

        Raises:
            TypeError: a missing field or an unknown name.
        """
        if values.keys() != self.offsets.keys():
            wrong = sorted(values.keys() ^ set(self.names))
            raise TypeError(f"struct {self.name} has fields {', '.join(self.names)}; check {', '.join(wrong)}")
        wide: list[tuple[str, bytes]] = []
        given = {}
        for name, value in values.items():
            if isinstance(value, bytes):
                wide.append((name, value))
            elif value is not None:
                given[name] = value.data_ptr() if hasattr(value, "data_ptr") else value
        packed = bytearray(self.ctype(**given))
        for name, value in wide:
            at = self.offsets[name]
            packed[at : at + len(value)] = value
        return bytes(packed)

    # ---------------------------------------------------------------- rows of a table, whose fields have equal widths

    @property
    def columns(self) -> int:
        """Elements from one row to the next, padding included."""
        return self.size // _get_size(self.fields[0][1])

    def get_column(self, name: str) -> int:
        """Return the element offset of a field in a row."""
        return self.offsets[name] // _get_size(self.fields[0][1])


def generate_row_load(row: Struct) -> str:
    """Generate ``load_row(at)`` in CUDA C++, which loads a row of ints by 128-bit loads.

    The compiler removes loads that a caller does not use. ``unpack(row, quads)`` does the same for a row that has
    already been loaded, for example to shared memory.
    """
    count = row.size // 16
    loads = ", ".join(f"from[{q}]" for q in range(count))
    values = ", ".join(f"quads[{offset // 16}].{'xyzw'[offset % 16 // 4]}" for offset in row.offsets.values())
    return (
        f"DEVICE void unpack({row.name}& row, const int4 (&quads)[{count}]) {{\n  row = {{{values}}};\n}}\n"
        f"DEVICE {row.name} load_row(const {row.name}* at) {{\n"
        "  const int4* const from = reinterpret_cast<const int4*>(at);\n"
        f"  const int4 quads[{count}] = {{{loads}}};\n"
        f"  {row.name} row;\n  unpack(row, quads);\n  return row;\n}}\n"
    )


def generate_structs(structs: Sequence[Struct]) -> str:
    """Generate the structs in CUDA C++, in order."""
    return "".join(struct.source for struct in structs)


def _align_up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _get_ctype(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return _get_ctype(kind[0]) * kind[1]
    if isinstance(kind, Struct):
        return kind.ctype
    return (_POINTER if kind.endswith("*") else SCALARS[kind])[0]


def _get_numpy_format(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return (_get_numpy_format(kind[0]), (kind[1],))
    if isinstance(kind, Struct):
        return kind.dtype
    return (_POINTER if kind.endswith("*") else SCALARS[kind])[1]


def _get_size(kind: Any) -> int:
    return kind.size if isinstance(kind, Struct) else ctypes.sizeof(_get_ctype(kind))


def _get_alignment(kind: Any) -> int:
    single = kind[0] if isinstance(kind, tuple) else kind
    return single.alignment if isinstance(single, Struct) else ctypes.alignment(_get_ctype(single))


def _declare_field(name: str, kind: Any) -> str:
    if isinstance(kind, tuple):
        return f"{_declare_field(name, kind[0])}[{kind[1]}]"
    return f"{kind.name if isinstance(kind, Struct) else kind} {name}"

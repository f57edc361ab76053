"""Weights of a trained model, read by name from a safetensors file.

The file is a little-endian 64-bit header length, a JSON header and the data (the format is described at
https://huggingface.co/docs/safetensors). This module parses the header and maps the data itself. The package
``safetensors`` differs in three ways: it refuses a whole file for one tensor of a dtype that it does not know, most of
its errors name no tensor, and it copies a tensor once more on the way to NumPy.

    file = Checkpoint.open(path)
    w_up = file.read("mlp.up_proj.weight")      # float32, (ffn, hidden)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import DTYPES, DType
from interlace.core.errors import DTypeError, GraphError, ShapeError
from interlace.core.files import check_regular
from interlace.core.rounding import find_numpy_dtype

_HEADER_LIMIT = 100_000_000  # bytes, as in the format's own reader
_DTYPES = {d.safetensors: d for d in DTYPES if d.is_floating_point}
_MAX_LISTED = 12  # names listed in an error message


@dataclass(frozen=True)
class StoredTensor:
    """Location and type of one tensor in a file.

    Attributes:
        dtype: name of the element type in the format, such as ``BF16``.
        shape: extents, row-major.
        begin, end: byte range within the data section.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Checkpoint:
    """A safetensors file of which only the header has been read.

    Attributes:
        path: location of the file.
        data_offset: byte offset of the data section in the file.
        tensors: the file's tensors by name.
    """

    path: Path
    data_offset: int
    tensors: Mapping[str, StoredTensor]

    @staticmethod
    def open(path: str | Path) -> Checkpoint:
        """Read a file's header.

        Raises:
            GraphError: the file cannot be read, is damaged, or is no safetensors file.
        """
        path = Path(path)
        try:
            check_regular(path)
            with path.open("rb") as file:
                size = path.stat().st_size
                start = file.read(8)
                length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
                if not 2 <= length <= min(size - 8, _HEADER_LIMIT):
                    raise _build_error(path, f"a header of {length} bytes does not fit its {size}")
                text = file.read(length)
        except OSError as error:
            raise GraphError(f"cannot read checkpoint {str(path)!r}: {error.strerror}") from None
        try:
            header = json.loads(text.decode("utf-8"))
        except (ValueError, RecursionError):
            raise _build_error(path, "its header is not JSON") from None
        if not isinstance(header, dict):
            raise _build_error(path, "its header is not a JSON object")
        header.pop("__metadata__", None)
        available = size - 8 - length
        tensors = {name: _parse_entry(path, name, e, available) for name, e in header.items()}
        placed = sorted(((t.begin, t.end, name) for name, t in tensors.items() if t.begin < t.end))
        for (_, end, before), (begin, _, name) in pairwise(placed):
            if begin < end:
                raise _build_error(path, f"tensors {before!r} and {name!r} lie in the same bytes")
        return Checkpoint(path, 8 + length, tensors)

    def describe_matrix(self, name: str) -> tuple[tuple[int, int], DType]:
        """Return shape (outputs, inputs) and dtype of a weight without reading its data.

        Raises:
            GraphError: no such tensor.
            ShapeError: the tensor is not a matrix.
            DTypeError: its element type is none of the supported dtypes.
        """
        dtype = self._find_dtype(name)
        stored = self.tensors[name]
        if len(stored.shape) != 2 or 0 in stored.shape:
            raise ShapeError(
                f"tensor {name!r} of checkpoint {str(self.path)!r} has shape {stored.shape}; "
                "name a weight matrix (outputs, inputs)"
            )
        return (stored.shape[0], stored.shape[1]), dtype

    def read(self, name: str) -> NDArray[np.float32]:
        """Read the weight called ``name``, (outputs, inputs), widened to float32 without loss.

        Raises:
            GraphError: no such tensor, the file cannot be read, or the weight holds infinities or NaNs.
            ShapeError, DTypeError: as ``describe_matrix``.
        """
        self.describe_matrix(name)
        return self.read_tensor(name)

    def read_tensor(self, name: str) -> NDArray[np.float32]:
        """Read a tensor of any shape, widened to float32 without loss.

        Raises:
            GraphError: no such tensor, it is empty, the file cannot be read, or it holds infinities or NaNs.
            DTypeError: its element type is none of the supported dtypes.
        """
        dtype = self._find_dtype(name)
        stored = self.tensors[name]
        if not prod(stored.shape):
            raise GraphError(f"tensor {name!r} of checkpoint {str(self.path)!r} has no elements")
        try:
            kind = find_numpy_dtype(dtype).newbyteorder("<")
            raw = np.memmap(self.path, kind, "r", self.data_offset + stored.begin, stored.shape)
        except (OSError, ValueError) as error:
            raise GraphError(f"cannot read tensor {name!r} of checkpoint {str(self.path)!r}: {error}") from None
        values = np.array(raw, np.float32)
        if not np.isfinite(values).all():
            raise GraphError(f"tensor {name!r} of checkpoint {str(self.path)!r} holds infinities or NaNs")
        return values

    def _find_dtype(self, name: str) -> DType:
        if name not in self.tensors:
            names = sorted(self.tensors)
            more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
            shown = ", ".join(names[:_MAX_LISTED]) or "none"
            raise GraphError(f"checkpoint {str(self.path)!r} has no tensor {name!r}; it has {shown}{more}")
        stored = self.tensors[name]
        if stored.dtype not in _DTYPES:
            raise DTypeError(
                f"tensor {name!r} of checkpoint {str(self.path)!r} is {stored.dtype}; "
                f"convert it to one of {', '.join(_DTYPES)}"
            )
        return _DTYPES[stored.dtype]


def _parse_entry(path: Path, name: str, entry: object, available: int) -> StoredTensor:
    """Parse one entry of the header and check it against the size of the data section."""
    if not isinstance(entry, dict):
        raise _build_error(path, f"the entry of tensor {name!r} is not an object")
    dtype, shape, offsets = (
        entry.get("dtype"),
        _parse_counts(entry.get("shape")),
        _parse_counts(entry.get("data_offsets")),
    )
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        raise _build_error(path, f"the entry of tensor {name!r} lacks a proper dtype, shape or data_offsets")
    begin, end = offsets
    if not begin <= end <= available:
        raise _build_error(path, f"tensor {name!r} lies at bytes {begin}:{end} of {available}")
    if dtype in _DTYPES and end - begin != prod(shape) * _DTYPES[dtype].itemsize:
        raise _build_error(path, f"tensor {name!r} of shape {shape} and dtype {dtype} has {end - begin} bytes")
    return StoredTensor(dtype, shape, begin, end)


def _parse_counts(value: object) -> tuple[int, ...] | None:
    """Return a JSON list of non-negative integers as a tuple, None for any other value."""
    if not isinstance(value, list) or any(type(v) is not int or v < 0 for v in value):
        return None
    return tuple(value)


def _build_error(path: Path, what: str) -> GraphError:
    return GraphError(f"checkpoint {str(path)!r} is damaged or no safetensors file: {what}")

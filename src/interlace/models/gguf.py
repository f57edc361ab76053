"""Weights and metadata of a GGUF file, read by name.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. This module parses the header and
checks every count and offset against the file size before it allocates anything of that size. A damaged or hostile file
therefore raises an error and does no harm. The package ``gguf`` decodes blocks of quantised weights.

    magic "GGUF", version, number of tensors, number of entries      4 + 4 + 8 + 8 bytes, little-endian
    entries: name, type, value                                       a name is its length in 8 bytes, then UTF-8
    tensors: name, number of extents, extents, type, offset          extents from the innermost on
    padding to a multiple of general.alignment, then the data
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.dtypes import DTYPES
from interlace.core.errors import ModelFileError
from interlace.core.files import check_regular
from interlace.core.rounding import find_numpy_dtype

_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MAX_EXTENTS = 4
#: ``struct`` formats of scalar values by type number.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
#: Dtypes of unquantised tensor types, by type number.
_PLAIN = {known.gguf: known for known in DTYPES if known.is_floating_point}
_MAX_LISTED = 12  # names listed in an error message


@dataclass(frozen=True)
class GGUFTensor:
    """Location and type of one tensor in a file.

    Attributes:
        kind: type number of the tensor.
        shape: extents, row-major.
        begin, end: byte range within the file.
    """

    kind: int
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class GGUF:
    """A GGUF file of which only the header has been read.

    Attributes:
        path: location of the file.
        metadata: entries by name: numbers, texts, booleans, or lists of one of these.
        tensors: the file's tensors by name.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]

    @staticmethod
    def open(path: str | Path) -> GGUF:
        """Read a file's header.

        Raises:
            ModelFileError: the file cannot be read, is damaged or truncated, is not a GGUF file, or has quantised
                weights of an unsupported type.
        """
        path = Path(path)
        try:
            check_regular(path)
            size = path.stat().st_size
            data = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
        except (OSError, ValueError) as error:
            raise ModelFileError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
        return _Header(path, data).parse()

    def read(self, name: str) -> NDArray[np.float32]:
        """Read a tensor as float32, dequantised or widened without loss.

        Raises:
            ModelFileError: there is no such tensor, it cannot be read, or it holds infinities or NaNs.
        """
        stored = self.find_tensor(name)
        try:
            raw = np.memmap(self.path, np.uint8, "r", stored.begin, (stored.end - stored.begin,))
        except (OSError, ValueError) as error:
            raise ModelFileError(f"cannot read tensor {name!r} of {str(self.path)!r}: {error}") from None
        if stored.kind in _PLAIN:
            little = find_numpy_dtype(_PLAIN[stored.kind]).newbyteorder("<")
            values = np.array(raw.view(little), np.float32).reshape(stored.shape)
        else:
            values = _decode(raw, stored, f"tensor {name!r} of {str(self.path)!r}")
        if not np.isfinite(values).all():
            raise ModelFileError(f"tensor {name!r} of {str(self.path)!r} holds infinities or NaNs")
        return values

    def find_tensor(self, name: str) -> GGUFTensor:
        """Return the location of a tensor. Raises ModelFileError if there is none of this name."""
        if name not in self.tensors:
            names = sorted(self.tensors)
            more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
            raise ModelFileError(
                f"{str(self.path)!r} has no tensor {name!r}; it has {', '.join(names[:_MAX_LISTED]) or 'none'}{more}"
            )
        return self.tensors[name]


class _Header:
    """Parser of a file's header: the file's bytes and the current read offset."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self._path, self._data, self._at = path, data, 0

    def parse(self) -> GGUF:
        if self._take(4) != b"GGUF":
            raise self._build_error("it does not begin with GGUF", foreign=True)
        version = self._read_scalar("I")
        if version not in _VERSIONS:
            raise self._build_error(f"its version is {version}, and {' and '.join(map(str, _VERSIONS))} are read", True)
        tensors, entries = self._read_count(24), self._read_count(13)
        metadata: dict[str, Any] = {}
        for _ in range(entries):
            name = self._read_text()
            if name in metadata:
                raise self._build_error(f"entry {name!r} stands there twice")
            metadata[name] = self._read_value(self._read_scalar("I"))
        found = [self._read_tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise self._build_error(f"general.alignment is {alignment!r}")
        begin = -(-self._at // alignment) * alignment
        placed: dict[str, GGUFTensor] = {}
        for name, kind, shape, offset in found:
            if name in placed:
                raise self._build_error(f"tensor {name!r} stands there twice")
            start = begin + offset
            end = start + self._count_bytes(name, kind, shape)
            if end > len(self._data):
                raise self._build_error(f"tensor {name!r} ends at byte {end} of {len(self._data)}: it is truncated")
            placed[name] = GGUFTensor(kind, shape, start, end)
        return GGUF(self._path, metadata, placed)

    def _count_bytes(self, name: str, kind: int, shape: tuple[int, ...]) -> int:
        if kind in _PLAIN:
            return prod(shape) * _PLAIN[kind].itemsize
        block, size = _find_block(kind, f"tensor {name!r} of {str(self._path)!r}")
        if shape[-1] % block:
            raise self._build_error(f"tensor {name!r} has rows of {shape[-1]} values, of a type in blocks of {block}")
        return prod(shape) // block * size

    def _read_tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        name, dimensions = self._read_text(), self._read_scalar("I")
        if not 1 <= dimensions <= _MAX_EXTENTS:
            raise self._build_error(f"tensor {name!r} has {dimensions} dimensions")
        extents = tuple(self._read_scalar("Q") for _ in range(dimensions))
        if not all(extents):
            raise self._build_error(f"tensor {name!r} has extents {extents}")
        kind, offset = self._read_scalar("I"), self._read_scalar("Q")
        return name, kind, extents[::-1], offset

    def _read_value(self, kind: int, inner: bool = False) -> Any:
        if kind in _SCALARS:
            return self._read_scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._read_text()
        if kind != _ARRAY or inner:
            raise self._build_error(f"an entry has type {kind} at byte {self._at}")
        kind = self._read_scalar("I")
        if kind in _SCALARS:
            size = struct.calcsize(f"<{_SCALARS[kind]}")
            count = self._read_count(size)
            return [*struct.unpack(f"<{count}{_SCALARS[kind]}", self._take(count * size))]
        return [self._read_value(kind, True) for _ in range(self._read_count(8))]

    def _read_text(self) -> str:
        try:
            return self._take(self._read_count(1)).decode("utf-8")
        except UnicodeDecodeError:
            raise self._build_error(f"a text before byte {self._at} is not UTF-8") from None

    def _read_count(self, each: int) -> int:
        """Read an element count and check it against the bytes left, for elements of at least ``each`` bytes."""
        count: int = self._read_scalar("Q")
        if count * each > len(self._data) - self._at:
            raise self._build_error(f"{count} entries do not fit after byte {self._at} of {len(self._data)}")
        return count

    def _read_scalar(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise self._build_error(f"it ends at byte {len(self._data)}, in the middle of its header", self._at == 0)
        self._at = end
        return self._data[end - count : end].tobytes()

    def _build_error(self, what: str, foreign: bool = False) -> ModelFileError:
        return ModelFileError(f"{str(self._path)!r} is {'no GGUF file' if foreign else 'damaged'}: {what}")


def _find_block(kind: int, where: str) -> tuple[int, int]:
    """Return the number of values and of bytes in one block of a quantised type."""
    constants, _ = _import_gguf(where)
    try:
        block, size = constants.GGML_QUANT_SIZES[constants.GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise ModelFileError(f"{where} is of type {kind}, which nothing decodes; convert it to Q8_0 or F16") from None
    return int(block), int(size)


def _decode(raw: NDArray[np.uint8], stored: GGUFTensor, where: str) -> NDArray[np.float32]:
    constants, quants = _import_gguf(where)
    kind = constants.GGMLQuantizationType(stored.kind)
    try:
        with np.errstate(all="ignore"):  # the caller rejects non-finite values by name
            values = quants.dequantize(raw.reshape(prod(stored.shape[:-1]), -1), kind)
    except NotImplementedError:
        raise ModelFileError(f"{where} is {kind.name}, which nothing decodes; convert it to Q8_0 or F16") from None
    return np.asarray(values, np.float32).reshape(stored.shape)


def _import_gguf(where: str) -> tuple[Any, Any]:
    try:
        from gguf import constants, quants
    except ImportError as error:
        raise ModelFileError(f"{where} is quantised: {error}; `pip install -e '.[generate]'`") from None
    return constants, quants

"""Type checks for arguments of the public API, with errors that suggest what to write.

il.Schedule(4, policy=il.RowSync)     Schedule: policy is the class RowSync; write policy=il.RowSync()
il.Schedule(4, policy="row")          Schedule: policy is 'row'; write policy=il.RowSync()
il.Schedule(4, dispatch="static")     Schedule: dispatch is 'static'; write dispatch=il.Dispatch.STATIC
il.Schedule("4")                      Schedule: workers is '4'; write workers=4
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Iterator
from enum import Enum
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import ArgumentError, InterlaceError

#: Maximum bits of an int that is printed; Python refuses to print one of more than 4,300 digits.
MAX_PRINTED_BITS = 10_000
_MAX_PRINTED_CHARS = 60  # maximum characters of a list that is printed; of a longer one, only its type is


def check_type(value: object, kind: type | tuple[type, ...], where: str, name: str, suggestion: str = "") -> None:
    """Raise unless ``value`` is a ``kind``.

    Args:
        kind: expected type, or several, of which the first is suggested.
        where: owner of the argument, for the message: "Schedule", "op 'up'".
        name: name of the argument.
        suggestion: suggestion, if nothing better follows from the value.

    Raises:
        ArgumentError: the value has another type; names the class or the member that it probably stands for.
    """
    if type(value) is kind:
        return
    number = int in (kind if isinstance(kind, tuple) else (kind,))
    if isinstance(value, kind) and not (number and isinstance(value, bool)):
        return
    first = kind[0] if isinstance(kind, tuple) else kind
    raise _build_error(value, where, name, _suggest(value, first) or suggestion or _format_call(first))


def check_int(value: object, where: str, name: str) -> int:
    """Convert an integer of any type to an int; a bool is rejected.

    Raises:
        ArgumentError: the value is not an integer.
    """
    try:
        if isinstance(value, (bool, np.bool_)) or str(getattr(value, "dtype", "")).endswith("bool"):
            raise TypeError
        return index(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  # tensors and number types of other packages raise any exception
        such = ""
        try:
            number = float(value)  # type: ignore[arg-type]
            if number.is_integer() and not isinstance(value, bool):
                such = str(int(number))
        except Exception:  # noqa: BLE001
            such = ""
        raise _build_error(value, where, name, such or "a whole number") from None


def check_sequence(value: object, kind: type, where: str, name: str) -> tuple[Any, ...]:
    """Convert a tuple or a list to a tuple, and check that all entries are a ``kind``.

    Raises:
        ArgumentError: another type of value or entry.
    """
    if isinstance(value, range):
        value = tuple(value)
    if not isinstance(value, (tuple, list)):
        one = type(value) is str if kind is str else type(value) is int and kind is object
        raise _build_error(value, where, name, f"({value!r},)" if one else "a tuple")
    for i, entry in enumerate(value):
        if type(entry) is kind:
            continue
        if kind is str and isinstance(getattr(entry, "name", None), str):
            check_type(entry, kind, where, f"{name}[{i}]", repr(entry.name))
        else:
            check_type(entry, kind, where, f"{name}[{i}]")
    return tuple(value)


def check_int_array(
    value: object, length: int | None, error: Callable[[str], InterlaceError], what: str
) -> NDArray[np.int64]:
    """Convert the result of a user's own method, such as an array or a list, to a vector of integers.

    Args:
        length: required length, or None for any.
        error: error to raise for anything else.
        what: description for the message: "order of op 'up'".
    """
    array = np.asarray(value) if isinstance(value, (np.ndarray, list, tuple, range)) else None
    if array is None or (array.size and array.dtype.kind not in "iu"):
        kind = format_value(value) if array is None else f"{array.dtype} values"
        raise error(f"{what} gave {kind}; give an array of integers")
    if array.ndim != 1 or (length is not None and len(array) != length):
        wanted = "one dimension" if length is None else f"shape ({length},)"
        raise error(f"{what} gave an array of shape {array.shape}; give one of {wanted}")
    return array.astype(np.int64)


class _ShortRepr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        bits = x.bit_length()
        return f"an int of {bits:,} bits" if bits > MAX_PRINTED_BITS else super().repr_int(x, level)


def safe_repr(value: object) -> str:
    """Return ``repr`` of a value, also for ints that are too long for Python to print."""
    try:
        return repr(value)
    except ValueError:
        return format_value(value)


def format_value(value: object) -> str:
    """Format an unexpected value for messages: ``the class Plan``, ``None``, ``'row'``, ``a Graph``."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, (str, bytes, int, float, Enum)):
        return _ShortRepr().repr(value)
    if isinstance(value, (list, tuple, dict)) and len(text := _ShortRepr().repr(value)) <= _MAX_PRINTED_CHARS:
        return text
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _build_error(value: object, where: str, name: str, suggestion: str) -> ArgumentError:
    advice = suggestion if suggestion.startswith(("a ", "an ")) else f"{name}={suggestion}"
    return ArgumentError(f"{where}: {name} is {format_value(value)}; write {advice}")


def _suggest(value: object, kind: type) -> str:
    """Return what to write for a class or a string that probably stands for a ``kind``, or ""."""
    if isinstance(value, type) and issubclass(value, kind):
        return _format_call(value)
    if not isinstance(value, str):
        return ""
    text = _normalize(value)
    if issubclass(kind, Enum):
        return next(
            (_format_call(m) for m in kind if text and text in (_normalize(m.name), _normalize(str(m.value)))), ""
        )
    named: list[type] = [cls for cls in _iter_subclasses(kind) if text and _normalize(cls.__name__).startswith(text)]
    return _format_call(min(named, key=lambda cls: len(cls.__name__))) if named else ""


def _iter_subclasses(kind: type) -> Iterator[type]:
    """Yield the concrete subclasses, at any depth."""
    cls: type
    for cls in kind.__subclasses__():
        if not inspect.isabstract(cls):
            yield cls
        yield from _iter_subclasses(cls)


def _format_call(what: Any) -> str:
    """Return how to write an object of a class, or a member of an enumeration."""
    if isinstance(what, Enum):
        return f"{_qualify_name(type(what))}.{what.name}"
    if issubclass(what, Enum):
        return " or ".join(map(_format_call, what))
    if what.__module__ == "builtins":
        return f"{'an' if what is int else 'a'} {what.__name__}"
    if inspect.isabstract(what):
        return _format_call(next(_iter_subclasses(what)))
    needed: list[str] = [
        p.name
        for p in inspect.signature(what).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return f"{_qualify_name(what)}({', '.join(needed)})"


def _qualify_name(cls: type) -> str:
    return ("il." if cls.__module__.startswith("interlace.") else "") + cls.__name__


def _normalize(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())

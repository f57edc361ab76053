"""Calls of a kernel's NumPy reference, which a user may have written: errors name op, tile and expected signature.

finish(acc, regions, params)          or, with ``located=True``, finish(acc, regions, params, tile)
accumulate(regions, params)           for kernels with a reduction
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from interlace.core.arguments import format_value
from interlace.core.errors import DTypeError, GraphError, InterlaceError, ReferenceBodyError, ShapeError
from interlace.graph.op import Op
from interlace.kernels.base import get_kernel
from interlace.kernels.bodies import Array, Reference

_ACCUMULATE = "accumulate(regions, params)"


def reference_of(op: Op) -> Reference:
    """Return the reference of an op.

    Raises:
        GraphError: the op has none, or one with or without ``accumulate`` where its reduction needs the other.
        ReferenceBodyError: one of its functions takes other arguments.
    """
    reference = get_kernel(op).reference
    if reference is None:
        raise GraphError(f"op {op.name!r}: kernel {op.kernel!r} has no NumPy reference; give it one to run it here")
    if (reference.accumulate is None) != (op.reduction is None):
        raise GraphError(f"op {op.name!r}: a kernel accumulates exactly if its op declares a reduction")
    _check_signature(op, reference.finish, _finish(reference), 4 if reference.needs_coords else 3)
    if reference.accumulate is not None:
        _check_signature(op, reference.accumulate, _ACCUMULATE, 2)
    return reference


def accumulate(op: Op, tile: int, reference: Reference, regions: Mapping[str, Array], before: Array | None) -> Array:
    """Add what ``accumulate`` returns for a k-range to the sum ``before`` it; None if there is none.

    Raises:
        ReferenceBodyError: the function raises an error, or returns no array.
        DTypeError: the array does not hold real numbers.
        ShapeError: the array has another shape than the sum.
    """
    assert reference.accumulate is not None
    part = _call(op, tile, reference.accumulate, _ACCUMULATE, (regions, op.parameters))
    if not isinstance(part, np.ndarray | np.generic | int | float):
        raise ReferenceBodyError(
            f"{_label(op, tile)}: {_ACCUMULATE} returns {format_value(part)}; return an array, to which those of other "
            "k-ranges are added"
        )
    _check_real(op, tile, _ACCUMULATE, "an array", part)
    array: Array = np.asarray(part)
    if before is None:
        return array
    check_parts(op, tile, (before, array))
    return before + array


def check_parts(op: Op, tile: int, parts: Iterable[Array]) -> None:
    """Raise ShapeError unless the sums of all k-ranges of a tile have one shape."""
    shapes = {np.shape(part): None for part in parts}
    if len(shapes) > 1:
        found = " and ".join(map(str, shapes))
        raise ShapeError(
            f"{_label(op, tile)}: {_ACCUMULATE} returns shapes {found} for different k-ranges; return one shape for all"
        )


def complete(op: Op, tile: int, reference: Reference, acc: Array | None, regions: Mapping[str, Array]) -> object:
    """Return what ``finish`` returns for a tile; its regions are not compared with what the op writes.

    Raises:
        ReferenceBodyError: the function raises an error.
        DTypeError: a region does not hold real numbers.
    """
    where = (tuple(op.compute_coords(np.array([tile]))[0].tolist()),) if reference.needs_coords else ()
    signature = _finish(reference)
    values = _call(op, tile, reference.finish, signature, (acc, regions, op.parameters, *where))
    for arg, value in values.items() if isinstance(values, Mapping) else ():
        _check_real(op, tile, signature, repr(arg), value)
    return values


def _finish(reference: Reference) -> str:
    return f"finish(acc, regions, params{', tile' if reference.needs_coords else ''})"


def _label(op: Op, tile: int) -> str:
    return f"{op.format_tile(tile)}: the reference of kernel {op.kernel!r}"


def _check_signature(op: Op, function: Callable[..., Any], expected: str, count: int) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of a function in C, for example
    try:
        signature.bind(*range(count))
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise ReferenceBodyError(
            f"op {op.name!r}: the reference of kernel {op.kernel!r} has {name}{signature}, which is called as "
            f"{expected}: {error}; take these arguments in this order"
        ) from error


def _call(op: Op, tile: int, function: Callable[..., Any], signature: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except InterlaceError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        named = zip(signature.partition("(")[2].rstrip(")").split(", "), arguments, strict=True)
        given = ", ".join(f"{name} = {_value(value)}" for name, value in named)
        raise ReferenceBodyError(
            f"{_label(op, tile)} raises {type(error).__name__}: {error} ({frame.name}, line {frame.lineno} of "
            f"{frame.filename}); it is called as {signature} with {given}"
        ) from error


def _check_real(op: Op, tile: int, signature: str, what: str, value: object) -> None:
    dtype = np.asarray(value).dtype
    if not np.can_cast(dtype, np.float64, "same_kind"):
        raise DTypeError(f"{_label(op, tile)}: {signature} returns {what} of {dtype}; return real numbers")


def _value(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    if isinstance(value, Mapping) and any(isinstance(each, np.ndarray) for each in value.values()):
        return f"arrays of shapes {_shapes(value)}"
    return repr(dict(value)) if isinstance(value, Mapping) else repr(value)


def _shapes(regions: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {arg: np.shape(region) for arg, region in regions.items()}

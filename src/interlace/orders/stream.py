"""Streams of accesses: an array of unit numbers 0..units - 1, and the bytes of each unit if they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import CapacityError, StreamError

Integers = NDArray[np.integer[Any]]
Ints = NDArray[np.int64]
Units = NDArray[np.int32]

# The compiled functions store times, unit numbers and sizes as int32: half the traffic of int64.
MAX_ACCESSES = 2**31 - 2


@dataclass(frozen=True, eq=False)
class Stream:
    """Checked stream, in the types that the compiled functions accept.

    Attributes:
        units: unit of each access, contiguous.
        sizes: bytes of each unit; None if every unit counts as one.
        count: largest unit number plus one.
        largest: bytes of the largest unit in ``sizes``, 1 without.
    """

    units: Units
    sizes: Units | None
    count: int
    largest: int

    @staticmethod
    def from_units(units: Integers, sizes: Integers | None) -> Stream:
        """Check and convert a stream and its sizes.

        Raises:
            StreamError: not a 1-D array of numbers from 0, sizes that are not one positive number each, or too long.
        """
        if units.ndim != 1 or units.dtype.kind not in "iu":
            raise StreamError(f"stream is {units.dtype}{list(units.shape)}; pass a 1-D array of unit numbers")
        if len(units) > MAX_ACCESSES:
            raise StreamError(f"stream has {len(units)} accesses, the limit is {MAX_ACCESSES}; use larger units")
        if units.min(initial=0) < 0:
            raise StreamError(f"access {int(units.argmin())} names unit {units.min()}; number units from 0")
        count = int(units.max(initial=0)) + 1 if len(units) else 0
        if count > MAX_ACCESSES:
            raise StreamError(f"access {int(units.argmax())} names unit {count - 1}; number units densely from 0")
        stream = np.ascontiguousarray(units, np.int32)
        if sizes is None:
            return Stream(stream, None, count, 1)
        if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
            raise StreamError(f"sizes are {sizes.dtype}{list(sizes.shape)}; pass a 1-D array of bytes per unit")
        if len(sizes) < count:
            raise StreamError(f"the stream names unit {count - 1}, but sizes has {len(sizes)} entries; give one each")
        if sizes.min(initial=1) < 1:
            raise StreamError(f"unit {int(sizes.argmin())} has {sizes.min()} bytes; give every unit at least 1")
        largest = int(sizes.max(initial=1))
        if largest > MAX_ACCESSES:
            raise StreamError(
                f"unit {int(sizes.argmax())} has {largest} bytes, the limit is {MAX_ACCESSES}; use smaller units"
            )
        return Stream(stream, np.ascontiguousarray(sizes, np.int32), count, largest)

    def check_capacity(self, capacity: int) -> None:
        """Raise CapacityError unless every unit of the stream fits into the cache by itself."""
        if self.sizes is None and capacity < 1:
            raise CapacityError(f"capacity is {capacity} units; give at least 1")
        if capacity < self.largest:
            raise CapacityError(
                f"capacity is {capacity} bytes, but the largest unit has {self.largest}; "
                "use smaller units or a larger cache"
            )

"""Units: the pieces of tensors that a cache holds or does not.

Along each dimension of a tensor, the bounds of all regions that anything touches are *cuts*; a unit is one
cell between cuts. So every region is a whole number of units, and no unit is ever touched in part.

Worked example, ``hidden`` of 4 x 8 elements, written in tiles of 2 x 4 and read in chunks of 2 x 3:

    cuts 0, 2, 4 by 0, 3, 4, 6, 8     0 | 1 | 2 | 3
                                      --+---+---+--       the tile [0:2, 4:8] is units 2, 3
                                      4 | 5 | 6 | 7       the chunk [2:4, 3:6] is units 5, 6

In memory a unit is rows of one length at one distance: unit 5 begins at element 2 * 8 + 3 and has 2 rows of 1
element, 8 elements apart. Where a cell of a tensor of three dimensions or more would not be that, the outer
dimensions are cut into single positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.tensor import Tensor

#: Tensors begin at multiples of this in the simulated address space, as large allocations do on a GPU.
ALIGN_BYTES = 2 << 20


@dataclass(frozen=True, eq=False)
class Units:
    """All units of a graph's tensors, densely numbered, tensor after tensor, row-major within each.

    Attributes:
        tensor: position of the unit's tensor in the graph; the number of tensors stands for the workspace in
            which the parts of split tiles leave their sums.
        produced: True if an item writes the unit.
        nbytes: size.
        first_byte: address, in a space in which the tensors lie one behind the other.
        rows, row_bytes, row_stride: the unit is ``rows`` runs of ``row_bytes`` bytes, whose beginnings are
            ``row_stride`` bytes apart.
    """

    tensor: NDArray[np.int32]
    produced: NDArray[np.bool_]
    nbytes: Ints
    first_byte: Ints
    rows: Ints
    row_bytes: Ints
    row_stride: Ints

    def __len__(self) -> int:
        return len(self.nbytes)


@dataclass(frozen=True, eq=False)
class Partition:
    """One tensor's units: the cuts of each dimension, from 0 to the extent, ascending.

    Attributes:
        tensor: what is cut.
        cuts: one array per dimension.
    """

    tensor: Tensor
    cuts: tuple[Ints, ...]

    @staticmethod
    def of(tensor: Tensor, bounds: Sequence[Sequence[Ints]]) -> Partition:
        """The partition by all ``bounds[d]`` of regions along each dimension d, within the extents."""
        cuts = [
            np.unique(np.concatenate([np.array([0, extent], np.int64), *(b.ravel() for b in some)]))
            for extent, some in zip(tensor.shape, bounds, strict=True)
        ]
        inner = [d for d, c in enumerate(cuts) if len(c) > 2]
        for d in range(inner[-2] if len(inner) > 1 else 0):  # all that lies outside of a unit's rows
            cuts[d] = np.arange(tensor.shape[d] + 1, dtype=np.int64)
        return Partition(tensor, tuple(cuts))

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of units along each dimension."""
        return tuple(len(c) - 1 for c in self.cuts)

    @property
    def units(self) -> int:
        """Number of units."""
        return prod(self.grid)

    def geometry(self) -> tuple[Ints, Ints, Ints, Ints]:
        """(first byte within the tensor, rows, bytes per row, bytes from row to row) of each unit."""
        shape, itemsize = self.tensor.shape, self.tensor.dtype.itemsize
        strides = [prod(shape[d + 1 :]) * itemsize for d in range(len(shape))]
        inner = [d for d, n in enumerate(self.grid) if n > 1]
        along = inner[-1] if inner else 0  # the dimension that a row is a part of
        first, rows, row_bytes = (np.full((1,) * len(shape), n, np.int64) for n in (0, 1, strides[along]))
        for d, cuts in enumerate(self.cuts):
            at = [-1 if axis == d else 1 for axis in range(len(shape))]
            first = first + cuts[:-1].reshape(at) * strides[d]
            if d < along:
                rows = rows * np.diff(cuts).reshape(at)
            elif d == along:
                row_bytes = row_bytes * np.diff(cuts).reshape(at)
        first, rows, row_bytes = (np.broadcast_to(c, self.grid).ravel() for c in (first, rows, row_bytes))
        return first, rows, row_bytes, np.where(rows > 1, strides[along - 1] if along else 0, row_bytes)

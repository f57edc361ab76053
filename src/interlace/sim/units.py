"""Units: the pieces of tensors that a cache holds or does not.

Along each dimension of a tensor, the bounds of all touched regions are *cuts*; a unit is one cell between cuts. Every
region is therefore a whole number of units, and no unit is ever touched in part.

Worked example, ``hidden`` of 4 x 8 elements, written in tiles of 2 x 4 and read in chunks of 2 x 3:

    cuts 0, 2, 4 by 0, 3, 4, 6, 8     0 | 1 | 2 | 3
                                      --+---+---+--       the tile [0:2, 4:8] is units 2, 3
                                      4 | 5 | 6 | 7       the chunk [2:4, 3:6] is units 5, 6
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from interlace.graph.access import Ints
from interlace.graph.tensor import Tensor


@dataclass(frozen=True, eq=False)
class Units:
    """All units of a graph's tensors, densely numbered, tensor after tensor, row-major within each.

    Attributes:
        tensor: index of the unit's tensor in the graph; the number of tensors stands for the workspace that holds the
            split-K partials.
        produced: True if an item writes the unit.
        nbytes: size in bytes.
        partitions: partition of each tensor.
    """

    tensor: NDArray[np.int32]
    produced: NDArray[np.bool_]
    nbytes: Ints
    partitions: tuple[Partition, ...]

    def __len__(self) -> int:
        return len(self.nbytes)


@dataclass(frozen=True, eq=False)
class Partition:
    """One tensor's units: the cuts of each dimension, from 0 to the extent, ascending.

    Attributes:
        tensor: tensor that is cut.
        cuts: cuts along each dimension, one array per dimension.
    """

    tensor: Tensor
    cuts: tuple[Ints, ...]

    @staticmethod
    def from_bounds(tensor: Tensor, bounds: Sequence[Sequence[Ints]]) -> Partition:
        """Return the partition by all ``bounds[d]`` of regions along each dimension d, within the extents."""
        cuts = (
            np.unique(np.concatenate([np.array([0, extent], np.int64), *(b.ravel() for b in some)]))
            for extent, some in zip(tensor.shape, bounds, strict=True)
        )
        return Partition(tensor, tuple(cuts))

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of units along each dimension."""
        return tuple(len(c) - 1 for c in self.cuts)

    @property
    def units(self) -> int:
        """Number of units."""
        return prod(self.grid)

    @property
    def nbytes(self) -> Ints:
        """Size of each unit in bytes."""
        size = np.array(self.tensor.dtype.itemsize, np.int64)
        for cuts in self.cuts:
            size = size[..., None] * np.diff(cuts)
        return size.ravel()

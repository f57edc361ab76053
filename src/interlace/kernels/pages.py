"""Caches in pages: runs of positions anywhere in a pool, and a table that says where those of a sequence are.

A cache of its own for every sequence is a tensor (batch, heads, capacity, D). In pages it is (pages, heads, page, D),
and the table (batch, capacity / page) of int32 has the page of each ``page`` positions of a sequence, for keys and
values of all layers. With pages of 64 and the row 7 2 5 -1 a sequence of 150 positions has

    positions   0:64     64:128   128:150
    lie in      page 7   page 2   rows 0:22 of page 5

A negative entry is no page: what would be written there is not, and what is read there means nothing. Entries beyond
the pool are taken as its last page. A table is data: plans know how many pages there are, not which are whose.

Source: Kwon et al., Efficient memory management for large language model serving with PagedAttention, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from interlace.core.arguments import check_type
from interlace.core.dtypes import int32
from interlace.core.errors import ShapeError
from interlace.csrc import include
from interlace.graph.op import Param
from interlace.graph.tensor import Tensor
from interlace.kernels.base import check_argument, require
from interlace.kernels.bodies import Array


@dataclass(frozen=True)
class CacheLayout:
    """Where positions of sequences lie in a cache.

    Attributes:
        batch: sequences.
        capacity: positions of each.
        page: positions of a page, 0 where every sequence has a cache of its own.
        pages: of the pool, likewise.
    """

    batch: int
    capacity: int
    page: int = 0
    pages: int = 0

    @property
    def params(self) -> dict[str, Param]:
        """What bodies know of it."""
        return {"CAPACITY": self.capacity, "PAGE": self.page, "PAGES": self.pages}


def build_layout(name: str, cache: Tensor, rope: Tensor, table: Tensor | None) -> CacheLayout:
    """The layout of an op's cache, which has four dimensions.

    Raises:
        ArgumentError, ShapeError, DTypeError: a table that is none, or not of this cache.
    """
    first, _, rows, _ = cache.shape
    if table is None:
        return CacheLayout(first, rows)
    for arg, tensor in (("table", table), ("rope", rope)):
        check_type(tensor, Tensor, f"op {name!r}", arg)
        require(len(tensor.shape) == 2, f"op {name!r}: {arg} {tensor} must have two dimensions")
    batch, capacity = table.shape[0], rope.shape[0]
    check_argument(name, "table", table, (batch, -(-capacity // rows)), int32)
    return CacheLayout(batch, capacity, rows, first)


def check_page(name: str, page: int, block: int) -> None:
    """Raise ShapeError unless blocks of cached positions that are taken at once never lie in two pages."""
    if page % block:
        raise ShapeError(f"op {name!r} has pages of {page} positions and takes {block} at a time; use a multiple")


def gather_rows(cache: Array, table: Array | None, low: int, high: int) -> Array:
    """Rows (high - low, D) of a head: those of its positions from low to high, of a cache as a tile reads it."""
    if table is None:
        return cache[0, 0, low:high]
    at = np.arange(low, high)
    pages = np.clip(table[0, at // cache.shape[2]].astype(np.int64), 0, len(cache) - 1)
    return cache[pages, 0, at % cache.shape[2]]


def find_row(table: Array, sequence: int, at: int, pages: int, page: int) -> tuple[int, int] | None:
    """Page and row of a position, None where there is no page."""
    of = min(int(table[sequence, at // page]), pages - 1)
    return None if of < 0 else (of, at % page)


#: Behind what defines ``HEADS``, ``PAGE``, and ``table``, ``CAPACITY`` and ``PAGES`` of the arguments.
PAGES = include("ops/pages.cuh")

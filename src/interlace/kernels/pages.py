"""Paged KV caches: blocks of positions anywhere in a pool, and a block table with the pages of each sequence.

A cache without pages is a tensor (batch, heads, capacity, D). A paged cache is (pages, heads, page, D). The table
(batch, capacity / page), int32, holds the page of each ``page`` positions of a sequence, for keys and values of all
layers. With pages of 64 and the row 7 2 5 -1, a sequence of 150 positions has

    positions   0:64     64:128   128:150
    in          page 7   page 2   rows 0:22 of page 5

A negative entry is no page: writes to it are dropped, and reads from it return undefined values. Entries beyond the
pool are clamped to its last page. A table is data: plans know the number of pages, not their owners.

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
    """Layout of the positions of sequences in a cache.

    Attributes:
        batch: number of sequences.
        capacity: positions of each sequence.
        page: positions of a page, 0 if the cache is not paged.
        pages: pages of the pool, 0 if the cache is not paged.
    """

    batch: int
    capacity: int
    page: int = 0
    pages: int = 0

    @property
    def params(self) -> dict[str, Param]:
        """Params that describe the layout to bodies."""
        return {"CAPACITY": self.capacity, "PAGE": self.page, "PAGES": self.pages}


def build_layout(name: str, cache: Tensor, rope: Tensor, table: Tensor | None) -> CacheLayout:
    """Return the layout of an op's cache, which has four dimensions.

    Raises:
        ArgumentError, ShapeError, DTypeError: an invalid table, or one that does not match this cache.
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
    """Raise ShapeError unless blocks of cached positions that are processed together always lie in one page."""
    if page % block:
        raise ShapeError(f"op {name!r} has pages of {page} positions and takes {block} at a time; use a multiple")


def gather_rows(cache: Array, table: Array | None, low: int, high: int) -> Array:
    """Return a head's rows (high - low, D) at positions low to high, from a cache region as a tile reads it."""
    if table is None:
        return cache[0, 0, low:high]
    at = np.arange(low, high)
    pages = np.clip(table[0, at // cache.shape[2]].astype(np.int64), 0, len(cache) - 1)
    return cache[pages, 0, at % cache.shape[2]]


def find_row(table: Array, sequence: int, at: int, pages: int, page: int) -> tuple[int, int] | None:
    """Return the page and row of a position, None if it has no page."""
    of = min(int(table[sequence, at // page]), pages - 1)
    return None if of < 0 else (of, at % page)


#: CUDA source of paged caches; must follow definitions of ``HEADS`` and ``PAGE``, and needs the arguments ``table``,
#: ``CAPACITY`` and ``PAGES``.
PAGES = include("ops/pages.cuh")

"""The exact engines against libCacheSim, a simulator written by others.

Both are exact under these settings. Every object costs its size alone (``consider_obj_metadata=False``, the
default); nothing expires, because all requests carry the same time; nothing is kept out, because no
admission policy is set and every object fits. Belady reads the next use of each object from the request:
the number of that request, or the largest number for never.
"""

from __future__ import annotations

import libcachesim
import numpy as np
import pytest

from interlace.orders.cache import simulate_lru, simulate_lru_mask, simulate_opt
from interlace.orders.distances import compute_stack_distances

UNITS = 400
# The default of 24 allocates tables for 16 million objects.
SMALL_TABLES = {"hashpower": 10}


def draw_uniform(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, UNITS, 6000)


def draw_skewed(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(6000) ** 3 * UNITS).astype(np.int64)


def tiles(seed: int) -> np.ndarray:
    """Row panels and column panels of a 40 x 20 grid, four rows at a time."""
    rows = np.arange(40).reshape(10, 1, 4)
    columns = 40 + np.arange(20).reshape(1, 20, 1) + 20 * seed
    return np.stack(np.broadcast_arrays(rows, columns), -1).reshape(-1)


STREAMS = pytest.mark.parametrize(
    "units", [draw_uniform(1), draw_skewed(2), tiles(3)], ids=["uniform", "skewed", "tiles"]
)


def answers(cache: libcachesim.CacheBase, units: np.ndarray, sizes: np.ndarray, following: np.ndarray) -> list[bool]:
    return [
        cache.get(libcachesim.Request(obj_id=unit + 1, obj_size=size, next_access_vtime=next_use))
        for unit, size, next_use in zip(units.tolist(), sizes[units].tolist(), following.tolist(), strict=True)
    ]


def next_uses(units: np.ndarray) -> np.ndarray:
    following = np.full(len(units), 2**62)
    upcoming: dict[int, int] = {}
    for time in reversed(range(len(units))):
        following[time] = upcoming.get(int(units[time]), 2**62)
        upcoming[int(units[time])] = time
    return following


@STREAMS
@pytest.mark.parametrize("capacity", [1, 9, 60, 200, 390])
def test_lru_agrees_access_by_access(units: np.ndarray, capacity: int) -> None:
    theirs = answers(libcachesim.LRU(capacity, **SMALL_TABLES), units, np.ones(UNITS, np.int64), next_uses(units))
    assert simulate_lru_mask(units, capacity).tolist() == theirs
    assert compute_stack_distances(units).count_hits(capacity) == sum(theirs)


@STREAMS
@pytest.mark.parametrize("capacity", [100, 450, 3000, 11_000, 19_500])
def test_lru_with_sizes_agrees_access_by_access(units: np.ndarray, capacity: int) -> None:
    sizes = np.random.default_rng(4).integers(1, 101, UNITS)
    theirs = answers(libcachesim.LRU(capacity, **SMALL_TABLES), units, sizes, next_uses(units))
    assert simulate_lru_mask(units, capacity, sizes).tolist() == theirs
    assert simulate_lru(units, capacity, sizes).hit_bytes == sizes[units][theirs].sum()
    assert compute_stack_distances(units, sizes).count_hits(capacity) == sum(theirs)


@STREAMS
@pytest.mark.parametrize("capacity", [1, 9, 60, 200, 390])
def test_opt_agrees_with_belady(units: np.ndarray, capacity: int) -> None:
    theirs = answers(libcachesim.Belady(capacity, **SMALL_TABLES), units, np.ones(UNITS, np.int64), next_uses(units))
    assert simulate_opt(units, capacity).hits == sum(theirs)

"""The least loads of orders that begin with given tiles, against all of their ends."""

from __future__ import annotations

import random
from itertools import product

import pytest

from interlace.core.errors import OrderError, SearchError
from interlace.orders.completion import find_completion
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.orders.replay import count_loads, find_loaded

LRU, OPT = EvictionPolicy.LRU, EvictionPolicy.OPT


def least_end(grid: PanelGrid, begun: tuple[Visit, ...], capacity: int) -> int:
    """Return the least loads of an end, by trying every end."""

    def end(path: tuple[Visit, ...]) -> int:
        if len(path) == grid.tiles:
            return sum(
                map(len, find_loaded([pair for visit in path for pair in grid.list_pairs(visit)], capacity, LRU))
            )
        seen = {visit[:2] for visit in path}
        rest = (tile for tile in product(range(grid.rows), range(grid.columns)) if tile not in seen)
        return min(end((*path, Visit(*tile, first))) for tile in rest for first in (False, True))

    return end(begun)


def test_the_least_from_a_path_on_is_that_of_all_its_ends() -> None:
    grid, rng = PanelGrid(3, 3), random.Random(0)
    tiles = [*product(range(3), range(3))]
    for capacity in (2, 3, 4):
        begun = tuple(Visit(*tile) for tile in rng.sample(tiles, 6))
        found = find_completion(grid, begun, capacity, LRU)
        assert found.is_proved
        assert found.loads == found.lower_bound == least_end(grid, begun, capacity)
        assert found.loads == count_loads(grid, found.walk, capacity, LRU)
        assert found.walk[:6] == begun
    row = tuple(Visit(0, column) for column in range(4))
    assert find_completion(PanelGrid(4, 4), (*row, Visit(3, 0)), 5, LRU).loads == 11


def test_where_nothing_is_proved_the_best_known_end_answers() -> None:
    grid = PanelGrid(4, 4)
    row = tuple(Visit(0, column) for column in range(4))
    found = find_completion(grid, (*row, Visit(3, 0)), 4, OPT)
    assert not found.is_proved
    assert found.lower_bound <= found.loads == count_loads(grid, found.walk, 4, OPT)
    assert "begins with no tile" in found.stop_reason
    wide = find_completion(PanelGrid(5, 10), (Visit(0, 0), Visit(3, 3)), 4, LRU)
    assert (wide.is_proved, wide.walk[:2]) == (False, (Visit(0, 0), Visit(3, 3)))
    with pytest.raises(OrderError, match="visited twice"):
        find_completion(grid, (row[0], row[0]), 4, LRU)
    with pytest.raises(SearchError, match="less than one working set"):
        find_completion(grid, row, 1, LRU)

"""Order search: replays, the exact minimum against enumeration, and the beam against the named families."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.errors import OrderError, SearchError
from interlace.orders import astar
from interlace.orders.beam import search_beam
from interlace.orders.exact import find_best_order, find_minimum
from interlace.orders.families import Family, list_families
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit, relabel_walk
from interlace.orders.remaining import bound_loads, compute_bound_table
from interlace.orders.replay import count_loads
from interlace.orders.states import Scratch, SearchShape, make_key, unpack
from interlace.policies.orders import GroupedSerpentine, RowMajor, Serpentine

from ..draws import EXAMPLES, RANDOM

LRU, OPT = EvictionPolicy.LRU, EvictionPolicy.OPT
BOTH = pytest.mark.parametrize("cache", EvictionPolicy, ids=lambda cache: cache.value)
#: Rows, columns and chunks of grids whose orders can all be tried.
TINY = ((1, 1, 1), (1, 5, 1), (2, 2, 1), (2, 3, 1), (1, 3, 2), (2, 2, 2), (1, 2, 3))
FEW = settings(EXAMPLES, max_examples=60 if RANDOM else 40)


# ---------------------------------------------------------------- slow and plain twins


def list_directions(grid: PanelGrid) -> list[tuple[bool, bool]]:
    """Column first or not; backwards or not, where there are chunks."""
    return list(product((False, True), (False, True)[: 1 + (grid.chunks > 1)]))


def lru_list(grid: PanelGrid, held: tuple[int, ...], visit: Visit, capacity: int) -> tuple[tuple[int, ...], int]:
    """Return what an LRU cache holds after a tile, oldest last, and the loads."""
    cost = 0
    for unit in (unit for pair in grid.list_pairs(visit) for unit in pair):
        cost += unit not in held
        held = (unit, *(u for u in held if u != unit))[:capacity]
    return held, cost


def lru_orders_under(grid: PanelGrid, capacity: int, limit: int) -> Iterator[int]:
    """Loads of every order from (0, 0) and way of touching that costs less than ``limit``, by enumeration."""
    tiles = list(product(range(grid.rows), range(grid.columns)))

    def go(left: frozenset[tuple[int, int]], held: tuple[int, ...], cost: int) -> Iterator[int]:
        if not left:
            yield cost
        to_load = {panel for row, column in left for panel in (row, grid.rows + column)}
        to_load -= {unit // grid.chunks for unit in held}
        if cost + len(to_load) >= limit:
            return
        for tile in left if held else {(0, 0)}:
            for way in list_directions(grid):
                after, more = lru_list(grid, held, Visit(*tile, *way), capacity)
                if cost + more < limit:
                    yield from go(left - {tile}, after, cost + more)

    yield from go(frozenset(tiles), (), 0)


def fewest_evictions(pairs: list[tuple[int, int]], capacity: int) -> int:
    """Loads of a sequence of pairs if evictions are chosen best, by trying all of them."""
    reached = {frozenset(): 0}
    for pair in pairs:
        following: dict[frozenset[int], int] = {}
        for held, cost in reached.items():
            more = cost + len(set(pair) - held)
            full = held | set(pair)
            spare = len(full) - capacity
            others = sorted(full - set(pair))
            for dropped in combinations_of(others, max(spare, 0)):
                after = full - set(dropped)
                following[after] = min(following.get(after, more), more)
        reached = following
    return min(reached.values())


def combinations_of(items: list[int], size: int) -> Iterator[tuple[int, ...]]:
    if size == 0:
        yield ()
        return
    for i, item in enumerate(items):
        for rest in combinations_of(items[i + 1 :], size - 1):
            yield (item, *rest)


def opt_minimum(grid: PanelGrid, capacity: int) -> int:
    """The least loads under OPT over all orders and directions, by enumeration of both."""
    tiles = list(product(range(grid.rows), range(grid.columns)))
    directions = (False, True)[: 1 + (grid.chunks > 1)]
    return min(
        count_loads(grid, [Visit(*t, backwards=b) for t, b in zip(order, back, strict=True)], capacity, OPT)
        for order in permutations(tiles)
        for back in product(directions, repeat=len(tiles))
    )


@st.composite
def walks(draw: st.DrawFn, most: int = 4) -> tuple[PanelGrid, list[Visit]]:
    """A small grid and any walk over it."""
    grid = PanelGrid(draw(st.integers(1, most)), draw(st.integers(1, most)), draw(st.integers(1, 3)))
    tiles = draw(st.permutations(list(product(range(grid.rows), range(grid.columns)))))
    return grid, [Visit(*tile, draw(st.booleans()), draw(st.booleans())) for tile in tiles]


# ---------------------------------------------------------------- the model


def test_units_and_pairs_are_those_of_the_module() -> None:
    grid = PanelGrid(2, 3, 2)
    assert (grid.tiles, grid.units) == (6, 10)
    assert grid.list_pairs(Visit(1, 2)) == [(2, 8), (3, 9)]
    assert grid.list_pairs(Visit(1, 2, column_first=True)) == [(8, 2), (9, 3)]
    assert grid.list_pairs(Visit(1, 2, backwards=True)) == [(3, 9), (2, 8)]


@pytest.mark.parametrize(
    ("order", "cache", "expected"),
    [
        (RowMajor(), LRU, [12, 12, 10, 6]),
        (Serpentine(), LRU, [10, 10, 8, 6]),
        (RowMajor(), OPT, [12, 9, 6, 6]),
        (Serpentine(), OPT, [10, 8, 6, 6]),
    ],
    ids=str,
)
def test_named_orders_of_three_by_three_cost_what_is_known(order, cache: EvictionPolicy, expected: list[int]) -> None:
    grid = PanelGrid(3, 3)
    assert [count_loads(grid, grid.make_walk(order), capacity, cache) for capacity in (2, 3, 4, 5)] == expected


@FEW
@given(walks(), st.integers(2, 9))
def test_replay_agrees_with_plain_caches(walk: tuple[PanelGrid, list[Visit]], capacity: int) -> None:
    grid, visits = walk
    held, cost = (), 0
    for visit in visits:
        held, more = lru_list(grid, held, visit, capacity)
        cost += more
    assert count_loads(grid, visits, capacity, LRU) == cost
    if grid.tiles * grid.chunks <= 12:
        pairs = [pair for visit in visits for pair in grid.list_pairs(visit)]
        assert count_loads(grid, visits, capacity, OPT) == fewest_evictions(pairs, capacity)


def test_a_walk_that_is_no_permutation_is_refused() -> None:
    grid = PanelGrid(2, 2)
    whole = [Visit(0, 0), Visit(0, 1), Visit(1, 0), Visit(1, 1)]
    for wrong, tile in ((whole[:3], (1, 1)), ([*whole, Visit(1, 0)], (1, 0)), ([*whole[:3], Visit(1, 2)], (1, 1))):
        with pytest.raises(OrderError, match=rf"misses, repeats or invents tile {re.escape(str(tile))}; visit"):
            count_loads(grid, wrong, 4, LRU)


@FEW
@given(walks(), st.integers(2, 9), st.data())
def test_renaming_rows_and_columns_changes_the_start_and_not_the_loads(walk, capacity: int, data) -> None:
    grid, visits = walk
    start = data.draw(st.integers(0, grid.rows - 1)), data.draw(st.integers(0, grid.columns - 1))
    other = relabel_walk(visits, start)
    assert other[0][:2] == start
    for cache in EvictionPolicy:
        assert count_loads(grid, other, capacity, cache) == count_loads(grid, visits, capacity, cache)


# ---------------------------------------------------------------- exact


@pytest.mark.parametrize(
    ("rows", "columns", "cache", "expected"),
    [
        (3, 3, LRU, [10, 8, 7, 6, 6]),
        (3, 3, OPT, [10, 8, 6, 6, 6]),
        (3, 5, LRU, [16, 12, 10, 8, 8, 8, 8]),
        (3, 5, OPT, [16, 12, 8, 8, 8, 8, 8]),
        (4, 4, LRU, [17, 11, 10, 9, 8, 8, 8]),
        (4, 4, OPT, [17, 11, 10, 8, 8, 8, 8]),
        (5, 5, LRU, [26, 17, 15, 13, 12, 10, 10, 10, 10]),
        (5, 5, OPT, [26, 17, 14, 13, 10, 10, 10, 10, 10]),
    ],
    ids=str,
)
def test_minimum_at_every_capacity_from_two(
    rows: int, columns: int, cache: EvictionPolicy, expected: list[int]
) -> None:
    grid = PanelGrid(rows, columns)
    found = [find_minimum(grid, capacity, cache) for capacity in range(2, rows + columns + 1)]
    assert [m.loads for m in found] == expected
    for capacity, m in enumerate(found, 2):
        assert (m.is_proved, m.lower_bound, m.stop_reason) == (True, m.loads, "")
        assert count_loads(grid, m.walk, capacity, cache) == m.loads
        assert m.path[0] == (0, 0)
        assert m.path == tuple(visit[:2] for visit in m.walk)


@pytest.mark.parametrize("shape", TINY, ids=str)
def test_lru_minimum_is_the_least_of_all_orders(shape: tuple[int, int, int]) -> None:
    grid = PanelGrid(*shape)
    for capacity in range(2, grid.units + 1):
        found = find_minimum(grid, capacity, LRU)
        assert found.loads == min(lru_orders_under(grid, capacity, found.loads + 1))


@pytest.mark.parametrize("capacity", [2, 3, 4, 5])
def test_no_order_of_three_by_three_beats_the_lru_minimum(capacity: int) -> None:
    least = {2: 10, 3: 8, 4: 7, 5: 6}[capacity]
    assert list(lru_orders_under(PanelGrid(3, 3), capacity, least)) == []


@pytest.mark.parametrize("shape", TINY, ids=str)
def test_opt_minimum_is_the_least_of_all_orders(shape: tuple[int, int, int]) -> None:
    grid = PanelGrid(*shape)
    for capacity in range(2, min(grid.units, 6) + 1):
        assert find_minimum(grid, capacity, OPT).loads == opt_minimum(grid, capacity)


@FEW
@given(walks(3), st.integers(2, 8))
def test_no_walk_costs_less_than_the_minimum_of_its_cache(walk, capacity: int) -> None:
    grid, visits = walk
    grid = replace(grid, chunks=min(grid.chunks, 2))
    lru, opt = (find_minimum(grid, capacity, cache) for cache in (LRU, OPT))
    assert lru.is_proved
    assert opt.is_proved
    assert grid.units <= opt.loads <= lru.loads <= count_loads(grid, visits, capacity, LRU)
    assert opt.loads <= count_loads(grid, visits, capacity, OPT)
    assert count_loads(grid, lru.walk, capacity, LRU) == lru.loads
    assert count_loads(grid, opt.walk, capacity, OPT) == opt.loads
    assert find_minimum(PanelGrid(grid.columns, grid.rows, grid.chunks), capacity, LRU).loads == lru.loads


@BOTH
def test_the_path_starts_where_it_is_told(cache: EvictionPolicy) -> None:
    grid = PanelGrid(3, 4)
    for start in ((0, 0), (2, 1), None):
        found = find_minimum(grid, 3, cache, start=start)
        assert (found.loads, found.path[0]) == (9, start or (0, 0))
        assert count_loads(grid, found.walk, 3, cache) == 9


def test_backwards_chunks_pay() -> None:
    grid = PanelGrid(3, 3, 2)
    found = find_minimum(grid, 7, LRU)
    assert found.loads == 15
    assert any(visit.backwards for visit in found.walk)
    assert min(count_loads(grid, family.make_walk(grid), 7, LRU) for family in list_families(grid, 7)) == 18


def test_search_says_when_it_stopped_short_of_a_proof() -> None:
    grid = PanelGrid(6, 6)
    seen = []
    few = find_minimum(grid, 7, LRU, max_states=500)
    late = find_minimum(grid, 7, LRU, seconds=1e-9, progress=lambda *at: seen.append(at))
    for found, why in ((few, "the limit of 500 states was reached"), (late, "the limit of 1e-09 seconds was reached")):
        assert (found.is_proved, found.stop_reason) == (False, why)
        assert 12 <= found.lower_bound < found.loads == count_loads(grid, found.walk, 7, LRU) == 15
    assert 500 <= few.states < 1000
    assert seen[0][1:] == (late.lower_bound, late.loads)


@pytest.mark.parametrize(
    ("grid", "capacity", "each"),
    [
        pytest.param(PanelGrid(6, 6), 7, 57, marks=pytest.mark.thorough),
        (PanelGrid(4, 4, 20), 120, 19 * 8 + 41),
    ],
)
def test_states_of_many_words_keep_to_the_bytes_there_are(
    grid: PanelGrid, capacity: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(astar, "_MAX_BYTES", 8 << 20)
    search = astar.AStarSearch(grid, capacity, LRU, best=grid.units + 60, max_states=None)
    assert astar.compute_state_bytes(search.shape) == each
    assert search.run(inf, None) == f"the limit of {search.max_states} states was reached"
    assert search.at.states[0] >= search.max_states
    kept = [column.nbytes for name, column in search.store._asdict().items() if name != "heads"]
    assert 0.7 * (4 << 20) < sum(kept) <= 4 << 20


def test_what_is_no_longer_open_leaves_its_entry_to_others() -> None:
    grid = PanelGrid(5, 5)
    search = astar.AStarSearch(grid, 4, LRU, search_beam(grid, 4).loads, max_states=None)
    assert search.run(inf, None) == ""
    assert search.at.entries[0] < search.at.states[0] // 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PanelGrid(0, 3), "rows is 0; use at least 1"),
        (lambda: PanelGrid(3, -1), "columns is -1; use at least 1"),
        (lambda: PanelGrid(3, 3, 0), "chunks is 0; use at least 1"),
        (lambda: find_minimum(PanelGrid(3, 3), 1, LRU), "a cache of 1 units is less than one working set"),
        (lambda: find_minimum(PanelGrid(5, 10), 4, LRU), "takes 49 tiles and 255 units; use the beam search"),
        (lambda: find_minimum(PanelGrid(3, 3, 43), 4, LRU), "with 258 units are too many for exact search"),
        (
            lambda: find_minimum(PanelGrid(3, 3), 4, LRU, start=(3, 0)),
            r"\(3, 0\) is outside the grid; use a row of 0\.\.2",
        ),
        (lambda: find_minimum(PanelGrid(3, 3), 4, LRU, max_states=0), "a limit of 0 states leaves no search"),
        (lambda: find_minimum(PanelGrid(3, 3), 4, LRU, seconds=0), "a limit of 0 seconds leaves no search"),
        (lambda: find_best_order(PanelGrid(65, 3), 4, LRU), "are too many for a search, which takes 64 rows"),
        (lambda: find_best_order(PanelGrid(64, 64), 0, OPT), "a cache of 0 units is less than one working set"),
    ],
)
def test_what_no_search_can_answer_is_refused(call, message: str) -> None:
    with pytest.raises(SearchError, match=message):
        call()


# ---------------------------------------------------------------- states and the bound


@FEW
@given(st.data())
def test_states_that_differ_by_names_share_a_key_and_unpack_to_one_state(data: st.DataObject) -> None:
    rows, columns, chunks = (data.draw(st.integers(1, n)) for n in (4, 4, 2))
    opt = data.draw(st.integers(0, 1))
    capacity = min(5, (rows + columns) * chunks)
    shape = SearchShape(rows, columns, chunks, capacity, opt, ((rows + columns) * chunks).bit_length())
    visited = np.array(data.draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns)))
    units = data.draw(st.permutations(range((rows + columns) * chunks)))[:capacity]
    exchange = rows == columns and data.draw(st.booleans())
    new_row, new_column = data.draw(st.permutations(range(rows))), data.draw(st.permutations(range(columns)))

    def rename(panel: int) -> int:
        new = new_row[panel] if panel < rows else rows + new_column[panel - rows]
        return (new + rows) % (2 * rows) if exchange else new

    other = np.zeros((rows, columns), bool)
    for row, column in product(range(rows), range(columns)):
        a, b = sorted((rename(row), rename(rows + column)))
        other[a, b - rows] = visited[row * columns + column]
    renamed_units = [rename(unit // chunks) * chunks + unit % chunks for unit in units]
    keys = []
    for tiles, held in ((visited, units), (other.ravel(), renamed_units)):
        key, panels = np.zeros(shape.words, np.int64), np.zeros(rows + columns, np.int64)
        bits = sum(1 << i for i, v in enumerate(tiles.tolist()) if v)
        make_key(shape, bits, 0, np.array(held), len(held), Scratch.allocate(shape), key, panels)
        keys.append(key.tolist())
        back = np.zeros(capacity, np.int64)
        seen, progress, count = unpack(shape, key, back)
        assert (bin(seen).count("1"), progress, count) == (int(tiles.sum()), 0, capacity)
        as_it_was = [int(panels[unit // chunks]) * chunks + unit % chunks for unit in back.tolist()]
        assert (sorted(as_it_was) == sorted(held)) if opt else (as_it_was == list(held))
    assert keys[0] == keys[1]


def test_bound_at_the_start_is_that_of_the_module_and_never_over_the_minimum() -> None:
    assert compute_bound_table(3, 3, 3)[0, 0, 3, 3, 9] == 7
    for rows, columns in ((3, 3), (3, 5), (4, 4), (5, 5)):
        for capacity in range(2, rows + columns + 1):
            bound = compute_bound_table(rows, columns, capacity)[0, 0, rows, columns, rows * columns]
            least = find_minimum(PanelGrid(rows, columns), capacity, OPT).loads
            assert bound == bound_loads(PanelGrid(rows, columns), capacity, least + 3)
            assert rows + columns <= bound <= least


# ---------------------------------------------------------------- families and the beam


def test_sawtooth_runs_every_second_tile_backwards() -> None:
    grid = PanelGrid(2, 2, 4)
    assert [visit.backwards for visit in Family(RowMajor(), sawtooth=True).make_walk(grid)] == [
        False,
        True,
        False,
        True,
    ]
    plain, sawtooth = (count_loads(grid, Family(RowMajor(), s).make_walk(grid), 6, LRU) for s in (False, True))
    assert (plain, sawtooth) == (32, 28)
    assert str(Family(RowMajor(), sawtooth=True)) == "Sawtooth(RowMajor())"


def test_families_have_groups_that_fit_the_cache_and_sawtooth_only_over_chunks() -> None:
    whole = list_families(PanelGrid(20, 20), 12)
    heights = [family.order.rows for family in whole if isinstance(family.order, GroupedSerpentine)]
    assert heights == [2, 4, 8, 10, 11, 16]
    assert not any(family.sawtooth for family in whole)
    assert sum(family.sawtooth for family in list_families(PanelGrid(20, 20, 2), 24)) == len(whole)


@pytest.mark.parametrize(
    ("shape", "capacity"),
    [
        ((8, 8, 1), 3),
        pytest.param((8, 8, 1), 6, marks=pytest.mark.thorough),
        ((13, 7, 1), 5),
        pytest.param((2, 64, 1), 4, marks=pytest.mark.thorough),
        ((6, 6, 3), 10),
        ((9, 9, 1), 99),
    ],
    ids=str,
)
@BOTH
def test_beam_is_never_worse_than_a_family_and_the_same_each_time(shape, capacity: int, cache: EvictionPolicy) -> None:
    grid = PanelGrid(*shape)
    found = search_beam(grid, capacity, cache)
    best = min(count_loads(grid, family.make_walk(grid), capacity, cache) for family in list_families(grid, capacity))
    assert grid.units <= found.loads <= best
    assert found.loads == count_loads(grid, found.walk, capacity, cache)
    assert found == search_beam(grid, capacity, cache)
    assert found.seed in list_families(grid, capacity)
    assert found.walk[: found.followed] == found.seed.make_walk(grid)[: found.followed] or cache is OPT


@pytest.mark.parametrize(("capacity", "family", "best"), [(3, 65, 37), (4, 37, 35), (5, 30, 28), (6, 23, 22)])
def test_beam_beats_the_best_family_of_eight_by_eight(capacity: int, family: int, best: int) -> None:
    grid = PanelGrid(8, 8)
    assert min(count_loads(grid, f.make_walk(grid), capacity, LRU) for f in list_families(grid, capacity)) == family
    assert search_beam(grid, capacity).loads == best


def test_beam_of_small_grids_finds_the_minimum() -> None:
    for rows, columns in ((3, 3), (3, 5), (4, 4), (5, 5)):
        for capacity in range(2, rows + columns):
            grid = PanelGrid(rows, columns)
            assert search_beam(grid, capacity).loads == find_minimum(grid, capacity, LRU).loads


def test_above_the_exact_limit_the_beam_answers_with_a_lower_bound() -> None:
    grid = PanelGrid(8, 8)
    found = find_best_order(grid, 5, LRU, start=(3, 3))
    assert (found.loads, found.is_proved, found.lower_bound, found.path[0]) == (28, False, 22, (3, 3))
    assert found.stop_reason.startswith("8 x 8 tiles with 16 units are too many for exact search")
    assert found.stop_reason.endswith("so the beam search answered")
    whole = find_best_order(grid, 10, OPT)
    assert (whole.loads, whole.is_proved, whole.lower_bound, whole.stop_reason) == (16, True, 16, "")


@pytest.mark.parametrize("cache", [LRU, OPT])
def test_a_beam_search_that_is_not_over_in_time_leaves_the_best_family(cache: EvictionPolicy) -> None:
    grid = PanelGrid(8, 8)
    best = min(count_loads(grid, family.make_walk(grid), 5, cache) for family in list_families(grid, 5))
    found = find_best_order(grid, 5, cache, seconds=1e-9)
    assert (found.loads, found.is_proved) == (best, False)
    assert found.stop_reason.endswith("not over within 1e-09 seconds, so the best named order answered")


def test_the_bound_of_a_huge_grid_is_a_plain_count() -> None:
    # One load for each pair beside the first, capacity - 1 at a time; or each unit once.
    assert bound_loads(PanelGrid(64, 64), 20, 1000) == 1 + 216
    assert bound_loads(PanelGrid(64, 64), 64, 1000) == 128

"""The exact engines against slow ones written down directly."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.errors import CapacityError, StreamError
from interlace.orders.cache import Hits, simulate_lru, simulate_lru_mask, simulate_opt
from interlace.orders.distances import compute_stack_distances

from ..draws import EXAMPLES

streams = st.lists(st.integers(0, 11), max_size=120).map(lambda units: np.array(units, np.int64))
unit_sizes = st.lists(st.integers(1, 9), min_size=12, max_size=12).map(lambda sizes: np.array(sizes, np.int64))


def slow_lru(units: np.ndarray, capacity: int, sizes: np.ndarray | None = None) -> list[bool]:
    """Hit or miss of each access, with an ordered dictionary, oldest first."""
    resident: OrderedDict[int, int] = OrderedDict()
    mask = []
    for unit in units.tolist():
        mask.append(unit in resident)
        if unit in resident:
            resident.move_to_end(unit)
            continue
        size = 1 if sizes is None else int(sizes[unit])
        while sum(resident.values()) + size > capacity:
            resident.popitem(last=False)
        resident[unit] = size
    return mask


def slow_opt(units: np.ndarray, capacity: int) -> int:
    """Hits when the unit that is needed furthest in the future goes, found by looking ahead."""
    stream = units.tolist()
    resident: set[int] = set()
    hits = 0
    for time, unit in enumerate(stream):
        if unit in resident:
            hits += 1
            continue
        if len(resident) == capacity:
            rest = stream[time + 1 :]
            resident.remove(max(resident, key=lambda held: rest.index(held) if held in rest else len(rest)))
        resident.add(unit)
    return hits


def most_hits(stream: tuple[int, ...], capacity: int, resident: frozenset[int] = frozenset()) -> int:
    """Hits of the best of all choices of what to evict."""
    if not stream:
        return 0
    unit, rest = stream[0], stream[1:]
    if unit in resident:
        return 1 + most_hits(rest, capacity, resident)
    if len(resident) < capacity:
        return most_hits(rest, capacity, resident | {unit})
    return max(most_hits(rest, capacity, resident - {held} | {unit}) for held in resident)


def slow_distances(units: np.ndarray, sizes: np.ndarray | None = None) -> list[int]:
    """For each access that is not a unit's first, the size of the distinct units since, its own included."""
    stream = units.tolist()
    found = []
    for time, unit in enumerate(stream):
        if unit in stream[:time]:
            since = max(before for before in range(time) if stream[before] == unit)
            touched = set(stream[since:time])
            found.append(len(touched) if sizes is None else int(sum(sizes[held] for held in touched)))
    return found


def test_worked_example_of_the_module() -> None:
    units = np.array([0, 1, 0, 2, 1, 0])
    assert simulate_lru_mask(units, 2).tolist() == [False, False, True, False, False, False]
    assert simulate_lru(units, 2) == Hits(accesses=6, hits=1, bytes=6, hit_bytes=1)
    assert simulate_opt(units, 2) == Hits(accesses=6, hits=2, bytes=6, hit_bytes=2)
    assert compute_stack_distances(units).count_hits([1, 2, 3, 4]).tolist() == [0, 1, 3, 3]


@EXAMPLES
@given(streams, st.integers(1, 13))
def test_lru_equals_an_ordered_dictionary(units: np.ndarray, capacity: int) -> None:
    assert simulate_lru_mask(units, capacity).tolist() == slow_lru(units, capacity)


@EXAMPLES
@given(streams, unit_sizes, st.integers(9, 60))
def test_lru_with_sizes_equals_an_ordered_dictionary(units: np.ndarray, sizes: np.ndarray, capacity: int) -> None:
    mask = slow_lru(units, capacity, sizes)
    assert simulate_lru_mask(units, capacity, sizes).tolist() == mask
    touched = sizes[units]
    hit = touched[np.array(mask, bool)]
    assert simulate_lru(units, capacity, sizes) == Hits(len(touched), len(hit), touched.sum(), hit.sum())


@EXAMPLES
@given(streams, st.integers(1, 13))
def test_opt_equals_looking_ahead(units: np.ndarray, capacity: int) -> None:
    assert simulate_opt(units, capacity).hits == slow_opt(units, capacity)


@settings(EXAMPLES, max_examples=60)
@given(st.lists(st.integers(0, 4), max_size=10), st.integers(1, 4))
def test_opt_equals_the_best_of_all_choices(units: list[int], capacity: int) -> None:
    best = most_hits(tuple(units), capacity)
    assert simulate_opt(np.array(units, np.int64), capacity).hits == best
    assert slow_opt(np.array(units, np.int64), capacity) == best


@EXAMPLES
@given(streams)
def test_distances_equal_counting_distinct_units(units: np.ndarray) -> None:
    found = np.array(slow_distances(units))
    hits = compute_stack_distances(units).count_hits(np.arange(1, 15))
    assert hits.tolist() == [np.count_nonzero(found <= capacity) for capacity in range(1, 15)]


@EXAMPLES
@given(streams, unit_sizes)
def test_distances_with_sizes_equal_adding_up_distinct_units(units: np.ndarray, sizes: np.ndarray) -> None:
    found = np.array(slow_distances(units, sizes))
    hits = compute_stack_distances(units, sizes).count_hits(np.arange(9, 120))
    assert hits.tolist() == [np.count_nonzero(found <= capacity) for capacity in range(9, 120)]


@EXAMPLES
@given(streams, unit_sizes)
def test_distances_with_sizes_say_what_lru_does_at_every_capacity_that_holds_each_unit(
    units: np.ndarray, sizes: np.ndarray
) -> None:
    capacities = np.arange(sizes.max(), sizes.sum() + 2)
    found = compute_stack_distances(units, sizes)
    replayed = [simulate_lru(units, int(capacity), sizes) for capacity in capacities]
    assert found.count_hits(capacities).tolist() == [run.hits for run in replayed]
    assert found.count_hit_bytes(capacities).tolist() == [run.hit_bytes for run in replayed]


@EXAMPLES
@given(streams, unit_sizes, st.integers(9, 60), st.integers(0, 40))
def test_what_hits_in_a_cache_hits_in_a_larger_one(
    units: np.ndarray, sizes: np.ndarray, capacity: int, more: int
) -> None:
    assert not (simulate_lru_mask(units, capacity, sizes) & ~simulate_lru_mask(units, capacity + more, sizes)).any()


@pytest.mark.parametrize("capacity", [1, 40, 300, 700, 1000])
def test_engines_agree_on_streams_longer_than_two_levels_of_bitmap_words(capacity: int) -> None:
    # 20 000 accesses: three levels in opt, and the tree of distances fills up several times.
    units = (np.random.default_rng(5).random(20_000) ** 2 * 1000).astype(np.int32)
    mask = slow_lru_of_equal_sizes(units, capacity)
    assert (simulate_lru_mask(units, capacity) == mask).all()
    assert compute_stack_distances(units).count_hits(capacity) == np.count_nonzero(mask)
    sizes = np.full(1000, 7)
    assert (
        simulate_lru(units, 7 * capacity, sizes).hits
        == compute_stack_distances(units, sizes).count_hits(7 * capacity)
        == sum(mask)
    )
    assert simulate_opt(units, capacity).hits == heap_opt(units, capacity)


def slow_lru_of_equal_sizes(units: np.ndarray, capacity: int) -> np.ndarray:
    resident: OrderedDict[int, None] = OrderedDict()
    mask = np.zeros(len(units), bool)
    for time, unit in enumerate(units.tolist()):
        mask[time] = unit in resident
        resident[unit] = None
        resident.move_to_end(unit)
        if len(resident) > capacity:
            resident.popitem(last=False)
    return mask


def heap_opt(units: np.ndarray, capacity: int) -> int:
    """As ``slow_opt``, with the next uses known beforehand."""
    stream = units.tolist()
    following = [len(stream)] * len(stream)
    upcoming: dict[int, int] = {}
    for time in reversed(range(len(stream))):
        following[time] = upcoming.get(stream[time], len(stream))
        upcoming[stream[time]] = time
    needed: dict[int, int] = {}
    hits = 0
    for time, unit in enumerate(stream):
        if unit in needed:
            hits += 1
        elif len(needed) == capacity:
            del needed[max(needed, key=needed.__getitem__)]
        needed[unit] = following[time]
    return hits


def test_opt_never_loads_around_the_cache() -> None:
    # With one unit of room, unit 0 cannot stay while unit 1 is accessed.
    assert simulate_opt(np.array([0, 1, 0, 1, 0]), 1).hits == 0


def test_a_load_evicts_until_it_fits_and_no_further() -> None:
    units, sizes = np.array([0, 1, 2, 3, 2, 1, 0]), np.array([3, 3, 3, 5])
    # Unit 3 needs 5 of 10 bytes: units 0 and 1 go, unit 2 stays.
    assert simulate_lru_mask(units, 10, sizes).tolist() == [False, False, False, False, True, False, False]


def test_loads_and_their_bytes_are_what_does_not_hit() -> None:
    run = simulate_lru(np.array([0, 1, 1, 0]), 12, np.array([4, 8]))
    assert (run.loads, run.load_bytes) == (2, 12)


def test_an_empty_stream_has_no_hits() -> None:
    nothing = np.array([], np.int32)
    assert simulate_lru(nothing, 1) == simulate_opt(nothing, 1) == Hits(0, 0, 0, 0)
    assert compute_stack_distances(nothing).count_hits([1, 2]).tolist() == [0, 0]
    assert compute_stack_distances(nothing, nothing).count_hits([1, 2]).tolist() == [0, 0]


def test_hits_of_one_capacity_are_one_number() -> None:
    assert compute_stack_distances(np.array([0, 1, 0])).count_hits(2).shape == ()
    assert compute_stack_distances(np.array([0, 1, 0])).count_hits([[1, 2]]).tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("units", "sizes", "message"),
    [
        (np.array([0.5]), None, r"stream is float64\[1\]; pass a 1-D array of unit numbers"),
        (np.zeros((2, 2), np.int32), None, r"stream is int32\[2, 2\]; pass a 1-D array"),
        (np.array([0, -3]), None, "access 1 names unit -3; number units from 0"),
        (np.array([2**31]), None, "access 0 names unit 2147483648; number units densely"),
        (np.array([0, 2]), np.array([1, 1]), "names unit 2, but sizes has 2 entries"),
        (np.array([0, 1]), np.array([1, 0]), "unit 1 has 0 bytes; give every unit at least 1"),
        (np.array([0]), np.array([1.5]), r"sizes are float64\[1\]"),
    ],
)
def test_what_is_no_stream_is_refused(units: np.ndarray, sizes: np.ndarray | None, message: str) -> None:
    with pytest.raises(StreamError, match=message):
        simulate_lru(units, 4, sizes)
    with pytest.raises(StreamError, match=message):
        compute_stack_distances(units, sizes)


def test_a_capacity_below_one_unit_is_refused() -> None:
    units, sizes = np.array([0, 1]), np.array([4, 8])
    for engine in (simulate_lru, simulate_lru_mask, simulate_opt):
        with pytest.raises(CapacityError, match="capacity is 0 units; give at least 1"):
            engine(units, 0)
    for engine in (simulate_lru, simulate_lru_mask):
        with pytest.raises(CapacityError, match="capacity is 7 bytes, but the largest unit has 8; use smaller"):
            engine(units, 7, sizes)
    with pytest.raises(CapacityError, match="capacity is 7, but the largest unit needs 8"):
        compute_stack_distances(units, sizes).count_hits([8, 7])

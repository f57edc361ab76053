"""The L2 in sides: against a slow one written apart, and where it has to agree with one plain cache."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.devices import H200, L2
from interlace.sim.l2 import simulate_missed_bytes
from interlace.sim.lockstep import AccessStream

from ..draws import EXAMPLES


def stream(
    units: list[int], workers: list[int], writes: list[bool], first: list[bool] | None = None, neighbours: int = 1
) -> AccessStream:
    n = len(units)
    return AccessStream(
        np.array(units, np.int32),
        np.array(writes, bool),
        np.zeros(n, np.int32),
        np.array(workers, np.int32),
        np.zeros(n, bool) if first is None else np.array(first, bool),
        neighbours,
    )


class Side:
    """Least recently used first."""

    def __init__(self, most: int) -> None:
        self.most, self.parts = most, OrderedDict[tuple[int, int], int]()

    def touch(self, key: tuple[int, int], size: int) -> bool:
        there = key in self.parts
        self.parts[key] = size
        self.parts.move_to_end(key)
        while sum(self.parts.values()) > self.most:
            self.parts.popitem(last=False)
        return there


def slow(s: AccessStream, nbytes: list[int], l2: L2, near: list[int]) -> list[int]:
    sides = [Side(l2.side_bytes) for _ in range(l2.sides)]
    out = []
    for unit, write, worker in zip(s.unit.tolist(), s.is_write.tolist(), s.worker.tolist(), strict=True):
        part, missed = -(-nbytes[unit] // l2.sides), 0
        for home in range(l2.sides):
            through = not write and near[worker] != home
            if through and sides[near[worker]].touch((unit, home), part):
                continue
            if not sides[home].touch((unit, home), part):
                missed += part
        out.append(min(missed, nbytes[unit]))
    return out


@settings(EXAMPLES, max_examples=160)
@given(st.data())
def test_equals_a_slow_model(data: st.DataObject) -> None:
    count, workers = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 5))
    nbytes = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    accesses = data.draw(
        st.lists(
            st.tuples(st.integers(0, count - 1), st.integers(0, workers - 1), st.booleans()), min_size=1, max_size=60
        )
    )
    l2 = L2(data.draw(st.integers(1, 3)), data.draw(st.integers(2, 60)))
    s = stream(*map(list, zip(*accesses, strict=True)))
    near = np.random.default_rng(1).permutation(int(s.worker.max()) + 1) % l2.sides
    assert simulate_missed_bytes(s, np.array(nbytes), l2).tolist() == slow(s, nbytes, l2, near.tolist())


def test_the_worked_example() -> None:
    near = np.random.default_rng(1).permutation(2) % 2
    first, second = (int(np.flatnonzero(near == side)[0]) for side in (0, 1))
    s = stream([0, 0, 1], [first, second, first], [False] * 3)
    assert simulate_missed_bytes(s, np.array([4, 4]), L2(2, 8)).tolist() == [4, 0, 4]


def test_what_all_read_takes_twice_the_room_of_what_one_reads() -> None:
    units = [*range(10)] * 3
    near = np.random.default_rng(1).permutation(2) % 2
    alone = stream(units, [u % 2 for u in units], [False] * 30)
    both = stream([u for u in units for _ in range(2)], [0, 1] * 30, [False] * 60)
    size = np.full(10, 2, np.int64)
    roomy = L2(2, 15)  # a side holds both parts of five units, and the homes of the other five
    assert sorted(near) == [0, 1]
    assert simulate_missed_bytes(alone, size, roomy)[10:].sum() == 0
    assert simulate_missed_bytes(both, size, roomy)[20:].sum() > 0
    assert simulate_missed_bytes(both, size, L2(2, 20))[20:].sum() == 0


def test_a_write_is_found_by_a_later_read() -> None:
    s = stream([0, 0], [0, 1], [True, False])
    assert simulate_missed_bytes(s, np.array([6]), L2(2, 8)).tolist() == [6, 0]


def test_what_fits_no_side_is_never_found_again_and_pushes_out_the_rest() -> None:
    s = stream([0, 1, 1, 0], [0] * 4, [False] * 4)
    assert simulate_missed_bytes(s, np.array([4, 40]), L2(2, 16)).tolist() == [4, 40, 40, 4]
    untouched = stream([0, 0], [0] * 2, [False] * 2)
    assert simulate_missed_bytes(untouched, np.array([4, 40]), L2(2, 16)).tolist() == [4, 0]


def test_keeps_what_the_h200_was_seen_to_keep() -> None:
    """Points of benchmarks/results/l2-h200.json away from the flanks, where the model is sharper than the chip."""
    mib = 1 << 20

    def compute_kept_share(footprint: int, readers: int) -> float:
        chunks, groups = footprint * mib // (1 << 16), 132 // readers
        order = [(c, w) for _ in range(3) for c in range(chunks) for w in range(c % groups, 132, groups)]
        units, workers = map(list, zip(*order, strict=True))
        s = stream(units, workers, [False] * len(units))
        last = simulate_missed_bytes(s, np.full(chunks, 1 << 16, np.int64), H200.l2)[-len(units) // 3 :]
        return 1 - float(last.sum()) / (footprint * mib)

    assert compute_kept_share(28, 44) > 0.97
    assert compute_kept_share(34, 44) < 0.03
    assert compute_kept_share(28, 1) > 0.97
    assert compute_kept_share(66, 1) < 0.03


# ---------------------------------------------------------------- data to evict first


class HintedSide(Side):
    """A side that keeps ``most_first`` bytes to evict first, of each unit the same share."""

    def __init__(self, most: int, most_first: int) -> None:
        super().__init__(most)
        self.most_first, self.shares = most_first, dict[tuple[int, int], tuple[float, int]]()

    def fetch(self, key: tuple[int, int], size: int, first: bool, wanted: float) -> float:
        """Return the share that is present; bring what is absent of the wanted share."""
        share = 1.0 if self.parts.pop(key, None) else self.shares.pop(key, (0.0, size))[0]
        present = share + wanted * (1 - share) if first else 1.0
        held = sum(part * size for part, size in self.shares.values())
        over = sum(self.parts.values()) + held + present * size - self.most
        gone = min(over, held - self.most_first)
        if gone > 0:
            self.shares = {k: (part * (1 - gone / held), size) for k, (part, size) in self.shares.items()}
            over -= gone
        while over > 1e-9 and self.parts:
            over -= self.parts.popitem(last=False)[1]
        if present * size <= self.most:
            if first:
                self.shares[key] = present, size
            else:
                self.parts[key] = size
        return share


def count_slowly(s: AccessStream, nbytes: list[int], l2: L2, near: list[int]) -> list[float]:
    sides = [HintedSide(l2.side_bytes, l2.evict_first_bytes) for _ in range(l2.sides)]
    out = []
    columns = (column.tolist() for column in (s.unit, s.is_write, s.worker, s.is_evict_first))
    for unit, write, worker, first in zip(*columns, strict=True):
        part, missed = -(-nbytes[unit] // l2.sides), 0.0
        for home in range(l2.sides):
            wanted = 1.0
            if not write and near[worker] != home:
                wanted -= sides[near[worker]].fetch((unit, home), part, first, wanted)
            if wanted > 0:
                missed += part * wanted * (1 - sides[home].fetch((unit, home), part, first, wanted))
        out.append(min(missed, nbytes[unit]))
    return out


@settings(EXAMPLES, max_examples=160)
@given(st.data())
def test_data_to_evict_first_equal_a_slow_model(data: st.DataObject) -> None:
    count, workers = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 5))
    nbytes = [1000 * size for size in data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))]
    access = st.tuples(st.integers(0, count - 1), st.integers(0, workers - 1), st.booleans(), st.booleans())
    accesses = data.draw(st.lists(access, min_size=1, max_size=60))
    side = data.draw(st.integers(2, 40))
    l2 = L2(data.draw(st.integers(1, 3)), 1000 * side, 1000 * data.draw(st.integers(1, side - 1)))
    units, by, writes, hints = map(list, zip(*accesses, strict=True))
    s = stream(units, by, writes, [hint and not write for hint, write in zip(hints, writes, strict=True)])
    near = np.random.default_rng(1).permutation(int(s.worker.max()) + 1) % l2.sides
    found = simulate_missed_bytes(s, np.array(nbytes), l2)
    np.testing.assert_allclose(found, count_slowly(s, nbytes, l2, near.tolist()), atol=1.0)


def test_of_a_unit_to_evict_first_a_share_stays_that_falls_exponentially() -> None:
    """A full side keeps 100 of 1,000 units to evict first; after n more, exp(-n / 100) of one is there."""
    fill = [*range(900)]
    for later in (1, 50, 100, 300):
        units = [*fill, *range(1000, 1200 + later), 1199]
        s = stream(units, [0] * len(units), [False] * len(units), [u >= 1000 for u in units])
        missed = simulate_missed_bytes(s, np.full(2000, 1000), L2(1, 1_000_000, 100_000))
        assert 1 - missed[-1] / 1000 == pytest.approx(np.exp(-later / 100), abs=0.01)


def test_data_to_evict_first_take_no_room_from_others() -> None:
    """Others of 800 bytes stay while 10,000 bytes to evict first pass by, which evict them without the policy."""
    others, passing = [*range(80)], [*range(100, 1100)]
    units = [*others, *passing, *others]
    for hinted, missed in ((True, 0), (False, 800)):
        s = stream(units, [0] * len(units), [False] * len(units), [hinted and u >= 100 for u in units])
        assert simulate_missed_bytes(s, np.full(1100, 10), L2(1, 1000, 100))[-80:].sum() == missed


def test_without_a_value_in_the_device_s_data_the_policy_changes_nothing() -> None:
    units = [*range(8)] * 3
    plain = stream(units, [0] * 24, [False] * 24)
    hinted = stream(units, [0] * 24, [False] * 24, [u < 4 for u in units])
    for l2 in (L2(1, 60), L2(1, 60, 60)):
        missed = [simulate_missed_bytes(s, np.full(8, 10), l2).tolist() for s in (plain, hinted)]
        assert missed[0] == missed[1]
    assert simulate_missed_bytes(hinted, np.full(8, 10), L2(1, 60, 20)).tolist() != missed[0]


def test_neighbours_share_a_side() -> None:
    """The second of two neighbours finds what the first brought, and the home side is not asked again."""
    size, l2 = np.full(40, 2), L2(2, 40)
    units = [u for u in range(40) for _ in range(2)]
    s = stream(units * 2, [0, 1] * 80, [False] * 160, neighbours=2)
    alone = stream([*range(40)] * 2, [0] * 80, [False] * 80)
    missed = simulate_missed_bytes(s, size, l2)
    assert missed[1::2].sum() == 0
    assert missed[::2].tolist() == simulate_missed_bytes(alone, size, l2).tolist()

"""The L2 in sides: against a slow one written apart, and where it has to agree with one plain cache."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.devices import H200, L2
from interlace.sim.l2 import simulate_missed_bytes
from interlace.sim.lockstep import AccessStream

from ..draws import EXAMPLES


def stream(units: list[int], workers: list[int], writes: list[bool]) -> AccessStream:
    n = len(units)
    return AccessStream(
        np.array(units, np.int32), np.array(writes, bool), np.zeros(n, np.int32), np.array(workers, np.int32)
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

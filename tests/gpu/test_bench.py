"""The measurements that no other GPU test runs."""

from __future__ import annotations

from interlace.bench.sync import costs


def test_every_part_of_synchronisation_has_a_cost() -> None:
    found = costs()
    assert set(found) == {"post", "satisfied wait", "satisfied wait of 112", "one-way hand-over", "ticket"}
    assert all(50 < ns < 20_000 for ns in found.values()), found

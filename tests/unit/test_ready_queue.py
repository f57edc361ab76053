"""Order in which items become ready, for a queue of them, against a reading of the table item by item."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

import interlace as il
from interlace.megakernel.ready_queue import ReadyGroups
from interlace.megakernel.table import DeviceTables, build_worker_tables
from interlace.plan.plan import Waits

from ..draws import EXAMPLES
from .graphs import column, graphs, pair, schedules


@st.composite
def plans(draw: st.DrawFn) -> il.Plan:
    """Any plan with a queue that build makes."""
    graph = draw(graphs())
    return il.build(graph, replace(draw(schedules(graph)), dispatch=il.Dispatch.QUEUE))


def list_awaited(table: DeviceTables, row: int) -> set[int]:
    """Semaphores that a row waits for, those of the parts of its tile among them."""
    item = table.items[row]
    found = {
        int(first + stride * n)
        for first, count, stride in table.waits[["first", "count", "stride"]][item["wait_lo"] : item["wait_hi"]]
        for n in range(count)
    }
    return found | ({int(~item["split"])} if item["parts"] > 1 and item["split"] < 0 else set())


def get_posted(table: DeviceTables, row: int) -> int:
    item = table.items[row]
    return int(item["split"] if item["parts"] > 1 and item["split"] >= 0 else item["post"])


@settings(EXAMPLES, max_examples=60)
@given(plans())
def test_groups_are_items_that_wait_for_the_same(plan: il.Plan) -> None:
    table = build_worker_tables(plan, [True] * len(plan.graph.ops), parts_wait=True)
    ready, n = ReadyGroups.from_table(table), len(table.items)
    waits = [list_awaited(table, row) for row in range(n)]
    assert ready.first.tolist() == [row for row in range(n) if not waits[row]]
    seen = ready.first.tolist()
    for group in range(len(ready.rows)):
        rows = ready.rows[group].tolist()
        assert rows == sorted(rows)
        assert all(waits[row] == waits[rows[0]] for row in rows)
        assert ready.missing[group] == len(waits[rows[0]])
        assert {s for s in range(table.semaphores) if group in ready.wakes[s]} == waits[rows[0]]
        seen += rows
    assert sorted(seen) == list(range(n))
    assert len({frozenset(waits[row]) for row in range(n) if waits[row]}) == len(ready.rows)
    posts = [get_posted(table, row) for row in range(n)]
    assert ready.posts.tolist() == [posts.count(s) for s in range(table.semaphores)]
    event("groups" if len(ready.rows) else "nothing waits")


def test_ranges_that_cover_the_same_semaphores_are_one_group() -> None:
    """Items of op b wait for semaphores 0 and 1, one by one range and one by two."""
    graph = pair(2)
    plan = il.build(graph, il.Schedule(2))
    waits = Waits(
        ptr=column(0, 0, 0, 1, 3),
        first=column(0, 0, 1),
        count=column(2, 1, 1),
        stride=column(1, 1, 1),
        threshold=column(1, 1, 1),
        k=column(0, 0, 0),
    )
    table = build_worker_tables(replace(plan, waits=waits), [True, True], parts_wait=True)
    ready = ReadyGroups.from_table(table)
    assert [ready.rows[group].tolist() for group in range(len(ready.rows))] == [[2, 3]]


@settings(EXAMPLES, max_examples=60)
@given(plans())
def test_every_item_comes_to_the_queue_once(plan: il.Plan) -> None:
    """Taken and posted one by one, as a run does."""
    table = build_worker_tables(plan, [True] * len(plan.graph.ops), parts_wait=True)
    ready = ReadyGroups.from_table(table)
    queue, taken = ready.first.tolist(), []
    left, missing = ready.posts.copy(), ready.missing.copy()
    while queue:
        row = queue.pop(0)
        taken.append(row)
        semaphore = get_posted(table, row)
        if semaphore < 0:
            continue
        left[semaphore] -= 1
        for group in ready.wakes[semaphore].tolist() if not left[semaphore] else ():
            missing[group] -= 1
            queue += ready.rows[group].tolist() if not missing[group] else []
    assert not np.any(left)
    assert sorted(taken) == list(range(len(table.items)))

"""Random plans and planted faults: what verify accepts is safe, and what is unsafe it refuses.

A slow oracle (oracle.py) decides what is true; the verdicts must agree in both directions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from interlace.core.errors import CoverageError, DeadlockError, ThresholdError
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import verify
from interlace.planner.build import build
from interlace.policies.interleavings import ExplicitInterleaving
from interlace.policies.schedule import Schedule
from interlace.policies.sync import NoSync, SyncPolicy

from ..draws import EXAMPLES, FEWER
from . import oracle
from .graphs import (
    POLICIES,
    column,
    drop_waits,
    expect_refusal,
    graphs,
    pair,
    pointwise,
    program,
    schedules,
    set_entry,
    take_items,
    wait_rows,
)


def check_safe(plan: Plan) -> None:
    """The package accepts the plan, and so does the oracle."""
    proof = verify(plan)
    rests_on = {Ordering.WAIT: proof.edges_by_wait, Ordering.WORKER: proof.edges - proof.edges_by_wait}
    assert dict(proof.rests_on).keys() == {ordering for ordering, edges in rests_on.items() if edges}
    assert min(rests_on.values()) >= 0
    assert oracle.find_unenforced(plan, {"RAW"}) == []
    assert oracle.races(plan) == []
    assert not oracle.stuck(plan)


def judged_alike(plan: Plan) -> str:
    """The package refuses the plan exactly if the oracle finds fault. Returns the verdict.

    What is overwritten may be safe by waits of other items alone: the package need not see it, but may.
    """
    apart = bool(oracle.find_unenforced(plan))
    if oracle.find_unenforced(plan, {"RAW"}) or (apart and oracle.races(plan)):
        expect_refusal(plan, CoverageError, "op 'op")
        return "uncovered"
    if apart:
        try:
            verify(plan)
        except CoverageError:
            return "unseen"
        except DeadlockError:
            pass
    if oracle.stuck(plan):
        expect_refusal(plan, DeadlockError, "op 'op")
        return "stuck"
    check_safe(plan)
    return "safe"


def test_oracle_sees_races_and_deadlocks() -> None:
    plan = build(pair(), Schedule(2))
    assert (oracle.find_unenforced(plan), oracle.races(plan), oracle.stuck(plan)) == ([], [], False)
    assert oracle.find_unenforced(drop_waits(plan, 0)) == ["item 2 (1, 0) at k 0 does not wait for (0, 0)"]
    assert oracle.races(drop_waits(plan, 0)) == ["item 2 (1, 0) may run before (0, 0) has written"]
    assert oracle.stuck(take_items(plan, [0, 3, 2, 1]))
    shapes = {"x": (1,), "y": (1,), "z": (1,)}
    ops = pointwise("read", "x", "y", (1,), (1,)), pointwise("overwrite", "z", "x", (1,), (1,))
    overwrite = build(program(shapes, *ops, inputs=("x", "z")), Schedule(2))
    assert oracle.races(overwrite) == []
    assert oracle.races(drop_waits(overwrite, 0)) == ["item 1 (1, 0) may overwrite what item 0 (0, 0) still reads"]


@EXAMPLES
@given(st.data())
def test_everything_that_build_makes_verifies_and_is_safe(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    plan = build(graph, data.draw(schedules(graph)))
    check_safe(plan)
    if plan.dispatch is Dispatch.TICKET:
        assert verify(plan).in_sequence


def test_any_sequence_of_what_build_makes_is_safe_or_refused_as_a_deadlock() -> None:
    verdicts: Counter[str] = Counter()

    @EXAMPLES
    @given(st.data())
    def judge(data: st.DataObject) -> None:
        graph = data.draw(graphs())
        drawn = data.draw(schedules(graph))
        items = len(build(graph, drawn).items)
        sequence = ExplicitInterleaving(tuple(data.draw(st.permutations(range(items)))))
        verdicts[judged_alike(build(graph, replace(drawn, interleaving=sequence)))] += 1

    judge()
    assert not verdicts["uncovered"]
    assert verdicts["unseen"] <= 0.02 * verdicts.total(), verdicts  # only in sequences that no order of ops gives
    assert min(verdicts["stuck"], verdicts["safe"]) >= 0.1 * verdicts.total(), verdicts


@st.composite
def plans(draw: st.DrawFn, policies: st.SearchStrategy[SyncPolicy] = POLICIES) -> Plan:
    """Build a plan by random schedules for a random graph that needs waits."""
    graph = draw(graphs())
    plan = build(graph, draw(schedules(graph, policies)))
    assume(len(plan.waits))
    return plan


def drop_wait(plan: Plan, row: int, _: int) -> Plan:
    return drop_waits(plan, row)


def drop_first_semaphore(plan: Plan, row: int, _: int) -> Plan:
    if plan.waits.count[row] == 1:
        return drop_waits(plan, row)
    moved = set_entry(plan, "waits.first", row, int(plan.waits.first[row] + plan.waits.stride[row]))
    return set_entry(moved, "waits.count", row, int(plan.waits.count[row]) - 1)


def drop_last_semaphore(plan: Plan, row: int, _: int) -> Plan:
    if plan.waits.count[row] == 1:
        return drop_waits(plan, row)
    return set_entry(plan, "waits.count", row, int(plan.waits.count[row]) - 1)


def delay_last_wait(plan: Plan, row: int, _: int) -> Plan:
    """Moves the last wait of the row's item to the next chunk, if there is one."""
    item = int(np.searchsorted(plan.waits.ptr, row, side="right")) - 1
    last = wait_rows(plan, item)[-1]
    reduction = plan.graph.ops[int(plan.items.op[item])].reduction
    block = reduction.block if reduction else 1
    later = max(int(plan.waits.k[last]), int(plan.items.k_lo[item])) + block
    return set_entry(plan, "waits.k", last, later) if later < plan.items.k_hi[item] else plan


def swap_items(plan: Plan, row: int, other: int) -> Plan:
    """Swaps the item of the row with another in the sequence; the places keep their workers."""
    item = int(np.searchsorted(plan.waits.ptr, row, side="right")) - 1
    order = list(range(len(plan.items)))
    other %= len(order)
    order[item], order[other] = order[other], order[item]
    swapped = take_items(plan, order)
    return replace(swapped, items=replace(swapped.items, worker=plan.items.worker))


FAULTS = (drop_wait, drop_first_semaphore, drop_last_semaphore, delay_last_wait, swap_items)
#: The share of the plans with a fault that must be unsafe, so that the tests judge something.
LEAST_UNSAFE = {
    drop_wait: 0.3,
    drop_first_semaphore: 0.3,
    drop_last_semaphore: 0.3,
    delay_last_wait: 0.02,
    swap_items: 0.1,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_caught_unless_the_plan_is_still_safe(fault: Callable[[Plan, int, int], Plan]) -> None:
    verdicts: Counter[str] = Counter()

    @FEWER
    @given(st.data(), plans(), st.integers(0, 100))
    def judge(data: st.DataObject, plan: Plan, other: int) -> None:
        row = data.draw(st.integers(0, len(plan.waits) - 1))
        verdicts[judged_alike(fault(plan, row, other))] += 1

    judge()
    assert verdicts.total() - verdicts["safe"] >= LEAST_UNSAFE[fault] * verdicts.total(), verdicts


def test_plan_with_few_waits_is_accepted_only_where_program_order_suffices() -> None:
    verdicts: Counter[str] = Counter()

    @EXAMPLES
    @given(st.data(), plans(st.one_of(st.just(NoSync()), POLICIES)))
    def judge(data: st.DataObject, plan: Plan) -> None:
        if plan.dispatch is Dispatch.STATIC:
            workers = data.draw(st.lists(st.integers(0, min(plan.workers, 2) - 1), min_size=len(plan.items)))
            plan = replace(plan, items=replace(plan.items, worker=column(*workers[: len(plan.items)])))
        dropped = data.draw(st.sets(st.integers(0, len(plan.waits) - 1)))
        verdicts[judged_alike(drop_waits(plan, *dropped))] += 1

    judge()
    assert verdicts["uncovered"] >= 0.3 * verdicts.total(), verdicts
    assert verdicts["safe"] >= 0.1 * verdicts.total(), verdicts


@FEWER
@given(st.data(), plans(), st.sampled_from((-1, 1)))
def test_threshold_off_by_one_is_always_caught(data: st.DataObject, plan: Plan, change: int) -> None:
    row = data.draw(st.integers(0, len(plan.waits) - 1))
    threshold = int(plan.waits.threshold[row])
    changed = set_entry(plan, "waits.threshold", row, threshold + change)
    expect_refusal(changed, ThresholdError, f"set the threshold to {threshold}")


@FEWER
@given(st.data(), plans())
def test_removed_post_is_always_caught(data: st.DataObject, plan: Plan) -> None:
    item = data.draw(st.sampled_from(np.flatnonzero(plan.items.post >= 0).tolist()))
    tile = (plan.items.op == plan.items.op[item]) & (plan.items.tile == plan.items.tile[item])
    post = np.where(tile, -1, plan.items.post)
    expect_refusal(replace(plan, items=replace(plan.items, post=post)), ThresholdError, "post", "it in a run")

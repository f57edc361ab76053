"""Law 2: a plan that is not safe is refused, with the op, the tile and the fix in the message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from interlace.core.errors import (
    CoverageError,
    DeadlockError,
    IntraOpRaceError,
    ItemError,
    PlanError,
    SemaphoreError,
    ThresholdError,
)
from interlace.graph.access import ALL, Access, Affine, K, Span, axes
from interlace.graph.op import Op, Reduction
from interlace.plan.plan import Dispatch, Plan, Waits
from interlace.plan.verify import verify
from interlace.planner.build import build
from interlace.policies.interleavings import ExplicitInterleaving, RowPanels
from interlace.policies.schedule import Schedule
from interlace.policies.splits import Split, SplitK, WholeTiles
from interlace.policies.sync import BatchedRowSync, KernelSync, NoSync, RowSync, SyncPolicy, TileSync

from . import oracle
from .graphs import (
    ScatteredSync,
    build_gated,
    column,
    drop_waits,
    expect_refusal,
    item_at,
    pair,
    pointwise,
    program,
    set_entry,
    take_items,
    two_matmuls,
    wait_rows,
)


def rows_plan(**settings: object) -> Plan:
    """Two matmuls, 4 x 4 and 4 x 2 tiles, one semaphore for each row of ``up``."""
    return build(two_matmuls(), Schedule(4, policy=RowSync(), **settings))  # type: ignore[arg-type]


# ---------------------------------------------------------------- what a proof says


def test_proof_counts_dependencies_and_the_longest_chain() -> None:
    proof = verify(rows_plan())
    assert (proof.edges, proof.edges_by_wait, proof.longest_chain) == (32, 32, 2)
    assert (proof.workers_needed, proof.in_sequence) == (1, True)
    assert proof.plan == rows_plan()


def test_longest_chain_goes_from_op_to_op() -> None:
    shapes = {f"t{n}": (3,) for n in range(6)}
    ops = [pointwise(f"op{n}", f"t{n}", f"t{n + 1}", (3,), (1,)) for n in range(5)]
    graph = program(shapes, *ops)
    assert verify(build(graph, Schedule(2))).longest_chain == 5
    assert verify(build(graph, Schedule(2, policy=KernelSync(), interleaving=RowPanels(1)))).longest_chain == 5
    assert verify(build(graph, Schedule(1, policy=NoSync()))).longest_chain == 1


def test_static_dispatch_needs_all_its_workers_and_ticket_dispatch_one() -> None:
    assert verify(rows_plan(dispatch=Dispatch.STATIC)).workers_needed == 4
    assert verify(rows_plan(dispatch=Dispatch.TICKET)).workers_needed == 1
    assert verify(rows_plan(dispatch=Dispatch.STEALING)).workers_needed == 4
    assert verify(rows_plan(dispatch=Dispatch.HYBRID)).workers_needed == 4
    assert verify(rows_plan(dispatch=Dispatch.QUEUE)).workers_needed == 1
    assert verify(rows_plan(dispatch=Dispatch.DISPATCHER)).workers_needed == 4


def test_split_items_count_the_dependencies_of_their_part() -> None:
    # Each half of a tile of down needs two of the four tiles of up in its row.
    proof = verify(rows_plan(split={"down": SplitK(2)}))
    assert proof.edges == 32


# ---------------------------------------------------------------- waits


def test_dropped_wait_is_refused() -> None:
    plan = rows_plan()
    (row,) = wait_rows(plan, item_at(plan, "down", 3))
    expect_refusal(
        drop_waits(plan, row),
        CoverageError,
        "op 'down', tile (1, 1) reads hidden[2:4, 0:8]",
        "op 'up', tile (1, 0) writes",
        "RAW through 'hidden', argument 'a'",
        "the item waits for nothing by then; add a wait for semaphore 1",
    )


def test_wait_for_another_row_is_refused() -> None:
    plan = rows_plan()
    (row,) = wait_rows(plan, item_at(plan, "down", 3))
    expect_refusal(
        set_entry(plan, "waits.first", row, 2),
        CoverageError,
        "op 'down', tile (1, 1)",
        "that tile posts semaphore 1 and the item has waited only for 2; add a wait for semaphore 1 before "
        "the item reads, or build the plan with interlace.build, which derives waits from the graph",
    )


@pytest.mark.parametrize(
    ("change", "effect"),
    [(-1, "can end before its producers have posted"), (1, "never ends")],
    ids=["low", "high"],
)
def test_threshold_off_by_one_is_refused(change: int, effect: str) -> None:
    plan = rows_plan()
    expect_refusal(
        set_entry(plan, "waits.threshold", 0, 4 + change),
        ThresholdError,
        f"op 'down', tile (0, 0) waits for semaphore 0 to reach {4 + change}",
        f"but 4 tiles post it in a run, so the wait {effect}; set the threshold to 4",
    )


def test_one_threshold_for_semaphores_with_different_posts_is_refused() -> None:
    # Ragged batches: 3 rows of tiles in batches of 2 give semaphores with 2 and with 1 posts.
    graph = two_matmuls(6, (2, 2, 2), up=(2, 2), down=(6, 2))
    plan = build(graph, Schedule(2, policy=BatchedRowSync(2)))
    assert plan.waits.threshold.tolist() == [2, 1]
    merged = set_entry(drop_waits(plan, 1), "waits.count", 0, 2)
    expect_refusal(
        merged, ThresholdError, "op 'down', tile (0, 0) waits for semaphore 1 to reach 2, but 1 tiles post it"
    )


def test_removed_post_is_refused() -> None:
    plan = rows_plan()
    expect_refusal(
        set_entry(plan, "items.post", 5, -1), ThresholdError, "but 3 tiles post it", "set the threshold to 3"
    )


def test_post_to_another_semaphore_is_refused() -> None:
    plan = rows_plan()
    expect_refusal(set_entry(plan, "items.post", 5, 0), ThresholdError, "but 5 tiles post it")


@pytest.mark.parametrize("value", [4, -2, 2**62])
def test_post_out_of_range_is_refused(value: int) -> None:
    expect_refusal(
        set_entry(rows_plan(), "items.post", 5, value),
        SemaphoreError,
        f"op 'up', tile (1, 1) posts semaphore {value}, but the plan has 4; post one of those or -1 for none",
    )


@pytest.mark.parametrize(("name", "value"), [("first", 4), ("first", -1), ("first", 2**62), ("count", 5)])
def test_wait_out_of_range_is_refused(name: str, value: int) -> None:
    expect_refusal(
        set_entry(rows_plan(), f"waits.{name}", 0, value),
        SemaphoreError,
        "op 'down', tile (0, 0) waits for",
        str(value if name == "first" else 4),
        "but the plan has 4; raise Plan.semaphores or mend the wait",
    )


def test_stride_that_leaves_the_semaphores_is_refused() -> None:
    graph = two_matmuls(6, (2, 4, 2), up=(2, 2), down=(6, 2), block=2)
    plan = build(graph, Schedule(2, chunk_waits=True))
    assert plan.waits.stride.tolist() == [2, 2]
    expect_refusal(set_entry(plan, "waits.stride", 0, 3), SemaphoreError, "waits for semaphore 6, but the plan has 6")


def test_too_few_semaphores_are_refused() -> None:
    expect_refusal(replace(rows_plan(), semaphores=3), SemaphoreError, "posts semaphore 3, but the plan has 3")


def test_spare_semaphores_do_no_harm() -> None:
    plan = build(two_matmuls(), Schedule(4, policy=RowSync()))
    assert verify(replace(plan, semaphores=5)).edges == 32


@pytest.mark.parametrize("value", [0, -1])
def test_wait_for_no_semaphore_is_refused(value: int) -> None:
    expect_refusal(
        set_entry(rows_plan(), "waits.count", 0, value),
        PlanError,
        f"op 'down', tile (0, 0): wait 0 (count {value}, k 0) is malformed",
        "cover at least one semaphore",
    )


@pytest.mark.parametrize(
    ("first", "count", "stride"),
    [(3, 4, -1), (3, 2, -3), (2, 4, 0), (2, 1, 0), (2, 1, 2**62), (2, 1, -1), (0, 4, -(2**63))],
)
def test_semaphores_of_a_wait_are_listed_upwards(first: int, count: int, stride: int) -> None:
    plan = build(two_matmuls(2, (2, 8, 2)), Schedule(2))
    assert (plan.waits.first.tolist(), plan.waits.count.tolist()) == ([0], [4])
    for name, value in (("first", first), ("count", count), ("stride", stride)):
        plan = set_entry(plan, f"waits.{name}", 0, value)
    expect_refusal(
        plan,
        SemaphoreError,
        f"op 'down', tile (0, 0): wait 0 has stride {stride}; list its semaphores upwards from the lowest one, "
        "with a stride of at least 1",
    )


def test_a_wait_before_the_reduction_begins_is_refused() -> None:
    # On a device k has 32 bits, in which -2**32 + 2 would be 2, inside the reduction.
    expect_refusal(
        set_entry(rows_plan(), "waits.k", 0, -(2**32) + 2),
        PlanError,
        "wait 0 (count 1, k -4294967294) is malformed",
        "or at 0 or more before it",
    )


@pytest.mark.parametrize("ptr", [(0, 2**63 - 1, -2, 0, 2), (0, -(2**63), 2**63 - 1, 1, 2)])
def test_first_waits_whose_differences_wrap_are_refused(ptr: tuple[int, ...]) -> None:
    plan = build(two_matmuls(4, (2, 4, 2), up=(2, 4), down=(2, 2)), Schedule(2))
    assert plan.waits.ptr.tolist() == [0, 0, 0, 1, 2]
    damaged = replace(plan, waits=replace(plan.waits, ptr=column(*ptr)))
    expect_refusal(damaged, PlanError, "waits.ptr must rise from 0 to 2, but entry")


def test_repeated_waits_are_understood() -> None:
    graph = two_matmuls(2, (2, 8, 2))
    plan = build(graph, Schedule(2))
    again = take_items(plan, [0, 1, 2, 3, 4])
    twice = replace(again, waits=Waits(*(np.r_[c, c[-1:]] for c in _columns(again.waits))))
    twice = replace(twice, waits=replace(twice.waits, ptr=column(0, 0, 0, 0, 0, 2)))
    assert verify(twice).edges_by_wait == 4


def _columns(waits: Waits) -> tuple[np.ndarray, ...]:
    return waits.ptr, waits.first, waits.count, waits.stride, waits.threshold, waits.k


def test_item_is_judged_by_its_own_waits_not_by_those_of_a_tile_that_reads_the_same() -> None:
    # Both tiles of down read all of hidden; the second waits twice for its second half.
    plan = build(two_matmuls(2), Schedule(2))
    halves = Waits(
        column(0, 0, 0, 0, 0, 2, 4),
        column(0, 2, 0, 2),
        column(2, 2, 2, 2),
        column(1, 1, 1, 1),
        column(1, 1, 1, 1),
        column(0, 0, 0, 0),
    )
    assert verify(replace(plan, waits=halves)).edges_by_wait == 8
    expect_refusal(
        replace(plan, waits=replace(halves, first=column(0, 2, 2, 2))),
        CoverageError,
        "op 'down', tile (0, 1)",
        "op 'up', tile (0, 0)",
        "the item has waited only for 2, 3",
    )


# ---------------------------------------------------------------- three plans that once went wrong


@pytest.mark.parametrize(("producer_rows", "awaited"), [(160, [2, 3, 2, 3, 2]), (128, [2, 2, 2, 2, 2])])
def test_consumer_rows_that_span_several_producer_rows_need_all_of_them(producer_rows: int, awaited: list[int]) -> None:
    graph = two_matmuls(1280, (64, 256, 128), up=(producer_rows, 128), down=(256, 128), block=64)
    plan = build(graph, Schedule(8, policy=RowSync()))
    assert plan.waits.count.tolist() == awaited
    assert verify(plan).edges == 2 * sum(awaited)
    one_row_each = replace(plan, waits=replace(plan.waits, count=np.ones_like(plan.waits.count)))
    expect_refusal(
        one_row_each,
        CoverageError,
        "op 'down', tile (0, 0) reads hidden[0:256, 0:256]",
        "op 'up', tile (1, 0)",
        "the item has waited only for 0",
    )


def test_second_part_of_a_split_tile_needs_its_own_wait() -> None:
    plan = rows_plan(split={"down": SplitK(2)})
    second = item_at(plan, "down", 3, k_lo=4)
    expect_refusal(
        drop_waits(plan, *wait_rows(plan, second)),
        CoverageError,
        "op 'down', tile (1, 1), k 4:8 reads hidden[2:4, 4:8]",
        "op 'up', tile (1, 2)",
    )


def test_every_operand_needs_its_wait() -> None:
    plan = build(build_gated(), Schedule(2, policy=RowSync()))
    (row,) = wait_rows(plan, item_at(plan, "mul", 0))
    # One wait for two semaphores: row 0 of gate and, three further, row 0 of up.
    assert [int(getattr(plan.waits, c)[row]) for c in ("first", "count", "stride")] == [0, 2, 3]
    only_gate = set_entry(plan, "waits.count", row, 1)
    only_up = set_entry(only_gate, "waits.first", row, 3)
    expect_refusal(only_gate, CoverageError, "op 'mul', tile (0, 0)", "op 'up', tile (0, 0)", "argument 'in1'")
    expect_refusal(only_up, CoverageError, "op 'mul', tile (0, 0)", "op 'gate', tile (0, 0)", "argument 'in0'")


# ---------------------------------------------------------------- waits inside the reduction


def build_chunked() -> tuple[Plan, int]:
    """A plan whose tile (0, 0) of ``down`` waits at k = 0, 2, 4 and 6 for one tile of ``up`` each."""
    plan = build(two_matmuls(), Schedule(4, chunk_waits=True))
    item = item_at(plan, "down", 0)
    assert [int(plan.waits.k[row]) for row in wait_rows(plan, item)] == [0, 2, 4, 6]
    return plan, item


def test_waits_before_each_chunk_are_enough() -> None:
    plan, _ = build_chunked()
    assert verify(plan).edges_by_wait == 32


@pytest.mark.parametrize("at", range(3))
def test_wait_one_chunk_too_late_is_refused(at: int) -> None:
    plan, item = build_chunked()
    row = wait_rows(plan, item)[at]
    expect_refusal(
        set_entry(plan, "waits.k", row, 2 * at + 2),
        CoverageError,
        f"op 'down', tile (0, 0) reads hidden[0:2, {max(2 * at - 2, 0)}:{2 * at + 2}] from k = {max(2 * at - 2, 0)} on",
        f"op 'up', tile (0, {at})",
        f"semaphore {at}",
    )


def test_wait_one_chunk_too_early_is_safe() -> None:
    plan, item = build_chunked()
    assert verify(set_entry(plan, "waits.k", wait_rows(plan, item)[3], 4)).edges_by_wait >= 32


def test_wait_before_the_start_of_a_part_stands_at_its_start() -> None:
    plan = rows_plan(split={"down": SplitK(2)})
    (row,) = wait_rows(plan, item_at(plan, "down", 0, k_lo=4))
    for k in (0, 1, 3, 4):
        assert verify(set_entry(plan, "waits.k", row, k)).edges == 32


@pytest.mark.parametrize(("at", "k"), [(0, 1), (3, 7), (3, 8), (3, 100), (0, 4)], ids=str)
def test_wait_off_the_chunks_or_out_of_order_is_refused(at: int, k: int) -> None:
    plan, item = build_chunked()
    row = wait_rows(plan, item)[at]
    expect_refusal(
        set_entry(plan, "waits.k", row, k),
        PlanError,
        "op 'down', tile (0, 0): wait",
        "is malformed; waits of an item are sorted by k, lie on chunks inside its k-range",
    )


def test_operand_that_does_not_move_with_k_must_be_awaited_at_the_start() -> None:
    i, j = axes(2)
    both = Op(
        "both",
        "mix",
        (1, 1),
        (Access("scale", "s", (ALL,)), Access("a", "h", (i.block(2), K))),
        (Access("out", "y", (i.block(2), j.block(2))),),
        Reduction(4, 2),
    )
    graph = program(
        {"x": (2, 4), "h": (2, 4), "s0": (1,), "s": (1,), "y": (2, 2)},
        pointwise("make_h", "x", "h", (2, 4), (2, 2)),
        pointwise("make_s", "s0", "s", (1,), (1,)),
        both,
    )
    plan = build(graph, Schedule(2, chunk_waits=True))
    # Awaited at 0: the first tile of h and s, which are two semaphores apart; at 2: the second tile of h.
    assert [getattr(plan.waits, c).tolist() for c in ("first", "count", "stride", "k")] == [
        [0, 1],
        [2, 1],
        [2, 1],
        [0, 2],
    ]
    assert verify(plan).edges == 3
    late = replace(
        plan,
        waits=Waits(column(0, 0, 0, 0, 2), column(0, 1), column(1, 2), column(1, 1), column(1, 1), column(0, 2)),
    )
    expect_refusal(
        late,
        CoverageError,
        "op 'both', tile (0, 0) reads s[0:1]",
        "op 'make_s', tile (0)",
        "argument 'scale'",
    )


# ---------------------------------------------------------------- progress


def test_ticket_that_waits_for_a_later_ticket_is_a_deadlock() -> None:
    plan = take_items(build(pair(), Schedule(2)), [0, 3, 2, 1])
    expect_refusal(
        plan,
        DeadlockError,
        "op 'b', tile (1) (item 1) waits for op 'a', tile (1), which is dispatched later (item 3)",
        "Order producers before consumers",
    )


def test_one_static_worker_that_waits_for_itself_is_a_deadlock() -> None:
    plan = take_items(build(pair(), Schedule(1, Dispatch.STATIC)), [0, 3, 2, 1])
    expect_refusal(plan, DeadlockError, "op 'b', tile (1) (item 1) waits for op 'a', tile (1)")


def build_crossed(sequence: tuple[int, ...], workers: tuple[int, ...]) -> Plan:
    """``pair`` with items (a0, a1, b0, b1) = (0, 1, 2, 3) in this sequence on these workers."""
    plan = build(pair(), Schedule(2, Dispatch.STATIC, interleaving=ExplicitInterleaving(sequence)))
    return replace(plan, items=replace(plan.items, worker=column(*workers)))


def test_static_cycle_of_waits_and_workers_is_a_deadlock() -> None:
    # Worker 0 runs b0 before a1, worker 1 runs b1 before a0: each waits for what the other has not begun.
    expect_refusal(
        build_crossed((2, 3, 1, 0), (0, 1, 0, 1)),
        DeadlockError,
        "4 items wait for each other through semaphores and the order of their workers",
        "op 'b', tile (0)",
        "Order producers before consumers on each worker",
    )


def test_static_plan_out_of_sequence_but_without_a_cycle_is_accepted() -> None:
    # b0 stands first in the sequence, but a0 opens the list of the other worker.
    proof = verify(build_crossed((2, 0, 1, 3), (0, 1, 0, 1)))
    assert (proof.in_sequence, proof.workers_needed, proof.longest_chain) == (False, 2, 2)


def test_static_cycle_through_a_split_tile_is_a_deadlock() -> None:
    # The tile of b needs both parts of the tile of a; its second part stands behind b on the same worker.
    graph = two_matmuls(2, (4, 2, 2))
    plan = build(graph, Schedule(2, Dispatch.STATIC, split={"up": SplitK(2)}))
    plan = replace(plan, items=replace(plan.items, worker=column(0, 1, 1)))
    assert verify(plan).in_sequence
    expect_refusal(
        take_items(plan, [0, 2, 1]),
        DeadlockError,
        "2 items wait for each other",
        "op 'up', tile (0, 0), k 2:4",
    )


def test_item_that_waits_for_its_own_post_is_a_deadlock() -> None:
    plan = build(pair(1), Schedule(2))
    waits = Waits(column(0, 1, 2), column(0, 0), column(1, 1), column(1, 1), column(1, 1), column(0, 0))
    expect_refusal(replace(plan, waits=waits), DeadlockError, "op 'a', tile (0) (item 0) waits for op 'a', tile (0)")
    static = replace(plan, dispatch=Dispatch.STATIC, items=replace(plan.items, worker=column(0, 1)))
    expect_refusal(replace(static, waits=waits), DeadlockError, "2 items wait for each other")


def test_wait_for_no_posts_at_all_is_refused() -> None:
    def with_idle_wait(plan: Plan) -> Plan:
        """The third item also waits for 0 posts of a third semaphore that nobody posts."""
        idle, columns = [0, 1, 1, 2, 3], ("first", "count", "stride", "threshold")
        extra = {"first": 2, "count": 1, "stride": 1, "threshold": 0}
        rows = [np.insert(getattr(plan.waits, c), 1, extra[c]) for c in columns]
        return replace(plan, semaphores=3, waits=Waits(column(*idle), *rows, column(0, 0, 0)))

    expect_refusal(
        with_idle_wait(build_crossed((2, 0, 1, 3), (0, 1, 0, 1))),
        ThresholdError,
        "waits for semaphore 2 to reach 0, but no tile posts it in a run; drop the wait or let its producers",
    )


# ---------------------------------------------------------------- program order


def test_no_sync_on_a_needed_edge_is_refused() -> None:
    for dispatch in Dispatch:
        plan = build(two_matmuls(), Schedule(2, dispatch, policy=NoSync()))
        expect_refusal(
            plan,
            CoverageError,
            "op 'down', tile",
            "that tile posts no semaphore (NoSync?); give op 'up' a policy",
        )


@pytest.mark.parametrize("worker", [[0, -1, 1, -1], [0, 1, 2, -1], [-1, -1, -1, -1], [0, 1, -2, -1]])
def test_under_hybrid_dispatch_lists_come_first(worker: list[int]) -> None:
    plan = build(pair(), Schedule(2, Dispatch.HYBRID))
    assert plan.items.worker.tolist() == [0, 1, -1, -1]
    bad = replace(plan, items=replace(plan.items, worker=np.array(worker)))
    expect_refusal(bad, ItemError, "under hybrid dispatch the first items name one of 0..1", "and all after these -1")


@pytest.mark.parametrize("dispatch", [Dispatch.QUEUE, Dispatch.SPAWN])
def test_a_queue_keeps_no_order_of_one_worker(dispatch: Dispatch) -> None:
    plan = build(two_matmuls(), Schedule(1, dispatch, policy=NoSync()))
    expect_refusal(plan, CoverageError, "op 'down', tile", "that tile posts no semaphore")


@pytest.mark.parametrize("dispatch", [d for d in Dispatch if not d.can_reorder and d is not Dispatch.SPAWN])
def test_no_sync_is_fine_when_one_worker_runs_everything(dispatch: Dispatch) -> None:
    proof = verify(build(two_matmuls(), Schedule(1, dispatch, policy=NoSync())))
    assert (proof.edges, proof.edges_by_wait, proof.longest_chain) == (32, 0, 1)


def test_no_sync_on_one_worker_still_needs_producers_first() -> None:
    plan = build(pair(), Schedule(1, policy=NoSync()))
    expect_refusal(take_items(plan, [0, 3, 2, 1]), CoverageError, "op 'b', tile (1)", "op 'a', tile (1)")


def test_program_order_of_one_worker_replaces_a_wait() -> None:
    plan = build(pair(), Schedule(2, Dispatch.STATIC))  # worker 0: a0, b0; worker 1: a1, b1
    assert plan.items.worker.tolist() == [0, 1, 0, 1]
    proof = verify(drop_waits(plan, 0))
    assert (proof.edges, proof.edges_by_wait) == (2, 1)
    moved = set_entry(drop_waits(plan, 0), "items.worker", 2, 1)
    expect_refusal(moved, CoverageError, "op 'b', tile (0)", "op 'a', tile (0)")


def test_order_of_tickets_is_no_program_order() -> None:
    expect_refusal(drop_waits(build(pair(), Schedule(2)), 0), CoverageError, "op 'b', tile (0)")


def test_program_order_covers_a_split_tile_only_if_all_parts_precede() -> None:
    graph = two_matmuls(2, (4, 2, 2))
    plan = build(graph, Schedule(2, Dispatch.STATIC, split={"up": SplitK(2)}))
    bare = drop_waits(plan, 0)
    same = replace(bare, items=replace(bare.items, worker=column(0, 0, 0)))
    assert verify(same).edges_by_wait == 0
    expect_refusal(
        replace(bare, items=replace(bare.items, worker=column(0, 1, 0))),
        CoverageError,
        "op 'down', tile (0, 0)",
    )


def test_overwriting_before_readers_are_done_is_refused() -> None:
    shapes = {"x": (2,), "y": (2,), "z": (2,)}
    graph = program(
        shapes,
        pointwise("read", "x", "y", (2,), (1,)),
        pointwise("overwrite", "z", "x", (2,), (2,)),
        inputs=("x", "z"),
    )
    plan = build(graph, Schedule(2))
    assert verify(plan).edges == 2
    expect_refusal(
        drop_waits(plan, 0),
        CoverageError,
        "op 'overwrite', tile (0) overwrites x[0:2], which op 'read', tile (0) still reads (WAR through 'x'",
    )


def test_overwriting_before_an_earlier_write_is_done_is_refused() -> None:
    shapes = {"x": (2,), "y": (2,)}
    graph = program(shapes, pointwise("old", "x", "y", (2,), (1,)), pointwise("new", "x", "y", (2,), (1,)))
    plan = build(graph, Schedule(2))
    expect_refusal(
        drop_waits(plan, 1),
        CoverageError,
        "op 'new', tile (1) overwrites y[1:2], which op 'old', tile (1) writes (WAW through 'y'",
    )


# ---------------------------------------------------------------- items


def test_missing_item_is_refused() -> None:
    plan = rows_plan()
    order = [i for i in range(len(plan.items)) if i != item_at(plan, "down", 5)]
    expect_refusal(
        take_items(plan, order),
        ItemError,
        "op 'down', tile (2, 1) has no item; every tile needs at least one",
    )


def test_plan_without_items_is_refused() -> None:
    plan = take_items(rows_plan(), [])
    expect_refusal(plan, ItemError, "plan has no items; every tile of the graph needs at least one")


def test_repeated_item_is_refused() -> None:
    plan = rows_plan()
    doubled = take_items(plan, [*range(len(plan.items)), len(plan.items) - 1])
    expected = "op 'down', tile (3, 1): the items of this tile do not cover its reduction exactly once"
    expect_refusal(doubled, ItemError, expected, "make their k-ranges meet end to end from 0 to 8")


@pytest.mark.parametrize(
    ("name", "part", "value"),
    [("k_hi", 0, 2), ("k_lo", 1, 6), ("k_hi", 0, 6), ("k_lo", 1, 2), ("k_hi", 1, 6), ("k_lo", 0, 2)],
    ids=["gap below", "gap above", "overlap below", "overlap above", "open end", "open start"],
)
def test_k_ranges_that_do_not_meet_are_refused(name: str, part: int, value: int) -> None:
    plan = rows_plan(split={"down": SplitK(2)})
    item = item_at(plan, "down", 2, k_lo=4 * part)
    expect_refusal(
        set_entry(plan, f"items.{name}", item, value), ItemError, "op 'down', tile (1, 0), k ", "exactly once"
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("op", 2, "item 0 names op 2, but graph 'test' has ops 0..1; let it name one of them"),
        ("op", -1, "item 0 names op -1, but graph 'test' has ops 0..1; let it name one of them"),
        ("tile", 16, "item 0 (op 'up', tile number 16, k 0:4) lies outside its op's grid; name a tile of 0..15"),
        ("tile", -1, "item 0 (op 'up', tile number -1, k 0:4) lies outside its op's grid; name a tile of 0..15"),
        ("k_lo", -2, "k -2:4) has a k-range outside its reduction; give it a part of 0:4, not empty"),
        ("k_hi", 6, "k 0:6) has a k-range outside its reduction; give it a part of 0:4, not empty"),
        ("k_hi", 0, "k 0:0) has a k-range outside its reduction; give it a part of 0:4, not empty"),
        ("k_hi", 3, "k 0:3) splits its reduction inside a chunk; split at multiples of the block, 2"),
        ("k_lo", 1, "k 1:4) splits its reduction inside a chunk; split at multiples of the block, 2"),
        ("worker", 0, "names a worker, but ticket dispatch decides that at run time; set it to -1"),
    ],
)
def test_item_outside_the_graph_is_refused(name: str, value: int, words: str) -> None:
    expect_refusal(set_entry(rows_plan(), f"items.{name}", 0, value), ItemError, words)


@pytest.mark.parametrize("worker", [-1, 4])
def test_worker_out_of_range_is_refused(worker: int) -> None:
    plan = set_entry(rows_plan(dispatch=Dispatch.STATIC), "items.worker", 0, worker)
    expect_refusal(
        plan,
        ItemError,
        f"item 0 (op 'up', tile number 0, k 0:4) has a worker out of range, {worker}",
        "name one of 0..3 or raise Plan.workers",
    )


@pytest.mark.parametrize("workers", [0, -1])
@pytest.mark.parametrize("dispatch", Dispatch)
def test_plan_without_workers_is_refused(workers: int, dispatch: Dispatch) -> None:
    plan = replace(rows_plan(dispatch=dispatch), workers=workers)
    expect_refusal(plan, PlanError, f"plan has {workers} workers; set Plan.workers to at least one")


def test_parts_of_one_tile_that_post_differently_are_refused() -> None:
    plan = build(two_matmuls(), Schedule(4, split={"up": SplitK(2)}))
    second = item_at(plan, "up", 5, k_lo=2)
    expect_refusal(
        set_entry(plan, "items.post", second, 3),
        SemaphoreError,
        "op 'up', tile (1, 1), k 2:4 posts semaphore 3, another part of the tile posts 5",
        "parts of one tile share one post",
    )


def test_tables_of_uneven_columns_are_refused() -> None:
    plan = rows_plan()
    short = replace(plan, items=replace(plan.items, tile=plan.items.tile[:-1]))
    expect_refusal(
        short,
        PlanError,
        "items.tile has shape (23,); expected (24,): give each of the 24 items an entry in every column",
    )
    flat = replace(plan, waits=replace(plan.waits, k=plan.waits.k[None]))
    expect_refusal(flat, PlanError, "waits.k has shape (1, 8); expected (8,)")
    expect_refusal(
        replace(plan, waits=replace(plan.waits, ptr=plan.waits.ptr[:-1])),
        PlanError,
        "waits.ptr has shape (24,)",
    )
    floats = replace(plan, items=replace(plan.items, k_lo=plan.items.k_lo.astype(float)))
    expect_refusal(floats, PlanError, "items.k_lo holds float64; make it an array of int64")


@pytest.mark.parametrize(("at", "value", "entry"), [(0, 1, 0), (-1, 7, 24), (-1, 9, 24), (20, 0, 20)])
def test_wait_pointers_that_do_not_rise_are_refused(at: int, value: int, entry: int) -> None:
    expect_refusal(
        set_entry(rows_plan(), "waits.ptr", at, value),
        PlanError,
        f"waits.ptr must rise from 0 to 8, but entry {entry} is {value}; let entry i be the first wait of item i",
    )


def test_graph_whose_tiles_race_has_no_plan() -> None:
    (i,) = axes(1)
    racing = Op("fill", "fill", (2,), (), (Access("out", "h", (ALL,)),))
    apart = Op("fill", "fill", (2,), (), (Access("out", "h", (i.block(1),)),))
    plan = build(program({"h": (2,)}, apart), Schedule(2))
    with pytest.raises(IntraOpRaceError, match="op 'fill'"):
        build(program({"h": (2,)}, racing), Schedule(2))
    with pytest.raises(IntraOpRaceError, match="op 'fill'"):
        verify(replace(plan, graph=program({"h": (2,)}, racing)))


def test_plan_of_another_graph_is_refused() -> None:
    plan = build(two_matmuls(8), Schedule(4))
    expect_refusal(replace(plan, graph=two_matmuls(10)), ItemError, "has no item; every tile needs at least one")
    expect_refusal(replace(plan, graph=two_matmuls(6)), ItemError, "lies outside its op's grid")


# ---------------------------------------------------------------- access maps that outwit the proof


# A read that leaves the whole tile's region with a part, or moves in two dimensions, is no Op (test_graph).

GAPS = {
    # Boxes of the four chunks, in order; between two waits an item may read all that lies between.
    "strided": (Span(K.lo * 2, K.hi * 2 - 1), "0:3 4:7 8:11 12:15"),
    "head of each chunk left out": (Span(K.lo + 1, K.hi), "1:2 3:4 5:6 7:8"),
    "overlapping": (Span(K.lo - 1, K.hi + 1), "0:3 1:5 3:7 5:9"),
    "growing": (Span(Affine(), K.hi * 2), "0:4 0:8 0:12 0:16"),
    "as long as the part": (Span(Affine(), K.hi - K.lo), "0:2 0:2 0:2 0:2"),
    "from the end": (Span(16 - K.hi * 2, 16 - K.lo * 2), "12:16 8:12 4:8 0:4"),
    "shifted by the tile, clipped": (Span(axes(1)[0] * 16, axes(1)[0] * 16 + K.hi), "0:2 0:4 0:6 0:8"),
}


@pytest.mark.parametrize("policy", [TileSync(), ScatteredSync(3, 0)], ids=str)
@pytest.mark.parametrize("split", [WholeTiles(), SplitK(2)], ids=str)
@pytest.mark.parametrize("name", GAPS)
def test_plan_with_waits_before_chunks_is_safe_whatever_moves_with_k(
    name: str, split: Split, policy: SyncPolicy
) -> None:
    span, boxes = GAPS[name]
    (i,) = axes(1)
    make = pointwise("make", "x", "h", (16,), (1,))
    use = Op("use", "sum", (2,), (Access("in", "h", (span,)),), (Access("out", "y", (i.block(1),)),), Reduction(8, 2))
    graph = program({"x": (16,), "h": (16,), "y": (2,)}, make, use)
    chunks = [graph.compute_region(use, use.reads[0], 0, k, k + 2) for k in range(0, 8, 2)]
    assert " ".join(f"{r.lo[0]}:{r.hi[0]}" for r in chunks) == boxes
    for chunk_waits in (False, True):
        plan = build(graph, Schedule(2, policy=policy, split={"use": split}, chunk_waits=chunk_waits))
        assert verify(plan).in_sequence
        assert oracle.find_unenforced(plan) == []
        assert oracle.races(plan) == []

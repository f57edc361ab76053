"""The simulated machine: exact times of small plans, equality with a slow one, conservation, deadlocks, speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from interlace.core.devices import CPU, H200, Latencies
from interlace.core.dtypes import DTYPES
from interlace.core.errors import DeadlockError, PlanError, SimulationError
from interlace.plan.plan import Dispatch, Items, Plan, Waits
from interlace.planner.build import build
from interlace.policies.interleavings import ExplicitInterleaving
from interlace.policies.schedule import Schedule
from interlace.policies.splits import SplitK
from interlace.policies.sync import KernelSync, NoSync, RowSync
from interlace.sim.lockstep import interleave
from interlace.sim.machine import Costs, compute_item_flops, simulate
from interlace.sim.memory import find_level
from interlace.sim.modes import (
    PERSISTENT,
    SEMAPHORE_STREAMS,
    SERIAL,
    Gate,
    LLHandOffs,
    Mode,
    make_megakernel_mode,
    make_streams_mode,
)
from interlace.sim.traffic import list_touches
from interlace.trace.events import Trace

from ..draws import EXAMPLES
from .graphs import chain, graphs, matmul, pair, pointwise, program, schedules, set_entry, two_matmuls
from .slow_machine import SlowMachine

#: Post 30, met wait 20, hand-off 50, by words 40, ticket 10, fill 5, launch 100.
LATENCIES = Latencies(30.0, 20.0, 50.0, 40.0, 10.0, 5.0, 100.0)
NONE = Latencies(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # integers would compile the simulation anew


def rates(flops_per_s: float) -> tuple[tuple[str, float], ...]:
    """The same in every dtype."""
    return tuple((d.name, flops_per_s) for d in DTYPES)


#: Two or three SMs of 1 FLOP/ns, 2 bytes/ns of memory and 8 of the L2 each; memory gives 3 bytes/ns.
DEVICE = replace(
    CPU,
    sms=2,
    dram_bytes_per_s=3e9,
    rates=rates(2e9),
    sm_dram_bytes_per_s=2e9,
    sm_l2_bytes_per_s=8e9,
    sm_miss_bytes_per_s=1e18,
    sm_sum_bytes_per_s=1e18,
    latencies=LATENCIES,
)
THREE_SMS = replace(DEVICE, sms=3, rates=rates(3e9))


def costs(
    flops: list[float], l2: Sequence[float] = (), dram: Sequence[float] = (), ahead: Sequence[float] = ()
) -> Costs:
    """Costs of each item; bytes default to none, and there are no partial sums."""
    return Costs(*(np.array(c or [0.0] * len(flops)) for c in (flops, l2, dram, ahead, None)))


def rows(trace: Trace) -> list[tuple[int, int, int, int]]:
    """(worker, wait, start, end) of each item."""
    columns = trace.worker, trace.wait_ns, trace.start_ns, trace.end_ns
    return list(zip(*(c.tolist() for c in columns), strict=True))


# ---------------------------------------------------------------- exact times


def test_words_come_without_a_post_and_without_a_load() -> None:
    plan = build(pair(1), Schedule(2))
    mode = Mode(ll_hand_offs=lambda plan: LLHandOffs(np.array([True]), np.array([True, False])))
    assert rows(simulate(plan, costs([100.0, 40.0]), DEVICE)) == [(0, 10, 10, 145), (1, 10, 165, 210)]
    assert rows(simulate(plan, costs([100.0, 40.0]), DEVICE, mode)) == [(0, 10, 10, 115), (1, 10, 155, 195)]


def test_two_dependent_items_take_ticket_hand_over_and_post() -> None:
    plan = build(pair(1), Schedule(2))
    device = replace(DEVICE, latencies=replace(LATENCIES, fill_ns=0.0))
    trace = simulate(plan, costs([100.0, 40.0]), device)
    assert rows(trace) == [(0, 10, 10, 140), (1, 10, 160, 200)]
    assert (trace.clock, trace.ops, trace.sm.tolist()) == ("simulated", ("a", "b"), [0, 1])


def test_wait_that_is_met_already_costs_a_poll() -> None:
    plan = build(pair(1), Schedule(1))
    # 10 ticket, 5 fill, 100 work, 30 post; 10 ticket; 165 = 115 + 50 hand-off against 155 + 20 poll; 5 fill.
    assert rows(simulate(plan, costs([100.0, 40.0]), DEVICE)) == [(0, 10, 10, 145), (0, 155, 175, 220)]
    slow = replace(DEVICE, latencies=replace(LATENCIES, hand_off_ns=90.0))
    assert rows(simulate(plan, costs([100.0, 40.0]), slow))[1] == (0, 155, 205, 250)


def test_bodies_reach_a_share_of_the_rates() -> None:
    plan = build(pair(2), Schedule(2, policy=NoSync()))
    device = replace(DEVICE, latencies=NONE)
    half = replace(PERSISTENT, matrix_share=0.5)
    assert rows(simulate(plan, costs([100.0] * 4), device))[0] == (0, 0, 0, 100)
    assert rows(simulate(plan, costs([100.0] * 4), device, half))[0] == (0, 0, 0, 200)
    # Both want 2 bytes/ns of 3, or of 1.5.
    moved = costs([0.0] * 4, dram=[150.0, 150.0, 0.0, 0.0])
    assert rows(simulate(plan, moved, device))[0] == (0, 0, 0, 100)
    assert rows(simulate(plan, moved, device, replace(PERSISTENT, memory_share=0.5)))[0] == (0, 0, 0, 200)
    for share in (0.0, 1.1):
        with pytest.raises(SimulationError, match="of the rates"):
            replace(PERSISTENT, matrix_share=share)


def test_static_workers_pay_no_ticket() -> None:
    plan = build(pair(2), Schedule(2, Dispatch.STATIC))
    trace = simulate(plan, costs([100.0, 50.0, 10.0, 10.0]), DEVICE)
    assert trace.worker.tolist() == [0, 1, 0, 1]
    assert rows(trace)[:2] == [(0, 0, 0, 135), (1, 0, 0, 85)]
    assert rows(trace)[2:] == [(0, 135, 155, 170), (1, 85, 105, 120)]


def test_items_share_memory_by_equal_parts_of_what_they_want() -> None:
    plan = build(pair(2), Schedule(2, policy=NoSync()))
    device = replace(DEVICE, latencies=NONE)
    # Item 0 alone takes 100 ns and wants 2 bytes/ns, item 1 takes 400 and wants 1.25: together 3.25 of 3. The level
    # is 1.75: item 0 ends after 200 / 1.75 = 114.29, item 1 is not slowed.
    trace = simulate(plan, costs([0.0, 400.0, 0.0, 0.0], dram=[200.0, 500.0, 0.0, 0.0]), device)
    assert rows(trace)[:2] == [(0, 0, 0, 114), (1, 0, 0, 400)]
    # Both want 2: each gets 1.5 until item 0 has its 150; then item 1 has 150 left at 2.
    trace = simulate(plan, costs([0.0] * 4, dram=[150.0, 300.0, 0.0, 0.0]), device)
    assert rows(trace)[:2] == [(0, 0, 0, 100), (1, 0, 0, 175)]


@EXAMPLES
@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=140), st.floats(0.5, 200.0))
def test_level_hands_out_all_of_memory_or_all_that_is_wanted(wanted: list[float], capacity: float) -> None:
    demand = np.array(wanted)
    level = find_level(demand, capacity)
    granted = np.minimum(demand, level)
    assert granted.sum() == pytest.approx(min(demand.sum(), capacity), abs=1e-9)


def test_an_item_takes_as_long_as_its_slowest_resource() -> None:
    plan = build(pair(2), Schedule(1, policy=NoSync()))
    device = replace(DEVICE, latencies=NONE)
    trace = simulate(plan, costs([100.0, 10.0, 10.0, 0.0], [80.0, 800.0, 80.0, 0.0], [20.0, 80.0, 100.0, 0.0]), device)
    # FLOPs 100; (800 + 80) bytes of the L2 / 8 = 110; 100 bytes of memory / 2 = 50.
    assert (trace.end_ns - trace.start_ns).tolist() == [100, 110, 50, 0]


def test_two_workers_of_one_sm_have_half_of_it_each() -> None:
    plan = build(pair(4), Schedule(4, policy=NoSync()))
    device = replace(DEVICE, latencies=NONE, dram_bytes_per_s=100e9)
    rest = [0.0] * 5
    trace = simulate(plan, costs([50.0, 0.0, 0.0, *rest], [0.0, 400.0, 0.0, *rest], [0.0, 0.0, 90.0, *rest]), device)
    assert (trace.end_ns - trace.start_ns)[:3].tolist() == [100, 100, 90]
    assert trace.sm[trace.worker == 3].tolist()[0] == 1


def test_last_part_to_arrive_posts_for_the_tile() -> None:
    shapes = {"a": (1, 2), "b": (2, 1), "c": (1, 1), "d": (1, 1)}
    ops = matmul("mm", "a", "b", "c", (1, 1, 2), (1, 1), 1), pointwise("copy", "c", "d", (1, 1), (1, 1))
    plan = build(program(shapes, *ops), Schedule(3, split={"mm": SplitK(2)}))
    trace = simulate(plan, costs([100.0, 60.0, 10.0]), THREE_SMS)
    # Arrivals cost 30 each; item 0 is the last, posts at 145 and has posted at 175; item 2 knows at 195.
    assert rows(trace) == [(0, 10, 10, 175), (1, 10, 10, 105), (2, 10, 195, 210)]


def test_wait_inside_a_reduction_stops_the_work_there() -> None:
    graph = two_matmuls(2, (2, 4, 2), up=(2, 2), down=(2, 2), block=2)
    plan = build(graph, Schedule(3, chunk_waits=True))
    trace = simulate(plan, costs([40.0, 200.0, 80.0]), THREE_SMS)
    # Item 2 starts 50 after item 0 posts at 55; half of its 80 is done at 150; item 1 posts at 215, known at 265.
    assert rows(trace) == [(0, 10, 10, 85), (1, 10, 10, 245), (2, 10, 105, 305)]
    # Met when it comes there, the second wait costs a poll: 150 + 20 + 40.
    assert rows(simulate(plan, costs([40.0, 50.0, 80.0]), THREE_SMS))[2] == (2, 10, 105, 210)


def test_loads_ahead_of_a_wait_shorten_the_item_that_waits() -> None:
    plan = build(pair(1), Schedule(2))
    cost = costs([100.0, 0.0], dram=[0.0, 400.0], ahead=[0.0, 300.0])
    # No ring: starts at 165 after 10 + 5 + 100 + 50, fills 5, loads 400 at 2.
    assert rows(simulate(plan, cost, DEVICE)) == [(0, 10, 10, 145), (1, 10, 165, 370)]
    # A ring of 200: full at 100; the post of 105 is known at 155, fill 5, the other 200 take 100.
    assert rows(simulate(plan, cost, DEVICE, make_megakernel_mode(200))) == [(0, 0, 0, 135), (1, 0, 155, 260)]
    # A ring of 1000 takes the 300 that depend on nothing, full at 150.
    assert rows(simulate(plan, cost, DEVICE, make_megakernel_mode(1000)))[1] == (1, 0, 155, 210)
    # If the wait ends before it is full, what is there counts: 2 bytes for each of 65 ns.
    early = costs([10.0, 0.0], dram=[0.0, 400.0], ahead=[0.0, 300.0])
    assert rows(simulate(plan, early, DEVICE, make_megakernel_mode(1000)))[1] == (1, 0, 65, 70 + (400 - 140) // 2)


def test_a_ring_hides_tickets_met_waits_and_all_but_the_first_fill() -> None:
    plan = build(pair(1), Schedule(1))
    device = replace(DEVICE, latencies=replace(LATENCIES, hand_off_ns=30.0))
    assert rows(simulate(plan, costs([100.0, 40.0]), device, make_megakernel_mode(64))) == [
        (0, 0, 0, 135),
        (0, 135, 135, 175),
    ]


def test_modes_order_ops_by_launches_gates_or_waits() -> None:
    graph = pair(2)
    sequence = ExplicitInterleaving((0, 2, 1, 3))
    plan = build(graph, Schedule(2, interleaving=sequence))
    cost = costs([100.0, 10.0, 20.0, 10.0])  # a0, b0, a1, b1
    # Serial: a0 and a1 first; the launch opens 100 after both have ended; neither posts nor waits.
    serial = simulate(plan, cost, DEVICE, SERIAL)
    assert rows(serial) == [(0, 0, 0, 105), (0, 205, 205, 220), (1, 0, 0, 25), (1, 205, 205, 220)]
    # Streams: the second launch opens 100 after a1 was taken, at 0; worker 1 is free by then and takes b0.
    streams = simulate(plan, cost, DEVICE, SEMAPHORE_STREAMS)
    assert rows(streams) == [(0, 0, 0, 135), (1, 100, 155, 170), (1, 0, 0, 55), (0, 135, 155, 170)]
    assert [w for w, *_ in rows(simulate(plan, cost, DEVICE))] == [0, 1, 0, 1]


def test_serial_launches_each_op_after_the_one_before() -> None:
    plan = build(chain(3, 2), Schedule(2))
    trace = simulate(plan, costs([10.0, 40.0] * 3), DEVICE, SERIAL)
    assert trace.wait_ns.tolist() == [0, 0, 145, 145, 290, 290]
    assert trace.span_ns == 290 + 45


# ---------------------------------------------------------------- costs


def test_costs_follow_from_what_accesses_missed() -> None:
    graph = two_matmuls(2, (2, 4, 2), up=(2, 2), down=(2, 2), block=2)
    plan = build(graph, Schedule(1))
    t = list_touches(plan)
    accesses = interleave(plan, t)
    seen: set[int] = set()
    hit = np.array([u in seen or bool(seen.add(u)) for u in accesses.unit.tolist()])  # an endless cache
    nbytes = t.units.nbytes[accesses.unit]
    c = Costs.from_plan(plan, t.units, accesses, np.where(hit, 0, nbytes))
    # Units of 16 bytes. up (0, 0): x, w1 and hidden miss; up (0, 1): x hits, and is shared; down: hidden hits, w2 and y
    # miss.
    assert c.dram_bytes.tolist() == [40.0, 40.0, 48.0]
    assert c.l2_bytes.tolist() == [8.0, 8.0, 32.0]
    assert c.ahead_bytes.tolist() == [24.0, 24.0, 32.0]
    assert c.flops.tolist() == compute_item_flops(plan).tolist() == [16.0, 16.0, 32.0]
    missed = Costs.from_plan(plan, t.units, accesses, nbytes)
    assert missed.ahead_bytes.tolist() == [32.0, 32.0, 32.0]  # hidden is produced, so it does not run ahead


def test_flops_of_a_tile_are_shared_by_its_parts() -> None:
    plan = build(two_matmuls(2, (2, 6, 2), up=(2, 2), down=(2, 2), block=2), Schedule(1, split={"down": SplitK(2)}))
    assert compute_item_flops(plan).tolist() == [16.0, 16.0, 16.0, 16.0, 32.0]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (([1.0], [0.0], [0.0], [0.0, 0.0], [0.0]), "columns of shapes"),
        (([1.0, -2.0], *[[0.0] * 2] * 4), "item 1 costs -2.0 FLOPs"),
        (([1.0, np.inf], *[[0.0] * 2] * 4), "item 1 costs inf FLOPs"),
        (([1.0], [0.0], [8.0], [9.0], [0.0]), "8.0 of memory, 9.0 of them ahead"),
    ],
)
def test_costs_that_make_no_sense_are_refused(columns: tuple[list[float], ...], words: str) -> None:
    with pytest.raises(SimulationError, match=words):
        Costs(*(np.array(c) for c in columns))


def test_other_numbers_of_items_and_rings_below_zero_are_refused() -> None:
    plan = build(pair(1), Schedule(1))
    with pytest.raises(SimulationError, match="costs of 3 items for a plan of 2"):
        simulate(plan, costs([1.0, 1.0, 1.0]), DEVICE)
    with pytest.raises(SimulationError, match="ring of -1 bytes"):
        make_megakernel_mode(-1)
    with pytest.raises(PlanError, match="waits for semaphore 99, but the plan has 1"):
        simulate(set_entry(plan, "waits.first", 0, 99), costs([1.0, 1.0]), DEVICE)


# ---------------------------------------------------------------- deadlock


def test_deadlock_names_the_item_the_semaphore_and_who_does_not_post() -> None:
    plan = build(pair(2), Schedule(1, interleaving=ExplicitInterleaving((0, 3, 1, 2))))
    with pytest.raises(DeadlockError) as caught:
        simulate(plan, costs([1.0] * 4), DEVICE)
    assert str(caught.value) == (
        "op 'b', tile (1) waits for ever: semaphore 1 gets 0 posts of 1, since op 'a', tile (1) does not end; let "
        "producers come before their consumers, verify says where they do not"
    )
    assert simulate(replace(plan, workers=2), costs([1.0] * 4), DEVICE).span_ns > 0


def test_threshold_that_nobody_reaches_is_a_deadlock() -> None:
    plan = set_entry(build(pair(1), Schedule(2)), "waits.threshold", 0, 3)
    with pytest.raises(DeadlockError, match="semaphore 0 gets 1 posts of 3, since no other item posts it"):
        simulate(plan, costs([1.0] * 2), DEVICE)
    assert simulate(plan, costs([1.0] * 2), DEVICE, SERIAL).span_ns == 112


# ---------------------------------------------------------------- random plans


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any plan that build makes, now and then in a sequence that may deadlock."""
    graph = draw(graphs())
    drawn = draw(schedules(graph))
    plan = build(graph, drawn)
    if draw(st.booleans()):
        sequence = draw(st.permutations(range(len(plan.items))))
        plan = build(graph, replace(drawn, interleaving=ExplicitInterleaving(tuple(sequence))))
    return plan


@settings(EXAMPLES, max_examples=40)
@given(plans(), st.randoms(use_true_random=False))
def test_costs_equal_those_added_up_access_by_access(plan: Plan, random: Random) -> None:
    t = list_touches(plan)
    accesses = interleave(plan, t)
    nbytes = t.units.nbytes[accesses.unit].tolist()
    missed = [random.choice((0, 0, size // 3, -(-size // 2), size)) for size in nbytes]
    each = list(zip(accesses.unit.tolist(), accesses.is_write.tolist(), accesses.item.tolist(), strict=True))
    shared: dict[int, list[list[int]]] = {}  # by unit, the reads that share what one of them brought
    for at, (unit, is_write, _) in enumerate(each):
        if not is_write:
            groups = shared.setdefault(unit, [])
            if (missed[at] and 2 * missed[at] >= nbytes[at]) or not groups:
                groups.append([])
            groups[-1].append(at)
    brought = [float(size) for size in missed]
    for group in (group for groups in shared.values() for group in groups):
        for at in group:
            brought[at] = sum(missed[each] for each in group) / len(group)
    moved, dram, ahead, sums = np.zeros((4, len(plan.items)))
    for at, (unit, is_write, item) in enumerate(each):
        moved[item] += nbytes[at]
        dram[item] += brought[at]
        ahead[item] += 0.0 if is_write or t.units.produced[unit] else brought[at]
        sums[item] += nbytes[at] if t.units.tensor[unit] == len(plan.graph.tensors) else 0.0
    c = Costs.from_plan(plan, t.units, accesses, np.array(missed, np.int64))
    assert c.dram_bytes.tolist() == dram.tolist()
    assert c.ahead_bytes.tolist() == np.minimum(ahead, dram).tolist()
    assert c.l2_bytes.tolist() == np.maximum(moved - dram, 0.0).tolist()
    assert c.sum_bytes.tolist() == sums.tolist()


def random_costs(plan: Plan, seed: int) -> Costs:
    """Costs of which now this, now that is the slowest; no two alike, so that nothing ends at the same time."""
    rng = np.random.default_rng(seed)
    flops, l2, dram = (rng.uniform(1.0, 200.0, len(plan.items)) * scale for scale in (1.0, 6.0, 1.5))
    dram *= rng.random(len(dram)) < 0.8
    return Costs(flops, l2, dram, dram * rng.random(len(dram)), l2 * rng.random(len(l2)))


def some_words(plan: Plan) -> LLHandOffs:
    """Return hand-offs: all waits of every third item, every third wait of the others; every other item is silent."""
    waits = (plan.waits.item % 3 == 0) | (np.arange(len(plan.waits)) % 3 == 0)
    return LLHandOffs(waits, np.arange(len(plan.items)) % 2 == 0)


MODES = st.sampled_from(
    (
        *(PERSISTENT, SERIAL, SEMAPHORE_STREAMS, make_megakernel_mode(100), Mode(Gate.ENDED)),
        *(
            Mode(ll_hand_offs=some_words),
            make_megakernel_mode(100, some_words),
            Mode(waits=False, ll_hand_offs=some_words),
        ),
        *(replace(SEMAPHORE_STREAMS, ll_hand_offs=some_words), replace(SERIAL, ring_bytes=100)),
    )
)


@st.composite
def on_streams(draw: st.DrawFn, ops: int) -> Mode:
    """A launch per op, each after some earlier ones, or one after another."""
    drawn = tuple(tuple(p for p in range(o) if draw(st.booleans())) for o in range(ops))
    return draw(st.sampled_from((SERIAL, replace(SERIAL, after=drawn))))


@settings(EXAMPLES, max_examples=80)
@given(plans(), MODES, st.integers(0, 99), st.data())
def test_machine_equals_a_slow_one(plan: Plan, mode: Mode, seed: int, data: st.DataObject) -> None:
    if mode == SERIAL:
        mode = data.draw(on_streams(len(plan.graph.ops)))
    cost = random_costs(plan, seed)
    device = replace(DEVICE, sm_miss_bytes_per_s=1e10, sm_sum_bytes_per_s=5e9)
    slow = SlowMachine(plan, cost, device, mode)
    slow.run()
    try:
        trace = simulate(plan, cost, device, mode)
    except DeadlockError:
        assert len(slow.ended) < len(plan.items)
        event("deadlock")
        return
    assert len(slow.ended) == len(plan.items)
    event("waited" if trace.waiting_ns else "never waited")
    for item, row in enumerate(rows(trace)):
        assert row == pytest.approx(tuple(slow.rows[item]), abs=0.5001), plan.format_item(item)


@settings(EXAMPLES, max_examples=60)
@given(plans(), MODES, st.integers(0, 99))
def test_times_keep_to_waits_workers_and_bandwidth(plan: Plan, mode: Mode, seed: int) -> None:
    cost = random_costs(plan, seed)
    try:
        trace = simulate(plan, cost, DEVICE, mode)
    except DeadlockError:
        return
    assert (trace.wait_ns <= trace.start_ns).all()
    assert (trace.start_ns <= trace.end_ns).all()
    order = np.lexsort((trace.wait_ns, trace.worker))
    same = trace.worker[order][1:] == trace.worker[order][:-1]
    assert (trace.wait_ns[order][1:] >= trace.end_ns[order][:-1])[same].all(), "a worker holds two items"
    items, waits = plan.items, plan.waits
    owner = waits.item
    words = (
        mode.ll_hand_offs(plan)
        if mode.ll_hand_offs is not None and mode.gate is Gate.OPEN
        else LLHandOffs.without_ll(plan)
    )
    for row in np.flatnonzero(waits.k <= items.k_lo[owner]) if mode.waits else ():
        for n in range(int(waits.count[row])):
            posters = items.post == waits.first[row] + n * waits.stride[row]
            posted = (trace.end_ns - np.where(words.silent, 0.0, LATENCIES.post_ns))[posters].max()
            takes = LATENCIES.ll_ns if words.waits[row] else LATENCIES.hand_off_ns
            assert trace.start_ns[owner[row]] >= posted + takes - 1.0
    assert cost.dram_bytes.sum() <= 3.0 * trace.span_ns
    assert (cost.flops <= trace.end_ns - trace.start_ns + 1.0).all()
    if mode.gate is Gate.ENDED:
        for o in range(1, len(plan.graph.ops)):
            before, after = trace.end_ns[items.op < o], trace.wait_ns[items.op == o]
            assert after.min() >= before.max() + LATENCIES.launch_ns - 1.0


def test_ops_on_streams_open_when_those_that_they_come_after_have_ended() -> None:
    # Two ops of two tiles each that depend on nothing, and one of two tiles after the first alone.
    graph = program(
        {"a": (2, 1), "b": (2, 1), "p": (2, 1), "q": (2, 1), "r": (2, 1)},
        pointwise("first", "a", "p", (2, 1), (1, 1)),
        pointwise("second", "b", "q", (2, 1), (1, 1)),
        pointwise("third", "p", "r", (2, 1), (1, 1)),
    )
    plan = build(graph, Schedule(3))
    cost = costs([100.0, 40.0, 300.0, 20.0, 10.0, 10.0])
    serial = [(0, 0, 0, 105), (1, 0, 0, 45), (0, 205, 205, 510), (1, 205, 205, 230), (0, 610, 610, 625)]
    assert rows(simulate(plan, cost, THREE_SMS, SERIAL)) == [*serial, (1, 610, 610, 625)]
    side = [(0, 0, 0, 105), (1, 0, 0, 45), (2, 0, 0, 305), (1, 45, 45, 70), (0, 205, 205, 220), (1, 205, 205, 220)]
    assert rows(simulate(plan, cost, THREE_SMS, make_streams_mode([(), (), (0,)]))) == side
    assert make_streams_mode([(), (0,), (1,)]) == SERIAL
    with pytest.raises(SimulationError, match="says of 2 ops what they come after, for a graph of 3"):
        simulate(plan, cost, THREE_SMS, make_streams_mode([(), ()]))
    with pytest.raises(SimulationError, match=r"op 1 comes after ops \[1\]; name earlier ones only"):
        make_streams_mode([(), (1,)])


# ---------------------------------------------------------------- size


def many_items(n: int, workers: int = H200.sms) -> Plan:
    """Half of the items wait for one tile each of the other half, in stretches of 500."""
    op = np.tile(np.repeat(np.array([0, 1], np.int64), 500), n // 1000)
    tile = np.where(op == 0, np.cumsum(op == 0), np.cumsum(op == 1)) - 1
    zero, one = np.zeros(n, np.int64), np.ones(n // 2, np.int64)
    items = Items(op, tile, zero, zero + 1, zero - 1, np.where(op == 0, tile, -1))
    ptr = np.concatenate([zero[:1], np.cumsum(op)])
    waits = Waits(ptr, tile[op == 1], one, one, one, one - 1)
    return Plan(chain(2, n // 2), Dispatch.TICKET, workers, n // 2, items, waits)


def test_many_items_run_once_each_one_at_a_time_per_worker() -> None:
    n = 200_000
    plan, rng = many_items(n), np.random.default_rng(0)
    cost = Costs(rng.uniform(1e7, 5e7, n), rng.uniform(0, 4e5, n), rng.uniform(0, 4e5, n), np.zeros(n), np.zeros(n))
    trace = simulate(plan, cost, H200)
    assert trace.waiting_ns > 0
    assert np.bincount(trace.worker, minlength=H200.sms).sum() == n
    order = np.lexsort((trace.wait_ns, trace.worker))
    same = trace.worker[order][1:] == trace.worker[order][:-1]
    assert (trace.wait_ns[order][1:] >= trace.end_ns[order][:-1])[same].all()
    assert cost.dram_bytes.sum() / H200.dram_bytes_per_s * 1e9 <= trace.span_ns


def test_semaphores_of_a_whole_op_are_seen_by_all_who_wait() -> None:
    plan = build(pair(8), Schedule(4, policy=KernelSync()))
    trace = simulate(plan, costs([float(n) for n in range(1, 17)]), DEVICE)
    posted = trace.end_ns[:8].max() - 30
    assert (trace.start_ns[8:] >= posted + 50).all()
    assert build(pair(8), Schedule(4, policy=RowSync())).semaphores == 8

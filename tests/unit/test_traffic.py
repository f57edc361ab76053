"""Accesses of a plan: units, steps and their order, against hand counts and the slow oracle."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.dtypes import bf16, fp32
from interlace.core.errors import ItemError, PlanError, SimulationError
from interlace.graph.access import ALL, Access, Affine, K, Span, axes
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Reduction
from interlace.graph.tensor import Tensor
from interlace.kernels.matmul import Activation, MatmulTile
from interlace.plan.facts import PlanIndex
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.stealing import Victim
from interlace.planner.build import build
from interlace.policies.interleavings import RowPanels
from interlace.policies.orders import GroupedColumnMajor
from interlace.policies.schedule import Schedule
from interlace.policies.splits import SplitK
from interlace.policies.sync import RowSync
from interlace.sim.lockstep import AccessStream, _list_waits, interleave
from interlace.sim.modes import PERSISTENT, SEMAPHORE_STREAMS, SERIAL, Gate, Mode, make_streams_mode
from interlace.sim.steal import hash_queue
from interlace.sim.traffic import Touches, list_touches
from interlace.sim.units import Partition
from interlace.workloads import FFNShape, ffn, two_copies

from ..draws import EXAMPLES
from . import oracle
from .graphs import (
    chain,
    conv_chain,
    graphs,
    matmul,
    pair,
    pointwise,
    program,
    schedules,
    set_entry,
    two_matmuls,
)


def reads(t: Touches) -> list[list[list[int]]]:
    """Units that each item reads, step by step."""
    return [[t.reads[t.read_ptr[s] : t.read_ptr[s + 1]].tolist() for s in range(a, b)] for a, b in pairwise(t.step_ptr)]


def writes(t: Touches) -> list[list[int]]:
    """Units that each item writes."""
    return [t.writes[a:b].tolist() for a, b in pairwise(t.write_ptr)]


def stream(accesses: AccessStream) -> list[tuple[int, bool, int]]:
    return list(zip(accesses.unit.tolist(), accesses.is_write.tolist(), accesses.item.tolist(), strict=True))


# ---------------------------------------------------------------- by hand


def test_two_copies_share_the_units_that_both_tilings_cut() -> None:
    shapes = {"x": (4, 8), "y": (4, 8), "z": (4, 8)}
    ops = pointwise("first", "x", "y", (4, 8), (2, 4)), pointwise("second", "y", "z", (4, 8), (4, 2))
    t = list_touches(build(program(shapes, *ops), Schedule(2)))
    # x is cut 2 x 2, y by both ops 2 x 4, z 1 x 4: units 0..3, 4..11, 12..15.
    assert t.units.tensor.tolist() == [0] * 4 + [1] * 8 + [2] * 4
    assert t.units.nbytes.tolist() == [2 * 4 * 4] * 4 + [2 * 2 * 4] * 8 + [4 * 2 * 4] * 4
    assert t.units.produced.tolist() == [False] * 4 + [True] * 12
    assert reads(t) == [[[0]], [[1]], [[2]], [[3]], [[4, 8]], [[5, 9]], [[6, 10]], [[7, 11]]]
    assert writes(t) == [[4, 5], [6, 7], [8, 9], [10, 11], [12], [13], [14], [15]]
    assert t.chunks_per_step == 1


def test_units_at_a_ragged_edge_end_with_the_tensor() -> None:
    graph = program({"x": (5, 7), "y": (5, 7)}, pointwise("copy", "x", "y", (5, 7), (2, 4)))
    u = list_touches(build(graph, Schedule(1))).units
    assert u.nbytes.tolist() == [32, 24, 32, 24, 16, 12] * 2
    assert [cuts.tolist() for cuts in u.partitions[0].cuts] == [[0, 2, 4, 5], [0, 4, 7]]


def test_parts_of_a_split_tile_meet_in_the_workspace() -> None:
    # One 2 x 2 tile of C = A @ B with k 0:8 in chunks of 2, cut in two.
    shapes = {"a": (2, 8), "b": (8, 2), "c": (2, 2)}
    graph = program(shapes, matmul("mm", "a", "b", "c", (2, 2, 8), (2, 2), 2))
    t = list_touches(build(graph, Schedule(2, split=SplitK(2))))
    # a: units 0..3, b: 4..7, c: 8, sums: 9, 10.
    assert reads(t) == [[[0, 4], [1, 5]], [[2, 6], [3, 7, 9]]]
    assert writes(t) == [[9], [10, 8]]
    assert t.units.tensor.tolist()[-3:] == [2, 3, 3]
    assert t.units.nbytes.tolist()[-2:] == [2 * 2 * 4] * 2
    assert t.units.produced.tolist() == [False] * 8 + [True] * 3


def test_two_matmuls_with_split_k_touch_each_byte_as_often_as_tiles_do() -> None:
    graph = two_matmuls(8, (4, 8, 4), up=(2, 2), down=(4, 2), block=2)
    t = list_touches(build(graph, Schedule(3, policy=RowSync(), split={"down": SplitK(2)})))
    nbytes = np.zeros(6, np.int64)
    np.add.at(nbytes, t.units.tensor[t.reads], t.units.nbytes[t.reads])
    # x once per column tile of up (4), w1 per row tile (4), hidden per column tile of down (2), w2 per row tile
    # (2); of 4 tiles of down, one part of two reads the sum of the other.
    assert nbytes.tolist() == [4 * 8 * 4 * 4, 4 * 4 * 8 * 4, 2 * 8 * 8 * 4, 2 * 8 * 4 * 4, 0, 4 * 4 * 2 * 4]
    written = np.zeros(6, np.int64)
    np.add.at(written, t.units.tensor[t.writes], t.units.nbytes[t.writes])
    assert written.tolist() == [0, 0, 8 * 8 * 4, 0, 8 * 4 * 4, 8 * 4 * 2 * 4]


def test_gated_matmul_leaves_a_sum_of_each_product() -> None:
    tile = MatmulTile(16, 16, 16)
    graph = ffn(16, FFNShape(32, 16, Activation.SILU, True), bf16, tile, tile)
    t = list_touches(build(graph, Schedule(2, split={"up": SplitK(2), "down": SplitK(1)})))
    assert t.units.nbytes[t.units.tensor == len(graph.tensors)].tolist() == [2 * 16 * 16 * 4] * 2


def test_bias_and_residual_are_read_once_with_the_last_chunk() -> None:
    i, j = axes(2)
    mm = matmul("mm", "a", "b", "c", (2, 4, 4), (2, 2), 2)
    extra = Access("bias", "bias", (j.block(2),)), Access("residual", "r", (i.block(2), j.block(2)))
    op = Op("mm", "mm", mm.grid, (extra[0], *mm.reads, extra[1]), mm.writes, mm.reduction)
    shapes = {"a": (2, 4), "b": (4, 4), "bias": (4,), "r": (2, 4), "c": (2, 4)}
    t = list_touches(build(program(shapes, op), Schedule(1)))
    # a: 0, 1; b: 2..5; bias: 6, 7; r: 8, 9; c: 10, 11.
    assert reads(t) == [[[0, 2], [1, 4, 6, 8]], [[0, 3], [1, 5, 7, 9]]]
    assert writes(t) == [[10], [11]]


def test_causal_reads_grow_tile_by_tile() -> None:
    i, _ = axes(2)
    op = Op(
        "attend",
        "attend",
        (4, 1),
        (Access("q", "q", (i.block(2), ALL)), Access("kv", "kv", (Span(Affine(), i * 2 + 2), ALL))),
        (Access("o", "o", (i.block(2), ALL)),),
    )
    t = list_touches(build(program({"q": (8, 4), "kv": (8, 4), "o": (8, 4)}, op), Schedule(1)))
    assert reads(t) == [[[0, 4]], [[1, 4, 5]], [[2, 4, 5, 6]], [[3, 4, 5, 6, 7]]]


def test_a_unit_is_a_cell_between_cuts() -> None:
    def partition(*inner: tuple[int, ...]) -> Partition:
        bounds = [[np.array(cuts, np.int64)] for cuts in inner]
        return Partition.from_bounds(Tensor("t", (2, 4, 6), fp32), bounds)

    assert partition((), (), ()).grid == (1, 1, 1)
    assert partition((1,), (), ()).grid == (2, 1, 1)
    assert partition((), (2,), (4,)).nbytes.tolist() == [2 * 2 * 4 * 4, 2 * 2 * 2 * 4] * 2
    assert partition((1,), (), (3,)).nbytes.tolist() == [1 * 4 * 3 * 4] * 4


def test_convolutions_with_halos_read_all_channels_of_their_rows() -> None:
    graph = conv_chain(1, 6, 3, 4)
    t = list_touches(build(graph, Schedule(1)))
    first = reads(t)[0]  # rows 0..2 of x (a halo of one), in two chunks of channels, and half of the output channels
    u = t.units
    assert [int(u.nbytes[step].sum()) for step in first] == [4 * (3 * 3 * 2 + 9 * 2 * 2)] * 2


# ---------------------------------------------------------------- against the oracle


def elements(plan: Plan, t: Touches, unit: int) -> set[oracle.Element]:
    """Elements of a unit, by the cuts of its tensor; the workspace has slots instead."""
    u, tensors = t.units, plan.graph.tensors
    at = int(u.tensor[unit])
    if at == len(tensors):
        return {("sum", unit)}
    partition = u.partitions[at]
    cell = np.unravel_index(unit - int(np.flatnonzero(u.tensor == at)[0]), partition.grid)
    sides = [range(int(c[i]), int(c[i + 1])) for c, i in zip(partition.cuts, cell, strict=True)]
    found: set[oracle.Element] = {(tensors[at].name, *place) for place in product(*sides)}
    assert len(found) * tensors[at].dtype.itemsize == u.nbytes[unit]
    return found


def compute_expected(plan: Plan, item: int) -> tuple[list[set[oracle.Element]], set[oracle.Element]]:
    """Elements that an item reads, step by step, and writes; sums are left out."""
    items = plan.items
    op = plan.graph.ops[int(items.op[item])]
    coords = oracle.coordinates(op)[int(items.tile[item])]
    k_lo, k_hi = int(items.k_lo[item]), int(items.k_hi[item])
    block = op.reduction.block if op.reduction else 1
    same = (items.op == items.op[item]) & (items.tile == items.tile[item])
    closes = item == np.flatnonzero(same)[-1]
    steps = []
    for lo in range(k_lo, k_hi, block):
        hi = min(lo + block, k_hi)
        step = {e for a in op.reads if a.uses_k for e in oracle.elements(plan.graph, a, coords, lo, hi)}
        if closes and hi == k_hi:
            whole = oracle.get_k_range(op)
            step |= {e for a in op.reads if not a.uses_k for e in oracle.elements(plan.graph, a, coords, *whole)}
        steps.append(step)
    written = {e for a in op.writes for e in oracle.elements(plan.graph, a, coords, 0, 1)} if closes else set()
    return steps, written


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    graph = draw(graphs())
    return build(graph, draw(schedules(graph)))


@settings(EXAMPLES, max_examples=60)
@given(plans())
def test_items_touch_what_their_access_maps_say_and_nothing_else(plan: Plan) -> None:
    t = list_touches(plan)
    held = [elements(plan, t, unit) for unit in range(len(t.units))]
    assert sum(map(len, held)) == len(set().union(*held)), "units overlap"
    for item in range(len(plan.items)):
        steps, written = compute_expected(plan, item)
        got = [set().union(*(held[u] for u in units)) for units in reads(t)[item]]
        assert [{e for e in step if e[0] != "sum"} for step in got] == steps
        assert {e for u in writes(t)[item] for e in held[u] if e[0] != "sum"} == written
    tensors = [t.units.nbytes[t.units.tensor == n].sum() for n in range(len(plan.graph.tensors))]
    assert tensors == [tensor.nbytes for tensor in plan.graph.tensors]


@settings(EXAMPLES, max_examples=60)
@given(plans())
def test_every_sum_is_written_once_and_read_by_the_last_part_before_its_own(plan: Plan) -> None:
    t = list_touches(plan)
    sums = np.flatnonzero(t.units.tensor == len(plan.graph.tensors))
    owner = {u: item for item, units in enumerate(writes(t)) for u in units if u in sums}
    readers: dict[int, list[int]] = {}
    for item, steps in enumerate(reads(t)):
        for u in steps[-1]:
            if u in sums:
                readers.setdefault(item, []).append(u)
        assert not any(u in sums for step in steps[:-1] for u in step)
    assert sorted(owner) == sums.tolist()
    tile = list(zip(plan.items.op.tolist(), plan.items.tile.tolist(), strict=True))
    for item, found in readers.items():
        assert sorted([owner[u] for u in found] + [item]) == [i for i, x in enumerate(tile) if x == tile[item]]


# ---------------------------------------------------------------- limits


def test_steps_grow_until_the_plan_is_within_the_limit() -> None:
    plan = build(two_matmuls(8, (8, 8, 8), (4, 4), (4, 4), block=1), Schedule(2, split={"down": SplitK(3)}))
    fine = list_touches(plan)
    size = len(fine) + len(fine.units) + len(fine.reads) // 2
    coarse = list_touches(plan, limit=size // 2)
    assert (fine.chunks_per_step, coarse.chunks_per_step) == (1, 4)
    # Steps end at multiples of 4 and where items do: k 0:2, 2:5 and 5:8 are steps of their own or two.
    per_item = [len(steps) for steps in reads(coarse)]
    assert per_item == [2] * 4 + [1] * 4 + [2] * 4 + [1] * 4
    for t in (fine, coarse):
        assert t.units.nbytes[t.reads].sum() == 2 * (2 * 8 * 8 * 4) * 2 + 4 * 2 * (4 * 4 * 4)


def windows(tiles: int, k: int, block: int) -> Graph:
    """y of ``tiles`` elements; element i reduces ``x[2 * i : 2 * i + k]``, of which the last few lie beyond x's end."""
    (i,) = axes(1)
    reads = Access("x", "x", (Span(i * 2 + Affine(k_lo=1), i * 2 + Affine(k_hi=1)),)), Access("w", "w", (K,))
    op = Op("slide", "slide", (tiles,), reads, (Access("y", "y", (i.block(1),)),), Reduction(k, block))
    return program({"x": (2 * tiles,), "w": (k,), "y": (tiles,)}, op)


@st.composite
def reductions(draw: st.DrawFn) -> Plan:
    k, block = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    graph = draw(st.sampled_from((windows(5, k, block), two_matmuls(6, (4, k, 5), block=block))))
    return build(graph, draw(schedules(graph)))


@settings(EXAMPLES, max_examples=100)
@given(st.one_of(plans(), reductions()))
def test_the_limit_is_on_what_there_is_to_the_piece(plan: Plan) -> None:
    fine = list_touches(plan)
    size = len(fine.units) + int(fine.step_ptr[-1]) + len(fine)
    assert list_touches(plan, limit=size).chunks_per_step == 1
    with suppress(SimulationError):  # where no step is coarse enough
        assert list_touches(plan, limit=size - 1).chunks_per_step > 1


def test_a_plan_that_no_step_makes_small_is_refused_with_the_limit() -> None:
    (i,) = axes(1)
    reads = Access("p", "h", (ALL,)), Access("q", "g", (i.block(1),))
    op = Op("use", "use", (100,), reads, (Access("out", "y", (i.block(1),)),))
    cut = pointwise("cut", "h", "z", (100,), (1,))
    shapes = {"h": (100,), "g": (100,), "y": (100,), "z": (100,)}
    plan = build(program(shapes, op, cut), Schedule(2))
    with pytest.raises(SimulationError, match=r"200 items touch \d+ pieces of tensors, but a simulation takes 9999"):
        list_touches(plan, limit=9999)


# ---------------------------------------------------------------- lockstep


def two_step_plan(dispatch: Dispatch = Dispatch.TICKET) -> Plan:
    """Items A of two steps, B and C of one, as in the module's docstring."""
    wide = matmul("wide", "a", "b", "c", (1, 1, 2), (1, 1), 1)
    thin = pointwise("thin", "p", "q", (1, 2), (1, 1))
    graph = program({"a": (1, 2), "b": (2, 1), "c": (1, 1), "p": (1, 2), "q": (1, 2)}, wide, thin)
    return build(graph, Schedule(2, dispatch))


def test_workers_take_turns_step_by_step_and_draw_the_next_ticket_when_done() -> None:
    plan = two_step_plan()
    # a: 0, 1; b: 2, 3; c: 4; p: 5, 6; q: 7, 8
    assert stream(interleave(plan, list_touches(plan))) == [
        (0, False, 0),
        (2, False, 0),
        (5, False, 1),
        (7, True, 1),
        (1, False, 0),
        (3, False, 0),
        (4, True, 0),
        (6, False, 2),
        (8, True, 2),
    ]


def test_static_workers_keep_to_their_lists() -> None:
    plan = two_step_plan(Dispatch.STATIC)
    assert plan.items.worker.tolist() == [0, 1, 0]
    items = [item for _, _, item in stream(interleave(plan, list_touches(plan)))]
    assert items == [0, 0, 1, 1, 0, 0, 0, 2, 2]


def test_serial_workers_wait_for_the_end_of_the_op_before() -> None:
    plan = two_step_plan()
    assert [item for _, _, item in stream(interleave(plan, list_touches(plan), SERIAL))] == [0, 0, 0, 0, 0, 1, 1, 2, 2]
    assert stream(interleave(plan, list_touches(plan), SEMAPHORE_STREAMS)) == stream(
        interleave(plan, list_touches(plan))
    )


def steal(plan: Plan, w: int, rest: dict[int, list[int]], of: list[int], tries: list[int]) -> list[int]:
    """Return the items that a worker takes of another's list, given what is left of all lists."""
    random, most = plan.stealing.victim is Victim.RANDOM, plan.stealing.most
    places = [n for n in range(1, len(rest)) if rest[(w + n) % len(rest)]]
    place = min(places, key=lambda n: hash_queue(w, tries[w], n) if random else n, default=0)
    taken = rest[(w + place) % len(rest)]
    tries[w] += 1
    taken = taken[: min((len(taken) + 1) // 2, most or len(taken))]
    for i in taken:
        of[i] = w
    return taken


def slow_stream(plan: Plan, t: Touches, mode: Mode) -> list[tuple[int, bool, int]]:
    """Lockstep, told by lists of what is left to do."""
    order = list(range(len(plan.items)))
    if mode is not PERSISTENT:
        order.sort(key=lambda i: plan.items.op[i])
    owner, dispatch = plan.items.worker, plan.dispatch if mode is PERSISTENT else Dispatch.TICKET
    count = max(int(owner.max()) + 1, 1)
    after = mode.after or [range(o) for o in range(len(plan.graph.ops))]
    some = {  # of worker w, what it may take
        Dispatch.STATIC: lambda w: [i for i in order if owner[i] == w],
        Dispatch.HYBRID: lambda w: sorted((i for i in order if owner[i] in (w, -1)), key=lambda i: owner[i] < 0),
    }
    lists = [some.get(dispatch, lambda w: order)(w) for w in range(plan.workers)]
    of, tries = owner.tolist(), [0] * plan.workers  # in whose list an item is now, and how often each has stolen
    todo: list[list[tuple[int, list[int]]]] = [[] for _ in lists]
    taken: set[int] = set()
    ended: list[int] = []
    begun: dict[int, int] = {}  # steps of each item
    facts, waits, stuck = PlanIndex(plan), plan.waits, False
    tile_of, out = facts.tile_of_item.tolist(), []

    def blocks(item: int) -> bool:
        """Return True if a wait before the item's next step is not met."""
        done = [i for i in ended if sum(tile_of[e] == tile_of[i] for e in ended) == facts.parts.sizes[tile_of[i]]]
        last = {tile_of[i]: i for i in done}.values()
        posts = [int(plan.items.post[i]) for i in last]
        for row in range(int(waits.ptr[item]), int(waits.ptr[item + 1])):
            lo, hi = int(plan.items.k_lo[item]), int(plan.items.k_hi[item])
            steps = len(reads(t)[item])
            share = min(max((int(waits.k[row]) - lo) / (hi - lo), 0.0), 1.0)
            if min(int(share * steps), steps - 1) > begun[item]:
                return False
            names = [int(waits.first[row] + n * waits.stride[row]) for n in range(int(waits.count[row]))]
            if any(posts.count(name) < waits.threshold[row] for name in names):
                return True
        return False

    while len(taken) < len(order) or any(todo):
        moves = 0
        for w in range(plan.workers):
            free = [i for i in lists[w] if i not in taken]
            if dispatch is Dispatch.STEALING and not todo[w]:
                free = [i for i in order if of[i] == w and i not in taken]
                rest = {v: [i for i in order if of[i] == v and i not in taken] for v in range(count)}
                free = free or steal(plan, w, rest, of, tries)
            unended = {int(plan.items.op[i]) for i in order if i not in taken}
            unended |= {int(plan.items.op[rest[0][0]]) for rest in todo if rest}
            if mode.gate is Gate.ENDED:
                free = [i for i in free if not unended & {*after[int(plan.items.op[i])]}]
            if not todo[w] and free:
                taken.add(free[0])
                todo[w] = [(free[0], step) for step in reads(t)[free[0]]]
                begun[free[0]] = 0
            if todo[w] and (mode.gate is Gate.ENDED or stuck or not blocks(todo[w][0][0])):
                item, step = todo[w].pop(0)
                moves += 1
                begun[item] += 1
                out += [(u, False, item) for u in step]
                if not todo[w]:
                    out += [(u, True, item) for u in writes(t)[item]]
                    ended.append(item)
        stuck = not moves
    return out


@settings(EXAMPLES, max_examples=60)
@given(plans(), st.sampled_from((PERSISTENT, SERIAL, SEMAPHORE_STREAMS, replace(SERIAL, after=()))), st.data())
def test_lockstep_equals_a_slow_one(plan: Plan, mode: Mode, data: st.DataObject) -> None:
    t = list_touches(plan)
    if mode.after is not None:  # of as many ops as there are
        mode = make_streams_mode(
            [[p for p in range(o) if data.draw(st.booleans())] for o in range(len(plan.graph.ops))]
        )
    assert stream(interleave(plan, t, mode)) == slow_stream(plan, t, mode)


def test_workers_that_wait_sit_out_rounds_and_then_move_together() -> None:
    """Three tiles of up, four chunks each, before three of down: two workers, of which the second is free early."""
    graph = two_matmuls(1, (3, 4, 3), up=(1, 1), down=(1, 1), block=1)
    plan = build(graph, Schedule(2))
    t = list_touches(plan)
    ops = [int(plan.items.op[item]) for _, is_write, item in stream(interleave(plan, t)) if not is_write]
    assert ops == sorted(ops)
    # Each of the two reads a chunk of hidden's row in turn, so that one of them brings it for both.
    first, second = [i for i, op in enumerate(plan.items.op.tolist()) if op == 1][:2]
    turns = [item for _, is_write, item in stream(interleave(plan, t)) if not is_write and item in (first, second)]
    assert turns[:4] == [first, first, second, second]


def test_workers_that_are_least_behind_load_first() -> None:
    """The slower of two workers falls behind by half a round in each, and sits out every other one."""
    plan = build(
        program({"a": (2, 8), "b": (8, 1), "c": (2, 1)}, matmul("mm", "a", "b", "c", (2, 1, 8), (1, 1), 1)), Schedule(2)
    )
    found = interleave(plan, list_touches(plan), spread=0.5)
    slower = int(np.random.default_rng(0).permutation(2)[1] > 0)
    reads_of_a = found.unit < 16
    faster_turns = (found.worker[reads_of_a] != slower).tolist()
    #        round 0       1      2            3 (both sit out)
    assert faster_turns[:5] == [slower != 0, slower != 1, True, False, True]


def test_neighbours_keep_in_step() -> None:
    """Each worker of a pair makes every step right after the other, however far the pairs drift apart."""
    op = matmul("mm", "a", "b", "c", (8, 1, 40), (1, 1), 1)
    plan = build(program({"a": (8, 40), "b": (40, 1), "c": (8, 1)}, op), Schedule(8, Dispatch.STATIC))
    t = list_touches(plan)
    for neighbours in (1, 2):
        found = interleave(plan, t, Mode(neighbours=lambda plan, n=neighbours: n), spread=0.3)
        first = found.worker[found.unit < 320]  # a read of each step
        pairs = first.reshape(-1, 2)
        in_step = bool((pairs[:, 0] // 2 == pairs[:, 1] // 2).all())
        assert (found.neighbours, in_step) == (neighbours, neighbours == 2)
    assert interleave(plan, t, Mode(Gate.ENDED, waits=False, neighbours=lambda plan: 2)).neighbours == 1


def test_what_ends_first_does_not_make_others_wait_in_a_launch_per_op() -> None:
    """No counter of a mode without waits is also the list of its waits."""
    plan = two_step_plan()
    for mode in (SERIAL, Mode(waits=False)):
        columns = [column for column in _list_waits(plan, list_touches(plan), mode) if len(column)]
        assert not any(np.shares_memory(one, other) for one, other in combinations(columns, 2))


def test_reads_of_named_tensors_are_evicted_first() -> None:
    plan = two_step_plan()
    t = list_touches(plan)
    found = interleave(plan, t, Mode(evict_first=frozenset({"b", "c"})))
    assert found.unit[found.is_evict_first].tolist() == [2, 3]  # c is written, not read
    assert not interleave(plan, t).is_evict_first.any()


def test_a_plan_that_deadlocks_has_an_order_of_accesses_too() -> None:
    plan = set_entry(build(pair(1), Schedule(2)), "waits.threshold", 0, 3)
    assert len(interleave(plan, list_touches(plan))) == len(list_touches(plan))


def test_stream_of_a_plan_that_cannot_be_told_is_refused() -> None:
    plan = build(pair(), Schedule(2, Dispatch.STATIC))
    other = build(pair(3), Schedule(2))
    with pytest.raises(SimulationError, match="touches of 6 items for a plan of 4"):
        interleave(plan, list_touches(other))
    with pytest.raises(ItemError, match=r"op 'b', tile \(0\) has worker 2; name one of 0..1"):
        interleave(set_entry(plan, "items.worker", 2, 2), list_touches(plan))
    with pytest.raises(PlanError, match="plan has 0 workers"):
        interleave(Plan(plan.graph, plan.dispatch, 0, 0, plan.items, plan.waits), list_touches(plan))


# ---------------------------------------------------------------- size


def test_an_ffn_of_8192_tokens_touches_each_piece_once_for_each_use() -> None:
    tile = MatmulTile(128, 256, 64)
    graph = ffn(8192, FFNShape(4096, 14336, Activation.RELU, False), bf16, tile, tile)
    plan = build(graph, Schedule(132, policy=RowSync(), order=GroupedColumnMajor(8), interleaving=RowPanels(8)))
    t = list_touches(plan)
    assert len(interleave(plan, t)) == len(t)
    # 64 x 56 tiles of up in 64 chunks, 64 x 16 of down in 224, two units a chunk; up's tiles are four chunks wide.
    assert len(t.reads) == 2 * (64 * 56 * 64 + 64 * 16 * 224)
    assert len(t.writes) == 64 * 56 * 4 + 64 * 16
    # x, w_up, w_down, hidden, out
    assert np.bincount(t.units.tensor).tolist() == [64 * 64, 56 * 64, 16 * 224, 64 * 224, 64 * 16]
    assert t.chunks_per_step == 1


def test_100_000_items_touch_two_pieces_each() -> None:
    t = list_touches(build(chain(4, 25_000), Schedule(132)))
    assert (len(t.reads), len(t.writes), len(t.units)) == (100_000, 100_000, 125_000)


def test_copies_of_bf16_have_half_the_bytes() -> None:
    t = list_touches(build(two_copies(64, 64, bf16, (64, 64)), Schedule(1)))
    assert t.units.nbytes.tolist() == [64 * 64 * 2] * 3

"""Every plan that differs from a small one in a single number is accepted or refused as the oracle says.

The plans are few and small, so that all of their entries can be changed: a check of ``verify`` that looks at the wrong
end of a range, at one of two bounds or at the wrong dispatch accepts one of them, or refuses one that is safe.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from random import Random

import numpy as np
import pytest

from interlace.core.errors import (
    CoverageError,
    DeadlockError,
    ItemError,
    PlanError,
    SemaphoreError,
    ThresholdError,
)
from interlace.graph import ragged
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.plan.plan import Dispatch, Items, Plan, Waits, find_latest_awaited
from interlace.plan.verify import Proof, verify
from interlace.planner.build import build
from interlace.policies.interleavings import ExplicitInterleaving
from interlace.policies.schedule import Schedule
from interlace.policies.splits import SplitK
from interlace.policies.sync import BatchedRowSync, KernelSync, NoSync, RowSync, TileSync

from ..thorough import some
from . import oracle
from .graphs import (
    build_gated,
    column,
    drop_waits,
    expect_refusal,
    pair,
    pointwise,
    program,
    set_entry,
    take_items,
    two_matmuls,
)


def judge(plan: Plan) -> str:
    """Compare the verdict of ``verify`` with the oracle's; returns the name of the error, or "safe"."""
    expected = oracle.structural_faults(plan)
    implied = False
    if not expected:
        if apart := oracle.find_unenforced(plan):
            # Waits of other items may order what is overwritten; whether they do is found in part.
            implied = not oracle.find_unenforced(plan, {"RAW"}) and not oracle.races(plan)
            expected |= {"CoverageError"}
        if oracle.stuck(plan):
            expected |= {"DeadlockError"}
        if not apart:
            assert expected or not oracle.races(plan)
    found = verdict(plan)
    if isinstance(found, PlanError):
        name = type(found).__name__
        assert name in expected, f"{found} of {describe(plan)}; expected {expected or 'a proof'}"
        check_location(plan, found)
        return name
    assert not expected - ({"CoverageError"} if implied else set()), f"accepts {describe(plan)}: {expected}"
    counted = oracle.account(plan)
    assert found.in_sequence == counted.in_sequence
    assert (found.edges, found.longest_chain) == (counted.edges, counted.longest_chain), describe(plan)
    assert 0 <= found.edges_by_wait - counted.by_wait <= counted.overwriting, describe(plan)
    assert found.workers_needed == (1 if plan.dispatch in (Dispatch.TICKET, Dispatch.QUEUE) else plan.workers)
    return "safe"


def verdict(plan: Plan) -> Proof | PlanError:
    """Return what ``verify`` returns or raises."""
    try:
        return verify(plan)
    except PlanError as error:
        return error


def check_location(plan: Plan, error: PlanError) -> None:
    """The items and producers that an error names are at fault."""
    place, table = error.location, plan.items
    if place is None:
        return
    assert all(0 <= item < len(table) for item in (*place.items, *place.producers))
    tile_of = list(zip(table.op.tolist(), table.tile.tolist(), strict=True))
    match error:
        case ItemError() | SemaphoreError() if place.tile is not None:
            assert place.tile not in tile_of
        case ItemError() | SemaphoreError():
            assert len(place.items) == 1 or {*place.items} == {*parts(plan, tile_of[place.items[0]])}
        case ThresholdError():
            (item,) = place.items
            semaphore, want = map(int, re.findall(r"semaphore (\d+) to reach (-?\d+)", str(error))[0])
            assert place.producers == tuple(n for n in range(len(table)) if table.post[n] == semaphore)
            get = len({tile_of[n] for n in place.producers})
            effect = "no tile posts it" if not get else "never ends" if want > get else "can end before"
            assert want != get or want < 1
            assert effect in str(error)
            assert any(
                int(plan.waits.threshold[row]) == want and semaphore in list_awaited(plan, row)
                for row in range(int(plan.waits.ptr[item]), int(plan.waits.ptr[item + 1]))
            )
        case CoverageError():
            (item,), tile = place.items, tile_of[place.producers[0]]
            assert place.producers == parts(plan, tile)
            text = f"item {item} {tile_of[item]} at k .* does not wait for {tile}"
            assert any(
                re.fullmatch(text.replace("(", r"\(").replace(")", r"\)"), one) for one in oracle.find_unenforced(plan)
            )
        case DeadlockError() if plan.dispatch is Dispatch.STATIC and plan.workers > 1:
            assert place.items == tuple(sorted(oracle.left_over(plan)))
            assert str(error).count("op '") == min(len(place.items), 3)
        case DeadlockError():
            (item,), (producer,) = place.items, place.producers
            assert producer >= item
            rows = range(int(plan.waits.ptr[item]), int(plan.waits.ptr[item + 1]))
            assert any(int(table.post[producer]) in list_awaited(plan, row) for row in rows)


def parts(plan: Plan, tile: tuple[int, int]) -> tuple[int, ...]:
    """Items of one tile, by position."""
    return tuple(n for n in range(len(plan.items)) if (plan.items.op[n], plan.items.tile[n]) == tile)


def list_awaited(plan: Plan, row: int) -> range:
    """The semaphores of one wait."""
    first, count, stride = (int(getattr(plan.waits, c)[row]) for c in ("first", "count", "stride"))
    return range(first, first + count * stride, stride)


def describe(plan: Plan) -> str:
    """Return the columns of a plan as text."""
    columns = [(f.name, getattr(t, f.name).tolist()) for t in (plan.items, plan.waits) for f in fields(t)]
    return f"{plan.dispatch}, {plan.workers} workers, {plan.semaphores} semaphores, {columns}"


def vary_plan(plan: Plan) -> Iterator[Plan]:
    """The plan, and all that differ from it in one number: one more, one less, or far off."""
    yield plan
    for table, kind in (("items", Items), ("waits", Waits)):
        for f in fields(kind):
            values = getattr(getattr(plan, table), f.name).tolist()
            for at, value in enumerate(values):
                others = {value - 1, value + 1, *values[max(at - 1, 0) : at + 2], *((-1, 1 << 62) if at == 0 else ())}
                for other in sorted(others - {value}):
                    yield set_entry(plan, f"{table}.{f.name}", at, other)
    for workers in (-1, 0, plan.workers - 1, plan.workers + 1, (1 << 31) - 1, 1 << 31):
        yield replace(plan, workers=workers)
    for semaphores in (-1, plan.semaphores - 1, plan.semaphores + 1):
        yield replace(plan, semaphores=semaphores)
    for row in range(len(plan.waits)):
        yield drop_waits(plan, row)


def overwriting() -> Graph:
    """``b`` reads what ``c`` overwrites, which ``a`` wrote before; ``d`` reads it again."""
    x, y, z = ((2,), (1,)), ((2,), (1,)), ((2,), (2,))
    ops: list[Op] = [
        pointwise("a", "x", "y", *x),
        pointwise("b", "y", "z", *y, halo=1),
        pointwise("c", "z", "y", *z),
        pointwise("d", "y", "w", *x),
    ]
    return program(dict.fromkeys("xyzw", (2,)), *ops)


def on_workers(plan: Plan, *workers: int) -> Plan:
    """The plan with its items on these workers."""
    return replace(plan, items=replace(plan.items, worker=column(*workers)))


def two_rows(**settings: object) -> Plan:
    """Two matmuls of 2 x 2 and 2 x 1 tiles, a semaphore for each row of the first."""
    return build(two_matmuls(4, (2, 4, 2)), Schedule(2, policy=RowSync(), **settings))  # type: ignore[arg-type]


def build_merged(threshold: int) -> Plan:
    """One wait for two semaphores, of which the first gets one post and the second two."""
    graph = two_matmuls(6, (2, 2, 2), up=(2, 2), down=(6, 2))
    plan = drop_waits(build(graph, Schedule(2, policy=BatchedRowSync(2))), 1)
    post = column(0, 1, 1, -1)
    waits = replace(plan.waits, count=column(2), threshold=column(threshold))
    return replace(plan, items=replace(plan.items, post=post), waits=waits)


def build_turned(dispatch: Dispatch, *workers: int) -> Plan:
    """``b`` of tile 0 comes first, and waits for ``a``, the second item."""
    plan = build(pair(), Schedule(2, Dispatch.STATIC, interleaving=ExplicitInterleaving((2, 0, 1, 3))))
    return on_workers(replace(plan, dispatch=dispatch), *workers)


def without_waits(dispatch: Dispatch, workers: int = 1, of_items: tuple[int, ...] | None = None) -> Plan:
    plan = build(pair(3), Schedule(workers, dispatch, policy=NoSync()))
    return plan if of_items is None else on_workers(plan, *of_items)


def build_listed(*workers: int, parts: int = 1, tiles: int = 1, order: tuple[int, ...] = ()) -> Plan:
    """Parts of one tile, then tiles that read it, on these workers, without waits, and in this order."""
    graph = two_matmuls(2, (4, 2, 2 * tiles))
    plan = build(graph, Schedule(3, Dispatch.STATIC, split={"up": SplitK(parts)}))
    plan = drop_waits(plan, *range(len(plan.waits)))
    return on_workers(take_items(plan, list(order) or list(range(parts + tiles))), *workers)


def halves() -> Plan:
    """Two tiles of ``down`` read all of ``hidden``; the second waits for its halves one by one."""
    waits = Waits(*(column(*c) for c in ((0, 0, 0, 1, 3), (0, 0, 1), (2, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0))))
    return replace(build(two_matmuls(2, (2, 4, 4)), Schedule(2)), waits=waits)


def ragged_waits() -> Plan:
    """Three tiles of ``down`` read the same behind one wait for all of it, two for its halves, and none at all."""
    waits = Waits(*(column(*c) for c in ((0, 0, 0, 1, 3, 3), (0, 0, 1), (2, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0))))
    return replace(build(two_matmuls(2, (2, 4, 6)), Schedule(2)), waits=waits)


def read_again() -> Graph:
    """``c`` reads what ``a`` wrote, and what ``b`` made of it."""
    y, z, w = (pointwise(*names, (2,), (2,)) for names in (("a", "x", "y"), ("b", "y", "z"), ("c", "y z", "w")))
    return program(dict.fromkeys("xyzw", (2,)), y, z, w)


def read_again_unawaited() -> Plan:
    """``c`` waits for ``b`` alone, which has waited for ``a``."""
    plan = build(read_again(), Schedule(2))
    waits = Waits(*(column(*c) for c in ((0, 0, 1, 2), (0, 1), (1, 1), (1, 1), (1, 1), (0, 0))))
    return replace(plan, waits=waits)


def waiting_for_itself() -> Plan:
    """Build two items on two workers, of which the last waits for its own post, too."""
    plan = build(pair(1), Schedule(2, Dispatch.STATIC))
    waits = Waits(*(column(*c) for c in ((0, 0, 1), (0,), (2,), (1,), (1,), (0,))))
    items = replace(plan.items, post=column(0, 1), worker=column(0, 1))
    return replace(plan, items=items, waits=waits, semaphores=2)


def turned_operands() -> Plan:
    """The first tile of ``mul`` comes first, on a worker of its own, and waits for two semaphores four apart."""
    plan = build(build_gated(4, 2, 4), Schedule(2, Dispatch.STATIC, policy=TileSync()))
    order = [8, *(n for n in range(len(plan.items)) if n != 8)]
    return on_workers(take_items(plan, order), 1, *[0] * (len(order) - 1))


def waiting_after_none() -> Plan:
    """Build one list: a tile that posts nothing runs before one that waits for the last semaphore, posted after it."""
    plan = build(pair(), Schedule(2, Dispatch.STATIC, interleaving=ExplicitInterleaving((0, 2, 3, 1))))
    return on_workers(plan, 0, 0, 0, 0)


def one_after_another(*order: int) -> Plan:
    """Two tiles of ``up`` and one of ``down``, which reads them, on one worker without waits."""
    plan = build(two_matmuls(2, (2, 4, 2)), Schedule(2, Dispatch.STATIC))
    return on_workers(take_items(drop_waits(plan, *range(len(plan.waits))), list(order)), 0, 0, 0)


PLANS: dict[str, Plan] = {
    "rows": two_rows(),
    "rows, static": two_rows(dispatch=Dispatch.STATIC),
    "merged, minimum": build_merged(1),
    "merged, maximum": build_merged(2),
    "kernel": build(pair(2), Schedule(2, policy=KernelSync())),
    "split": build(two_matmuls(2, (4, 4, 2)), Schedule(2, Dispatch.STATIC, split={"up": SplitK(2), "down": SplitK(2)})),
    "chunks": build(two_matmuls(2, (2, 6, 2)), Schedule(2, chunk_waits=True)),
    "operands": build(build_gated(2, 2, 2), Schedule(2, policy=TileSync())),
    "overwriting": build(overwriting(), Schedule(2)),
    "overwriting, static": build(overwriting(), Schedule(2, Dispatch.STATIC)),
    "halves": halves(),
    "ragged waits": ragged_waits(),
    "read again": build(read_again(), Schedule(2)),
    "read again, unawaited": read_again_unawaited(),
    "waiting for itself": waiting_for_itself(),
    "one worker, in order": one_after_another(0, 1, 2),
    "one worker, a producer last": one_after_another(0, 2, 1),
    "turned, static": build_turned(Dispatch.STATIC, 0, 1, 0, 1),
    "a wait after a tile without a post": waiting_after_none(),
    "turned, operands": turned_operands(),
    "turned, hybrid": build_turned(Dispatch.HYBRID, 0, 1, -1, -1),
    "turned, stealing": build_turned(Dispatch.STEALING, 0, 1, 0, 1),
    "turned, queue": build_turned(Dispatch.QUEUE, -1, -1, -1, -1),
    "parts on one worker": build_listed(0, 0, 0, parts=2),
    "parts on two, the consumer on the second": build_listed(0, 1, 1, parts=2),
    "parts on two, the consumer on the first": build_listed(1, 0, 0, parts=2),
    "parts on two, consumers too": build_listed(0, 1, 0, 1, parts=2, tiles=2),
    "a part after the consumer": build_listed(0, 0, 0, parts=2, order=(0, 2, 1)),
    "a consumer before its producer": build_listed(0, 0, 0, tiles=2, order=(1, 0, 2)),
    "consumers on two, the producer on a third": build_listed(2, 0, 1, tiles=2),
    "hybrid": build(pair(3), Schedule(2, Dispatch.HYBRID)),
    "hybrid, no lists": on_workers(build(pair(2), Schedule(2, Dispatch.HYBRID)), -1, -1, -1, -1),
    "hybrid, one worker": build(pair(2), Schedule(1, Dispatch.HYBRID, policy=NoSync())),
    "dispatcher": build(pair(2), Schedule(2, Dispatch.DISPATCHER)),
    "no waits, two lists": without_waits(Dispatch.STATIC, 2, (0, 0, 1, 0, 0, 1)),
    **{f"no waits, {d.value}": without_waits(d) for d in Dispatch if d not in (Dispatch.HYBRID, Dispatch.SPAWN)},
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_with_one_number_changed_is_judged_as_by_the_oracle(name: str) -> None:
    verdicts = Counter(judge(plan) for plan in vary_plan(PLANS[name]))
    assert verdicts["ItemError"] > 10 < verdicts.total() - verdicts["ItemError"]


@pytest.mark.parametrize("rounds", some([20, 2000], lambda rounds: rounds == 20))
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_with_several_numbers_changed_is_judged_as_by_the_oracle(name: str, rounds: int) -> None:
    """Changes stay within what a plan may say, so that most of them reach the last checks."""
    random = Random(name)
    verdicts = Counter(judge(shuffle(PLANS[name], random)) for _ in range(rounds))
    assert verdicts.total() == rounds


@pytest.mark.parametrize("batch", [1, 3])
def test_verdicts_do_not_depend_on_how_much_is_looked_at_together(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "BATCH_ENTRIES", batch)
    for plan in PLANS.values():
        judge(plan)
        for row in range(len(plan.waits)):
            judge(drop_waits(plan, row))


@pytest.mark.parametrize("cached", [2, 4, 64])
def test_the_highest_number_of_any_range_of_semaphores_is_found(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that ranges share must cover each of them, wherever they begin."""
    module = importlib.import_module("interlace.plan.verify")
    monkeypatch.setattr(module, "_CACHED_RANGE", cached)
    numbers, random = 24, Random(0)
    for _ in range(3):
        deepest = module._RangeMaximum(numbers)
        deepest.one[:] = [random.randint(1, 99) for _ in range(numbers)]
        for low, step in product(range(numbers), range(1, 5)):
            whole = deepest.one[low::step]
            for count in range(1, len(whole) + 1):
                assert deepest.query(low, count, step) == max(whole[:count]), (low, count, step)


@pytest.mark.parametrize("apart", [False, True], ids=["range", "apart"])
@pytest.mark.parametrize(
    ("count", "shown"), [(1, "0"), (3, "0, 1, 2"), (4, "0, 1, 2, 3"), (5, "0, 1, 2, 3, ..."), (6, "0, 1, 2, 3, ...")]
)
def test_the_first_four_semaphores_that_were_awaited_are_named(count: int, shown: str, apart: bool) -> None:
    plan = build(two_matmuls(2, (2, 14, 2)), Schedule(2))
    first, each = (range(count), [1] * count) if apart else ([0], [count])
    ones, ptr = [1] * len(each), [*[0] * 8, len(each)]
    waits = Waits(*(column(*c) for c in (ptr, first, each, ones, ones, [0] * len(each))))
    expect_refusal(
        replace(plan, waits=waits),
        CoverageError,
        f"which op 'up', tile (0, {count}) writes",
        f"the item has waited only for {shown}; add a wait for semaphore {count}",
    )


@pytest.mark.parametrize(("limit", "accepted"), [(3, False), (4, False), (5, True)])
def test_a_semaphore_of_too_many_posts_is_refused(limit: int, accepted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of 32-bit counters that wrap tell at most 2^31 - 1 posts; plans of the test have 4."""
    module = importlib.import_module("interlace.plan.verify")
    assert module._POSTS_LIMIT == 2**31
    monkeypatch.setattr(module, "_POSTS_LIMIT", limit)
    plan = build(two_matmuls(4, (2, 8, 2)), Schedule(2, policy=RowSync()))
    assert np.bincount(plan.items.post[plan.items.post >= 0]).tolist() == [4, 4]
    # Row 1 posts nothing any more: the fewest posts are 0.
    uneven = replace(
        drop_waits(plan, 1), items=replace(plan.items, post=np.where(plan.items.post == 1, -1, plan.items.post))
    )
    for one in (plan, uneven):
        found = verdict(one)
        text = str(found)
        assert ("semaphore 0 takes 4 posts a run; spread its tiles over several semaphores" in text) is not accepted
    assert isinstance(verdict(plan), Proof) is accepted


@pytest.mark.parametrize("name", PLANS)
def test_the_latest_item_that_is_awaited_is_the_last_that_posts(name: str) -> None:
    plan = PLANS[name]
    assert find_latest_awaited(plan).tolist() == [
        max(
            (n for n, post in enumerate(plan.items.post.tolist()) for row in rows if post in list_awaited(plan, row)),
            default=-1,
        )
        for rows in (range(*plan.waits.ptr[i : i + 2].tolist()) for i in range(len(plan.items)))
    ]


def shuffle(plan: Plan, random: Random) -> Plan:
    """The plan with one to three of its posts, workers and waits drawn anew."""
    for _ in range(random.randint(1, 3)):
        columns = [
            "items.post",
            "items.worker",
            *(f"waits.{c}" for c in ("first", "count", "threshold", "k", "stride")),
        ]
        name = random.choice(columns if len(plan.waits) else columns[:2])
        values = getattr(getattr(plan, name.partition(".")[0]), name.partition(".")[2]).tolist()
        most = plan.workers if name.endswith("worker") else plan.semaphores
        plan = set_entry(plan, name, random.randrange(len(values)), random.choice([*values, random.randint(0, most)]))
        if len(plan.waits) and random.random() < 0.2:
            plan = drop_waits(plan, random.randrange(len(plan.waits)))
    return plan

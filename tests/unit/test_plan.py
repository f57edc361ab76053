"""Plans as arrays and as JSON: exact small cases, round trips, and text that is no plan."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.dtypes import fp32
from interlace.core.errors import (
    GraphError,
    InterlaceError,
    ItemError,
    PlanError,
    PlanFormatError,
    SemaphoreError,
)
from interlace.executors.reference import ReferenceExecutor
from interlace.graph.access import ALL, Access, axes
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.copy import copy as copy_op
from interlace.kernels.read_plan import read_plan
from interlace.megakernel.table import build_worker_tables
from interlace.plan.parse import parse_plan
from interlace.plan.plan import Dispatch, Plan, find_latest_awaited
from interlace.plan.verify import verify
from interlace.planner.build import build
from interlace.policies.interleavings import RowPanels
from interlace.policies.orders import Hilbert
from interlace.policies.schedule import Assignment, Schedule
from interlace.policies.splits import SplitK, StreamK
from interlace.policies.sync import KernelSync, NoSync, RowSync

from ..draws import EXAMPLES
from .graphs import (
    AnyBody,
    build_gated,
    conv_chain,
    graphs,
    item_at,
    matmul,
    pair,
    pointwise,
    program,
    schedules,
    set_entry,
    two_matmuls,
)

PLANS = {
    "ticket": lambda: build(two_matmuls(), Schedule(4)),
    "static, striped": lambda: build(build_gated(), Schedule(3, Dispatch.STATIC, policy=RowSync())),
    "static, balanced": lambda: build(build_gated(), Schedule(3, Dispatch.STATIC, Assignment.BALANCED)),
    "split-K": lambda: build(two_matmuls(), Schedule(4, split=SplitK(2), chunk_waits=True)),
    "stream-K over panels": lambda: build(
        two_matmuls(), Schedule(4, split={"down": StreamK(5)}, order=Hilbert(), interleaving=RowPanels(1))
    ),
    "convolutions": lambda: build(conv_chain(), Schedule(2, policy={"first": RowSync()})),
    "no semaphores": lambda: build(pair(), Schedule(1, policy=NoSync())),
}


def waits(plan: Plan, *names: str) -> list[list[int]]:
    """Columns of the plan's waits."""
    return [getattr(plan.waits, name).tolist() for name in names]


# ---------------------------------------------------------------- what build makes


def test_plan_of_the_worked_example_in_the_module() -> None:
    # Every tile of b reads the whole row of tiles of a.
    graph = two_matmuls(1, (1, 2, 2), up=(1, 1), down=(1, 1), block=2)
    plan = build(graph, Schedule(2, policy=RowSync()))
    columns = {name: getattr(plan.items, name).tolist() for name in ("op", "tile", "worker", "post")}
    assert columns == {"op": [0, 0, 1, 1], "tile": [0, 1, 0, 1], "worker": [-1] * 4, "post": [0, 0, -1, -1]}
    assert plan.semaphores == 1
    assert waits(plan, "ptr", "first", "count") == [[0, 0, 0, 1, 2], [0, 0], [1, 1]]
    assert waits(plan, "stride", "threshold", "k") == [[1, 1], [2, 2], [0, 0]]


def test_a_plan_is_printed_in_one_line() -> None:
    plan = build(two_matmuls(1, (1, 2, 2), up=(1, 1), down=(1, 1), block=2), Schedule(2, policy=RowSync()))
    counts = "4 items on 2 workers, ticket dispatch, 2 waits, 1 semaphore"
    assert (
        str(plan) == f"plan of graph {plan.graph.name!r}: {counts} (RowSync(); RowMajor(); WholeTiles(); OpAfterOp())"
    )


def test_striped_dispatch_deals_items_out_in_turn() -> None:
    plan = build(pair(4), Schedule(3, Dispatch.STATIC))
    assert plan.items.worker.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_balanced_dispatch_gives_the_next_item_to_the_least_loaded_worker() -> None:
    # Tiles of `up` cost 2*1*1*2 = 4, tiles of `down` 2*1*1*8 = 16.
    shapes = {"x": (1, 2), "w": (2, 8), "h": (1, 8), "v": (8, 4), "y": (1, 4)}
    graph = program(
        shapes,
        matmul("up", "x", "w", "h", (1, 8, 2), (1, 1), 1),
        matmul("down", "h", "v", "y", (1, 4, 8), (1, 1), 1),
    )
    worker = build(graph, Schedule(3, Dispatch.STATIC, Assignment.BALANCED)).items.worker.tolist()
    assert worker[:8] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert worker[8:] == [2, 0, 1, 2]  # loads 12, 12, 8 before the first item of down


def test_split_item_costs_its_share_of_the_tile() -> None:
    graph = program({"x": (1, 3), "w": (3, 3), "y": (1, 3)}, matmul("mm", "x", "w", "y", (1, 3, 3), (1, 1), 1))
    plan = build(graph, Schedule(2, Dispatch.STATIC, Assignment.BALANCED, split=StreamK(2)))
    assert (plan.items.k_hi - plan.items.k_lo).tolist() == [3, 1, 2, 3]
    assert plan.items.worker.tolist() == [0, 1, 1, 0]  # whole tiles would go 0, 1, 0, 1


def test_chunk_waits_stand_before_the_chunk_that_needs_them() -> None:
    graph = two_matmuls(2, (2, 8, 2), up=(2, 2), down=(2, 2), block=4)
    together = build(graph, Schedule(2))
    apart = build(graph, Schedule(2, chunk_waits=True))
    assert waits(together, "first", "count", "k") == [[0], [4], [0]]
    assert waits(apart, "first", "count", "k") == [[0, 2], [2, 2], [0, 4]]


def test_wait_of_a_split_part_stands_at_its_own_start() -> None:
    graph = two_matmuls(2, (2, 8, 2), up=(2, 2), down=(2, 2), block=4)
    plan = build(graph, Schedule(2, split={"down": SplitK(2)}))
    assert waits(plan, "ptr", "first", "count", "k") == [[0, 0, 0, 0, 0, 1, 2], [0, 2], [2, 2], [0, 4]]


def test_semaphore_needed_twice_is_awaited_once_at_the_earlier_use() -> None:
    # The second operand needs all of h from the start, the first one tile by tile.
    shapes = {"x": (4, 4), "w": (4, 4), "h": (4, 4), "y": (4, 4)}
    graph = program(
        shapes,
        matmul("a", "x", "w", "h", (4, 4, 4), (4, 2), 2),
        matmul("b", "h", "h", "y", (4, 4, 4), (4, 4), 2),
    )
    plan = build(graph, Schedule(2, chunk_waits=True))
    assert waits(plan, "first", "count", "k") == [[0], [2], [0]]


def test_large_set_that_many_tiles_need_stays_one_range() -> None:
    # 100 tiles of c each read all of h and their own tile of g; 100 of d read all of h and their own tile of it.
    (i,) = axes(1)
    own, n = (i.block(1),), 100
    graph = program(
        {"x": (n,), "h": (n,), "g": (n,), "y": (n,), "z": (n,)},
        pointwise("a", "x", "h", (n,), (1,)),
        pointwise("b", "x", "g", (n,), (1,)),
        Op("c", "c", (n,), (Access("p", "g", own), Access("q", "h", (ALL,))), (Access("o", "y", own),)),
        Op("d", "d", (n,), (Access("p", "h", own), Access("q", "h", (ALL,))), (Access("o", "z", own),)),
    )
    plan = build(graph, Schedule(2))
    c, d = (plan.waits.ptr[item_at(plan, op, 7)] for op in "cd")
    rows = list(zip(*waits(plan, "first", "count", "stride"), strict=True))
    assert rows[c : c + 2] == [(0, 100, 1), (107, 1, 1)]
    assert rows[d : d + 2] == [(0, 100, 1), (0, 100, 1)]  # of d's tiles 7 and 8: one wait each
    assert verify(plan).edges == verify(plan).edges_by_wait == n * (n + 1) * 2
    # Under one semaphore per tile of b and one for all of a, the two sets are small and are united.
    plan = build(graph, Schedule(2, policy={"a": KernelSync()}))
    rows = list(zip(*waits(plan, "first", "count", "stride", "threshold"), strict=True))
    assert sorted(rows[: plan.waits.ptr[item_at(plan, "c", 0) + 1]]) == [(0, 1, 1, 100), (1, 1, 1, 1)]


def test_strided_semaphores_make_one_wait() -> None:
    # up has 3 x 2 tiles; each chunk of down reads one column of them.
    plan = build(two_matmuls(6, (2, 4, 2), up=(2, 2), down=(6, 2), block=2), Schedule(2, chunk_waits=True))
    assert waits(plan, "first", "count", "stride", "k") == [[0, 1], [3, 3], [2, 2], [0, 2]]


@pytest.mark.parametrize("name", PLANS)
def test_the_latest_item_that_one_waits_for_is_the_last_that_posts_any_of_its_semaphores(name: str) -> None:
    plan = PLANS[name]()
    items, waits = plan.items, plan.waits
    expected = [-1] * len(items)
    for row, item in enumerate(waits.item.tolist()):
        assert waits.ptr[item] <= row < waits.ptr[item + 1]
        awaited = waits.first[row] + waits.stride[row] * np.arange(waits.count[row])
        expected[item] = max(expected[item], *np.flatnonzero(np.isin(items.post, awaited)).tolist())
    assert find_latest_awaited(plan).tolist() == expected
    assert (max(expected) >= 0) == bool(len(waits))


def test_plan_says_for_people_what_made_it() -> None:
    plan = build(two_matmuls(), Schedule(2, policy={"up": RowSync()}, interleaving=RowPanels(1, 2), chunk_waits=True))
    assert plan.policy == "up: RowSync(), per k-chunk"
    assert plan.order == "RowMajor(); WholeTiles(); RowPanels(rows=1, lag=2)"


def test_item_name_shows_the_k_range_of_a_part() -> None:
    plan = build(two_matmuls(), Schedule(2, split={"down": SplitK(2)}))
    assert plan.format_item(0) == "op 'up', tile (0, 0)"
    assert plan.format_item(len(plan.items) - 1) == "op 'down', tile (3, 1), k 4:8"
    assert plan.compute_tile_base().tolist() == [0, 16, 24]


@pytest.mark.parametrize("workers", [0, -1])
@pytest.mark.parametrize("assignment", Assignment)
@pytest.mark.parametrize("dispatch", Dispatch)
def test_build_refuses_to_deal_items_to_no_workers(dispatch: Dispatch, assignment: Assignment, workers: int) -> None:
    with pytest.raises(PlanError, match=f"a schedule names {workers} workers; use at least one"):
        build(pair(), Schedule(workers, dispatch, assignment))


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize("name", PLANS)
def test_plan_survives_json_byte_for_byte(name: str) -> None:
    plan = PLANS[name]()
    text = plan.to_json()
    again = parse_plan(text, {})
    assert again == plan
    assert again.to_json() == text
    assert verify(again).edges == verify(plan).edges


@EXAMPLES
@given(st.data())
def test_any_plan_survives_json_byte_for_byte(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    plan = build(graph, data.draw(schedules(graph)))
    assert parse_plan(plan.to_json(), {}) == plan
    assert parse_plan(plan.to_json(), {}).to_json() == plan.to_json()


def test_plans_differ_if_one_entry_differs() -> None:
    plan = PLANS["ticket"]()
    assert plan == PLANS["ticket"]()
    assert plan != set_entry(plan, "waits.threshold", 0, 99)
    assert plan != set_entry(plan, "items.tile", 0, 1)
    assert plan.items != plan.waits


def test_kernel_bodies_are_bound_by_name() -> None:
    body = AnyBody()
    plan = parse_plan(PLANS["ticket"]().to_json(), {"matmul": body})
    assert [op.body for op in plan.graph.ops] == [body, body]


# ---------------------------------------------------------------- text that is no plan


@cache
def _text() -> str:
    return build(two_matmuls(4, (2, 4, 2)), Schedule(2, split={"down": SplitK(2)})).to_json()


def _change(*path: Any, to: Any) -> str:
    """The JSON text of a good plan with the value at ``path`` replaced."""
    data = json.loads(_text())
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return json.dumps(data)


def _edit(*changes: tuple[Any, ...]) -> str:
    """The JSON text of a good plan after changes (table, column, row, value)."""
    data = json.loads(_text())
    for table, column_name, row, value in changes:
        data[table][column_name][row] = value
    return json.dumps(data)


def _without(*path: Any) -> str:
    data = json.loads(_text())
    at = data
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    ["", "{", "no plan", "\x00", "{'format': 1}", '"\ud800', "[" * 100_000, '{"format": interlace-plan}'],
    ids=["empty", "cut off", "prose", "zero byte", "python", "surrogate", "deep", "bare word"],
)
def test_text_that_is_not_json_is_a_format_error(text: str) -> None:
    with pytest.raises(PlanFormatError, match=r"not JSON: .*write plans with Plan.to_json"):
        parse_plan(text, {})


@pytest.mark.parametrize(
    ("found", "doubled"),
    [
        ('"semaphores":4', '"semaphores":4,"semaphores":4'),
        ('"post":', '"post":[0,0],"post":'),
        ('"name":"up"', '"name":"up","kernel":"other"'),
    ],
)
def test_a_key_that_stands_twice_is_a_format_error(found: str, doubled: str) -> None:
    text = _text()
    assert found in text
    with pytest.raises(PlanFormatError, match=r"not JSON: '\w+' stands twice in one object"):
        parse_plan(text.replace(found, doubled, 1), {})


@pytest.mark.parametrize("text", ["null", "[]", "3", '"plan"', "{}", '{"format":"other"}', '{"format":null}'])
def test_foreign_json_is_a_format_error(text: str) -> None:
    with pytest.raises(PlanFormatError, match='not a plan: the text lacks "format": "interlace-plan"'):
        parse_plan(text, {})


@pytest.mark.parametrize("version", [0, 2, "1", None, [1], True, 1.0])
def test_other_schema_version_is_named(version: Any) -> None:
    expected = "plan has schema version .*, this is version 1; make the plan again with this release"
    with pytest.raises(PlanFormatError, match=expected):
        parse_plan(_change("schema_version", to=version), {})


def _every_key() -> Iterator[tuple[Any, ...]]:
    data = json.loads(_text())
    for key in sorted(set(data) - {"format", "schema_version"}):
        yield (key,)
    for table in ("graph", "items", "waits"):
        yield from ((table, key) for key in data[table])
    yield from (("graph", "ops", 0, key) for key in data["graph"]["ops"][0])
    yield from (("graph", "tensors", 0, key) for key in data["graph"]["tensors"][0])
    yield from (("graph", "ops", 0, "reads", 0, key) for key in ("arg", "tensor", "spans"))


@pytest.mark.parametrize("path", list(_every_key()), ids=lambda path: ".".join(map(str, path)))
def test_missing_key_is_a_format_error(path: tuple[Any, ...]) -> None:
    with pytest.raises(PlanFormatError, match=f"damaged plan: KeyError: '{path[-1]}'; make it again"):
        parse_plan(_without(*path), {})


@pytest.mark.parametrize("value", ["ticket!", "", None, 3, ["ticket"], {}])
def test_unknown_dispatch_is_a_format_error(value: Any) -> None:
    with pytest.raises(PlanFormatError, match=r"damaged plan: ValueError: .* is not a valid Dispatch"):
        parse_plan(_change("dispatch", to=value), {})


@pytest.mark.parametrize("key", ["workers", "semaphores"])
@pytest.mark.parametrize("value", [-1, 1.5, "4", None, True, [4]])
def test_counts_are_integers(key: str, value: Any) -> None:
    with pytest.raises(PlanFormatError, match=r"damaged plan: ValueError: .* is not a count"):
        parse_plan(_change(key, to=value), {})


@pytest.mark.parametrize("table", ["items", "waits"])
@pytest.mark.parametrize("value", [None, 3, "0", {"0": 1}, [1.0], ["1"], [True], [None], [[1]]], ids=str)
def test_columns_are_lists_of_integers(table: str, value: Any) -> None:
    column_name = {"items": "tile", "waits": "first"}[table]
    with pytest.raises(PlanFormatError, match="damaged plan: ValueError: a column is not a list of integers"):
        parse_plan(_change(table, column_name, to=value), {})


def test_entry_beyond_64_bits_is_a_format_error() -> None:
    with pytest.raises(PlanFormatError, match="damaged plan: OverflowError"):
        parse_plan(_change("items", "tile", 0, to=2**63), {})


@pytest.mark.parametrize("value", [None, 3, "x", [], True])
@pytest.mark.parametrize("key", ["graph", "items", "waits"])
def test_part_of_another_kind_is_a_format_error(key: str, value: Any) -> None:
    with pytest.raises(PlanFormatError, match="damaged plan: TypeError"):
        parse_plan(_change(key, to=value), {})


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("graph", "inputs"), [], "op 'up' reads 'x', which no op writes"),
        (("graph", "ops"), [], "has no ops"),
        (("graph", "ops", 1, "name"), "up", r"several ops called \['up'\]"),
        (("graph", "ops", 0, "grid"), [0, 1], r"grid \(0, 1\); use 1 to 3 positive extents"),
        (("graph", "ops", 0, "reduction"), None, "declares no reduction"),
        (("graph", "ops", 0, "reduction"), [2, 0], "both must be positive"),
        (("graph", "ops", 0, "reads", 0, "tensor"), "nope", "has no tensor 'nope'"),
        (("graph", "ops", 0, "reads", 0, "spans"), [], "has 0 spans"),
        (("graph", "tensors", 0, "shape"), [4, 2.0], "every extent must be a positive int"),
        (("graph", "tensors", 0, "shape"), "42", "every extent must be a positive int"),
        (("graph", "tensors", 0, "dtype"), "int3", "unknown dtype 'int3'"),
    ],
)
def test_inconsistent_graph_is_a_format_error_that_says_why(path: tuple[Any, ...], value: Any, expected: str) -> None:
    with pytest.raises(PlanFormatError, match=f"the plan's graph is inconsistent: .*{expected}") as caught:
        parse_plan(_change(*path, to=value), {})
    assert isinstance(caught.value.__cause__, GraphError)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("graph", "tensors"), 5),
        (("graph", "tensors", 0), None),
        (("graph", "tensors", 0, "shape"), 7),
        (("graph", "tensors", 0, "dtype"), []),
        (("graph", "ops", 0, "grid"), "22"),
        (("graph", "ops", 0, "kernel"), []),
        (("graph", "ops", 0, "reduction"), [2, 2, 2]),
        (("graph", "ops", 0, "reduction"), "ab"),
        (("graph", "ops", 0, "reads", 0, "spans", 0), []),
        (("graph", "ops", 0, "reads", 0, "spans", 0, 0), [1, 2]),
        (("graph", "ops", 0, "reads", 0, "spans", 0, 0, 0), "x"),
        (("graph", "ops", 0, "reads", 0, "spans", 0, 0, 0), float("nan")),
        (("graph", "ops", 0, "reads", 0, "spans", 0, 0, 0), float("inf")),
        (("graph", "ops", 0, "reads", 0, "spans", 0, 0, 0), 10**30),
        (("graph", "ops", 0, "reads", 0, "spans", 0, 0, 1), None),
    ],
)
def test_malformed_graph_is_a_format_error(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(PlanFormatError):
        parse_plan(_change(*path, to=value), {})


_OP = ("graph", "ops", 0)
FORMAT_DAMAGE: dict[str, Callable[[], str]] = {
    "params that are no object": lambda: _change(*_OP, "params", to=[]),
    "param that is a list": lambda: _change(*_OP, "params", to={"tile": [1]}),
    "flops that are a text": lambda: _change(*_OP, "flops", to="1"),
    "flops that are true": lambda: _change(*_OP, "flops", to=True),
    "flops that are negative": lambda: _change(*_OP, "flops", to=-1.0),
    "flops that are no number": lambda: _change(*_OP, "flops", to=float("nan")),
    "flops beyond all bounds": lambda: _change(*_OP, "flops", to=0).replace('"flops": 0', '"flops": 1e999'),
    "flops of 400 digits": lambda: _change(*_OP, "flops", to=10**400),
    "number of 5000 digits": lambda: "1" * 5000,
    "grid of floats": lambda: _change(*_OP, "grid", to=[2.0, 2.0]),
    "grid of booleans": lambda: _change(*_OP, "grid", to=[True, True]),
    "grid beyond 64 bits": lambda: _change(*_OP, "grid", to=[10**30, 2]),
    "grid beyond memory": lambda: _change(*_OP, "grid", to=[10**14, 2]),
    "reduction beyond 64 bits": lambda: _change(*_OP, "reduction", to=[2, 10**30]),
    "reduction of floats": lambda: _change(*_OP, "reduction", to=[2.0, 1.0]),
    "reduction that is false": lambda: _change(*_OP, "reduction", to=False),
    "argument that is a list": lambda: _change(*_OP, "writes", 0, "arg", to=[]),
    "bound with a fraction": lambda: _change(*_OP, "writes", 0, "spans", 0, 0, 0, to=0.5),
    "bound that overflows at the last tile": lambda: _change(*_OP, "writes", 0, "spans", 0, 0, 1, to=[2**62, 2**62]),
    "shape beyond 64 bits": lambda: _change("graph", "tensors", 0, "shape", to=[10**30, 2]),
    "shape with too many elements": lambda: _change("graph", "tensors", 0, "shape", to=[2**40, 2**40]),
    "name of an op that is a number": lambda: _change(*_OP, "name", to=3),
    "name of a kernel that is null": lambda: _change(*_OP, "kernel", to=None),
    "name of a tensor that is a list": lambda: _change("graph", "tensors", 0, "name", to=[]),
    "name of the graph that is a number": lambda: _change("graph", "name", to=1),
    "inputs that are a text": lambda: _change("graph", "inputs", to="x"),
    "outputs of numbers": lambda: _change("graph", "outputs", to=[1]),
    "policy that is null": lambda: _change("policy", to=None),
    "order that is a list": lambda: _change("order", to=[]),
}


@pytest.mark.parametrize("name", FORMAT_DAMAGE)
def test_damaged_text_is_a_format_error(name: str) -> None:
    with pytest.raises(PlanFormatError, match=r"not JSON: |damaged plan: |graph is inconsistent: "):
        parse_plan(FORMAT_DAMAGE[name](), {})


@pytest.mark.parametrize("dispatch", Dispatch)
def test_workers_beyond_the_items_cost_nothing(dispatch: Dispatch) -> None:
    x, y = Tensor("x", (64, 64), fp32), Tensor("y", (64, 64), fp32)
    graph = Graph("copy", (x, y), (copy_op("copy", x, y, (16, 16)),), ("x",), ("y",))
    data = json.loads(build(graph, Schedule(4, dispatch)).to_json())
    data["workers"] = 2**31 - 1
    if dispatch.has_queues:
        data["items"]["worker"][7] = 2**31 - 2
    proof = verify(read_plan(json.dumps(data)))
    values = np.arange(4096.0).reshape(64, 64)
    tracemalloc.start()
    try:
        found = ReferenceExecutor(proof).run({"x": values})["y"]
        table = build_worker_tables(proof.plan, [False])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, values)
    assert peak < 1 << 20
    assert table.workers == (5 if dispatch.has_queues else 16)
    if dispatch is Dispatch.HYBRID:  # half of the items are in lists
        assert table.worker_rows.tolist() == [0, 2, 4, 6, 7, 8, 16]
        assert table.items["number"][7:].tolist() == [7, *range(8, 16)]
    elif dispatch.has_queues:
        assert table.worker_rows.tolist() == [0, 4, 8, 12, 15, 16]
        assert table.items["number"][15] == 7


# Each of these is a plan by its form, so verify has to refuse it, before it takes memory for what is named.
MEANINGLESS: dict[str, tuple[Callable[[], str], type[PlanError], str]] = {
    "semaphores beyond memory": (
        lambda: _change("semaphores", to=10**15),
        SemaphoreError,
        "plan has 1000000000000000 semaphores for 6 tiles",
    ),
    "semaphores beyond 64 bits": (
        lambda: _change("semaphores", to=10**30),
        SemaphoreError,
        "set Plan.semaphores to the highest one posted plus one",
    ),
    "workers beyond 64 bits": (
        lambda: _change("workers", to=10**30),
        PlanError,
        "set Plan.workers to at least one, and to fewer than 2",
    ),
    "wait for more semaphores than memory holds": (
        lambda: _change("waits", "count", 0, to=10**15),
        SemaphoreError,
        "waits for semaphore 4, but the plan has 4",
    ),
    "wait whose last semaphore overflows": (
        lambda: _edit(("waits", "count", 0, 2), ("waits", "stride", 0, 2**63 - 1)),
        SemaphoreError,
        f"waits for semaphore {2**63 - 1}, but the plan has 4",
    ),
    "wait whose last semaphore underflows": (
        lambda: _edit(("waits", "count", 0, 2), ("waits", "stride", 0, -(2**63))),
        SemaphoreError,
        f"wait 0 has stride {-(2**63)}; list its semaphores upwards",
    ),
    "wait for one semaphore without end": (
        lambda: _edit(("waits", "count", 0, 10**15), ("waits", "stride", 0, 0)),
        SemaphoreError,
        "wait 0 has stride 0; list its semaphores upwards",
    ),
    "grid of which hardly a tile has an item": (
        lambda: _change(*_OP, "grid", to=[2**30 - 1, 2]),
        ItemError,
        r"op 'up', tile \(2, 0\) has no item",
    ),
}


@pytest.mark.parametrize("name", MEANINGLESS)
def test_numbers_without_meaning_are_refused_before_they_take_memory(name: str) -> None:
    text, error, message = MEANINGLESS[name]
    plan = parse_plan(text(), {})
    tracemalloc.start()
    try:
        with pytest.raises(error, match=message) as caught:
            verify(plan)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(caught.value) is error
    assert peak < 1 << 20


def _verifies_or_is_refused(text: str) -> None:
    """Nothing but an InterlaceError that says something may come out."""
    message = ""
    try:
        proof = verify(parse_plan(text, {}))
    except InterlaceError as error:
        message = str(error)
    else:
        assert proof.edges >= proof.edges_by_wait >= 0
        return
    assert len(message) > 10


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from((10**15, 10**30, 0.5, 2.0, [], {}, [1], {"a": 1})),
    st.text("ab1", max_size=2),
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from _paths(child, (*path, key))


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """A good plan's text with one to three places replaced, nudged, dropped or doubled."""
    data = json.loads(_text())
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        # Draw the kind of place first, or long columns would take nearly every draw.
        kinds: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        for path in _paths(data):
            kinds.setdefault(tuple("*" if isinstance(key, int) else key for key in path), []).append(path)
        *parents, key = draw(st.sampled_from(kinds[draw(st.sampled_from(sorted(kinds)))]))
        at = data
        for parent in parents:
            at = at[parent]
        action = draw(st.sampled_from(("replace", "replace", "replace", "nudge", "drop", "double")))
        if action == "drop":
            del at[key]
        elif action == "double" and isinstance(at, list):
            at.insert(key, at[key])
        elif action == "nudge" and type(at[key]) is int:
            at[key] += draw(st.sampled_from((-1, 1)))
        else:
            at[key] = copy.copy(draw(WRONG))
    return json.dumps(data)


@settings(EXAMPLES, max_examples=250)
@given(mutations())
def test_mutated_plan_verifies_or_is_refused_with_a_message(text: str) -> None:
    _verifies_or_is_refused(text)


@settings(EXAMPLES, max_examples=120)
@given(st.integers(0, 10**6), st.text(max_size=3))
def test_garbled_characters_verify_or_are_refused_with_a_message(at: int, garbage: str) -> None:
    text = _text()
    at %= len(text)
    _verifies_or_is_refused(text[:at] + garbage + text[at + 1 :])

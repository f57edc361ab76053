"""A plan in the studio: its columns, its items, and plans that may not run."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import PlanError, StudioError
from interlace.graph.access import ALL, axes, constant_span
from interlace.planner.predict import predict
from interlace.studio.answers import build_answers
from interlace.studio.pending import Pending
from interlace.studio.plan_view import PlanView
from interlace.studio.timeline import Timeline
from interlace.trace.perfetto import to_perfetto
from interlace.workloads import WORKLOADS, two_matmuls

from .graphs import program
from .test_unwritten import fill


def build_small(policy: il.SyncPolicy) -> il.Plan:
    """first has 4 x 2 tiles and second 4 x 3; each tile of second reads a row of first."""
    tile = il.MatmulTile(16, 16, 16)
    return il.build(two_matmuls(64, 32, 32, 48, first=tile, second=tile), il.Schedule(3, policy=policy))


def without_first_wait(plan: il.Plan) -> il.Plan:
    waits = plan.waits
    rest = {column: getattr(waits, column)[1:] for column in ("first", "count", "stride", "threshold", "k")}
    return replace(plan, waits=replace(waits, ptr=np.maximum(waits.ptr - 1, 0), **rest))


def test_columns_are_those_of_the_plan_on_the_simulated_machine() -> None:
    plan = build_small(il.RowSync())
    trace = predict(plan, il.H200).trace
    shown = PlanView.from_plan(plan).to_data()
    assert (shown["op"], shown["tile"]) == (plan.items.op.tolist(), plan.items.tile.tolist())
    assert shown["worker"] == trace.worker.tolist()
    assert shown["end"] == (trace.end_ns - trace.wait_ns.min()).tolist()
    assert (shown["span_ns"], shown["workers"]) == (trace.span_ns, 3)
    assert (shown["proved"], shown["proof"]) == (True, str(il.verify(plan)))
    assert sum(shown["summary"][share] for share in ("busy", "waiting", "idle")) == pytest.approx(1)


@pytest.mark.parametrize(("policy", "awaited"), [(il.RowSync(), 1), (il.TileSync(), 2), (il.KernelSync(), 1)])
def test_an_item_tells_who_posts_what_it_waits_for_and_who_waits_for_it(policy: il.SyncPolicy, awaited: int) -> None:
    plan = build_small(policy)
    view = PlanView.from_plan(plan)
    last = len(plan.items) - 1
    found = view.describe_item({"item": last})
    assert found["name"] == plan.format_item(last)
    assert [region["text"] for region in found["reads"]] == ["y[48:64, 0:32]", "b[32:48, 0:32]"]
    bounds = {"shape": [64, 48], "lo": [48, 32], "hi": [64, 48]}
    assert found["writes"] == [{"text": "out[48:64, 32:48]", "tensor": "out", **bounds}]
    assert [wait["count"] for wait in found["waits"]] == [awaited]
    posting = {item for wait in found["waits"] for item in wait["items"]}
    row = {item for item in range(8) if plan.items.tile[item] // 2 == 3}
    assert posting >= row
    assert posting <= set(range(8))
    for item in range(8):
        assert (last in view.describe_item({"item": item})["dependants"]["items"]) == (item in posting)
    assert found["dependants"] == {"items": [], "names": [], "more": 0}


def test_a_plan_that_may_not_run_is_shown_with_what_is_wrong() -> None:
    broken = without_first_wait(build_small(il.TileSync()))
    shown = PlanView.from_plan(broken).to_data()
    assert not shown["proved"]
    assert shown["proof"].startswith("CoverageError: op 'second', tile (0, 0) reads y[0:16, 0:32]")
    assert len(shown["end"]) == len(broken.items)
    plan = build_small(il.TileSync())
    stuck = PlanView.from_plan(replace(plan, waits=replace(plan.waits, threshold=plan.waits.threshold + 1)))
    assert stuck.proof.startswith("ThresholdError")
    assert (stuck.trace, "worker" in stuck.to_data()) == (None, False)
    assert stuck.why


def test_what_cannot_be_drawn_is_refused() -> None:
    plan = build_small(il.TileSync())
    with pytest.raises(PlanError, match="item 0 names op 9"):
        PlanView.from_plan(replace(plan, items=replace(plan.items, op=plan.items.op + 9)))
    many = il.build(il.workloads.one_matmul(8192, 8192, 16, tile=il.MatmulTile(16, 16, 16)), il.Schedule(8))
    with pytest.raises(StudioError, match="a plan of 262144 items; the page draws 65536"):
        PlanView.from_plan(many)
    view = PlanView.from_plan(plan)
    for item in (-1, len(plan.items), "0", None, True):
        with pytest.raises(StudioError, match="item is"):
            view.describe_item({"item": item})


def faulty() -> dict[str, il.Plan]:
    """A plan with a fault of each kind, by its error."""
    plan = build_small(il.TileSync())
    items, waits = plan.items, plan.waits
    late = il.ExplicitInterleaving((*range(8, 20), *range(8)))
    chain = il.build(plan.graph, il.Schedule(3, interleaving=late))
    static = il.build(plan.graph, il.Schedule(2, dispatch=il.Dispatch.STATIC, interleaving=late))
    ptr = waits.ptr[:-1].copy()
    kept = {name: getattr(waits, name)[: ptr[-1]] for name in ("first", "count", "stride", "threshold", "k")}
    columns = {name: getattr(items, name)[:-1] for name in ("op", "tile", "k_lo", "k_hi", "worker", "post")}
    rows = axes(1)[0].block(2)
    whole, half, racing = (
        program({"y": (8, 8)}, fill("fill", "y", spans, (4,)))
        for spans in ((rows, ALL), (rows, constant_span(0, 4)), (ALL, ALL))
    )
    return {
        "CoverageError": without_first_wait(plan),
        "ThresholdError": replace(plan, waits=replace(waits, threshold=waits.threshold + 1)),
        "DeadlockError": chain,
        "DeadlockError, static": static,
        "ItemError": replace(plan, items=replace(items, **columns), waits=replace(waits, ptr=ptr, **kept)),
        "ItemError, reduction": replace(plan, items=replace(items, k_hi=np.where(items.tile == 0, 16, items.k_hi))),
        "SemaphoreError": replace(plan, items=replace(items, post=np.where(items.post == 0, 99, items.post))),
        "SemaphoreError, stride": replace(plan, waits=replace(waits, stride=waits.stride * 0)),
        "PlanError": replace(plan, waits=replace(waits, count=waits.count * 0)),
        "ItemError, outside": replace(plan, items=replace(items, tile=np.where(items.tile == 11, 99, items.tile))),
        "IntraOpRaceError": replace(il.build(whole, il.Schedule(1)), graph=racing),
        "UnwrittenError": replace(il.build(whole, il.Schedule(1)), graph=half),
    }


@pytest.mark.parametrize(
    ("kind", "items", "producers", "tile"),
    [
        ("CoverageError", ["op 'second', tile (0, 0)"], ["op 'first', tile (0, 0)"], None),
        ("ThresholdError", ["op 'second', tile (0, 0)"], ["op 'first', tile (0, 0)"], None),
        ("DeadlockError", ["op 'second', tile (0, 0)"], ["op 'first', tile (0, 1)"], None),
        ("ItemError", [], [], (1, 11)),
        ("ItemError, reduction", ["op 'first', tile (0, 0), k 0:16"], [], None),
        ("SemaphoreError", ["op 'first', tile (0, 0)"], [], None),
        ("SemaphoreError, stride", ["op 'second', tile (0, 0)"], [], None),
        ("PlanError", ["op 'second', tile (0, 0)"], [], None),
        ("ItemError, outside", ["op 'second', tile number 99"], [], None),
        ("IntraOpRaceError", ["op 'fill', tile (0)"], ["op 'fill', tile (1)"], None),
        ("UnwrittenError", [], [], None),
    ],
)
def test_a_fault_of_each_kind_says_where_it_is(
    kind: str, items: list[str], producers: list[str], tile: tuple[int, int] | None
) -> None:
    view = PlanView.from_plan(faulty()[kind])
    shown = view.to_data()
    fault = shown["fault"]
    assert (fault["kind"], shown["proved"]) == (kind.partition(",")[0], False)
    assert shown["proof"].startswith(f"{fault['kind']}: ")
    assert (fault["items"]["names"], fault["producers"]["names"], fault["tile"]) == (items, producers, tile)
    for item in range(len(view.plan.items)):
        assert view.describe_item({"item": item})["item"] == item


def test_items_that_wait_for_each_other_are_all_named() -> None:
    fault = PlanView.from_plan(faulty()["DeadlockError, static"]).to_data()["fault"]
    assert (fault["kind"], len(fault["items"]["items"])) == ("DeadlockError", 20)
    assert PlanView.from_plan(build_small(il.TileSync())).to_data()["fault"] is None


@pytest.mark.parametrize("kind", WORKLOADS, ids=lambda kind: kind.name)
def test_plans_and_traces_of_every_workload_are_shown(kind: type[il.workloads.Workload]) -> None:
    graph = kind.from_fields({}, False).build_graph(il.CPU)
    plan = il.build(graph, il.Schedule(4))
    view = PlanView.from_plan(plan)
    shown = view.to_data()
    assert (shown["proved"], len(shown["op"]), len(shown["end"])) == (True, len(plan.items), len(plan.items))
    for item in (0, len(plan.items) - 1):
        assert view.describe_item({"item": item})["name"] == plan.format_item(item)
    assert view.trace is not None
    grids = [op.grid for op in graph.ops]
    timeline = Timeline.read(json.dumps(to_perfetto(view.trace, grids=grids))).to_data()
    assert sum(op["items"] for op in timeline["summary"]["ops"]) == len(plan.items)
    assert {op["name"] for op in timeline["ops"]} == {op.name for op in graph.ops}


def test_a_page_whose_plan_is_not_simulated_yet_says_so() -> None:
    ready = threading.Event()
    proved = PlanView.prove(build_small(il.TileSync()))

    def simulate() -> PlanView:
        assert ready.wait(60)
        return proved.simulate()

    pending = Pending(PlanView, simulate, "simulating")
    asked = build_answers(pending)
    assert asked["plan"]({}) == {"name": "", "preparing": "simulating"}
    assert asked["records"]({}) == {"name": ""}
    with pytest.raises(StudioError, match="no plan here"):
        asked["plan/item"]({"item": 0})
    ready.set()
    while "preparing" in (shown := asked["plan"]({})):
        time.sleep(0.01)
    assert (shown["name"], len(shown["worker"])) == (proved.plan.graph.name, len(proved.plan.items))
    assert asked["plan/item"]({"item": 0})["item"] == 0


def test_an_error_while_a_view_is_made_is_the_answer() -> None:
    def simulate() -> PlanView:
        raise StudioError("cannot be simulated")

    def ask_until_it_is_made() -> None:
        while build_answers(pending)["plan"]({})["name"] == "":
            time.sleep(0.01)

    pending = Pending(PlanView, simulate, "simulating")
    with pytest.raises(StudioError, match="cannot be simulated"):
        ask_until_it_is_made()

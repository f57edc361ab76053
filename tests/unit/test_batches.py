"""Work in batches, which bound memory: the results of one batch and of many are the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.errors import CoverageError, InterlaceError, ThresholdError
from interlace.graph import boxes, dependencies, inverse, ragged
from interlace.graph.access import ALL, Access, Affine, Span
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Reduction
from interlace.plan import coverage
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import verify
from interlace.planner import waits
from interlace.planner.build import build
from interlace.policies.interleavings import RowPanels
from interlace.policies.schedule import Schedule
from interlace.policies.sync import BatchedRowSync, ColumnSync, NoSync, RowSync, TileSync

from ..draws import EXAMPLES, RANDOM
from ..thorough import some
from . import oracle
from .graphs import drop_waits, graphs, pointwise, program, schedules, set_entry, two_matmuls
from .test_dependencies import GRAPHS, I, write
from .test_scale import all_to_all, attention, causal, causal_heads, parts

SMALL = (1, 5, 40)


def quarters(side: int) -> Graph:
    """Each tile of the second op waits for half a row of tiles many times over: few fit a batch of 40."""
    shape = (side, side)
    half = side // 2
    return program(
        dict.fromkeys("xyz", shape),
        pointwise("a", "x", "y", shape, (1, 1)),
        pointwise("b", "y", "z", shape, (half, half)),
    )


CHOICES = {
    "tiles": Schedule(3),
    "rows, static": Schedule(3, Dispatch.STATIC, policy=RowSync()),
    "columns, panels": Schedule(3, policy=ColumnSync(), interleaving=RowPanels(2)),
    "chunk waits": Schedule(3, chunk_waits=True),
    "one worker": Schedule(1, policy=NoSync()),
    "mixed": Schedule(1, policy={"use": NoSync(), "make_h": BatchedRowSync(2), "keys": RowSync()}),
}
SOME = {name: graph for name, (graph, _) in GRAPHS.items()} | {
    "ffn": two_matmuls(16, (8, 12, 8)),
    "all to all": all_to_all(9),
    "causal": causal(20),
    "causal heads": causal_heads(6),
    "parts": parts(10),
    "attention": attention(8),
    "quarters": quarters(8),
}


@pytest.fixture(params=SMALL)
def batch_entries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Batches of so few entries."""
    monkeypatch.setattr(ragged, "BATCH_ENTRIES", request.param)
    return request.param


def judge(plan: Plan) -> str:
    """Return the verdict of verify on a plan."""
    try:
        proof = verify(plan)
    except InterlaceError as error:
        return f"{type(error).__name__}: {error}"
    return f"{proof.edges} {proof.edges_by_wait} {proof.longest_chain} {proof.in_sequence}"


@pytest.mark.parametrize("name", some(SOME, lambda name: name not in GRAPHS or name in ("causal", "in-place update")))
def test_dependencies_plans_and_proofs_do_not_depend_on_the_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = SOME[name]
    once = Dependencies(graph)
    needed = [once.find_tile_producers(link) for link in once.links]
    plans = {key: build(graph, chosen) for key, chosen in CHOICES.items() if _fits(graph, chosen)}
    verdicts = {key: judge(plan) for key, plan in plans.items()}
    assert not any("Error" in verdict for verdict in verdicts.values())
    for batch in SMALL:
        monkeypatch.setattr(ragged, "BATCH_ENTRIES", batch)
        again = Dependencies(graph)
        assert again.count_edges() == sum(len(tiles.values) for tiles in needed)
        for link, same, tiles in zip(again.links, once.links, needed, strict=True):
            assert (link.hazard, link.consumer, link.sources) == (same.hazard, same.consumer, same.sources)
            assert np.array_equal(again.find_tile_producers(link).values, tiles.values)
            assert np.array_equal(again.find_tile_producers(link).ptr, tiles.ptr)
        for key, plan in plans.items():
            assert build(graph, CHOICES[key], again) == plan
            assert judge(plan) == verdicts[key]


def _fits(graph: Graph, chosen: Schedule) -> bool:
    names = {op.name for op in graph.ops}
    return not isinstance(chosen.policy, dict) or set(chosen.policy) <= names


def test_a_graph_takes_many_batches(batch_entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests here would show nothing if all fitted in one."""
    most = {"iter_batches": 0, "iter_slices": 0}

    def watch(name: str) -> None:
        original = getattr(ragged, name)

        def count_pieces(*arguments: object) -> Iterator[tuple[int, int]]:
            pieces = list(original(*arguments))
            most[name] = max(most[name], len(pieces))
            return iter(pieces)

        for module in (ragged, boxes, dependencies, inverse, coverage, waits):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, count_pieces)

    watch("iter_batches")
    watch("iter_slices")
    for name in ("ffn", "all to all"):
        verify(build(SOME[name], Schedule(3)))
    assert min(most.values()) > 1


def ragged_rows() -> Plan:
    """A plan whose waits differ in their thresholds: batches of two rows of tiles, the last of one."""
    shape = (10, 4)
    first = pointwise("a", "x", "y", shape, (1, 1))
    second = pointwise("b", "y", "z", shape, (1, 4))
    return build(program(dict.fromkeys("xyz", shape), first, second), Schedule(2, policy=BatchedRowSync(3)))


@pytest.mark.parametrize("change", [-1, 1, 100, -100])
def test_one_wrong_threshold_among_many_is_found_in_any_batch(batch_entries: int, change: int) -> None:
    plan = ragged_rows()
    thresholds = plan.waits.threshold.tolist()
    assert set(thresholds) == {4, 12}
    for row, threshold in enumerate(thresholds):
        with pytest.raises(ThresholdError, match=f"set the threshold to {threshold}$"):
            verify(set_entry(plan, "waits.threshold", row, threshold + change))


def test_one_threshold_that_is_another_waits_is_found(batch_entries: int) -> None:
    """Each wait takes the threshold of each other one: right somewhere, wrong here."""
    plan = ragged_rows()
    thresholds = plan.waits.threshold.tolist()
    for row, own in enumerate(thresholds):
        for other in set(thresholds) - {own}:
            with pytest.raises(ThresholdError, match=f"to reach {other}, .*set the threshold to {own}$"):
                verify(set_entry(plan, "waits.threshold", row, other))


@pytest.mark.parametrize("policy", [TileSync(), RowSync(), ColumnSync()], ids=str)
def test_one_missing_wait_among_many_is_found_in_any_batch(policy: TileSync, monkeypatch: pytest.MonkeyPatch) -> None:
    for graph in (SOME["ffn"], SOME["causal heads"], SOME["all to all"]):
        plan = build(graph, Schedule(3, policy=policy))
        for row, batch in zip(range(0, len(plan.waits), 5), cycle(SMALL)):
            damaged = drop_waits(plan, row)
            monkeypatch.setattr(ragged, "BATCH_ENTRIES", 1 << 20)
            expected = judge(damaged)
            assert expected.startswith(CoverageError.__name__)
            monkeypatch.setattr(ragged, "BATCH_ENTRIES", batch)
            assert judge(damaged) == expected


@settings(EXAMPLES, max_examples=30 if RANDOM else 15)
@given(st.data())
def test_random_plans_are_judged_alike_in_any_batch(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    drawn = data.draw(schedules(graph))
    plan = build(graph, drawn)
    dropped = data.draw(st.sets(st.integers(0, max(len(plan.waits) - 1, 0)), max_size=len(plan.waits)))
    damaged = drop_waits(plan, *dropped) if len(plan.waits) else plan
    expected = judge(damaged)
    refused, unenforced = "CoverageError" in expected, bool(oracle.find_unenforced(damaged))
    assert refused <= unenforced
    assert refused or not unenforced or not oracle.races(damaged)  # what no wait enforces alone, several may
    with pytest.MonkeyPatch.context() as patch:
        for batch in SMALL:
            patch.setattr(ragged, "BATCH_ENTRIES", batch)
            assert build(graph, drawn) == plan
            found = judge(damaged)
            # Of several faults any may be told.
            assert found == expected if len(dropped) < 2 else found.partition(":")[0] == expected.partition(":")[0]


def test_edges_of_boxes_that_more_tiles_touch_than_others_are_counted(batch_entries: int) -> None:
    """Four of eight tiles read all of h, the others what is left of it."""
    window = Span(Affine(-3, (1,)), ALL.hi)
    last = Op("last", "sum", (8,), (Access("in", "h", (window,)),), (Access("out", "y", (I.block(1),)),))
    graph = program({"h": (8,), "y": (8,)}, write("fill", "h", (I.block(1),), (8,)), last)
    assert Dependencies(graph).count_edges() == 4 * 8 + 7 + 6 + 5 + 4


def test_what_a_large_set_of_waits_holds_is_found_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tile i reads a pair of h from 2i on, and element 4 - i, which is in the pair of tile 1 alone."""
    monkeypatch.setattr(waits, "_SMALL", 1)
    one = Span(Affine(4, (-1,)), Affine(5, (-1,)))
    reads = Access("pair", "h", (I.block(2),)), Access("one", "h", (one,))
    both = Op("both", "sum", (3,), reads, (Access("out", "y", (I.block(1),)),))
    graph = program({"h": (6,), "y": (3,)}, write("fill", "h", (I.block(1),), (6,)), both)
    plan = build(graph, Schedule(3))
    assert plan.waits.count.sum() == 3 + 2 + 3
    verify(plan)
    for batch in SMALL:
        monkeypatch.setattr(ragged, "BATCH_ENTRIES", batch)
        assert build(graph, Schedule(3)) == plan


# ---------------------------------------------------------------- boxes that are equal only as a whole


def test_equal_boxes_that_are_reached_in_other_chunks_get_waits_of_their_own() -> None:
    """Clipped to h, both tiles read h[0:4]; tile 0 with its second chunk, tile 1 with its first."""
    window = Span(Affine(-4, (4,), k_lo=1), Affine(-4, (4,), k_hi=1))
    reads, writes = (Access("in", "h", (window,)),), (Access("out", "y", (I.block(1),)),)
    scan = Op("scan", "scan", (2,), reads, writes, Reduction(8, 4))
    graph = program({"h": (4,), "y": (2,)}, write("fill", "h", (I.block(2),), (2,)), scan)
    plan = build(graph, Schedule(2, chunk_waits=True))
    items = plan.items
    at = {int(items.tile[n]): slice(*plan.waits.ptr[n : n + 2]) for n in np.flatnonzero(items.op == 1)}
    assert {tile: plan.waits.k[rows].tolist() for tile, rows in at.items()} == {0: [4], 1: [0]}
    verify(plan)
    assert oracle.find_unenforced(plan) == []

"""Proofs of launches with words: plans in which words are tensors that order nothing but themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il
from interlace.core.errors import CoverageError, GraphError, PlanError
from interlace.executors.megakernel import MegakernelExecutor
from interlace.graph.dependencies import Dependencies
from interlace.megakernel.ll_edges import LLEdges
from interlace.megakernel.ll_proof import _merge_runs, build_ll_plan, prove_ll
from interlace.megakernel.ll_search import _Search, select_ll_tensors
from interlace.megakernel.parts import build_bodies
from interlace.plan.plan import Plan

from .test_ll import ALL, ATTENTION, HEADS, PARTS, TOKENS, overwritten, plan, products

STEPS = [(splits, workers) for splits in (1, 2) for workers in (2, 4, 40)]


def parts(of: Plan, words: tuple[str, ...] | None = None) -> Plan:
    bodies = build_bodies(of.graph)
    return build_ll_plan(of, bodies, select_ll_tensors(of, bodies, il.RunOptions("meta", ll_tensors=words)))


@pytest.mark.parametrize(("splits", "workers"), STEPS)
def test_steps_of_a_model_are_proved_by_waits_alone(splits: int, workers: int) -> None:
    proof = il.verify(parts(plan(splits, workers)))
    assert [ordering.value for ordering, _ in proof.rests_on] == ["wait"]
    assert proof.in_sequence


@pytest.mark.parametrize("words", [PARTS, HEADS, (*HEADS, "heads"), (*TOKENS, *HEADS), ATTENTION, ALL])
@pytest.mark.parametrize("workers", [4, 40])
def test_what_options_name_is_proved_as_well(words: tuple[str, ...], workers: int) -> None:
    """An item that waits for a post waits for what the post's tile has read."""
    assert [ordering.value for ordering, _ in il.verify(parts(plan(2, workers), words)).rests_on] == ["wait"]


def test_inputs_that_nobody_reads_are_no_matter() -> None:
    graph = products(8, 64, 64)
    extra = il.Tensor("extra", (8, 8), il.bf16)
    more = replace(graph, tensors=(*graph.tensors, extra), inputs=(*graph.inputs, "extra"))
    il.verify(parts(il.build(more, il.Schedule(2)), ("inner",)))


def test_tiles_that_poll_or_leave_words_are_taken_apart_and_others_are_not() -> None:
    of = parts(plan(), PARTS)
    names = {op.name for op in of.graph.ops}
    assert {"layers.0.attend reads", "layers.0.attend words", "layers.0.combine stores", "layers.0.append"} <= names
    assert not {"layers.0.attend stores", "layers.0.combine reads", "layers.0.append reads"} & names
    assert len(of.items) == len(plan().items) + 2 * 6  # six tiles of attention a layer
    words = {tensor.name for tensor in of.graph.tensors if tensor.name.endswith(" as words")}
    assert words == {f"{name} as words" for name in PARTS}
    assert not {*PARTS} & {tensor.name for tensor in of.graph.tensors}  # nobody reads these as such


def test_a_graph_may_have_any_names() -> None:
    chain = products(8, 64, 64)
    of = il.build(chain, il.Schedule(2))
    names = {"x": "inner as words", "gate": "inner as words'", "up": "second has read", "down": "second reads"}

    def rename_access(access: Any) -> Any:
        return replace(access, tensor=names.get(access.tensor, access.tensor))

    ops = [replace(op, reads=tuple(map(rename_access, op.reads))) for op in chain.ops]
    ops[2] = replace(ops[2], name="second words")
    tensors = tuple(replace(t, name=names.get(t.name, t.name)) for t in chain.tensors)
    inputs = tuple(names.get(name, name) for name in chain.inputs)
    strange = il.build(replace(chain, tensors=tensors, ops=tuple(ops), inputs=inputs), il.Schedule(2))
    for words in (None, ("inner",)):
        found = [prove_ll(p, build_bodies(p.graph), il.RunOptions("meta", ll_tensors=words)) for p in (of, strange)]
        assert "inner" in found[0].sizes
        assert found[0] == found[1]
    assert {"inner as words''", "second has read'"} <= {t.name for t in parts(strange).graph.tensors}
    assert "second words'" in {op.name for op in parts(strange).graph.ops}


def test_a_fault_of_the_proofs_builder_is_no_fault_of_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "interlace.megakernel.ll_proof.build_ll_plan", lambda *given: products(8, 64, 64).tensor("none")
    )
    of = il.build(products(8, 64, 64), il.Schedule(2))
    with pytest.raises(GraphError, match="has no tensor 'none'"):
        prove_ll(of, build_bodies(of.graph), il.RunOptions("meta"))


def test_who_polls_waits_for_the_words_that_it_reads_and_who_waits_for_a_post_for_those_before_it() -> None:
    chain = il.build(products(8, 64, 64), il.Schedule(2))
    of = parts(chain, ("inner",))
    op = {op.name: o for o, op in enumerate(of.graph.ops)}
    posts = {o: {*of.items.post[of.items.op == o].tolist()} for o in op.values()}

    def list_awaited(name: str) -> set[int]:
        waits = of.waits
        rows = np.flatnonzero(of.items.op[waits.item] == op[name])
        return {s for r in rows for s in range(waits.first[r], waits.first[r] + waits.count[r] * waits.stride[r])}

    assert {"second reads", "second words", "third reads", "third stores"} <= op.keys()
    assert list_awaited("second reads") == posts[op["first"]]
    assert list_awaited("third reads") == set()  # weights alone
    assert list_awaited("third stores") == posts[op["second words"]] | posts[op["third reads"]]
    assert [a.tensor for a in of.graph.ops[op["second words"]].reads] == ["second has read"]


def test_semaphores_next_to_each_other_in_a_row_are_one_wait_if_their_thresholds_are_one() -> None:
    rows = np.array([[0, 0, 0, 0, 1, 1, 1], [3, 4, 6, 7, 8, 9, 10], [1, 1, 1, 1, 1, 1, 2]])
    assert _merge_runs(*rows).T.tolist() == [[0, 3, 2, 1], [0, 6, 2, 1], [1, 8, 2, 1], [1, 10, 1, 2]]
    assert _merge_runs(*rows[:, :0]).shape == (4, 0)


def test_dependencies_are_found_once_besides_those_of_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[il.Graph] = []
    init = Dependencies.__init__

    def count(self: Dependencies, graph: il.Graph) -> None:
        graphs.append(graph)
        init(self, graph)

    of = plan()
    monkeypatch.setattr(Dependencies, "__init__", count)
    assert prove_ll(of, build_bodies(of.graph), il.RunOptions("meta")).sizes
    assert [graph is of.graph for graph in graphs] in ([True], [True, False])  # a cached proof finds none anew


def always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


@pytest.mark.parametrize("dead", [True, False])
def test_stores_beside_words_that_come_late_are_refused(dead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of an earlier version, planted in a search that does not leave such words out."""
    of = overwritten(dead)
    il.verify(parts(of))
    monkeypatch.setattr(_Search, "_drop_unordered", always(False))
    with pytest.raises(CoverageError, match=r"'third stores', tile \(0, 0\) overwrites .* which op 'first stores'"):
        il.verify(parts(of))
    assert MegakernelExecutor(of, il.RunOptions("meta")).lowered.ll_edges.sizes == {}
    with pytest.raises(PlanError, match=r"with scaled, squares as words .* not safe: op 'third.*'first stores'"):
        MegakernelExecutor(of, il.RunOptions("meta", ll_tensors=("scaled", "squares")))


def polls_for_all(self: LLEdges, waits: Any, of: Plan, owner: Any) -> Any:
    return np.isin(of.items.op[waits.item], [*self.poll_sources])


def by_any(self: _Search, polled: Any) -> dict[int, int]:
    return {o: c for c, sources in polled.items() for o in sources if o in self.writes}


@pytest.mark.parametrize(("splits", "workers"), STEPS)
@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [(LLEdges, "_mask_polled_waits", polls_for_all), (_Search, "_find_end_pollers", by_any)],
    ids=["who polls waits for nothing", "an end is seen by who polls some"],
)
def test_waits_that_words_do_not_stand_for_are_missed(
    where: type, name: str, wrong: Any, splits: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(CoverageError, match="RAW through"):
        il.verify(parts(plan(splits, workers)))


def test_what_rests_on_the_order_of_a_worker_is_refused() -> None:
    """Without the wait of who appends for who has what attention read, one worker's own order is left."""
    of, bodies = plan(2, 1), build_bodies(plan(2, 1).graph)
    found = select_ll_tensors(of, bodies, il.RunOptions("meta", ll_tensors=ATTENTION))
    append = of.graph.op_index("layers.1.append")
    keep = of.items.op[of.waits.item] != append
    ptr = np.r_[0, np.cumsum(keep)][of.waits.ptr]
    columns = {name: getattr(of.waits, name)[keep] for name in ("first", "count", "stride", "threshold", "k")}
    without = replace(of, waits=replace(of.waits, ptr=ptr, **columns))
    orderings = [o.value for o, _ in il.verify(build_ll_plan(without, bodies, found)).rests_on]
    assert "worker" in orderings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interlace.megakernel.ll_proof.select_ll_tensors", always(found))
        assert prove_ll(without, bodies, il.RunOptions("meta")).sizes == {}
        with pytest.raises(
            PlanError, match=r"words order no items of one worker; name fewer in RunOptions\.ll_tensors"
        ):
            prove_ll(without, bodies, il.RunOptions("meta", ll_tensors=ATTENTION))

"""Words that are polled in place of semaphores: which tensors they are, what is left of waits, and on the emulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")  # which executors want wherever they are

import interlace as il  # noqa: E402
from interlace.core.errors import HangError, PlanError  # noqa: E402
from interlace.executors.one_launch import OneLaunchExecutor  # noqa: E402
from interlace.executors.watchdog import hang_error  # noqa: E402
from interlace.kernels.primitives.tagged_cuda import AWAITED  # noqa: E402
from interlace.plan.plan import Dispatch, Plan  # noqa: E402
from interlace.workloads import Decode, LlamaShape, decode_graph  # noqa: E402

from ..cases import TORCH  # noqa: E402
from ..emulator.build import MISSING  # noqa: E402
from ..emulator.walk import EmulatedLaunch, prepare  # noqa: E402

SHAPE, CAPACITY, POSITIONS = LlamaShape(2, 64, 64, 2, 1, 64, 97, tied=True), 192, (0, 5, 130)
PARTS = ("parts", "peak", "total")
HEADS = ("q_heads", *(f"layers.{n}.{of}_heads" for n in range(2) for of in "kv"))
ALL = (*PARTS, *HEADS)
#: What tiles of few rows take as words: results of others, with the squares of a norm where there is one.
TOKENS = ("inner", *(f"{x}_{of}" for x in ("embedded", "x_attended", "x") for of in ("scaled", "squares")))
NO_TAG = "return item.run * numbers + number", "return 0 * numbers + number"
NO_LOOK = "    if (sums.came() && own_peak.came() && own_total.came()) break;\n", "    break;\n"
_PART = "  const long long part = (((long long)tile.i"
NO_STORE = _PART, f"  if (!tile.i && tile.l) return;\n{_PART}"


@cache
def plan() -> Plan:
    """Two splits of each sequence, dealt to four workers."""
    graph = decode_graph(SHAPE, len(POSITIONS), CAPACITY, il.H200)
    if graph.op("layers.0.attend").grid[2] == 1:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("interlace.workloads.llama.splits", lambda *_: 2)
            graph = decode_graph(SHAPE, len(POSITIONS), CAPACITY, il.H200)
    return il.plan_graph(graph, il.H200, OneLaunchExecutor, workers=4)


def executor(words: tuple[str, ...] | None = None, of: Plan | None = None) -> OneLaunchExecutor:
    return OneLaunchExecutor(of or plan(), il.Options("meta", words=words))


def waits_of(run: OneLaunchExecutor, op: str) -> int:
    """Rows of waits of the items of an op, together."""
    mine = run._table.items["op"] == run.plan.graph.op_index(op)
    return int((run._table.items["wait_hi"] - run._table.items["wait_lo"])[mine].sum())


def posts_of(run: OneLaunchExecutor, op: str) -> int:
    """Items of an op that post."""
    mine = run._table.items["op"] == run.plan.graph.op_index(op)
    return int((run._table.items["post"][mine] >= 0).sum())


def test_who_polls_words_does_not_wait_and_who_leaves_them_does_not_post() -> None:
    semaphores, parts, every = executor(()), executor(PARTS), executor(ALL)
    assert [{*run._handed_over.sizes} for run in (semaphores, parts, every)] == [set(), {*PARTS}, {*PARTS, *HEADS}]
    assert [waits_of(run, "layers.1.combine") > 0 for run in (semaphores, parts, every)] == [True, False, False]
    assert [waits_of(run, "layers.1.attend") > 0 for run in (semaphores, parts, every)] == [True, True, False]
    assert [posts_of(run, "layers.1.attend") for run in (semaphores, parts, every)] == [6, 0, 0]
    assert [posts_of(run, "layers.1.q_heads") > 0 for run in (semaphores, parts, every)] == [True, True, False]
    # What appends to the cache awaits those who have what attention made of it.
    assert waits_of(every, "layers.1.append") == len(POSITIONS)
    assert posts_of(every, "layers.1.combine") == posts_of(semaphores, "layers.1.combine")


def test_by_default_they_are_of_ops_whose_tiles_all_run_at_once_or_that_load_ahead() -> None:
    graph = plan().graph
    of_append = {name for name in HEADS if name != "q_heads"}
    for workers, found in ((4, of_append), (6, {*PARTS, *HEADS}), (132, {*PARTS, *HEADS})):
        made = il.plan_graph(graph, il.H200, OneLaunchExecutor, workers=workers)
        assert {*executor(of=made)._handed_over.sizes} == found | {*TOKENS}
def test_layers_number_their_publications_apart() -> None:
    of = executor(ALL)._handed_over
    first, second = (plan().graph.op_index(f"layers.{n}.combine") for n in range(2))
    assert of.of(first).numbers["parts"] == plan().graph.op_index("layers.0.attend") + 1
    assert of.of(second).numbers["parts"] == plan().graph.op_index("layers.1.attend") + 1
    assert max(max(worded.numbers.values()) for worded in of.ops.values()) <= of.of(first).publications


def test_a_wait_for_more_than_is_polled_is_kept() -> None:
    """Under one semaphore for a row of tiles attention would await more of q than it reads."""
    shape = replace(SHAPE, layers=1, hidden=512, heads=8, kv_heads=4)
    graph = il.plan_graph(decode_graph(shape, 1, 8192, il.H200), il.H200, OneLaunchExecutor).graph
    found = [
        executor(of=il.build(graph, il.Choices(132, Dispatch.STATIC, policy=policy)))._handed_over.sizes
        for policy in (il.TileSync(), il.RowSync())
    ]
    assert [("q_heads" in sizes, "parts" in sizes) for sizes in found] == [(True, True), (False, False)]


def test_where_items_are_taken_when_they_no_longer_wait_nothing_is_words() -> None:
    queued = il.build(plan().graph, il.Choices(4, Dispatch.QUEUE, policy=il.RowSync()))
    assert executor(of=queued)._handed_over.sizes == {}
    with pytest.raises(PlanError, match=r"tensors \['parts', 'peak', 'total'\] cannot be words"):
        executor(PARTS, queued)


def test_what_nobody_polls_cannot_be_words() -> None:
    with pytest.raises(PlanError, match=r"tensors \['heads'\] cannot be words"):
        executor((*PARTS, "heads"))


@cache
def launches() -> dict[str, EmulatedLaunch]:
    one = replace(plan(), workers=1, items=replace(plan().items, worker=np.zeros_like(plan().items.worker)))

    def made(of: Plan, **given: Any) -> EmulatedLaunch:
        return EmulatedLaunch(of, stages=3, **given)

    runs = {
        "semaphores": made(plan(), words=(), at_once=True, timeout_s=1.0),
        "words": made(plan(), words=ALL, at_once=True, timeout_s=1.0),
        "no look": made(plan(), words=ALL, at_once=True, timeout_s=1.0, change=NO_LOOK),
        "no tag": made(plan(), words=ALL, at_once=True, timeout_s=1.0, change=NO_TAG),
        "no store": made(one, words=ALL, change=NO_STORE),
    }
    prepare([*runs.values()])
    return runs


def steps(name: str, count: int = 3, seed: int = 0) -> list[torch.Tensor]:
    """Logits and caches of steps, of one interleaving of blocks for each seed."""
    run, graph = launches()[name], plan().graph
    work = Decode(**{**vars(SHAPE), "batch": len(POSITIONS), "capacity": CAPACITY, "context": 0})
    given = dict(work.inputs(0)) | {"position": np.array(POSITIONS, np.float32)}
    t = {n: torch.from_numpy(value.copy()).to(TORCH[graph.tensor(n).dtype.name]) for n, value in given.items()}
    t |= {n: run.empty(n) for n in graph.outputs}
    out = []
    for step in range(count):
        for n in graph.intermediates:
            value = run.intermediate(n)
            value.fill_(float("nan") if value.is_floating_point() else -1)
        run.seed = seed + step
        run.run(t)
        out += [t["logits"].clone()]
        t["tokens"].copy_(t["next"])
        t["position"] += 1
    return [*out, t["layers.1.k_cache"], t["layers.1.v_cache"]]


@cache
def right() -> list[torch.Tensor]:
    return steps("semaphores")


def equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_steps_by_words_are_bit_for_bit_those_by_semaphores() -> None:
    assert equal(steps("words"), right())
    assert [str(fault) for fault in launches()["words"].faults] == []


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("name", ["no look", "no tag"])
def test_who_does_not_look_or_takes_words_of_another_run_is_wrong(name: str) -> None:
    assert any(not equal(steps(name, seed=10 * n), right()) for n in range(20)), "words were there whenever one looked"


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_words_that_never_come_end_in_an_error_that_names_who_did_not_leave_them() -> None:
    with pytest.raises(HangError, match=r"attend', tile \(0, 0, 1\) never posted"):
        steps("no store", 1)


def test_an_error_of_a_wait_for_words_names_their_tensors_and_who_did_not_leave_them() -> None:
    items, graph = plan().items, plan().graph
    combine, attend = (graph.op_index(f"layers.1.{name}") for name in ("combine", "attend"))
    lost, waits = (int(np.flatnonzero(items.op == op)[1]) for op in (attend, combine))
    done = np.ones(len(items), np.int64)
    done[lost] = 0
    waits -= 1
    error = hang_error(plan(), waits, AWAITED, attend + 1, 4, done)
    assert str(error).startswith(
        f"op 'layers.1.combine', tile (0, 0) (item {waits}) waited for words of 'parts' and 'peak' and 'total' before "
        "the watchdog fired; op 'layers.1.attend', tile (0, 0, 1) never posted."
    )
    assert (error.semaphore, error.producer) == (-1, "op 'layers.1.attend', tile (0, 0, 1)")

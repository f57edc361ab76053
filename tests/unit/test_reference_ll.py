"""Plans whose tensors are handed over word by word, in NumPy: right in any interleaving, and faults have names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import DeadlockError, DeviceError, PlanError
from interlace.kernels.bodies import Array, LLTensors

from .graphs import drop_waits
from .test_ll import ALL, EMBEDDED, HEADS, POSITIONS, SHAPE, TOKENS, plan, products

#: Runs ahead of which numbers of a step wrap in the first run and in the second, those of runs, and pass 2^31.
PUBLICATIONS = len(plan().graph.ops)
AHEAD = 2**32 // PUBLICATIONS, 2**32 // PUBLICATIONS - 1, 2**32 - 2, 2**31 // PUBLICATIONS - 1


@cache
def inputs() -> dict[str, Array]:
    """Return inputs of a step of two layers, three sequences and two splits of each."""
    work = il.workloads.Decode(**{**vars(SHAPE), "batch": len(POSITIONS), "capacity": 192, "context": 0})
    return {**work.make_inputs(0), "position": np.array(POSITIONS, np.float32)}


@cache
def run_by_semaphores() -> dict[str, Array]:
    """Run by semaphores."""
    return il.ReferenceExecutor(plan()).run(inputs())


def check(run: il.ReferenceExecutor, runs: int = 1) -> None:
    for _ in range(runs):
        found = run.run(inputs())
        for name, value in run_by_semaphores().items():
            np.testing.assert_array_equal(found[name], value, name)


@pytest.mark.parametrize("seed", [None, *range(6)])
@pytest.mark.parametrize(("splits", "words"), [(2, ALL), (2, None), (1, (*HEADS, *TOKENS, *EMBEDDED))])
def test_a_step_by_words_is_what_it_is_by_semaphores(
    splits: int, words: tuple[str, ...] | None, seed: int | None
) -> None:
    run = il.ReferenceExecutor(plan(splits), ll_tensors=words, seed=seed)
    semaphores = il.ReferenceExecutor(plan(splits))
    assert len(run._waits) < len(semaphores._waits)
    found, wanted = run.run(inputs()), semaphores.run(inputs())
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, name)


@pytest.mark.parametrize("first_run", AHEAD)
def test_numbers_of_the_run_before_are_not_those_of_this_one_where_they_wrap(first_run: int) -> None:
    check(il.ReferenceExecutor(plan(), ll_tensors=ALL, seed=1, first_run=first_run), runs=4)


def test_whoever_polls_goes_on_before_the_writer_has_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it polls is not what the tensor has: that is stored later, or not at all."""
    write = il.ReferenceExecutor._write

    def slow(self: il.ReferenceExecutor, op: int, *more: object) -> Iterator[str]:
        for state in write(self, op, *more):
            yield state
            if state == "posted" and self.plan.graph.ops[op].name == "layers.0.attend":
                yield from ["wrote"] * 100

    monkeypatch.setattr(il.ReferenceExecutor, "_write", slow)
    run = il.ReferenceExecutor(plan(2, 132), ll_tensors=ALL)
    check(run)
    assert run.trace is not None
    names = np.array(run.trace.ops)[run.trace.op]
    ends = run.trace.end_ns[names == "layers.0.attend"]
    assert run.trace.end_ns[names == "layers.0.combine"].min() < ends.min()
    assert all(np.isnan(run._memory[name]).all() for name in ("heads", "parts"))


def test_a_run_that_fails_leaves_nothing_to_the_next() -> None:
    run = il.ReferenceExecutor(plan(), ll_tensors=ALL, seed=2)
    references = run._references
    run._references = [*references[:-4], *[None] * 4]
    with pytest.raises(AttributeError):
        run.run(inputs())
    run._references = references
    check(run, runs=2)


@pytest.mark.parametrize("words", [np.array(["parts"]), np.array([]), ["parts"], "parts", (1,)])
def test_words_that_are_no_tuple_of_names_are_refused(words: object) -> None:
    with pytest.raises(DeviceError, match="give names of tensors as a tuple, or None"):
        il.ReferenceExecutor(plan(), ll_tensors=words)


def test_a_wrong_number_is_waited_for_until_nothing_moves() -> None:
    run = il.ReferenceExecutor(plan(), ll_tensors=ALL)
    assert run._numbered is not None
    ll_edges = run._numbered._ll_edges
    writer = plan().graph.op_index("layers.0.attend")
    wrong = {name: number + (name == "out") for name, number in ll_edges.get_ll(writer).epochs.items()}
    assert wrong != ll_edges.get_ll(writer).epochs  # of what it leaves, not of what it polls
    ops = {**ll_edges.ops, writer: LLTensors(wrong, PUBLICATIONS)}
    run._numbered._ll_edges = replace(ll_edges, ops=ops)
    with pytest.raises(DeadlockError, match="wait for posts or words that never come"):
        run.run(inputs())


@pytest.mark.parametrize("op", ["most", "next"])
def test_who_polls_nothing_waits_for_semaphores_and_is_wrong_without(op: str) -> None:
    assert all(is_wrong(op, seed) for seed in range(4))


def is_wrong(name: str, seed: int) -> bool:
    run = il.ReferenceExecutor(plan(), ll_tensors=ALL, seed=seed)
    assert run._numbered is not None
    left = replace(plan(), waits=run._numbered.waits)
    mine = np.flatnonzero(left.items.op[left.waits.item] == left.graph.op_index(name))
    run._numbered.waits = drop_waits(left, *mine).waits
    try:
        found = run.run(inputs())
    except DeadlockError:
        return True
    return any(not np.array_equal(found[output], value) for output, value in run_by_semaphores().items())


def test_words_are_those_that_a_launch_can_have() -> None:
    chain = il.build(products(8, 64, 64), il.Schedule(2))
    assert il.ReferenceExecutor(chain, ll_tensors=("inner",))._numbered is not None
    with pytest.raises(PlanError, match=r"tensors \['out'\] cannot be words"):
        il.ReferenceExecutor(chain, ll_tensors=("out",))

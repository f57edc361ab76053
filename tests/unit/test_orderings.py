"""Law 2: a proof says on which orderings it rests, and an executor refuses one that it does not keep."""

from __future__ import annotations

import re

import pytest

import interlace as il
from interlace.core.errors import CoverageError
from interlace.executors.device import DeviceExecutor
from interlace.executors.reference import ReferenceExecutor
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch
from interlace.plan.verify import Proof, verify
from interlace.planner.build import build
from interlace.policies.schedule import Assignment, Schedule
from interlace.policies.sync import NoSync, RowSync, TileSync

from .graphs import build_gated, pair, two_matmuls

LAUNCH, WORKER, WAIT = Ordering.LAUNCH, Ordering.WORKER, Ordering.WAIT
EXECUTORS: dict[type[DeviceExecutor] | type[ReferenceExecutor], set[Ordering]] = {
    il.ReferenceExecutor: {WORKER, WAIT},
    il.SerialExecutor: {LAUNCH},
    il.CudaGraphExecutor: {LAUNCH},
    il.PdlExecutor: {LAUNCH},
    il.StreamsExecutor: {LAUNCH},
    il.SemaphoreStreamsExecutor: {WAIT},
    il.PersistentExecutor: {WORKER, WAIT},
    il.MegakernelExecutor: {WAIT},
}


def by_worker(dispatch: Dispatch = Dispatch.TICKET) -> Proof:
    return verify(build(two_matmuls(), Schedule(1, dispatch, policy=NoSync())))


def prove_mixed() -> Proof:
    """``gate`` and ``mul`` post, ``up`` leaves its consumer to the order of the worker."""
    return verify(build(build_gated(), Schedule(1, policy={"up": NoSync()})))


def test_a_proof_names_each_ordering_that_it_rests_on_with_a_dependency() -> None:
    ((ordering, edge),) = by_worker().rests_on
    assert ordering is WORKER
    assert str(edge) == (
        "op 'down', tile (0, 0) reads hidden[0:2, 0:8] from k = 0 on, which op 'up', tile (0, 0) writes "
        "(RAW through 'hidden', argument 'a')"
    )
    assert [o for o, _ in verify(build(two_matmuls(), Schedule(1, policy=RowSync()))).rests_on] == [WAIT]
    rests = dict(prove_mixed().rests_on)
    assert rests.keys() == {WAIT, WORKER}
    assert (rests[WORKER].op, rests[WORKER].consumer) == ("up", "op 'mul', tile (0, 0)")
    assert rests[WAIT].op in {"gate", "mul"}
    assert [o for o, _ in verify(build(pair(), Schedule(3))).rests_on] == [WAIT]


def test_static_dispatch_rests_on_workers_where_no_wait_stands() -> None:
    plan = build(two_matmuls(), Schedule(1, Dispatch.STATIC, Assignment.BALANCED, policy=NoSync()))
    assert [ordering for ordering, _ in verify(plan).rests_on] == [WORKER]


@pytest.mark.parametrize("executor", EXECUTORS, ids=lambda cls: cls.name)
def test_every_executor_takes_what_it_keeps_and_refuses_the_rest(executor: type[DeviceExecutor]) -> None:
    assert executor.enforced_orderings == EXECUTORS[executor]
    waits = verify(build(two_matmuls(), Schedule(4, policy=RowSync())))
    assert executor.prove(waits) is waits
    for proof in (by_worker(), by_worker(Dispatch.STATIC), prove_mixed()):
        if executor.enforced_orderings & {WORKER, LAUNCH}:
            assert executor.prove(proof) is proof
            continue
        with pytest.raises(CoverageError, match=f"the {executor.name} executor keeps no such order"):
            executor.prove(proof)


def test_the_refusal_names_the_edge_and_a_policy_that_would_do() -> None:
    with pytest.raises(CoverageError) as caught:
        il.SemaphoreStreamsExecutor.prove(prove_mixed())
    assert str(caught.value).startswith("op 'mul', tile (0, 0) reads u[0:2, 0:2], which op 'up', tile (0, 0) writes")
    op, policy = re.findall(r"plan op '(\w+)' with .* such as (\w+)\(\)", str(caught.value))[0]
    assert (op, policy) == ("up", "TileSync")
    mended = verify(build(build_gated(), Schedule(1, policy={op: TileSync()})))
    assert il.SemaphoreStreamsExecutor.prove(mended) is mended


class Own(DeviceExecutor):
    name = "own"


def test_an_executor_that_declares_nothing_runs_no_dependency() -> None:
    waits = verify(build(two_matmuls(), Schedule(4, policy=RowSync())))
    with pytest.raises(CoverageError, match="only a wait enforces that, and the own executor does not wait"):
        Own.prove(waits)

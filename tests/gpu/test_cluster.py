"""The one launch in clusters is right for every shape of them, under delays, and gives the same bits run after run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import interlace as il
from interlace.graph.access import Ints
from interlace.kernels.bodies import Cluster

from ..cases import check_missing_posts, ffn_shape, relative_error
from .cases import one_launch as made

D = il.Dispatch


def tile(m: int, n: int, k: int = 64, swap_ab: bool = False) -> il.MatmulTile:
    return il.MatmulTile(m, n, k, num_warps=8, swap_ab=swap_ab)


@dataclass(frozen=True)
class Rectangles(il.Order):
    """The tiles of a cluster behind each other."""

    cluster: Cluster

    def rank(self, row: Ints, column: Ints, rows: int, columns: int) -> tuple[Ints, ...]:
        across, along = self.cluster.rows, self.cluster.columns
        return row // across, column // along, row % across, column % along


@pytest.mark.parametrize("dispatch", [D.TICKET, D.STATIC])
@pytest.mark.parametrize("kind", ["relu", "gated"])
@pytest.mark.parametrize("m", [500, 512])
@pytest.mark.parametrize("cluster", [Cluster(2), Cluster(1, 2), Cluster(2, 2), Cluster(4), Cluster(1, 4)], ids=str)
def test_shared_operands_are_right(cluster: Cluster, m: int, kind: str, dispatch: D) -> None:
    schedule = il.Schedule(32, dispatch, order=Rectangles(cluster))
    up, down = tile(128, 128), tile(256, 128, swap_ab=True) if cluster.rows < 4 else tile(128, 256)
    shape = ffn_shape(kind, 1024, 2048 - 8)  # the last tile has fewer weights
    run, c = made(m, shape, up, down, schedule=schedule, cluster=cluster, jitter_s=5e-6, timeout_s=1.0)
    inputs = c.inputs(m)
    gold, out, first = c.compute_exact(inputs), c.make_poisoned_output(), None
    unfused = relative_error(c.answer(inputs), gold)
    for _ in range(5):
        out.fill_(float("nan"))
        run.get_intermediate("hidden").fill_(float("nan"))
        run.run({**inputs, "out": out})
        run.synchronize()
        assert relative_error(out, gold) <= 1.5 * unfused
        first = out.clone() if first is None else first
        assert torch.equal(out, first)


@pytest.mark.parametrize("dependent", [False, True], ids=["after", "dependent"])
def test_runs_back_to_back_give_the_same_bits(dependent: bool) -> None:
    schedule = il.Schedule(132, order=il.GroupedColumnMajor(2))
    options = {"cluster": Cluster(2), "dependent_launch": dependent, "jitter_s": 1e-6, "timeout_s": 1.0}
    run, c = made(256, ffn_shape("relu", 512, 1024), tile(128, 64), tile(128, 64), schedule=schedule, **options)
    inputs, out = c.inputs(0), c.make_poisoned_output()
    run.run({**inputs, "out": out})
    first = out.clone()
    for _ in range(20):
        out.fill_(float("nan"))
        for _ in range(50):
            run.run({**inputs, "out": out})
        assert torch.equal(out, first)
    run.synchronize()


@pytest.mark.parametrize("dispatch", [D.TICKET, D.STATIC])
def test_a_missing_post_of_one_block_ends_all_and_the_next_run_is_right(dispatch: D) -> None:
    schedule = il.Schedule(132, dispatch, order=il.GroupedColumnMajor(2))
    run, c = made(
        256, ffn_shape("relu"), tile(128, 64), tile(128, 64), schedule=schedule, cluster=Cluster(2), timeout_s=0.05
    )
    inputs, out = c.inputs(0), c.make_poisoned_output()
    check_missing_posts(run, {**inputs, "out": out}, [3], r"waited for semaphore.*never posted")
    assert relative_error(out, c.compute_exact(inputs)) < 1e-2


def test_a_trace_has_each_group_in_one_cluster() -> None:
    schedule, options = il.Schedule(132, order=il.GroupedColumnMajor(2)), {"cluster": Cluster(2), "trace": True}
    run, c = made(512, ffn_shape("gated"), tile(128, 64), tile(128, 128), schedule=schedule, **options)
    for _ in range(2):
        run.run({**c.inputs(0), "out": c.make_poisoned_output()})
    trace = run.read_trace()
    assert (trace.wait_ns <= trace.start_ns).all()
    assert (trace.start_ns <= trace.end_ns).all()
    assert (trace.worker[0::2] % 2 == 0).all()
    assert (trace.worker[1::2] == trace.worker[0::2] + 1).all()

"""Blocks of the one launch in clusters: what is compiled, and what is refused before that."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import DeviceError, PlanError, ShapeError, TooManyWorkersError
from interlace.executors.clusters import check_resident
from interlace.kernels.lint import lint
from interlace.planner.settings import choices, retiled
from interlace.policies.setting import OpSetting, Setting

D = il.Dispatch
TILE = il.MatmulTile(128, 128, 64, num_warps=8)


def ffn(m: int, outer: int = 512, inner: int = 1024) -> il.Graph:
    return il.workloads.ffn(m, il.workloads.FFNShape(outer, inner, il.Activation.RELU, False), il.bf16)


def launch(graph: il.Graph, cluster: int, parts: int = 1, workers: int = 8, **changed: object) -> il.OneLaunchExecutor:
    setting = Setting(tuple((op.name, OpSetting(TILE.params, parts, group=4)) for op in graph.ops))
    tiled = retiled(graph, setting)
    plan = il.build(tiled, replace(choices(tiled, setting, workers), **changed))
    return il.OneLaunchExecutor(plan, il.Options("meta", cluster=cluster))


@pytest.mark.parametrize(("cluster", "dispatch"), [(1, D.TICKET), (2, D.TICKET), (4, D.STATIC)])
def test_weights_come_in_shares_for_all_blocks(cluster: int, dispatch: D) -> None:
    run = launch(ffn(512), cluster, dispatch=dispatch)
    ptx, resources = run.binary.ptx, run.binary.resources
    assert lint(ptx, posts=True, waits=True, posting_warp=True) == []
    assert resources.spill_bytes == 0
    assert run.binary.warnings == ()
    assert run.composition.shared_bytes <= il.H200.smem_bytes
    loads = re.findall(r"cp\.async\.bulk\.tensor\.2d\S*", ptx)
    shared = [load for load in loads if "multicast::cluster" in load]
    assert len(loads) == 4
    assert len(shared) == (2 if cluster > 1 else 0)  # of weights, in the code of each op
    assert ("barrier.cluster" in ptx) == (cluster > 1)
    assert ("st.async" in ptx) == (cluster > 1 and dispatch is D.TICKET)
    assert "CLUSTER" not in ptx  # constants of no memory


@pytest.mark.parametrize(
    ("graph", "changed", "error", "says"),
    [
        (ffn(512), {"dispatch": D.QUEUE}, PlanError, "queue dispatch gives them one by one"),
        (ffn(512), {"workers": 7}, PlanError, "7 workers, which are no clusters of 2"),
        (ffn(512), {"parts": 2}, PlanError, "is a part of a tile"),
        (ffn(384), {}, PlanError, "have unlike weights"),
        (ffn(512), {"order": il.RowMajor()}, PlanError, "have unlike weights"),
        (ffn(512, 520), {}, ShapeError, "use multiples of 16"),
    ],
)
def test_what_is_no_groups_over_the_same_weights_is_refused(
    graph: il.Graph, changed: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        launch(graph, 2, **changed)


def test_what_loads_nothing_for_others_or_finds_no_room_is_refused() -> None:
    with pytest.raises(DeviceError, match="a cluster has 1, 2 or 4 blocks"):
        il.Options(cluster=3)
    with pytest.raises(TooManyWorkersError, match="keeps 3 clusters of 2 blocks"):
        check_resident(3, 2, 8)
    check_resident(4, 2, 8)


def test_a_group_of_which_one_waits_for_what_comes_behind_another_is_refused() -> None:
    setting = Setting(tuple((name, OpSetting(TILE.params)) for name in ("up", "down")))
    tiled = retiled(ffn(256), setting)
    # Row panels one after the other, and one to each worker: what the second waits for comes behind the first's.
    given = replace(choices(tiled, setting, 2), dispatch=D.STATIC, interleaving=il.Panels(1))
    plan = il.build(tiled, given)
    items = plan.items
    panels = [tiled.ops[op].coords(tile[None])[0, 0] for op, tile in zip(items.op, items.tile, strict=True)]
    plan = replace(plan, items=replace(items, worker=np.array(panels)))
    il.verify(plan)
    with pytest.raises(PlanError, match="together, and one waits for what comes behind"):
        il.OneLaunchExecutor(plan, il.Options("meta", cluster=2))

"""Blocks of the megakernel in clusters: compilation, and what is rejected before it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

import interlace as il
from interlace.core.errors import DeviceError, PlanError, ShapeError, TooManyWorkersError
from interlace.executors import megakernel
from interlace.kernels.bodies import NO_CLUSTER, Cluster
from interlace.kernels.lint import lint
from interlace.megakernel.clusters import check_resident_blocks
from interlace.policies.sync import ConsumerSync

from .policies import count_hinted_loads

D = il.Dispatch
TILE = il.MatmulTile(128, 128, 64, num_warps=8)


@dataclass(frozen=True)
class Clusters(il.Order):
    """An order with consecutive tiles in each cluster."""

    cluster: Cluster

    def rank(self, row: NDArray, column: NDArray, rows: int, columns: int) -> tuple[NDArray, ...]:
        across, along = self.cluster.rows, self.cluster.columns
        return row // across, column // along, row % across, column % along


def ffn(m: int, outer: int = 512, inner: int = 1024) -> il.Graph:
    return il.workloads.ffn(m, il.workloads.FFNShape(outer, inner, il.Activation.RELU, False), il.bf16)


def launch(
    graph: il.Graph,
    cluster: Cluster,
    tile: il.MatmulTile = TILE,
    parts: int = 1,
    workers: int = 8,
    **changed: object,
) -> il.MegakernelExecutor:
    split = {op.name: il.SplitK(parts) for op in graph.ops} if parts > 1 else il.WholeTiles()
    tiles = {op.name: dict(tile.params) for op in graph.ops}
    given = {"policy": ConsumerSync(), "order": Clusters(cluster), **changed}
    plan = il.build(graph, il.Schedule(workers, split=split, tiles=tiles, **given))
    return il.MegakernelExecutor(plan, il.RunOptions("meta", cluster=cluster))


@pytest.mark.parametrize(
    ("cluster", "dispatch"), [(NO_CLUSTER, D.TICKET), (Cluster(2), D.TICKET), (Cluster(2, 2), D.STATIC)]
)
def test_operands_come_in_shares_for_all_blocks_that_need_them(cluster: Cluster, dispatch: D) -> None:
    run = launch(ffn(512), cluster, dispatch=dispatch)
    ptx, resources = run.binary.ptx, run.binary.resources
    assert lint(ptx, posts=True, waits=True, posting_warp=True) == []
    assert resources.spill_bytes == 0
    assert run.binary.warnings == ()
    assert run.composition.shared_bytes <= il.H200.smem_bytes
    loads = re.findall(r"cp\.async\.bulk\.tensor\.2d\S*", ptx)
    shared = [load for load in loads if "multicast::cluster" in load]
    assert len(loads) == 4
    assert len(shared) == 2 * (cluster.rows > 1) + 2 * (cluster.columns > 1)  # for either operand, in each op's code
    assert count_hinted_loads(ptx) == (2, 2)  # weights, tokens
    assert ("barrier.cluster" in ptx) == (cluster != NO_CLUSTER)
    assert ("st.async" in ptx) == (cluster != NO_CLUSTER and dispatch is D.TICKET)
    assert "CLUSTER" not in ptx  # the constants take no memory


@pytest.mark.parametrize(
    ("graph", "changed", "error", "says"),
    [
        (ffn(512), {"dispatch": D.QUEUE}, PlanError, "queue dispatch gives them one by one"),
        (ffn(512), {"workers": 7}, PlanError, "7 workers, which are no clusters of 2 x 1"),
        (ffn(512), {"parts": 2}, PlanError, "is a part of a tile"),
        (ffn(384), {}, PlanError, "do not share tokens or weights"),
        (ffn(512), {"order": il.RowMajor()}, PlanError, "do not share tokens or weights"),
        (ffn(512), {"tile": il.MatmulTile(128, 104, 64, num_warps=8)}, ShapeError, "use a multiple of 16"),
    ],
)
def test_what_is_no_groups_over_the_same_weights_is_refused(
    graph: il.Graph, changed: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        launch(graph, Cluster(2), **changed)


def test_what_loads_nothing_for_others_or_finds_no_room_is_refused() -> None:
    with pytest.raises(DeviceError, match="use 1, 2 or 4 blocks"):
        Cluster(3)
    with pytest.raises(DeviceError, match=r"such as Cluster\(2, 1\)"):
        il.RunOptions(cluster=2)
    with pytest.raises(TooManyWorkersError, match="keeps 3 clusters of 2 blocks"):
        check_resident_blocks(3, 2, 8)
    check_resident_blocks(4, 2, 8)


class Placed:
    """A loaded kernel of which the device keeps ``clusters`` clusters resident; it must not be launched."""

    def __init__(self, clusters: int) -> None:
        self.clusters = clusters
        self.asked: list[tuple[int, int]] = []

    def count_resident_clusters(self, threads: int, cluster: int) -> int:
        self.asked.append((threads, cluster))
        return self.clusters

    def prepare(self, *arguments: object, **options: object) -> None:
        raise AssertionError("it would be launched")


@pytest.mark.parametrize(("dispatch", "enough", "needed"), [(D.TICKET, 1, 2), (D.STATIC, 4, 8)])
def test_clusters_that_the_device_does_not_place_are_refused_before_they_are_launched(
    dispatch: D, enough: int, needed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Static schedules need all workers resident, ticket dispatch one cluster."""
    run = launch(ffn(512), Cluster(2), dispatch=dispatch)
    (one,) = run.build_launches()
    for clusters in {0, enough - 1}:
        kernel = Placed(clusters)
        monkeypatch.setattr(megakernel, "load_kernel", lambda *_, kernel=kernel: kernel)
        with pytest.raises(TooManyWorkersError, match=rf"keeps {clusters} clusters of 2 .* and {needed} blocks would"):
            one.load()
        assert kernel.asked == [(384, 2)]
    kernel = Placed(enough)
    monkeypatch.setattr(megakernel, "load_kernel", lambda *_: kernel)
    assert run.loaded_kernel is kernel


@pytest.mark.parametrize(
    ("m", "changed", "pairs"),
    [
        (256, {"dispatch": D.STATIC}, True),
        (256, {"dispatch": D.STATIC, "parts": 2}, True),  # for one part of k
        (512, {"dispatch": D.STATIC}, True),
        (128, {"dispatch": D.STATIC}, False),  # all have different weights
        (384, {"dispatch": D.STATIC, "workers": 4}, True),  # two out of three
        (256, {"dispatch": D.STATIC, "workers": 7}, False),
        (256, {"dispatch": D.TICKET}, False),  # workers of items are unknown
        (256, {"dispatch": D.STATIC, "order": il.RowMajor()}, False),
    ],
)
def test_blocks_that_load_the_same_weights_are_placed_in_pairs_where_there_is_room(
    m: int, changed: dict[str, object], pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"order": Clusters(Cluster(2)), **changed}
    for clusters in (4, 3):
        run = launch(ffn(m), NO_CLUSTER, **options)
        kernel = Placed(clusters)
        monkeypatch.setattr(megakernel, "load_kernel", lambda *_, kernel=kernel: kernel)
        room = 2 * clusters >= options.get("workers", 8)
        assert run.placement_size == (2 if pairs and room else 1)
        assert kernel.asked == [(384, 2)] * pairs


def test_those_of_a_cluster_are_placed_together_anyhow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megakernel, "load_kernel", lambda *_: Placed(4))
    assert launch(ffn(512), Cluster(2, 2), dispatch=D.STATIC).placement_size == 4


def test_a_group_of_which_one_waits_for_what_comes_behind_another_is_refused() -> None:
    # Row panels in sequence, one per worker: the items that the second panel waits for follow the first panel's items.
    tiles = {name: dict(TILE.params) for name in ("up", "down")}
    schedule = il.Schedule(2, D.STATIC, policy=ConsumerSync(), interleaving=il.RowPanels(1), tiles=tiles)
    plan = il.build(ffn(256), schedule)
    items = plan.items
    panels = [
        plan.graph.ops[op].compute_coords(tile[None])[0, 0] for op, tile in zip(items.op, items.tile, strict=True)
    ]
    plan = replace(plan, items=replace(items, worker=np.array(panels)))
    il.verify(plan)
    with pytest.raises(PlanError, match="together, and one waits for what comes after"):
        il.MegakernelExecutor(plan, il.RunOptions("meta", cluster=Cluster(2)))

"""Sync policies: which tiles share a semaphore, and that sharing never loses a dependency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.devices import H200
from interlace.core.errors import OrderError
from interlace.graph.access import ALL, Access, K, axes, constant_span
from interlace.graph.dependencies import Dependencies, Hazard
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Reduction
from interlace.kernels.matmul.tile import TileShape
from interlace.models.llama import LlamaShape, build_decode_graph
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import verify
from interlace.planner.build import build
from interlace.policies.schedule import Schedule
from interlace.policies.splits import SplitK
from interlace.policies.sync import (
    BatchedRowSync,
    ColumnSync,
    ConsumerSync,
    Conv2DSync,
    KernelSync,
    NoSync,
    RowSync,
    StridedSync,
    SyncPolicy,
    TileSync,
)

from ..draws import EXAMPLES
from . import oracle
from .graphs import (
    POLICIES,
    ScatteredSync,
    build_gated,
    column,
    conv_chain,
    graphs,
    item_at,
    pair,
    pointwise,
    program,
    schedules,
    two_matmuls,
    wait_rows,
)

ALL_POLICIES = (
    TileSync(),
    RowSync(),
    ColumnSync(),
    BatchedRowSync(2),
    StridedSync(2),
    Conv2DSync(),
    KernelSync(),
    ConsumerSync(),
    ScatteredSync(3, seed=0),
)
GRAPHS = {"two matmuls": two_matmuls(), "gated": build_gated(), "convolutions": conv_chain()}


def numbers(policy: SyncPolicy, grid: tuple[int, ...]) -> list[int]:
    """Semaphore of every tile, row-major."""
    coords = np.stack(np.unravel_index(np.arange(np.prod(grid)), grid), axis=1)
    return policy.assign_semaphores(coords, grid).tolist()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (TileSync(), [0, 1, 2, 3, 4, 5]),
        (RowSync(), [0, 0, 0, 1, 1, 1]),
        (ColumnSync(), [0, 1, 2, 0, 1, 2]),
        (BatchedRowSync(2), [0, 0, 0, 0, 0, 0]),
        (StridedSync(2), [0, 1, 0, 2, 3, 2]),
        (KernelSync(), [0, 0, 0, 0, 0, 0]),
        (ConsumerSync(), [0, 1, 2, 3, 4, 5]),
        (NoSync(), [-1] * 6),
        (BatchedRowSync(1), [0, 0, 0, 1, 1, 1]),
        (StridedSync(1), [0, 0, 0, 1, 1, 1]),
        (StridedSync(9), [0, 1, 2, 3, 4, 5]),
        (Conv2DSync(), [0, 0, 0, 1, 1, 1]),
    ],
    ids=str,
)
def test_semaphores_of_a_grid_of_two_by_three(policy: SyncPolicy, expected: list[int]) -> None:
    assert numbers(policy, (2, 3)) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (TileSync(), [0, 1, 2, 3, 4, 5, 6, 7]),
        (RowSync(), [0, 0, 0, 0, 1, 1, 1, 1]),
        (ColumnSync(), [0, 1, 0, 1, 0, 1, 0, 1]),
        (StridedSync(1), [0, 0, 1, 1, 2, 2, 3, 3]),
        (Conv2DSync(), [0, 0, 1, 1, 2, 2, 3, 3]),
    ],
    ids=str,
)
def test_semaphores_of_a_grid_of_two_by_two_by_two(policy: SyncPolicy, expected: list[int]) -> None:
    assert numbers(policy, (2, 2, 2)) == expected


@pytest.mark.parametrize("policy", ALL_POLICIES, ids=str)
def test_grids_of_one_dimension_work_too(policy: SyncPolicy) -> None:
    verify(build(pair(5), Schedule(2, policy=policy)))


@pytest.mark.parametrize(
    ("policy", "name"), [(BatchedRowSync, "BatchedRowSync rows"), (StridedSync, "StridedSync stride")]
)
def test_sizes_are_positive(policy: type, name: str) -> None:
    with pytest.raises(OrderError, match=f"{name} is 0; use a positive number"):
        policy(0)


@dataclass(frozen=True)
class HalfRowSync(SyncPolicy):
    """The policy that the module shows as an example of a user's own."""

    def assign_semaphores(self, coords, grid):
        half = coords[:, 1] >= grid[1] // 2
        return coords[:, 0] * 2 + half


def test_users_policy_of_a_few_lines_builds_and_verifies() -> None:
    graph = two_matmuls(4, (2, 8, 2), up=(2, 2), down=(2, 2), block=4)
    plan = build(graph, Schedule(3, policy={"up": HalfRowSync()}, split={"down": SplitK(2)}))
    assert plan.semaphores == 4
    assert plan.items.post[plan.items.op == 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    second_half = item_at(plan, "down", 1, k_lo=4)
    (row,) = wait_rows(plan, second_half)
    assert [int(getattr(plan.waits, c)[row]) for c in ("first", "count", "threshold")] == [3, 1, 2]
    assert verify(plan).edges_by_wait == 8  # two items a tile of down, two tiles of up for each


@pytest.mark.parametrize(
    ("policy", "semaphores", "wait"),
    [
        (TileSync(), 16, (4, 4, 1)),
        (RowSync(), 4, (1, 1, 4)),
        (ColumnSync(), 4, (0, 4, 4)),
        (BatchedRowSync(2), 2, (0, 1, 8)),
        (StridedSync(2), 8, (2, 2, 2)),
        (KernelSync(), 1, (0, 1, 16)),
        (ConsumerSync(), 4, (1, 1, 4)),
    ],
    ids=str,
)
def test_thresholds_and_ranges_follow_from_the_policy(
    policy: SyncPolicy, semaphores: int, wait: tuple[int, int, int]
) -> None:
    plan = build(two_matmuls(), Schedule(2, policy=policy))
    assert plan.semaphores == semaphores
    (row,) = wait_rows(plan, item_at(plan, "down", 2))  # tile (1, 0)
    assert tuple(int(getattr(plan.waits, c)[row]) for c in ("first", "count", "threshold")) == wait


def test_semaphores_that_nobody_awaits_are_not_posted() -> None:
    plan = build(two_matmuls(), Schedule(2))
    assert (plan.items.post[plan.items.op == 1] == -1).all()
    plan = build(pair(), Schedule(2, policy=NoSync()))
    assert plan.semaphores == 0
    assert (plan.items.post == -1).all()
    assert len(plan.waits) == 0


def test_gaps_in_a_users_numbers_cost_no_semaphores() -> None:
    class Sparse(SyncPolicy):
        def assign_semaphores(self, coords, grid):
            return coords[:, 0] * 1000 + 17

    plan = build(pair(3), Schedule(2, policy={"a": Sparse()}))
    assert plan.semaphores == 3
    assert plan.items.post.tolist() == [0, 1, 2, -1, -1, -1]


def test_policy_may_leave_out_tiles_that_nobody_needs() -> None:
    class FirstHalf(SyncPolicy):
        def assign_semaphores(self, coords, grid):
            return np.where(coords[:, 0] < 2, coords[:, 0], -1)

    shapes = {"x": (4,), "y": (4,), "z": (2,)}
    graph = program(shapes, pointwise("a", "x", "y", (4,), (1,)), pointwise("b", "y", "z", (2,), (1,)))
    plan = build(graph, Schedule(2, policy={"a": FirstHalf()}))
    assert plan.items.post.tolist() == [0, 1, -1, -1, -1, -1]
    assert verify(plan).edges_by_wait == 2


def test_policy_of_the_wrong_length_is_refused() -> None:
    class One(SyncPolicy):
        def assign_semaphores(self, coords, grid):
            return column(0)

    with pytest.raises(OrderError, match=r"policy of op 'a' gave an array of shape \(1,\); give one of shape \(2,\)"):
        build(pair(), Schedule(2, policy=One()))


@pytest.mark.parametrize("setting", ["policy", "order", "split"])
def test_settings_for_unknown_ops_are_refused(setting: str) -> None:
    expected = r"a schedule names ops \['nope'\]; graph 'test' has \['a', 'b'\]"
    with pytest.raises(OrderError, match=expected):
        build(pair(), Schedule(2, **{setting: {"nope": getattr(Schedule(1), setting)}}))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("policy", ALL_POLICIES, ids=str)
@pytest.mark.parametrize("chunk_waits", [False, True], ids=["item", "chunk"])
@pytest.mark.parametrize("dispatch", Dispatch)
def test_policies_only_coarsen(name: str, policy: SyncPolicy, chunk_waits: bool, dispatch: Dispatch) -> None:
    plan = build(GRAPHS[name], Schedule(3, dispatch, policy=policy, chunk_waits=chunk_waits))
    proof = verify(plan)
    assert proof.in_sequence
    if not chunk_waits:
        assert proof.edges == proof.edges_by_wait == len(oracle.visible(GRAPHS[name]))


@EXAMPLES
@given(st.data(), graphs(max_ops=3), POLICIES)
def test_coarser_policy_never_waits_for_fewer_tiles(data: st.DataObject, graph: Graph, policy: SyncPolicy) -> None:
    """Whom those have waited for that an item waits for, it need not name (``plan/implied``)."""
    drawn = data.draw(schedules(graph, st.just(policy)))

    def list_ended(policy: SyncPolicy) -> list[set[oracle.Tile]]:
        plan = build(graph, Schedule(drawn.workers, policy=policy, split=drawn.split))
        sequence = oracle.items(plan)
        found: list[set[oracle.Tile]] = []
        for item in sequence:
            before = [n for n, other in enumerate(sequence) if other.post in item.awaits]
            found.append(set().union(*({sequence[n].tile} | found[n] for n in before)))
        return found

    assert all(coarse >= fine for coarse, fine in zip(list_ended(policy), list_ended(TileSync()), strict=True))


# ---------------------------------------------------------------- by consumers


def posts(plan: Plan, op: str) -> list[int]:
    """Semaphore of every tile of an op, numbered from 0 on."""
    at = [o.name for o in plan.graph.ops].index(op)
    post = plan.items.post[plan.items.op == at][np.argsort(plan.items.tile[plan.items.op == at], kind="stable")]
    return (post - post.min()).tolist()


def test_tiles_share_a_semaphore_exactly_if_the_same_items_need_them() -> None:
    def read(name: str, lo: int, hi: int) -> Op:
        reads = Access("in", "y", (constant_span(lo, hi),)), Access("other", "x", (constant_span(0, 1),))
        return Op(name, "reads", (1,), reads, (Access("out", name, (ALL,)),))

    shapes = {"x": (8,), "y": (8,), "d": (1,), "e": (1,), "z": (1,)}
    last = Op("z", "adds", (1,), tuple(Access(n, n, (ALL,)) for n in "de"), (Access("out", "z", (ALL,)),))
    u = pointwise("u", "x", "y", (8,), (1,))
    plan = build(program(shapes, u, read("d", 0, 5), read("e", 3, 8), last), Schedule(2, policy=ConsumerSync()))
    assert posts(plan, "u") == [0, 0, 0, 1, 1, 2, 2, 2]
    assert [plan.waits.count[wait_rows(plan, item_at(plan, op, 0))].sum() for op in "de"] == [2, 2]


def test_parts_of_a_split_reduction_are_different_consumers() -> None:
    split = {"down": SplitK(2)}
    plan = build(two_matmuls(), Schedule(2, policy=ConsumerSync(), split=split))
    assert posts(plan, "up") == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    whole = build(two_matmuls(), Schedule(2, policy=ConsumerSync()))
    assert posts(whole, "up") == [row for row in range(4) for _ in range(4)]
    by_chunk = build(two_matmuls(), Schedule(2, policy=ConsumerSync(), chunk_waits=True))
    assert posts(by_chunk, "up") == [*range(16)]


def test_items_that_start_behind_a_whole_op_anyway_do_not_tell_its_tiles_apart() -> None:
    """``c`` adds its own tile of ``a`` to what it reads of ``b``, of which each tile reads all of ``a``."""
    (i,) = axes(1)
    own = (i.block(1),)
    shapes = dict.fromkeys("xabc", (4,))
    a = pointwise("a", "x", "a", (4,), (1,))
    b = Op("b", "mixes", (4,), (Access("in", "a", (ALL,)),), (Access("out", "b", own),))
    c = pointwise("c", "a b", "c", (4,), (1,))
    chain = build(program(shapes, a, b, c), Schedule(2, policy=ConsumerSync()))
    assert posts(chain, "a") == [0, 0, 0, 0]
    assert posts(chain, "b") == [0, 1, 2, 3]
    other = replace(b, reads=(Access("in", "x", (ALL,)),))
    beside = build(program(shapes, a, other, c), Schedule(2, policy=ConsumerSync()))
    assert posts(beside, "a") == [0, 1, 2, 3]


@pytest.mark.parametrize("settings", [{"chunk_waits": True}, {"split": {"b": SplitK(2)}}], ids=["chunks", "parts"])
def test_nor_do_items_behind_tiles_of_several_items_or_chunks_that_need_the_whole_op(settings: dict[str, Any]) -> None:
    """No item of ``b`` starts behind all of ``a``, two tiles at a time, but each of its tiles ends behind that."""
    (i,) = axes(1)
    shapes = dict.fromkeys("xabc", (4,))
    a = pointwise("a", "x", "a", (4,), (1,))
    b = Op("b", "sums", (4,), (Access("in", "a", (K,)),), (Access("out", "b", (i.block(1),)),), Reduction(4, 2))
    c = pointwise("c", "a b", "c", (4,), (1,))
    plan = build(program(shapes, a, b, c), Schedule(2, policy=ConsumerSync(), **settings))
    verify(plan)
    assert posts(plan, "a") == [0, 0, 1, 1]


def test_nor_do_items_behind_ops_that_together_need_all_tiles() -> None:
    """``d`` overwrites tiles of ``a``, which ``b`` has read in pairs, behind ``c``, which has read all of ``b``."""
    (i,) = axes(1)
    own, all_of = (i.block(1),), (ALL,)
    shapes = {"x": (4,), "a": (4,), "b": (2,), "c": (4,), "e": (4,)}
    a = pointwise("a", "x", "a", (4,), (1,))
    b = Op("b", "pairs", (2,), (Access("in", "a", (i.block(2),)),), (Access("out", "b", own),))
    c = Op("c", "mixes", (4,), (Access("in", "b", all_of),), (Access("out", "c", own),))
    d = pointwise("d", "c", "a", (4,), (1,))
    plan = build(program(shapes, a, b, c, d, pointwise("e", "a", "e", (4,), (1,))), Schedule(2, policy=ConsumerSync()))
    verify(plan)
    assert posts(plan, "a") == [0, 0, 1, 1]
    assert posts(plan, "d") == [0, 1, 2, 3]


def test_each_product_of_a_decode_step_waits_for_one_semaphore() -> None:
    """Attention for the queries of its heads, and a part of the output product for the heads that it reads."""
    shape = LlamaShape(2, hidden=256, ffn=128, heads=8, kv_heads=4, head_dim=32, vocabulary=64, eps=1e-6)
    graph = build_decode_graph(shape, 4, 64, H200, TileShape(16, 32, 32))
    plan = build(graph, Schedule(4, policy=ConsumerSync(), split={"layers.0.x_attended": SplitK(2)}))
    verify(plan)
    kinds = ["q_heads", "k_heads", "v_heads", "attend", "x_attended", "inner", "x"]
    numbers = {kind: len(set(posts(plan, f"layers.0.{kind}"))) for kind in kinds}
    assert numbers == {"q_heads": 4, "k_heads": 4, "v_heads": 4, "attend": 2, "x_attended": 1, "inner": 1, "x": 1}
    products = np.isin(plan.items.op, [o for o, op in enumerate(plan.graph.ops) if op.kernel == "matmul"])
    awaited = [int(plan.waits.count[wait_rows(plan, i)].sum()) for i in np.flatnonzero(products).tolist()]
    assert max(awaited) == 2  # what it multiplies, and the residual


@settings(EXAMPLES, max_examples=40)
@given(st.data(), graphs(max_ops=4), st.booleans())
def test_by_consumers_items_start_behind_the_same_tiles_as_with_a_semaphore_for_each(
    data: st.DataObject, graph: Graph, chunk_waits: bool
) -> None:
    """But for those that overwrite what others read, and that nobody waits for."""
    split = data.draw(schedules(graph)).split
    fine, coarse = (
        build(graph, Schedule(2, policy=policy, split=split, chunk_waits=chunk_waits))
        for policy in (TileSync(), ConsumerSync())
    )
    verify(coarse)
    links = Dependencies(graph).links
    awaited = {producer for link in links for producer in link.producers}
    spared = {link.consumer for link in links if link.hazard is not Hazard.RAW} - awaited
    assert coarse.semaphores <= fine.semaphores
    for op, few, many in zip(fine.items.op.tolist(), behind(fine), behind(coarse), strict=True):
        for k in few.keys() | many.keys():
            before = [set().union(*(tiles for at, tiles in some.items() if at <= k)) for some in (few, many)]
            assert before[1] >= before[0]
            assert before[1] == before[0] or op in spared


def behind(plan: Plan) -> list[dict[int, set[oracle.Tile]]]:
    """Return, for each item, by the k before which it waits: the tiles whose end that implies."""
    posted: dict[int, set[oracle.Tile]] = {}
    places = list(zip(plan.items.op.tolist(), plan.items.tile.tolist(), strict=True))
    for place, post in zip(places, plan.items.post.tolist(), strict=True):
        posted.setdefault(post, set()).add(place)
    ended: dict[oracle.Tile, set[oracle.Tile]] = {}
    out = []
    for item, place in enumerate(places):
        before: dict[int, set[oracle.Tile]] = {}
        for row in wait_rows(plan, item):
            first, count, stride = (int(getattr(plan.waits, c)[row]) for c in ("first", "count", "stride"))
            k = max(int(plan.waits.k[row]), int(plan.items.k_lo[item]))
            tiles = set().union(*(posted[s] for s in range(first, first + count * stride, stride)))
            before.setdefault(k, set()).update(*(ended[tile] for tile in tiles))
        ended.setdefault(place, {place}).update(*before.values())
        out.append(before)
    return out

"""Sync policies: which tiles share a semaphore, and that sharing never loses a dependency."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import OrderError
from interlace.graph.graph import Graph
from interlace.plan.plan import Dispatch
from interlace.plan.verify import verify
from interlace.planner.build import Choices, build
from interlace.policies.splits import SplitK
from interlace.policies.sync import (
    BatchedRowSync,
    ColumnSync,
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
    choices,
    column,
    conv_chain,
    gated,
    graphs,
    item_at,
    pair,
    pointwise,
    program,
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
    ScatteredSync(3, seed=0),
)
GRAPHS = {"two matmuls": two_matmuls(), "gated": gated(), "convolutions": conv_chain()}


def numbers(policy: SyncPolicy, grid: tuple[int, ...]) -> list[int]:
    """Semaphore of every tile, row-major."""
    coords = np.stack(np.unravel_index(np.arange(np.prod(grid)), grid), axis=1)
    return policy.semaphores(coords, grid).tolist()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (TileSync(), [0, 1, 2, 3, 4, 5]),
        (RowSync(), [0, 0, 0, 1, 1, 1]),
        (ColumnSync(), [0, 1, 2, 0, 1, 2]),
        (BatchedRowSync(2), [0, 0, 0, 0, 0, 0]),
        (StridedSync(2), [0, 1, 0, 2, 3, 2]),
        (KernelSync(), [0, 0, 0, 0, 0, 0]),
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
    verify(build(pair(5), Choices(2, policy=policy)))


@pytest.mark.parametrize(
    ("policy", "name"), [(BatchedRowSync, "BatchedRowSync rows"), (StridedSync, "StridedSync stride")]
)
def test_sizes_are_positive(policy: type, name: str) -> None:
    with pytest.raises(OrderError, match=f"{name} is 0; use a positive number"):
        policy(0)


@dataclass(frozen=True)
class HalfRowSync(SyncPolicy):
    """The policy that the module shows as an example of a user's own."""

    def semaphores(self, coords, grid):
        half = coords[:, 1] >= grid[1] // 2
        return coords[:, 0] * 2 + half


def test_users_policy_of_a_few_lines_builds_and_verifies() -> None:
    graph = two_matmuls(4, (2, 8, 2), up=(2, 2), down=(2, 2), block=4)
    plan = build(graph, Choices(3, policy={"up": HalfRowSync()}, split={"down": SplitK(2)}))
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
    ],
    ids=str,
)
def test_thresholds_and_ranges_follow_from_the_policy(
    policy: SyncPolicy, semaphores: int, wait: tuple[int, int, int]
) -> None:
    plan = build(two_matmuls(), Choices(2, policy=policy))
    assert plan.semaphores == semaphores
    (row,) = wait_rows(plan, item_at(plan, "down", 2))  # tile (1, 0)
    assert tuple(int(getattr(plan.waits, c)[row]) for c in ("first", "count", "threshold")) == wait


def test_semaphores_that_nobody_awaits_are_not_posted() -> None:
    plan = build(two_matmuls(), Choices(2))
    assert (plan.items.post[plan.items.op == 1] == -1).all()
    plan = build(pair(), Choices(2, policy=NoSync()))
    assert plan.semaphores == 0
    assert (plan.items.post == -1).all()
    assert len(plan.waits) == 0


def test_gaps_in_a_users_numbers_cost_no_semaphores() -> None:
    class Sparse(SyncPolicy):
        def semaphores(self, coords, grid):
            return coords[:, 0] * 1000 + 17

    plan = build(pair(3), Choices(2, policy={"a": Sparse()}))
    assert plan.semaphores == 3
    assert plan.items.post.tolist() == [0, 1, 2, -1, -1, -1]


def test_policy_may_leave_out_tiles_that_nobody_needs() -> None:
    class FirstHalf(SyncPolicy):
        def semaphores(self, coords, grid):
            return np.where(coords[:, 0] < 2, coords[:, 0], -1)

    shapes = {"x": (4,), "y": (4,), "z": (2,)}
    graph = program(shapes, pointwise("a", "x", "y", (4,), (1,)), pointwise("b", "y", "z", (2,), (1,)))
    plan = build(graph, Choices(2, policy={"a": FirstHalf()}))
    assert plan.items.post.tolist() == [0, 1, -1, -1, -1, -1]
    assert verify(plan).edges_by_wait == 2


def test_policy_of_the_wrong_length_is_refused() -> None:
    class One(SyncPolicy):
        def semaphores(self, coords, grid):
            return column(0)

    with pytest.raises(OrderError, match=r"policy of op 'a' gave an array of shape \(1,\); give one of shape \(2,\)"):
        build(pair(), Choices(2, policy=One()))


@pytest.mark.parametrize("setting", ["policy", "order", "split"])
def test_settings_for_unknown_ops_are_refused(setting: str) -> None:
    expected = r"settings name ops \['nope'\]; graph 'test' has \['a', 'b'\]"
    with pytest.raises(OrderError, match=expected):
        build(pair(), Choices(2, **{setting: {"nope": getattr(Choices(1), setting)}}))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("policy", ALL_POLICIES, ids=str)
@pytest.mark.parametrize("chunk_waits", [False, True], ids=["item", "chunk"])
@pytest.mark.parametrize("dispatch", Dispatch)
def test_policies_only_coarsen(name: str, policy: SyncPolicy, chunk_waits: bool, dispatch: Dispatch) -> None:
    plan = build(GRAPHS[name], Choices(3, dispatch, policy=policy, chunk_waits=chunk_waits))
    proof = verify(plan)
    assert proof.in_sequence
    if not chunk_waits:
        assert proof.edges == proof.edges_by_wait == len(oracle.visible(GRAPHS[name]))


@EXAMPLES
@given(st.data(), graphs(max_ops=3), POLICIES)
def test_coarser_policy_never_waits_for_fewer_tiles(
    data: st.DataObject, graph: Graph, policy: SyncPolicy
) -> None:
    drawn = data.draw(choices(graph, st.just(policy)))

    def awaited(policy: SyncPolicy) -> list[set[oracle.Tile]]:
        plan = build(graph, Choices(drawn.workers, policy=policy, split=drawn.split))
        sequence = oracle.items(plan)
        return [{other.tile for other in sequence if other.post in item.awaits} for item in sequence]

    assert all(coarse >= fine for coarse, fine in zip(awaited(policy), awaited(TileSync()), strict=True))

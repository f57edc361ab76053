"""Ops in streams: the fewest chains, the fewest events, and every dependency kept."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.dtypes import fp32
from interlace.core.errors import GraphError
from interlace.graph.access import ALL, Access, Span, axes
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.graph.uses import find_predecessors
from interlace.policies.streams import Streams, find_chains

from ..draws import EXAMPLES
from .graphs import build_gated, graphs, pointwise, program, two_matmuls

Before = list[set[int]]


@st.composite
def dags(draw: st.DrawFn, most: int = 9) -> Before:
    """Draw, for each op, the earlier ops that it depends on."""
    n = draw(st.integers(1, most))
    return [{u for u in range(v) if draw(st.integers(0, 2)) == 0} for v in range(n)]


def find_reachable(edges: list[tuple[int, int]], n: int) -> set[tuple[int, int]]:
    """Pairs of which the second follows the first along edges (Warshall)."""
    found = set(edges)
    for via in range(n):
        for u in range(n):
            for v in range(n):
                if (u, via) in found and (via, v) in found:
                    found.add((u, v))
    return found


def find_needed(before: Before) -> set[tuple[int, int]]:
    return find_reachable([(u, v) for v, earlier in enumerate(before) for u in earlier], len(before))


def find_ordered(made: Streams) -> list[tuple[int, int]]:
    """Return the pairs that streams and events order: ops of a stream in turn, and ops that wait for an event."""
    n = len(made.stream)
    turns = [(u, v) for u, v in combinations(range(n), 2) if made.stream[u] == made.stream[v]]
    return turns + [(u, v) for v in range(n) for u in made.awaited_ops[v]]


def test_the_example_of_the_module() -> None:
    before = [set(), set(), {0}, {0, 1, 2}, {1}]
    made = Streams.from_predecessors(before, [1.0] * 5, 8)
    assert find_chains(before) == [[0, 2, 3], [1, 4]]
    assert made.stream == (0, 1, 0, 0, 1)
    assert made.after == ((), (), (0,), (1, 2), (1,))
    assert made.awaited_ops == ((), (), (), (1,), ())
    assert (made.count, made.root_ops, made.final_ops) == (2, (0, 1), (3, 4))


@settings(EXAMPLES, max_examples=150)
@given(dags())
def test_chains_are_fewest_and_hold_each_op_once(before: Before) -> None:
    found, depends, n = find_chains(before), find_needed(before), len(before)
    assert sorted(v for chain in found for v in chain) == list(range(n))
    assert all(pair in depends for chain in found for pair in pairwise(chain))
    antichains = (
        size
        for size in range(n, 0, -1)
        for some in combinations(range(n), size)
        if not any(pair in depends for pair in combinations(some, 2))
    )
    assert len(found) == next(antichains)


@settings(EXAMPLES, max_examples=150)
@given(dags(14), st.integers(1, 4), st.data())
def test_streams_and_the_fewest_events_keep_every_dependency(before: Before, most: int, data: st.DataObject) -> None:
    n = len(before)
    weights = data.draw(st.lists(st.floats(0, 9), min_size=n, max_size=n))
    made = Streams.from_predecessors(before, weights, most)
    assert made.count == min(most, len(find_chains(before)))
    order = find_reachable(find_ordered(made), n)
    assert find_needed(before) <= order
    assert find_reachable([(u, v) for v in range(n) for u in made.after[v]], n) == order
    for v in range(n):  # without any one event some dependency is lost
        for u in made.awaited_ops[v]:
            rest = [pair for pair in find_ordered(made) if pair != (u, v)]
            assert not find_needed(before) <= find_reachable(rest, n)
    followed = {u for u, _ in order}
    assert made.final_ops == tuple(v for v in range(n) if v not in followed)
    assert made.root_ops == tuple(v for v in range(n) if v not in {b for _, b in order})
    if len(find_chains(before)) <= most:  # nothing waits for what it does not depend on
        assert order == find_needed(before)


def paths(before: Before) -> list[list[int]]:
    """All paths that cannot be made longer at their end, from any op on."""
    ends: list[list[list[int]]] = []
    for v, earlier in enumerate(before):
        ends.append([[v], *([*path, v] for u in earlier for path in ends[u])])
    return [path for found in ends for path in found]


@EXAMPLES
@given(dags(7), st.integers(1, 4), st.data())
def test_urgency_ranks_streams_by_the_longest_path_through_their_ops(
    before: Before, most: int, data: st.DataObject
) -> None:
    weights = [float(data.draw(st.integers(1, 9))) for _ in before]
    made = Streams.from_predecessors(before, weights, most)
    longest = [0.0] * made.count
    for path in paths(before):
        length = sum(weights[v] for v in path)
        for v in path:
            longest[made.stream[v]] = max(longest[made.stream[v]], length)
    lengths = sorted(set(longest))
    assert made.urgency == tuple(lengths.index(length) for length in longest)
    least, greatest = 0, -data.draw(st.integers(0, 4))
    expected = [max(rank - max(len(lengths) - 1 - (least - greatest), 0), 0) for rank in made.urgency]
    assert made.compute_priorities(least, greatest) == tuple(least - rank for rank in expected)


def test_as_many_chains_as_streams_keep_their_numbers() -> None:
    assert Streams.from_predecessors([set(), set(), set()], [1.0, 2.0, 3.0], 3).stream == (0, 1, 2)
    assert Streams.from_predecessors([set(), set(), set()], [1.0, 2.0, 3.0], 2).stream == (1, 1, 0)


def test_a_graph_without_ops_has_no_streams() -> None:
    assert Streams.from_predecessors([], [], 1) == Streams((), (), ())
    assert Streams((), ()).compute_priorities(0, -5) == ()


def test_independent_ops_are_spread_by_weight() -> None:
    made = Streams.from_predecessors([()] * 8, [5.0, 1.0, 1.0, 1.0, 4.0, 1.0, 1.0, 1.0], 3)
    loads = [sum(w for s, w in zip(made.stream, [5, 1, 1, 1, 4, 1, 1, 1], strict=True) if s == n) for n in range(3)]
    assert sorted(loads) == [5, 5, 5]
    assert made.awaited_ops == ((),) * 8


def test_a_graph_tells_which_ops_come_before_which() -> None:
    assert find_predecessors(two_matmuls()) == (frozenset(), {0})
    graph = build_gated()
    assert [op.name for op in graph.ops] == ["gate", "up", "mul", "down"]
    before = find_predecessors(graph)
    assert before == (frozenset(), frozenset(), {0, 1}, {2})
    assert Streams.from_predecessors(before, [1.0] * 4, 8).stream in ((0, 1, 0, 0), (0, 1, 1, 1))


@settings(EXAMPLES, max_examples=100)
@given(graphs())
def test_ops_before_an_op_are_all_on_which_it_depends(graph: Graph) -> None:
    before = find_predecessors(graph)
    for link in Dependencies(graph).links:
        assert {*link.producers} <= before[link.consumer]
    for o, earlier in enumerate(before):
        assert all(p < o for p in earlier)


def test_ops_that_write_parts_of_a_tensor_depend_on_each_other_only_where_these_meet() -> None:
    (i,) = axes(1)

    def rows(name: str, first: int, halo: int = 0) -> Op:
        """Two tiles of two rows of ``y`` each, from ``first`` on, made of ``x``, and ``halo`` more."""
        part = Span(2 * i + first, 2 * i + (first + 2 + halo))
        return Op(name, "rows", (2,), (Access("x", "x", (ALL, ALL)),), (Access("y", "y", (part, ALL)),))

    whole = pointwise("whole", "y", "z", (8, 4), (2, 4))
    shapes = {"x": (8, 4), "y": (8, 4), "z": (8, 4)}
    apart = program(shapes, rows("upper", 0), rows("lower", 4), whole)
    assert find_predecessors(apart) == (frozenset(), frozenset(), {0, 1})
    meeting = program(shapes, rows("upper", 0, halo=1), rows("lower", 4), whole)
    assert find_predecessors(meeting) == (frozenset(), {0}, {0, 1})


def test_the_ops_before_an_op_are_found_without_a_look_at_tiles() -> None:
    grid = (1 << 30, 1)
    x, y, z = (Tensor(name, (1 << 30, 1), fp32) for name in "xyz")
    (i, j) = axes(2)
    spans = (i.block(1), j.block(1))
    first = Op("first", "k", grid, (Access("x", "x", spans),), (Access("y", "y", spans),))
    second = Op("second", "k", grid, (Access("x", "y", spans),), (Access("y", "z", spans),))
    assert find_predecessors(Graph("huge", (x, y, z), (first, second), ("x",), ("z",))) == (frozenset(), {0})


def test_thousand_ops_of_a_deep_graph_take_one_look_each() -> None:
    ladder = [{v - 2, v - 1} & set(range(v)) for v in range(1000)]
    assert len(find_chains(ladder)) == 1
    pairs = [{v - 2} & set(range(v)) for v in range(1000)]
    assert [len(chain) for chain in find_chains(pairs)] == [500, 500]


@pytest.mark.parametrize(
    ("before", "weights", "most", "message"),
    [
        ([{0}], [1.0], 8, r"op 0 comes after ops \[0\]; name earlier ones only"),
        ([(), {2}, ()], [1.0] * 3, 8, r"op 1 comes after ops \[2\]"),
        ([()], [], 8, "0 weights of 1 ops"),
        ([()], [1.0], 0, "on at most 0 streams"),
    ],
)
def test_what_makes_no_streams_is_refused(before: list, weights: list[float], most: int, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Streams.from_predecessors(before, weights, most)

"""Every element that is read, or wanted, has been written: found when dependencies are, element by element."""

from __future__ import annotations

import re

import pytest
from hypothesis import event, given, reject
from hypothesis import strategies as st

from interlace.core.dtypes import fp32
from interlace.core.errors import GraphError, IntraOpRaceError, UnwrittenError
from interlace.graph.access import ALL, Access, Affine, K, Span, axes, constant_span
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Reduction
from interlace.graph.tensor import Tensor
from interlace.plan.verify import verify
from interlace.planner.build import build
from interlace.policies.schedule import Schedule

from ..draws import EXAMPLES
from . import oracle
from .graphs import program
from .test_dependencies import find_edges

I, J = axes(2)


def fill(name: str, tensor: str, spans: tuple[Span, ...], grid: tuple[int, ...] = (1,)) -> Op:
    return Op(name, "fill", grid, (), (Access("out", tensor, spans),))


def total(name: str, tensor: str, spans: tuple[Span, ...], grid: tuple[int, ...] = (1,), target: str = "sink") -> Op:
    """Each tile reads ``spans`` and writes one element of ``target``."""
    return Op(name, "sum", grid, (Access("in", tensor, spans),), (Access("out", target, (I.block(1),)),))


def expect_unwritten(graph: Graph, message: str) -> None:
    with pytest.raises(UnwrittenError, match=f"^{re.escape(message)}"):
        Dependencies(graph)
    with pytest.raises(UnwrittenError):
        build(graph, Schedule(1))


def test_output_that_is_written_in_part_is_refused() -> None:
    graph = program({"y": (8, 8)}, fill("half", "y", (I.block(2), constant_span(0, 4)), (4,)))
    expect_unwritten(
        graph,
        "graph 'test' has output 'y', of which no op writes y[0:8, 4:8]; let one write it, widen an access map, or "
        "list 'y' among the inputs if its old values are meant",
    )


def test_output_with_gaps_between_tiles_is_refused() -> None:
    graph = program({"y": (8,)}, fill("gaps", "y", (Span(I * 3, I * 3 + 2),), (3,)))
    expect_unwritten(graph, "graph 'test' has output 'y', of which no op writes y[2:3]; let one write it")


def test_output_that_several_ops_write_together_is_whole() -> None:
    halves = fill("left", "y", (I.block(2), constant_span(0, 5)), (4,)), fill("right", "y", (ALL, constant_span(3, 8)))
    assert len(Dependencies(program({"y": (8, 8)}, *halves)).links) == 1


def test_output_that_is_an_input_may_be_written_in_part_or_not_at_all() -> None:
    for ops in ((fill("row", "cache", (constant_span(3, 4), ALL)),), (total("sum", "cache", (ALL, ALL)),)):
        tensors = (Tensor("cache", (8, 4), fp32), Tensor("sink", (1,), fp32))
        graph = Graph("decode", tensors, ops, ("cache",), ("cache",))
        assert Dependencies(graph).links == ()


def test_tile_that_reads_beyond_what_is_written_is_named_with_the_missing_box() -> None:
    graph = program(
        {"h": (8, 8), "sink": (4,)},
        fill("most", "h", (I.block(2), constant_span(0, 6)), (4,)),
        total("rows", "h", (Span(I * 2, I * 2 + 2), Span(I * 2, I * 2 + 2)), (4,)),
    )
    expect_unwritten(
        graph,
        "op 'rows', tile (3) reads h[6:8, 6:8], which no op before it writes; let one write it, narrow the access map "
        "of argument 'in', or list 'h' among the inputs if its old values are meant",
    )


def test_halo_that_reaches_beyond_what_is_written_is_found_and_one_cut_by_the_edge_is_not() -> None:
    def graph(rows: int) -> Graph:
        wide = total("blur", "h", (Span(I * 2 - 1, I * 2 + 3),), (rows // 2,))
        return program({"h": (8,), "sink": (rows // 2,)}, fill("some", "h", (I.block(2),), (rows // 2,)), wide)

    expect_unwritten(graph(4), "op 'blur', tile (1) reads h[4:5], which no op before it writes")
    assert len(Dependencies(graph(8)).links) == 1


def test_write_that_comes_later_in_the_program_does_not_count() -> None:
    first, second = fill("first", "h", (constant_span(0, 4),)), fill("second", "h", (constant_span(4, 8),))
    reader = total("reader", "h", (ALL,))
    shapes = {"h": (8,), "sink": (1,)}
    expect_unwritten(
        program(shapes, first, reader, second), "op 'reader', tile (0) reads h[4:8], which no op before it writes"
    )
    assert len(Dependencies(program(shapes, first, second, reader)).links) == 1


def test_update_in_place_reads_before_it_writes() -> None:
    update = Op("update", "add", (2,), (Access("in", "h", (I.block(4),)),), (Access("out", "h", (I.block(4),)),))
    shapes = {"h": (8,)}
    graph = program(shapes, fill("half", "h", (constant_span(0, 4),)), update)
    expect_unwritten(graph, "op 'update', tile (1) reads h[4:8], which no op before it writes")
    assert (
        len(Dependencies(program(shapes, fill("half", "h", (constant_span(0, 4),)), update, inputs=("h",))).links) == 2
    )


def test_reduction_that_reads_unwritten_columns_is_refused() -> None:
    reads = (Access("a", "h", (I.block(2), K)),)
    op = Op("mm", "matmul", (2,), reads, (Access("c", "y", (I.block(2), ALL)),), Reduction(8, 4))
    graph = program({"h": (4, 8), "y": (4, 1)}, fill("left", "h", (ALL, constant_span(0, 6))), op)
    expect_unwritten(graph, "op 'mm', tile (0) reads h[0:2, 6:8], which no op before it writes")


def test_cache_that_is_an_input_is_appended_to_and_read_whole() -> None:
    row = Access("out", "cache", (constant_span(5, 6), I.block(2)))
    append = Op("append", "copy", (2,), (Access("k", "k", (ALL, I.block(2))),), (row,))
    attend = total("attend", "cache", (ALL, I.block(2)), (2,))
    graph = program({"k": (1, 4), "cache": (16, 4), "sink": (2,)}, append, attend, inputs=("k", "cache"))
    proof = verify(build(graph, Schedule(2)))
    assert proof.edges == proof.edges_by_wait == 2  # each head's read of the whole cache waits for its own new row


def test_cache_that_is_no_input_is_read_only_as_far_as_it_is_filled() -> None:
    def attend(n: int, rows: int) -> Op:
        reads, writes = Access("in", "cache", (constant_span(0, rows),)), Access("out", "y", (constant_span(n, n + 1),))
        return Op(f"attend{n}", "sum", (1,), (reads,), (writes,))

    ops = [op for n in range(4) for op in (fill(f"append{n}", "cache", (constant_span(n, n + 1),)), attend(n, n + 1))]
    assert Dependencies(program({"cache": (9,), "y": (4,)}, *ops, inputs=("y",))).count_edges() == 1 + 2 + 3 + 4
    graph = program({"cache": (9,), "y": (5,)}, *ops, attend(4, 5), inputs=("y",))
    expect_unwritten(graph, "op 'attend4', tile (0) reads cache[4:5], which no op before it writes")


# ---------------------------------------------------------------- any graph at all


@st.composite
def any_graphs(draw: st.DrawFn) -> Graph:
    """Ops with access maps of any kind: races, gaps and reads of nothing included."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    names = ("a", "b")[: draw(st.integers(1, 2))]

    def bound(extents: int) -> Affine:
        factors = st.sampled_from((0, 0, 1, 1, 2, 3, -1))
        return Affine(draw(st.integers(-2, 4)), tuple(draw(factors) for _ in range(extents)))

    def span(extents: int, extent: int) -> Span:
        t = draw(st.sampled_from(axes(extents)))
        kind = draw(st.sampled_from(("all", "block", "block", "fixed", "slope", "free")))
        lo = bound(extents)
        return {
            "all": ALL,
            "block": t.block(draw(st.integers(1, 3))),
            "fixed": constant_span(draw(st.integers(0, extent)), draw(st.integers(0, extent + 1))),
            "slope": Span(lo, lo + draw(st.integers(1, 3))),
            "free": Span(lo, bound(extents)),
        }[kind]

    ops = []
    for n in range(draw(st.integers(1, 4))):
        grid = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))

        def accesses(at_most: int, grid: tuple[int, ...] = grid) -> tuple[Access, ...]:
            number = draw(st.integers(0, at_most))
            drawn = [(draw(st.sampled_from(names)), [span(len(grid), e) for e in shape]) for _ in range(number)]
            return tuple(Access(f"arg{m}", name, tuple(spans)) for m, (name, spans) in enumerate(drawn))

        ops.append(Op(f"op{n}", "any", grid, accesses(2), accesses(2)))
    written = {a.tensor for op in ops for a in op.writes}
    free = draw(st.sampled_from(((), ("b",), names, names)))
    inputs = tuple(name for name in names if name not in written or name in free)
    tensors = tuple(Tensor(name, shape, fp32) for name in names)
    try:
        return Graph("any", tensors, tuple(ops), inputs, names[:1])
    except GraphError:  # a tensor that nothing writes before it is read
        reject()


@EXAMPLES
@given(any_graphs())
def test_any_graph_is_judged_element_by_element(graph: Graph) -> None:
    tiles = oracle.find_touched(graph)
    race = any(
        p == q and a != b and x.writes & (y.reads | y.writes)
        for (p, a), x in tiles.items()
        for (q, b), y in tiles.items()
    )
    missing = oracle.unwritten(graph)
    if race:
        event("race")
        with pytest.raises(IntraOpRaceError):
            Dependencies(graph)
    elif missing:
        event("unwritten")
        with pytest.raises(UnwrittenError) as caught:
            Dependencies(graph)
        access, elements = missing
        assert parse_region(str(caught.value)) <= elements
        if access < len(oracle.uses(graph)):
            use = oracle.uses(graph)[access]
            first = next(tile for tile, own in enumerate(use.tiles) if own & elements)
            assert str(caught.value).startswith(graph.ops[use.op].format_tile(first) + " reads ")
            assert parse_region(str(caught.value)) <= use.tiles[first]
    else:
        event("sound")
        assert find_edges(graph) == oracle.visible(graph)
        assert oracle.closure(find_edges(graph)) == oracle.closure(oracle.conflicts(graph))


def parse_region(message: str) -> set[tuple[object, ...]]:
    """The elements of the first region that a message names."""
    match = re.search(r"(\w+)\[([\d:, ]+)\]", message)
    assert match
    box = [range(*map(int, extent.split(":"))) for extent in match.group(2).split(", ")]
    out = {(match.group(1),)}
    for extent in box:
        out = {(*element, x) for element in out for x in extent}
    assert out
    return out

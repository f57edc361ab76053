"""Dependencies between tiles, against plain loops over single elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from interlace.core.devices import H200
from interlace.core.errors import IntraOpRaceError
from interlace.graph.access import ALL, Access, Affine, Ints, K, Span, axes, constant_span
from interlace.graph.dependencies import Dependencies, Hazard, Link
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Reduction
from interlace.graph.ragged import Groups
from interlace.graph.uses import compute_boxes
from interlace.models.llama import LLAMAS, build_decode_graph

from ..draws import EXAMPLES
from . import oracle
from .graphs import build_gated, column, conv_chain, graphs, matmul, pair, pointwise, program, two_matmuls

(I,) = axes(1)


def find_edges(graph: Graph) -> set[oracle.Edge]:
    """All dependencies that the package finds, in the oracle's form."""
    dependencies = Dependencies(graph)
    out = set()
    for link in dependencies.links:
        needed = dependencies.find_tile_producers(link)
        for consumer in range(graph.ops[link.consumer].tiles):
            for tile in needed[consumer].tolist():
                op = dependencies.find_op(tile)
                producer = (op, tile - int(dependencies.base[op]))
                out.add((link.hazard.name, link.tensor, producer, (link.consumer, consumer)))
    return out


def write(name: str, tensor: str, spans: tuple[Span, ...], grid: tuple[int, ...]) -> Op:
    """An op that reads nothing."""
    return Op(name, "fill", grid, (), (Access("out", tensor, spans),))


def read(name: str, tensor: str, spans: tuple[Span, ...], grid: tuple[int, ...]) -> Op:
    """An op whose tiles read ``spans`` and each write one element of ``sink``."""
    t = axes(len(grid))[0]
    return Op(name, "sum", grid, (Access("in", tensor, spans),), (Access("out", "sink", (t.block(1),)),))


def half_and_half() -> Graph:
    """Two ops write the left and the right half of h; a third reads whole rows of it."""
    i, _ = axes(2)
    return program(
        {"h": (4, 8), "sink": (2,)},
        write("left", "h", (i.block(1), constant_span(0, 4)), (4, 1)),
        write("right", "h", (i.block(2), constant_span(4, 8)), (2, 1)),
        read("rows", "h", (i.block(2), ALL), (2, 1)),
    )


def fan_out() -> Graph:
    """One producer, two consumers with other tiles, ragged edges everywhere."""
    shapes = {"x": (7, 5), "h": (7, 5), "p": (7, 5), "q": (7, 5)}
    return program(
        shapes,
        pointwise("a", "x", "h", (7, 5), (3, 2)),
        pointwise("b", "h", "p", (7, 5), (2, 3)),
        pointwise("c", "h", "q", (7, 5), (4, 5)),
    )


def in_place() -> Graph:
    """h is written, read by a reader, updated in place with other tiles, and read again."""
    return program(
        {"x": (6,), "h": (6,), "before": (6,), "after": (6,)},
        pointwise("make", "x", "h", (6,), (2,)),
        pointwise("early", "h", "before", (6,), (3,)),
        pointwise("update", "h", "h", (6,), (4,)),
        pointwise("late", "h", "after", (6,), (1,)),
    )


def broadcast() -> Graph:
    """Every consumer tile reads the one row that a single tile writes, and its own rows of x."""
    i, j = axes(2)
    add = Op(
        "add",
        "add",
        (3, 2),
        (Access("row", "bias", (constant_span(0, 1), j.block(2))), Access("x", "x", (i.block(1), j.block(2)))),
        (Access("y", "y", (i.block(1), j.block(2))),),
    )
    return program({"bias": (1, 4), "x": (3, 4), "y": (3, 4)}, write("scale", "bias", (ALL, ALL), (1, 1)), add)


def causal() -> Graph:
    """Row tile i reads the rows of all tiles up to i."""
    (i,) = axes(1)
    return program(
        {"h": (6,), "sink": (3,)},
        write("keys", "h", (i.block(1),), (6,)),
        read("scores", "h", (Span(Affine(), i * 2 + 2),), (3,)),
    )


GRAPHS = {
    # name: (graph, edges of each hazard, counted by hand)
    "chain": (pair(3), {"RAW": 3}),
    "two matmuls": (two_matmuls(), {"RAW": 4 * 2 * 4}),
    "gated": (build_gated(), {"RAW": 2 * 12 + 3 * 2 * 4}),
    "fan-out, ragged": (fan_out(), {"RAW": 2 * 2 * 3 + 2 * 2 * 2 + (2 + 2) * 3}),
    "fan-in of halves": (half_and_half(), {"RAW": 2 * 2 + 2}),
    "in-place update": (in_place(), {"RAW": 4 + 3 + 6, "WAR": 3, "WAW": 3}),
    "convolution by image": (conv_chain(), {"RAW": 2 * (2 + 3 + 2) * 2 * 2}),
    "convolution by column": (conv_chain(width=5, columns=2), {"RAW": (2 + 3 + 2) ** 2 * 2 * 2}),
    "broadcast": (broadcast(), {"RAW": 6}),
    "causal": (causal(), {"RAW": 2 + 4 + 6}),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_dependencies_equal_the_oracle(name: str) -> None:
    graph, _ = GRAPHS[name]
    assert find_edges(graph) == oracle.visible(graph)


@pytest.mark.parametrize("name", GRAPHS)
def test_number_of_dependencies_is_what_a_hand_counts(name: str) -> None:
    graph, expected = GRAPHS[name]
    edges = find_edges(graph)
    assert {h.name: n for h in Hazard if (n := sum(e[0] == h.name for e in edges))} == expected
    assert Dependencies(graph).count_edges() == sum(expected.values())


def test_ffn_tile_needs_the_four_tiles_of_its_row() -> None:
    graph = two_matmuls(256, (64, 512, 128), up=(128, 128), down=(128, 128), block=64)
    dependencies = Dependencies(graph)
    (link,) = dependencies.links
    assert (link.hazard, link.producers, link.consumer, link.tensor) == (Hazard.RAW, (0,), 1, "hidden")
    needed = dependencies.find_tile_producers(link)
    assert needed[1].tolist() == [4, 5, 6, 7]  # tile (1, 0) of down: tiles (1, 0) .. (1, 3) of up


def test_consumer_tiles_of_256_rows_need_every_160_row_tile_they_touch() -> None:
    graph = two_matmuls(1280, (64, 128, 128), up=(160, 128), down=(256, 128), block=64)
    dependencies = Dependencies(graph)
    (link,) = dependencies.links
    assert [g.tolist() for g in map(dependencies.find_tile_producers(link).__getitem__, range(5))] == [
        [0, 1],
        [1, 2, 3],
        [3, 4],
        [4, 5, 6],
        [6, 7],
    ]


def test_split_reduction_needs_only_the_producers_of_its_k_range() -> None:
    graph = two_matmuls(4, (2, 8, 2), up=(2, 2), down=(2, 2), block=2)
    dependencies = Dependencies(graph)
    (link,) = dependencies.links
    coords = graph.ops[1].compute_coords(column(1, 1))
    lo, hi = link.target.compute_bounds((4, 8), coords, column(0, 4), column(4, 8))
    needed = dependencies.find_producers(link, lo, hi)
    assert [needed[n].tolist() for n in range(2)] == [[4, 5], [6, 7]]


def test_graph_inputs_make_no_dependencies() -> None:
    graph = program({"x": (4,), "y": (4,)}, pointwise("a", "x", "y", (4,), (1,)))
    assert Dependencies(graph).links == ()
    assert Dependencies(graph).count_edges() == 0


def test_reads_of_the_same_tensor_by_two_ops_do_not_depend_on_each_other() -> None:
    shapes = {"x": (4,), "y": (4,), "z": (4,)}
    graph = program(shapes, pointwise("a", "x", "y", (4,), (1,)), pointwise("b", "x", "z", (4,), (1,)))
    assert Dependencies(graph).links == ()


def test_overwriting_an_input_waits_for_its_readers() -> None:
    shapes = {"x": (4,), "y": (4,)}
    graph = program(
        shapes,
        pointwise("a", "x", "y", (4,), (2,)),
        pointwise("b", "y", "x", (4,), (4,)),
        inputs=("x",),
    )
    assert find_edges(graph) == {
        ("RAW", "y", (0, 0), (1, 0)),
        ("RAW", "y", (0, 1), (1, 0)),
        ("WAR", "x", (0, 0), (1, 0)),
        ("WAR", "x", (0, 1), (1, 0)),
    }


# ---------------------------------------------------------------- what a full overwrite hides


def test_op_that_writes_everything_hides_earlier_writers() -> None:
    (i,) = axes(1)
    graph = program(
        {"h": (4,), "sink": (1,)},
        write("old", "h", (i.block(1),), (4,)),
        write("new", "h", (i.block(2),), (2,)),
        read("reader", "h", (ALL,), (1,)),
    )
    by_pair = {(a[0], b[0]) for _, _, a, b in find_edges(graph)}
    assert by_pair == {(0, 1), (1, 2)}
    assert len(oracle.conflicts(graph) - find_edges(graph)) == 4  # old -> reader follows through new


def test_op_that_writes_all_but_one_element_leaves_that_one_to_its_writer() -> None:
    (i,) = axes(1)
    graph = program(
        {"h": (4,), "part": (1,), "rest": (1,)},
        write("old", "h", (i.block(1),), (4,)),
        write("new", "h", (Span(i, i + 1),), (3,)),
        Op("of_part", "sum", (1,), (Access("in", "h", (constant_span(0, 3),)),), (Access("out", "part", (ALL,)),)),
        Op("of_rest", "sum", (1,), (Access("in", "h", (constant_span(1, 4),)),), (Access("out", "rest", (ALL,)),)),
    )
    pairs = {(link.producers, link.consumer) for link in Dependencies(graph).links}
    assert pairs == {((0,), 1), ((1,), 2), ((0, 1), 3)}
    assert {(a, b) for _, _, a, b in find_edges(graph) if b[0] == 2} == {((1, t), (2, 0)) for t in range(3)}
    assert {(a, b) for _, _, a, b in find_edges(graph) if b[0] == 3} == {
        *(((0, t), (3, 0)) for t in range(1, 4)),
        *(((1, t), (3, 0)) for t in range(1, 3)),
    }


def test_each_op_of_a_tensor_updated_in_part_depends_on_the_last_update_of_that_part() -> None:
    """Two halves in turn: op n follows the write of op n - 2, which follows that op's own read."""
    ops = []
    for n in range(8):
        half = (constant_span(2 * (n % 2), 2 * (n % 2) + 2),)
        ops.append(Op(f"op{n}", "add", (1,), (Access("in", "h", half),), (Access("out", "h", half),)))
    graph = program({"h": (4,)}, *ops, inputs=("h",))
    links = {(link.hazard, link.producers, link.consumer) for link in Dependencies(graph).links}
    assert links == {(h, (n - 2,), n) for n in range(2, 8) for h in (Hazard.RAW, Hazard.WAW)}
    assert find_edges(graph) == oracle.visible(graph)


def test_cache_of_four_rows_has_the_dependencies_that_visible_shows() -> None:
    row = (constant_span(2, 3),)
    attend = [Op(n, "sum", (1,), (Access("in", "h", (ALL,)),), (Access("out", n, (ALL,)),)) for n in ("one", "two")]
    update = Op("update", "add", (1,), (Access("in", "h", row),), (Access("out", "h", row),))
    ops = write("fill", "h", (ALL,), (1,)), write("append", "h", row, (1,)), attend[0], update, attend[1]
    links = Dependencies(program({"h": (4,), "one": (1,), "two": (1,)}, *ops)).links
    assert {(link.hazard.name, link.producers, link.consumer) for link in links} == {
        ("WAW", (0,), 1),
        ("RAW", (0, 1), 2),
        ("RAW", (1,), 3),
        ("WAW", (1,), 3),
        ("WAR", (2,), 3),
        ("RAW", (0, 3), 4),
    }


def test_reader_of_a_whole_cache_depends_on_every_row_and_the_next_row_on_all_readers() -> None:
    ops = []
    for n in range(3):
        row = (constant_span(n, n + 1),)
        ops.append(write(f"append{n}", "cache", row, (1,)))
        ops.append(Op(f"attend{n}", "sum", (1,), (Access("in", "cache", (ALL,)),), (Access("out", "y", row),)))
    graph = program({"cache": (3,), "y": (3,)}, *ops, inputs=("cache", "y"))
    links = {(link.hazard.name, link.producers, link.consumer) for link in Dependencies(graph).links}
    assert links == {
        ("RAW", (0,), 1),
        ("WAR", (1,), 2),
        ("RAW", (0, 2), 3),
        ("WAR", (1, 3), 4),
        ("RAW", (0, 2, 4), 5),
    }


@pytest.mark.parametrize(
    ("p", "q", "hides"),
    [
        (constant_span(0, 4), constant_span(0, 4), False),
        (constant_span(0, 4), constant_span(2, 6), False),
        (constant_span(0, 6), constant_span(2, 8), True),
        (constant_span(0, 4), constant_span(4, 8), True),
        (constant_span(0, 8), constant_span(2, 6), True),
        (ALL, constant_span(0, 8), True),
    ],
    ids=["one half twice", "overlapping in part", "overlapping", "both halves", "all and a part", "all twice"],
)
def test_writing_through_two_arguments_hides_what_they_write_together(p: Span, q: Span, hides: bool) -> None:
    (i,) = axes(1)
    twice = Op("twice", "fill", (1,), (), (Access("p", "h", (p,)), Access("q", "h", (q,))))
    graph = program(
        {"h": (8,), "sink": (1,)},
        write("old", "h", (i.block(1),), (8,)),
        twice,
        read("reader", "h", (ALL,), (1,)),
    )
    assert find_edges(graph) == oracle.visible(graph)
    assert any((a[0], b[0]) == (0, 2) for _, _, a, b in find_edges(graph)) != hides


def test_chain_of_overwrites_keeps_only_neighbours() -> None:
    shapes = {f"t{n}": (4,) for n in range(2)}
    ops = [pointwise(f"op{n}", f"t{n % 2}", f"t{1 - n % 2}", (4,), (2,)) for n in range(6)]
    graph = program(shapes, *ops, inputs=("t0",))
    links = {(link.hazard.name, link.producers, link.consumer) for link in Dependencies(graph).links}
    assert links == (
        {("RAW", (n,), n + 1) for n in range(5)}
        | {("WAR", (n,), n + 1) for n in range(5)}
        | {("WAW", (n,), n + 2) for n in range(4)}
    )


@EXAMPLES
@given(graphs(max_ops=5))
def test_random_graphs_equal_the_oracle(graph: Graph) -> None:
    assert find_edges(graph) == oracle.visible(graph)


@EXAMPLES
@given(graphs(max_ops=6))
def test_hidden_dependencies_follow_from_those_that_are_found(graph: Graph) -> None:
    edges = find_edges(graph)
    assert edges <= oracle.conflicts(graph)
    assert oracle.closure(edges) == oracle.closure(oracle.conflicts(graph))


# ---------------------------------------------------------------- conflicts inside one op


def test_two_tiles_that_write_one_element_race() -> None:
    (i,) = axes(1)
    graph = program({"h": (8,)}, write("fill", "h", (Span(i * 2, i * 2 + 3),), (4,)))
    expected = r"'fill', tile \(1\) writes h\[2:3\], which op 'fill', tile \(0\) writes too; .*shrink the access map"
    with pytest.raises(IntraOpRaceError, match=expected):
        Dependencies(graph)


def test_in_place_update_with_a_halo_races() -> None:
    graph = program({"h": (6,)}, pointwise("blur", "h", "h", (6,), (2,), halo=1), inputs=("h",))
    expected = r"op 'blur', tile \(1\) writes h\[2:3\], which op 'blur', tile \(0\) reads too"
    with pytest.raises(IntraOpRaceError, match=expected):
        Dependencies(graph)


@pytest.mark.parametrize(("shift", "writer", "reader"), [(-1, 0, 1), (1, 1, 0)], ids=["previous", "next"])
def test_reading_what_a_neighbour_writes_races(shift: int, writer: int, reader: int) -> None:
    (i,) = axes(1)
    reads = (Access("in", "h", ((i + shift).block(2),)),)
    op = Op("shift", "copy", (3,), reads, (Access("out", "h", (i.block(2),)),))
    expected = rf"'shift', tile \({writer}\) writes h\[.*\], which op 'shift', tile \({reader}\) reads too"
    with pytest.raises(IntraOpRaceError, match=expected):
        Dependencies(program({"h": (6,)}, op, inputs=("h",)))


def test_two_arguments_of_one_op_that_overlap_across_tiles_race() -> None:
    (i,) = axes(1)
    op = Op("swap", "swap", (2,), (), (Access("p", "h", (i.block(1),)), Access("q", "h", ((i + 1).block(1),))))
    with pytest.raises(IntraOpRaceError, match=r"op 'swap', tile \(1\) writes h\[1:2\], which op 'swap', tile \(0\)"):
        Dependencies(program({"h": (3,)}, op))


def test_grid_with_more_tiles_than_the_write_map_distinguishes_races() -> None:
    i, _ = axes(2)
    with pytest.raises(IntraOpRaceError, match=r"tile \(0, 1\) writes h\[0:2\], which op 'fill', tile \(0, 0\)"):
        Dependencies(program({"h": (4,)}, write("fill", "h", (i.block(2),), (2, 2))))


def test_reading_a_k_range_of_what_other_tiles_write_races() -> None:
    i, _ = axes(2)
    op = Op(
        "scan",
        "scan",
        (2, 1),
        (Access("in", "h", (K, ALL)),),
        (Access("out", "h", (i.block(2), ALL)),),
        Reduction(4, 2),
    )
    with pytest.raises(IntraOpRaceError, match="op 'scan'"):
        Dependencies(program({"h": (4, 4)}, op, inputs=("h",)))


def test_tile_may_read_and_overwrite_its_own_region() -> None:
    graph = program({"h": (6,)}, pointwise("double", "h", "h", (6,), (2,)), inputs=("h",))
    assert Dependencies(graph).links == ()


def test_writes_clipped_away_do_not_race() -> None:
    (i,) = axes(1)
    graph = program({"h": (4,)}, write("fill", "h", (i.block(4),), (3,)))  # tiles 1 and 2 lie outside
    assert Dependencies(graph).links == ()


def test_op_numbers_its_tiles_row_major_and_counts_a_short_last_chunk() -> None:
    op = matmul("mm", "a", "b", "c", (5, 3, 7), (2, 2), 4)
    assert (op.grid, op.tiles, op.k_extent) == ((3, 2), 6, 7)
    assert op.compute_coords(column(0, 3, 5)).tolist() == [[0, 0], [1, 1], [2, 1]]
    assert op.format_tile(3) == "op 'mm', tile (1, 1)"
    assert Reduction(7, 4).chunks == 2
    assert Reduction(8, 4).chunks == 2


def test_layers_that_are_alike_are_looked_at_once_and_find_tiles_of_their_own() -> None:
    def looked_at(layers: int) -> int:
        dependencies = Dependencies(build_decode_graph(replace(LLAMAS["tiny"], layers=layers), 4, 128, H200))
        before = dependencies.examined_boxes
        for link in dependencies.links:
            needed = dependencies.find_tile_producers(link)
            alone = Dependencies(dependencies.graph).find_tile_producers(link) if link.consumer > 20 else needed
            np.testing.assert_array_equal(needed.ptr, alone.ptr)
            np.testing.assert_array_equal(needed.values, alone.values)
        return dependencies.examined_boxes - before

    assert looked_at(3) == looked_at(4)


@pytest.mark.parametrize("cached", [0, 1 << 21])
def test_links_that_are_alike_share_the_search_for_their_tiles(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[Link] = []
    search = Dependencies.find_producers

    def count(self: Dependencies, link: Link, lo: Ints, hi: Ints) -> Groups:
        searches.append(link)
        return search(self, link, lo, hi)

    def find_all(layers: int) -> tuple[int, int]:
        dependencies = Dependencies(build_decode_graph(replace(LLAMAS["tiny"], layers=layers), 4, 128, H200))
        searches.clear()
        for _ in range(2):
            for link in dependencies.links:
                needed, bounds = dependencies.find_tile_producers(link), dependencies.find_tile_boxes(link.target_use)
                boxes = compute_boxes(dependencies.graph, dependencies.graph.ops[link.consumer], link.target)
                np.testing.assert_array_equal(bounds, boxes)
                alone = search(dependencies, link, *boxes)
                np.testing.assert_array_equal(needed.ptr, alone.ptr)
                np.testing.assert_array_equal(needed.values, alone.values)
        return len(searches), len(dependencies.links)

    monkeypatch.setattr(Dependencies, "find_producers", count)
    monkeypatch.setattr("interlace.graph.dependencies._MAX_CACHED", cached)
    (three, _), (four, links) = find_all(3), find_all(4)
    assert (three == four < links) if cached else (four == 2 * links)

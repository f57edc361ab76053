"""The graph refuses what has no meaning, prints what it holds, and survives JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given

from interlace.core.dtypes import bf16, dtype, fp16, fp32
from interlace.core.errors import CyclicGraphError, DTypeError, GraphError, ParamError, ShapeError
from interlace.graph.access import ALL, Access, Affine, K, Span, axes
from interlace.graph.graph import Graph, from_data, to_data
from interlace.graph.op import Op, Reduction
from interlace.graph.tensor import Tensor

from ..draws import EXAMPLES
from .graphs import AnyBody, build_gated, conv_chain, graphs, pair, pointwise, program, two_matmuls

I, J = axes(2)
ROWS = (I.block(2), J.block(2))


def touch(name: str, reads: str, writes: str, grid: tuple[int, ...] = (2, 2)) -> Op:
    """An op over 4 x 4 tensors in 2 x 2 tiles."""
    return Op(
        name,
        "touch",
        grid,
        tuple(Access(f"in_{t}", t, ROWS) for t in reads.split()),
        tuple(Access(f"out_{t}", t, ROWS) for t in writes.split()),
    )


def squares(*names: str) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(names, (4, 4))


# ---------------------------------------------------------------- shapes and dtypes


@pytest.mark.parametrize("shape", [(), (0,), (4, -1), (4, 2.0)])
def test_tensor_extents_are_positive_integers(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"tensor 'x' has shape .*every extent must be a positive int"):
        Tensor("x", shape, fp32)


def test_tensor_knows_its_bytes() -> None:
    assert Tensor("x", (3, 5), fp32).nbytes == 60
    assert Tensor("x", (3, 5), bf16).nbytes == 30


@pytest.mark.parametrize("grid", [(), (0,), (2, -1), (1, 1, 1, 1), (2.0,), (True, 2), ("2",)])
def test_grid_has_one_to_three_positive_extents(grid: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"op 'a' has grid .*use 1 to 3 positive extents"):
        touch("a", "x", "y", grid)


def test_grid_has_fewer_tiles_than_32_bits_count() -> None:
    with pytest.raises(ShapeError, match=r"op 'a' has grid \(65536, 32768\), 2147483648 tiles; use larger ones"):
        touch("a", "x", "y", (2**16, 2**15))
    assert touch("a", "x", "y", (2**16, 2**15 - 1)).tiles == 2**31 - 2**16


def test_tensor_has_fewer_elements_than_62_bits_count() -> None:
    with pytest.raises(ShapeError, match=r"tensor 'x' has shape .*; use fewer than 2\^62 elements"):
        Tensor("x", (2**31, 2**31), fp32)
    assert Tensor("x", (2**31, 2**30), fp32).nbytes == 2**63


@pytest.mark.parametrize(("extent", "block"), [(0, 1), (4, 0), (-4, 2), (4.0, 2), (4, True), (2**31, 1)])
def test_reduction_is_positive(extent: int, block: int) -> None:
    with pytest.raises(ShapeError, match="both must be positive"):
        Reduction(extent, block)


def test_write_that_moves_with_k_is_refused() -> None:
    with pytest.raises(ShapeError, match="op 'a' writes a region that depends on the k-range; only reads may"):
        Op("a", "k", (2, 2), (), (Access("out", "y", (I.block(2), K)),), Reduction(4, 2))


def test_read_that_moves_with_k_needs_a_reduction() -> None:
    with pytest.raises(ShapeError, match="op 'a' reads a k-range but declares no reduction; pass reduction="):
        Op("a", "k", (2, 2), (Access("in", "x", (I.block(2), K)),), ())


@pytest.mark.parametrize(
    "span",
    [
        Span(K.lo, K.lo + 2),  # a window that moves on with the part
        Span(K.hi - 2, K.hi),
        Span(8 - K.lo, ALL.hi),
        Span(Affine(), 8 - K.hi),
    ],
    ids=str,
)
def test_read_that_leaves_the_whole_tile_with_a_part_is_refused(span: Span) -> None:
    reads, writes = (Access("in", "h", (span,)),), (Access("out", "y", (I.block(1),)),)
    with pytest.raises(ShapeError) as caught:
        Op("window", "window", (1,), reads, writes, Reduction(4, 2))
    assert str(caught.value) == (
        f"op 'window': with a part of the reduction, in: h[{span}] may leave what the whole tile reads, from "
        "which dependencies follow; use k.lo (or -k.hi) in the lower bound and k.hi (or -k.lo) in the upper one"
    )


@pytest.mark.parametrize(
    "span",
    [K, Span(K.lo - 1, K.hi + 1), Span(Affine(), K.hi), Span(8 - K.hi, 8 - K.lo), Span(I - K.hi, I - K.lo)],
    ids=str,
)
def test_read_that_shrinks_with_the_part_is_an_op(span: Span) -> None:
    reads, writes = (Access("in", "h", (span,)),), (Access("out", "y", (I.block(1),)),)
    op = Op("window", "window", (2,), reads, writes, Reduction(4, 2))
    graph = program({"h": (8,), "y": (2,)}, op)
    for tile in range(2):
        whole = graph.compute_region(op, op.reads[0], tile, 0, 4)
        for part in ((0, 2), (2, 4)):
            region = graph.compute_region(op, op.reads[0], tile, *part)
            assert region.intersect(whole) == region


def test_read_that_moves_with_k_in_two_dimensions_is_refused() -> None:
    reads, writes = (Access("in", "h", (K, K)),), (Access("out", "y", (I.block(1),)),)
    expected = "moves with the k-range in more than one dimension; let it move in one, and span the others by ALL"
    with pytest.raises(ShapeError, match=r"op 'trace': in: h\[k.lo : k.hi, k.lo : k.hi\] " + expected):
        Op("trace", "trace", (1,), reads, writes, Reduction(4, 2))


@pytest.mark.parametrize(
    ("bound", "grid", "extent"),
    [(Affine(2**63), (1,), 1), (Affine(2**62, (2**62,)), (2,), 1), (Affine(2**62, (), 0, 2**62), (1,), 1)],
    ids=["constant", "last tile", "last chunk"],
)
def test_bounds_that_overflow_are_refused(bound: Affine, grid: tuple[int, ...], extent: int) -> None:
    reads = (Access("in", "x", (Span(Affine(), bound),)),)
    with pytest.raises(ShapeError, match=r"op 'a': in: x.* has a bound beyond 64 bits on grid .*use smaller"):
        Op("a", "a", grid, reads, (), Reduction(extent, 1))


def test_params_are_numbers_and_texts_of_python() -> None:
    reads = (Access("x", "x", ROWS),)
    op = Op("a", "a", (2, 2), reads, (), params=(("half", np.float32(0.5)), ("rows", np.int64(3)), ("name", "a")))
    assert [(value, type(value)) for _, value in op.params] == [(0.5, float), (3, int), ("a", str)]
    for bad in (None, [1], np.ones(2)):
        with pytest.raises(ParamError, match=r"op 'a': param half is .*; give a number, a bool or a text"):
            Op("a", "a", (2, 2), reads, (), params=(("half", bad),))


def test_map_of_another_rank_than_its_tensor_names_the_op() -> None:
    with pytest.raises(ShapeError, match=r"op 'a': access map of argument 'in_x' has 2 spans.*shape \(4,\)"):
        program({"x": (4,), "y": (4, 4)}, touch("a", "x", "y"))


def test_map_with_more_coordinates_than_the_grid_names_op_and_argument() -> None:
    expected = r"op 'a': access map of 'in_x' uses more tile coordinates than grid \(4,\) has; give the grid another"
    with pytest.raises(ShapeError, match=expected):
        program(squares("x", "y"), touch("a", "x", "y", grid=(4,)))


def test_a_coordinate_that_a_map_takes_no_times_need_not_be_one_of_the_grid() -> None:
    i, j = axes(2)
    op = Op("a", "touch", (4,), (Access("x", "x", ((i + 0 * j).block(1),)),), (Access("y", "y", (i.block(1),)),))
    assert program({"x": (4,), "y": (4,)}, op).op("a").reads[0].tile_axes == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [("bf16", bf16), ("bfloat16", bf16), ("half", fp16), ("float16", fp16), ("float", fp32), (fp32, fp32)],
)
def test_dtypes_have_aliases(name: str, expected: object) -> None:
    assert dtype(name) == expected


def test_unknown_dtype_lists_the_known_ones() -> None:
    with pytest.raises(DTypeError, match="unknown dtype 'int3'; use one of bf16, fp16, fp32"):
        dtype("int3")


# ---------------------------------------------------------------- names


def test_repeated_tensor_names_are_refused() -> None:
    tensors = (Tensor("x", (4, 4), fp32), Tensor("y", (4, 4), fp32), Tensor("x", (4, 4), fp32))
    with pytest.raises(GraphError, match=r"graph 'g' has several tensors called \['x'\]; rename them"):
        Graph("g", tensors, (touch("a", "x", "y"),), ("x",), ("y",))


def test_repeated_op_names_are_refused() -> None:
    with pytest.raises(GraphError, match=r"graph 'test' has several ops called \['a'\]; rename them"):
        program(squares("x", "y", "z"), touch("a", "x", "y"), touch("a", "y", "z"))


def test_graph_without_ops_is_refused() -> None:
    with pytest.raises(GraphError, match="graph 'test' has no ops; give it at least one"):
        program(squares("x"))


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (("x", "x"), ("y",), r"graph 'g' lists inputs \['x'\] several times; list each once"),
        (("x",), ("y", "x", "y"), r"graph 'g' lists outputs \['y'\] several times; list each once"),
        (("x",), ("y", "z"), "graph 'g' has output 'z', which no op writes; let one write it, or drop it"),
    ],
    ids=["inputs", "outputs", "unwritten"],
)
def test_inputs_and_outputs_are_listed_once_and_written(
    inputs: tuple[str, ...], outputs: tuple[str, ...], expected: str
) -> None:
    tensors = tuple(Tensor(n, (4, 4), fp32) for n in "xyz")
    with pytest.raises(GraphError, match=expected):
        Graph("g", tensors, (touch("a", "x", "y"),), inputs, outputs)


def test_input_may_be_an_output() -> None:
    tensors = tuple(Tensor(n, (4, 4), fp32) for n in "xy")
    assert Graph("g", tensors, (touch("a", "x", "y"),), ("x",), ("x", "y")).intermediates == ()


@pytest.mark.parametrize(
    ("op", "inputs", "outputs"),
    [
        (touch("a", "nope", "y"), ("x",), ("y",)),
        (touch("a", "x", "nope"), ("x",), ("y",)),
        (touch("a", "x", "y"), ("nope",), ("y",)),
        (touch("a", "x", "y"), ("x",), ("nope",)),
    ],
    ids=["read", "write", "input", "output"],
)
def test_unknown_tensor_names_list_the_known_ones(op: Op, inputs: tuple[str], outputs: tuple[str]) -> None:
    tensors = tuple(Tensor(n, (4, 4), fp32) for n in "xy")
    with pytest.raises(GraphError, match=r"graph 'g' has no tensor 'nope'; it has \['x', 'y'\]"):
        Graph("g", tensors, (op,), inputs, outputs)


def test_lookup_by_name() -> None:
    graph = two_matmuls()
    assert graph.op("down").kernel == "matmul"
    assert graph.op_index("down") == 1
    assert graph.tensor("hidden").shape == (8, 8)
    with pytest.raises(GraphError, match=r"graph 'test' has no op 'middle'; it has \['up', 'down'\]"):
        graph.op("middle")
    with pytest.raises(GraphError, match=r"graph 'test' has no tensor 'h'; it has \['x', 'w1', 'hidden', 'w2', 'y'\]"):
        graph.tensor("h")


def test_region_of_an_item_is_that_of_its_tile_and_k_range() -> None:
    graph = two_matmuls()
    down = graph.op("down")
    rows, columns = down.reads
    assert str(graph.compute_region(down, rows, 3, 4, 8)) == "hidden[2:4, 4:8]"  # tile 3 is (1, 1)
    assert str(graph.compute_region(down, columns, 3, 4, 8)) == "w2[4:8, 2:4]"
    assert str(graph.compute_region(down, down.writes[0], 3, 4, 8)) == "y[2:4, 2:4]"


def test_intermediates_are_written_and_neither_input_nor_output() -> None:
    assert two_matmuls().intermediates == ("hidden",)
    assert build_gated().intermediates == ("g", "u", "act")
    assert pair().intermediates == ("y",)
    in_place = program({"h": (4,)}, pointwise("a", "h", "h", (4,), (2,)), inputs=("h",))
    assert in_place.intermediates == ()


# ---------------------------------------------------------------- the order of reads and writes


def test_reading_what_nothing_writes_asks_for_an_input() -> None:
    expected = "op 'a' reads 'x', which no op writes; list it among the graph's inputs"
    with pytest.raises(GraphError, match=expected) as caught:
        program(squares("x", "y"), touch("a", "x", "y"), inputs=())
    assert not isinstance(caught.value, CyclicGraphError)


def test_reading_before_the_write_asks_for_another_order() -> None:
    expected = "op 'use' reads 'h' before op 'make' writes it; list 'make' first"
    with pytest.raises(GraphError, match=expected) as caught:
        program(squares("x", "h", "y"), touch("use", "h", "y"), touch("make", "x", "h"))
    assert not isinstance(caught.value, CyclicGraphError)


def test_two_ops_that_need_each_other_are_a_circle() -> None:
    expected = "ops wait for each other: 'a' -> 'b' -> 'a'; write the circle's result to a new tensor"
    with pytest.raises(CyclicGraphError, match=expected):
        program(squares("p", "q"), touch("a", "q", "p"), touch("b", "p", "q"))


def test_longer_circle_is_named_op_by_op() -> None:
    ops = (touch("a", "r", "p"), touch("b", "p", "q"), touch("c", "q", "r"))
    with pytest.raises(CyclicGraphError, match=r"'a' -> 'b' -> 'c' -> 'a'.*list 'r' among the inputs"):
        program(squares("p", "q", "r"), *ops)


def test_op_that_needs_its_own_result_is_a_circle() -> None:
    with pytest.raises(CyclicGraphError, match="ops wait for each other: 'a' -> 'a'"):
        program(squares("p"), touch("a", "p", "p"))


def test_circle_through_an_input_is_two_versions_of_one_tensor() -> None:
    graph = program(squares("p", "q"), touch("a", "q", "p"), touch("b", "p", "q"), inputs=("q",))
    assert [op.name for op in graph.ops] == ["a", "b"]


def test_tensor_may_be_written_again() -> None:
    graph = program(squares("x", "h", "y"), touch("a", "x", "h"), touch("b", "h", "y"), touch("c", "x", "h"))
    assert graph.intermediates == ("y",)


# ---------------------------------------------------------------- printing and JSON


def test_graph_prints_tensors_with_roles_and_ops_with_maps() -> None:
    assert str(two_matmuls()) == "\n".join(
        [
            "graph test",
            "  x[8 x 4] fp32  (input)",
            "  w1[4 x 8] fp32  (input)",
            "  hidden[8 x 8] fp32  (intermediate)",
            "  w2[8 x 4] fp32  (input)",
            "  y[8 x 4] fp32  (output)",
            "  up = matmul, grid 4 x 4, reduction 4 by 2",
            "    reads  a: x[2*t0 : 2*t0 + 2, k.lo : k.hi]",
            "    reads  b: w1[k.lo : k.hi, 2*t1 : 2*t1 + 2]",
            "    writes c: hidden[2*t0 : 2*t0 + 2, 2*t1 : 2*t1 + 2]",
            "  down = matmul, grid 4 x 2, reduction 8 by 2",
            "    reads  a: hidden[2*t0 : 2*t0 + 2, k.lo : k.hi]",
            "    reads  b: w2[k.lo : k.hi, 2*t1 : 2*t1 + 2]",
            "    writes c: y[2*t0 : 2*t0 + 2, 2*t1 : 2*t1 + 2]",
        ]
    )


@pytest.mark.parametrize(
    "graph", [pair(), two_matmuls(), build_gated(), conv_chain()], ids=["pair", "ffn", "gated", "conv"]
)
def test_graph_survives_json(graph: Graph) -> None:
    assert from_data(json.loads(json.dumps(to_data(graph)))) == graph


@EXAMPLES
@given(graphs())
def test_any_graph_survives_json(graph: Graph) -> None:
    assert from_data(json.loads(json.dumps(to_data(graph)))) == graph


def test_json_keeps_parameters_and_takes_bodies_by_kernel_name() -> None:
    params = (("tile", 64), ("scale", 0.5), ("activation", "silu"), ("causal", True))
    accesses = (Access("in", "x", (I.block(2),)),), (Access("out", "y", (I.block(2),)),)
    body = AnyBody()
    op = Op("a", "scale", (2,), *accesses, params=params, flops=12.5, body=body)
    graph = program({"x": (4,), "y": (4,)}, op)
    data = json.loads(json.dumps(to_data(graph)))
    again = from_data(data, {"scale": body}).op("a")
    assert again.params == params
    assert again.param("scale") == 0.5
    assert again.flops == 12.5
    assert again.body is body
    assert from_data(data).op("a").body is None


class Looked(tuple):
    """A tuple that counts what is looked at."""

    entries = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        for entry in super().__iter__():
            Looked.entries += 1
            yield entry


def test_many_ops_are_looked_at_a_few_times_each() -> None:
    n = 400
    tensors = Looked(Tensor(f"t{i}", (4, 4), fp32) for i in range(n + 1))
    ops = Looked(touch(f"op{i}", f"t{i}", f"t{i + 1}") for i in range(n))
    graph = Graph("chain", tensors, ops, Looked(["t0"]), Looked([f"t{n}"]))
    for op in ops:
        assert graph.tensor(op.reads[0].tensor) is tensors[graph.op_index(op.name)]
    assert len(graph.intermediates) == n - 1
    assert Looked.entries < 20 * n


def test_inconsistent_data_is_a_graph_error() -> None:
    data = to_data(pair())
    data["inputs"] = []
    with pytest.raises(GraphError, match="op 'a' reads 'x', which no op writes"):
        from_data(data)

"""Errors in a kernel's NumPy reference name the op, the tile and the signature that is expected."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import DTypeError, FootprintError, GraphError, ReferenceBodyError, ShapeError
from interlace.executors.footprint import check_footprint
from interlace.executors.reference import ReferenceExecutor
from interlace.executors.reference_calls import accumulate, reference_of

ROWS, COLUMNS = 4, 6
Function = Callable[..., Any]


def graph_of(finish: Function, accumulate: Function | None = None, located: bool = False) -> il.Graph:
    """One op over 2 tiles of 2 rows each; with ``accumulate``, over 6 columns in chunks of 2."""
    (i,) = il.axes(1)
    x, out = il.Tensor("x", (ROWS, COLUMNS), il.fp32), il.Tensor("out", (ROWS,), il.fp32)
    op = il.Kernel("mine", il.Reference(finish, accumulate, located)).make_op(
        "rows",
        (2,),
        {"x": (x, (i.block(2), il.K if accumulate else il.ALL))},
        {"out": (out, (i.block(2),))},
        reduction=il.Reduction(extent=COLUMNS, block=2) if accumulate else None,
    )
    return il.Graph("mine", (x, out), (op,), ("x",), ("out",))


def run(graph: il.Graph, **schedule: Any) -> Any:
    executor = ReferenceExecutor(il.build(graph, il.Schedule(1, **schedule)))
    return executor.run({"x": np.tile(np.arange(COLUMNS), (ROWS, 1))})["out"]


def total(acc: Any, regions: Any, params: Any) -> Any:
    return {"out": acc}


def sum_columns(regions: Any, params: Any) -> Any:
    return regions["x"].sum(axis=1)


def test_a_reference_without_errors_runs() -> None:
    assert run(graph_of(total, sum_columns), split=il.SplitK(3)).tolist() == [15.0] * ROWS
    located = graph_of(lambda acc, regions, params, tile: {"out": np.full(2, 1.0 * tile[0])}, located=True)
    assert run(located).tolist() == [0.0, 0.0, 1.0, 1.0]
    check_footprint(located, "rows")


def test_an_error_in_finish_names_op_tile_line_and_signature() -> None:
    def finish(acc: Any, regions: Any, params: Any, tile: Any) -> Any:
        return [{"out": np.ones(2)}][tile[0]]

    with pytest.raises(ReferenceBodyError) as caught:
        run(graph_of(finish, located=True))
    text = str(caught.value)
    assert text.startswith("op 'rows', tile (1): the reference of kernel 'mine' raises IndexError: list index out of ")
    assert f"(finish, line {finish.__code__.co_firstlineno + 1} of {__file__})" in text
    assert "called as finish(acc, regions, params, tile) with acc = None" in text
    assert text.endswith("regions = arrays of shapes {'x': (2, 6)}, params = {}, tile = (1,)")
    assert isinstance(caught.value.__cause__, IndexError)
    assert isinstance(caught.value, GraphError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_an_error_in_accumulate_names_op_tile_and_signature() -> None:
    with pytest.raises(ReferenceBodyError, match=r"op 'rows', tile \(0\).*accumulate\(regions, params\)") as caught:
        run(graph_of(total, lambda regions, params: regions["y"].sum(axis=1)))
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("finish", "accumulate", "located", "message"),
    [
        (lambda x: x, None, False, r"<lambda>\(x\), which is called as finish\(acc, regions, params\): too many"),
        (lambda acc, regions, params: {}, None, True, r"called as finish\(acc, regions, params, tile\)"),
        (lambda acc, regions, params, tile: {}, None, False, r"missing a required argument: 'tile'"),
        (total, lambda regions: 0, False, r"called as accumulate\(regions, params\): too many"),
    ],
)
def test_a_function_with_other_arguments_is_refused_before_anything_runs(
    finish: Function, accumulate: Function | None, located: bool, message: str
) -> None:
    graph = graph_of(finish, accumulate, located)
    with pytest.raises(ReferenceBodyError, match=f"op 'rows': the reference of kernel 'mine' has .*{message}"):
        ReferenceExecutor(il.build(graph, il.Schedule(1)))
    with pytest.raises(ReferenceBodyError, match=message):
        ReferenceExecutor.check(graph, il.H200)
    with pytest.raises(ReferenceBodyError, match=message):
        check_footprint(graph, "rows")


@pytest.mark.parametrize(
    ("value", "dtype"), [(np.ones(2, complex), "complex128"), (np.array(["a", "b"]), "<U1"), ([None, None], "object")]
)
def test_values_that_are_no_real_numbers_are_refused(value: Any, dtype: str) -> None:
    with pytest.raises(DTypeError, match=rf"op 'rows', tile \(0\).*params\) returns 'out' of {dtype}; return real"):
        run(graph_of(lambda acc, regions, params: {"out": value}))
    if isinstance(value, np.ndarray):
        with pytest.raises(DTypeError, match=rf"op 'rows', tile \(0\).*returns an array of {dtype}; return real"):
            run(graph_of(total, lambda regions, params: value))


def test_sums_that_are_no_arrays_are_refused() -> None:
    with pytest.raises(ReferenceBodyError, match=r"op 'rows', tile \(0\).*returns None; return an array"):
        run(graph_of(total, lambda regions, params: None))


def test_sums_of_several_shapes_are_refused() -> None:
    """NumPy would broadcast the sum of one k-range over that of another."""
    graph = graph_of(total, lambda regions, params: np.ones(1 if regions["x"][0, 0] == 2 else 2))
    with pytest.raises(ShapeError, match=r"op 'rows', tile \(0\).*returns shapes \(2,\) and \(1,\) for different"):
        run(graph, split=il.SplitK(3))
    op = graph.op("rows")
    parts = [{"x": np.full((2, 2), first)} for first in (0, 2)]
    first = accumulate(op, 1, reference_of(op), parts[0], None)
    with pytest.raises(ShapeError, match=r"op 'rows', tile \(1\).*returns shapes \(2,\) and \(1,\) for different"):
        accumulate(op, 1, reference_of(op), parts[1], first)


def test_the_footprint_check_names_errors_too() -> None:
    def fail(acc: Any, regions: Any, params: Any) -> Any:
        raise ZeroDivisionError("one over nothing")

    with pytest.raises(ReferenceBodyError, match=r"op 'rows', tile \(0\).*raises ZeroDivisionError: one over nothing"):
        check_footprint(graph_of(fail), "rows")
    with pytest.raises(FootprintError, match="the reference asks for 'w'"):
        check_footprint(graph_of(lambda acc, regions, params: {"out": regions["w"]}), "rows")
    with pytest.raises(FootprintError, match="the reference returns None, its op declares"):
        check_footprint(graph_of(lambda acc, regions, params: None), "rows")

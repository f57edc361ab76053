"""Mistakes in values, reductions, copies and numbers are refused by name when a kernel is built, not later."""

from __future__ import annotations

from collections.abc import Callable
from typing import SupportsIndex

import numpy as np
import pytest

from interlace.core.dtypes import DType, bf16, fp16, fp32
from interlace.core.errors import BoxError, PipelineError
from interlace.loops import library
from interlace.loops.frontend.build import Builder, Handle
from interlace.loops.ir.index import BinaryIndex, Const, IndexOp, Var, ceil_div, evaluate, make_binary
from interlace.loops.ir.statements import Copy, LoopKernel, ReduceOp
from interlace.loops.ir.values import Coord, compare_less, where
from interlace.loops.meaning.interpret import interpret
from interlace.loops.rewrite.circular import circular_buffer, lower
from interlace.loops.rules.check import check_sizes


def kernel(body: Callable[[Builder, Var, Handle, Handle, Handle], None], tile: tuple[int, ...] = (256,)) -> LoopKernel:
    """A kernel of ``x``, ``y`` and a tile ``s``, with the given statements."""
    k = Builder("mistake")
    n = k.symbol("n")
    body(k, n, k.input("x", (n,), fp32), k.output("y", (n,), fp32), k.shared("s", tile, fp32))
    return k.build_kernel()


@pytest.mark.parametrize("axis", [1, 3, -1])
def test_a_coordinate_along_an_axis_that_the_tile_does_not_have(axis: int) -> None:
    def body(k: Builder, n: Var, x: Handle, y: Handle, s: Handle) -> None:
        k.assign(y.at(0, shape=(256,)), where(compare_less(Coord(axis), n), s, 0))

    with pytest.raises(PipelineError, match=rf"value of 'y' takes coordinate {axis} of a tile of \(256,\); its axes"):
        kernel(body)


@pytest.mark.parametrize("number", [float("nan"), 1e39, -1e300])
def test_a_number_that_fp32_does_not_have(number: float) -> None:
    with pytest.raises(PipelineError, match=r"value of 'y' has the number (nan|1e\+39|-1e\+300), which fp32 does not"):
        kernel(lambda k, n, x, y, s: k.assign(y.at(0), s + number))


def test_infinite_numbers_and_the_largest_of_fp32_are_taken() -> None:
    for number in (float("inf"), float("-inf"), 3.4028234663852886e38):
        kernel(lambda k, n, x, y, s, number=number: k.assign(y.at(0), s + number))  # type: ignore[misc]


def _reduction(axes: tuple[int, ...], dtype: DType = fp32, shape: tuple[int, ...] = (4, 64)) -> LoopKernel:
    k = Builder("mistake")
    x, y, s = k.input("x", (4, 64), fp32), k.output("y", (1,), fp32), k.shared("s", (4, 64), fp32)
    acc = k.register("acc", (1, 1), dtype)
    k.load(s, x.at(0, 0))
    k.assign(acc, 0)
    k.reduce(acc, ReduceOp.SUM, s, axes=axes, shape=shape)
    k.store(y.at(0), acc)
    return k.build_kernel()


@pytest.mark.parametrize("axes", [(0, 0, 1), (0, 1, 2), (-1, 0)])
def test_axes_of_a_reduction_are_the_tiles_each_once(axes: tuple[int, ...]) -> None:
    _reduction((1, 0))
    with pytest.raises(PipelineError, match=r"reduction to 'acc': axes .* of \(4, 64\); name each once, from 0 to 1"):
        _reduction(axes)


@pytest.mark.parametrize("shape", [(), (0, 64), (4, -1)])
def test_a_reduction_over_nothing(shape: tuple[int, ...]) -> None:
    with pytest.raises(PipelineError, match=r"reduction to 'acc' over a tile of \(.*\); give it positive extents"):
        _reduction((0, 1), shape=shape)


def test_tensors_aligned_to_nothing_or_of_negative_extents() -> None:
    k = Builder("mistake")
    k.input("x", (4,), fp32, align_bytes=0)
    with pytest.raises(PipelineError, match="tensor 'x' is aligned to 0 bytes; give a positive number"):
        k.build_kernel()
    k = Builder("mistake")
    k.output("y", (k.symbol("n") - 5,), fp32)
    check_sizes(k.build_kernel(), {"n": 5})
    with pytest.raises(PipelineError, match=r"tensor 'y' has shape \(-1,\) under \{'n': 4\}; give extents that leave"):
        interpret(k.build_kernel(), {}, {"n": 4})


@pytest.mark.parametrize("dtype", [bf16, fp16])
def test_a_reduction_accumulates_in_fp32(dtype: DType) -> None:
    with pytest.raises(PipelineError, match=f"reduction to 'acc', which is {dtype}: .*; reduce to an fp32 tile and as"):
        _reduction((0, 1), dtype)


def test_cp_async_does_not_turn_a_row_into_a_column() -> None:
    def body(k: Builder, n: Var, x: Handle, y: Handle, s: Handle) -> None:
        with k.serial("i", ceil_div(n, 256)) as i:
            k.load(s, x.at(i * 256), Copy.CP_ASYNC)

    kernel(body, (1, 256))
    with pytest.raises(BoxError, match=r"cp\.async box of 'x': its rows have 256 elements, those of 's' 1; give the"):
        kernel(body, (256, 1))


@pytest.mark.parametrize("rank", [4, 5])
def test_tma_of_more_than_three_dimensions(rank: int) -> None:
    k = Builder("mistake")
    shape = (*(k.symbol(f"d{axis}") for axis in range(rank - 1)), 64)
    x, s = k.input("x", shape, fp32), k.shared("s", (1,) * (rank - 1) + (64,), fp32)
    k.load(s, x.at(*(0,) * rank))
    with pytest.raises(BoxError, match=f"TMA box of 'x' has {rank} dimensions; use up to 3"):
        k.build_kernel()


@pytest.mark.parametrize(
    ("swizzle_bytes", "columns", "text"),
    [
        (64, 16, "swizzle of 64 bytes; use 128, or none"),
        (32, 8, "swizzle of 32 bytes; use 128, or none"),
        (128, 16, "is swizzled by 128 bytes, but its rows have 64"),
        (128, 64, "is swizzled by 128 bytes, but its rows have 256"),
    ],
)
def test_swizzles_that_no_kernel_can_read(swizzle_bytes: int, columns: int, text: str) -> None:
    k = Builder("mistake")
    k.shared("s", (8, columns), fp32, swizzle_bytes=swizzle_bytes)
    with pytest.raises(BoxError, match=f"tensor 's'.*{text}"):
        k.build_kernel()


@pytest.mark.parametrize("number", [0, -4])
def test_division_by_a_number_that_is_not_positive(number: int) -> None:
    for op in (IndexOp.FLOORDIV, IndexOp.MOD):
        for left in (Var("n"), Const(5)):
            with pytest.raises(PipelineError, match=f"an index is taken {op.value} {number}; divide by numbers from 1"):
                make_binary(op, left, number)
        with pytest.raises(PipelineError, match=f"'mistake' divides by {number}, which may be 0 or less"):
            kernel(lambda k, n, x, y, s, op=op: k.load(s, x.at(BinaryIndex(op, n, Const(number)))))  # type: ignore[misc]
        with pytest.raises(PipelineError, match=f"an index is taken {op.value} {number}"):
            evaluate(BinaryIndex(op, Var("i"), Var("n")), {"i": 3, "n": number})


def test_division_by_what_a_loop_counts() -> None:
    def body(k: Builder, n: Var, x: Handle, y: Handle, s: Handle, more: int) -> None:
        with k.serial("i", n) as i:
            k.load(s, x.at(n // (i + more)))

    with pytest.raises(PipelineError, match="'mistake' divides by i, which may be 0 or less; divide by positive num"):
        kernel(lambda *given: body(*given, more=0))
    kernel(lambda *given: body(*given, more=1))


def test_division_by_an_extent_is_checked_with_the_extents() -> None:
    k = Builder("columns")
    m, n = k.symbol("m"), k.symbol("n")
    x, y, s = k.input("x", (n,), fp32), k.output("y", (n // (m - 2),), fp32), k.shared("s", (4,), fp32)
    with k.serial("i", n % m) as i:
        k.load(s, x.at(i * 4))
        k.store(y.at(i * 4), s)
    check_sizes(k.build_kernel(), {"m": 3, "n": 0})
    with pytest.raises(PipelineError, match=r"'columns' divides by m - 2, which is 0 under \{'m': 2, 'n': 8\}; it"):
        check_sizes(k.build_kernel(), {"m": 2, "n": 8})
    with pytest.raises(PipelineError, match="'columns' divides by m - 2, which is -2"):
        interpret(k.build_kernel(), {"x": np.zeros(8, np.float32)}, {"m": 0})


def test_an_inner_loop_without_iterations_is_no_division_by_zero() -> None:
    for extent in (Var("m"), Const(0)):
        k = Builder("none")
        k.symbol("m")
        x, y, s = k.input("x", (64,), fp32), k.output("y", (64,), fp32), k.shared("s", (4,), fp32)
        with k.serial("o", 3), k.serial("i", extent) as i:
            k.load(s, x.at(i * 4))
            k.store(y.at(i * 4), s)
        rewritten = lower(circular_buffer(k.build_kernel(), "s", 3))
        check_sizes(rewritten, {"m": 0})
        assert np.isnan(interpret(rewritten, {"x": np.ones(64, np.float32)}, {"m": 0})["y"]).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda k, x, s: k.load(s, x.at(1.5)),
        lambda k, x, s: k.load(s, x.at(Var("n") * 0.5)),
        lambda k, x, s: k.load(s, x.at(0, shape=(256.0,))),
        lambda k, x, s: k.serial("i", 2.0),
        lambda k, x, s: k.block("i", "2"),
        lambda k, x, s: k.shared("t", (4.0,), fp32),
        lambda k, x, s: Builder("k", threads=128.0),
        lambda k, x, s: circular_buffer(library.copy_1d(), "s", 2.5),
        lambda k, x, s: circular_buffer(library.copy_1d(), "s", "2"),
        lambda k, x, s: circular_buffer(library.copy_1d(), "s", 3, 1.0),
        lambda k, x, s: ceil_div(Var("n"), 2.0),
    ],
)
def test_what_is_no_integer_is_refused_where_one_is_needed(make: Callable[[Builder, Handle, Handle], object]) -> None:
    k = Builder("mistake")
    n = k.symbol("n")
    x, s = k.input("x", (n,), fp32), k.shared("s", (256,), fp32)
    with pytest.raises(PipelineError, match="stands where an integer is needed"):
        make(k, x, s)


def test_integers_of_numpy_are_integers() -> None:
    def build(of: Callable[[int], SupportsIndex]) -> LoopKernel:
        k = Builder("sums", threads=of(64))
        n = k.symbol("n")
        x, y = k.input("x", (n, of(64)), fp32), k.output("y", (n,), fp32)
        s, acc = k.shared("s", (of(4), of(64)), fp32), k.register("acc", (of(4), 1), fp32)
        with k.serial("i", ceil_div(n, of(4))) as i:
            k.load(s, x.at(of(4) * i, of(0), shape=(of(4), of(64))))
            k.assign(acc, 0)
            k.reduce(acc, ReduceOp.SUM, s, axes=(of(1),), shape=(of(4), of(64)))
            k.store(y.at(i * of(4)), acc)
        return circular_buffer(k.build_kernel(), "s", of(3), of(1))

    assert build(np.int64) == build(np.uint8) == build(int)
    assert type(lower(build(np.int64)).find_tensor("s").stages) is int

"""Triton functions become loops or are refused with their line; a module stands in for ``triton.language``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace import loops
from interlace.core.errors import TritonSourceError
from interlace.core.rounding import round_to
from interlace.loops.frontend.triton_address import Integers, Mask, Unsupported, find_box
from interlace.loops.ir.index import evaluate
from interlace.loops.ops.regions import find_touched_spans

tl: Any = ModuleType("triton.language")
M, N = 37, 100
SHAPES = {"x": (M, N), "y": (M, N), "gain": (N,), "sums": (M,), "flat": (M * N,)}


def tensors(*names: str, dtype: il.DType = il.fp32) -> dict[str, il.Tensor]:
    return {name: il.Tensor(name, SHAPES[name], dtype) for name in names}


def convert(function: Callable[..., None], grid: tuple[int, ...], *names: str, **params: Any) -> loops.LoopKernel:
    dtype = params.pop("dtype", il.fp32)
    return loops.convert_triton(function, grid, tensors(*names, dtype=dtype), {"M": M, "N": N, **params})


def run(kernel: loops.LoopKernel, dtype: il.DType = il.fp32) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the inputs in float64 and the outputs of the op, in a graph of its own."""
    names = [t.name for t in kernel.tensors if t.name in SHAPES]
    written = tuple(t.name for t in kernel.tensors if t.is_written)
    of_graph = tensors(*names, dtype=dtype)
    inputs = tuple(name for name in names if name not in written)
    graph = il.Graph("g", tuple(of_graph.values()), (loops.as_op("op", kernel, of_graph),), inputs, written)
    random = np.random.default_rng(0)
    data = {n: round_to(random.standard_normal(SHAPES[n]).astype(np.float32), dtype) for n in inputs}
    outputs = il.ReferenceExecutor(il.build(graph, il.Schedule(3)), seed=1).run(data)
    return {n: v.astype(np.float64) for n, v in data.items()}, outputs


def scale(tile, x, gain, y, M, N, BM, BN):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tile.j * BN + tl.arange(0, BN)[None, :]
    inside = (row < M) & (column <= N - 1)
    at = row.to(tl.int64) * N + column
    value = tl.load(x + at, mask=inside).to(tl.float32) * tl.load(gain + column, mask=column < N).to(tl.float32)
    tl.store(y + at, value, mask=inside)


def softmax(x, y, stride, N, BLOCK):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + column, mask=column < N, other=-float("inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * stride + column, value / tl.sum(value, axis=0), mask=column < N)


def layer_norm(x, gain, y, sums, M, N, BM, BN):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.arange(0, BN)
    inside = (row < M)[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0)
    mean = tl.sum(value, 1) / N
    apart = tl.where(column[None, :] < N, value - mean[:, None], 0.0)
    variance = tl.sum(apart * apart, axis=1, keep_dims=True) / N
    tl.store(y + at, apart * tl.rsqrt(variance + 1e-5) * tl.load(gain + column, column < N), mask=inside)
    tl.store(sums + row, mean * N, mask=row < M)


def chunked_sums(x, sums, N, STEP):
    row = tl.program_id(0)
    total = tl.zeros((STEP,), dtype=tl.float32)
    for first in tl.static_range(0, N, STEP):
        column = first + tl.arange(0, STEP)
        total += square(tl.load(x + row * N + column, mask=column < N, other=0.0))
    tl.store(sums + row, tl.sum(total, 0))


def square(value):
    return value * value


def clip(flat, y, BLOCK, LOW=None):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(flat + at, mask=at < 3700)
    if LOW is not None:
        value = tl.where(value < LOW, LOW, tl.minimum(value, -LOW))
    tl.store(y + at, value, mask=at < 3700)


def scale_twice(x, y, N):
    at = tl.program_id(0) * N + tl.arange(0, N)
    value = (tl.load(x + at) * 1.1).to(tl.bfloat16)
    tl.store(y + at, value.to(tl.float32) * 1.1)


def test_an_elementwise_function_has_the_boxes_and_values_of_its_tiles() -> None:
    kernel = convert(scale, (5, 4), "x", "gain", "y", dtype=il.bf16, BM=8, BN=32)
    i, j = il.axes(2)
    spans = find_touched_spans(kernel, {})
    assert spans == {"x": (i.block(8), j.block(32)), "gain": (j.block(32),), "y": (i.block(8), j.block(32))}
    inputs, outputs = run(kernel, il.bf16)
    assert np.array_equal(outputs["y"], round_to(np.float32(inputs["x"] * inputs["gain"]), il.bf16))


def test_reductions_over_rows_agree_with_float64() -> None:
    inputs, outputs = run(convert(softmax, (M,), "x", "y", stride=N, BLOCK=128))
    right = np.exp(inputs["x"]) / np.exp(inputs["x"]).sum(1, keepdims=True)
    np.testing.assert_allclose(outputs["y"], right, rtol=1e-5)
    inputs, outputs = run(convert(layer_norm, (5,), "x", "gain", "y", "sums", BM=8, BN=128))
    x = inputs["x"]
    right = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * inputs["gain"]
    np.testing.assert_allclose(outputs["y"], right, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs["sums"], x.sum(1), rtol=1e-4, atol=1e-4)


def test_loops_are_unrolled_and_helpers_inlined() -> None:
    kernel = convert(chunked_sums, (M,), "x", "sums", STEP=32)
    inputs, outputs = run(kernel)
    np.testing.assert_allclose(outputs["sums"], (inputs["x"] ** 2).sum(1), rtol=1e-5)
    assert loops.print_kernel(kernel).count("plain load x") == 4  # 100 columns in steps of 32


def test_constants_decide_branches() -> None:
    flat = {name: il.Tensor(name, (M * N,), il.fp32) for name in ("flat", "y")}
    for low in (None, -0.5):
        kernel = loops.convert_triton(clip, (15,), flat, {"BLOCK": 256} | ({"LOW": low} if low else {}))
        data = np.random.default_rng(0).standard_normal(M * N).astype(np.float32)
        right = data if low is None else data.clip(low, -low)
        assert np.array_equal(loops.interpret(kernel, {"flat": data})["y"], right)


def test_bf16_is_rounded_where_the_function_converts() -> None:
    inputs, outputs = run(convert(scale_twice, (M,), "x", "y"))
    once = round_to(np.float32(inputs["x"]) * np.float32(1.1), il.bf16)
    assert np.array_equal(outputs["y"], once * np.float32(1.1))


def test_a_box_is_found_only_where_mask_and_bounds_agree() -> None:
    """Random offsets and masks of tiles of 4 x 8 in a 6 x 10 tensor, 3 x 2 programs, element by element."""
    random, counts = np.random.default_rng(0), {"pid_0": 3, "pid_1": 2}
    programs = np.stack(np.meshgrid(*map(np.arange, (3, 2, 4, 8)), indexing="ij"))
    keys, found = ("pid_0", "pid_1", -2, -1), 0

    def draw(shares: tuple[tuple[int, ...], ...], const: int) -> tuple[Integers, np.ndarray]:
        terms = [int(random.choice(some)) for some in shares]
        integers = Integers(const, dict(zip(keys, terms, strict=True)), (4, 8))
        return integers, const + np.tensordot(terms, programs, 1)

    for _ in range(3000):
        offset, offsets = draw(((0, 40, 20), (0, 8, 10), (10, 10, 20), (1, 1, 2)), int(random.choice((0, 0, 3))))
        rows, of_rows = draw(((0, 4, 2), (0,), (1,), (0,)), -int(random.choice((6, 5))))
        columns, of_columns = draw(((0,), (0, 8), (0,), (1,)), -int(random.choice((10, 10, 7))))
        some = [n for n in ((rows, of_rows), (columns, of_columns)) if random.random() < 0.8]
        inside = np.all([n < 0 for _, n in some], 0) if some else np.ones_like(offsets, bool)
        try:
            origin, shape, _ = find_box((6, 10), offset, Mask(*(n for n, _ in some)) if some else None, counts)
        except Unsupported:
            continue
        found += 1
        assert shape == (4, 8)
        for p0, p1 in np.ndindex(3, 2):
            at = [evaluate(n, {"pid_0": p0, "pid_1": p1}) for n in origin]
            row, column = np.meshgrid(at[0] + np.arange(4), at[1] + np.arange(8), indexing="ij")
            assert np.array_equal(inside[p0, p1], (row < 6) & (column < 10))
            assert np.array_equal((row * 10 + column)[inside[p0, p1]], offsets[p0, p1][inside[p0, p1]])
    assert found > 50


def branch_on_data(x, y, N, BLOCK):
    at = tl.program_id(0) * N + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < N)
    if value > 0:
        tl.store(y + at, value)


def multiply_matrices(x, y, N, BLOCK):
    at = tl.arange(0, BLOCK)[:, None] * N + tl.arange(0, BLOCK)[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))


def forget_the_mask(x, y, N, BLOCK):
    at = tl.program_id(0) * N + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))


def mask_too_much(x, y, N, BLOCK):
    column = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * N + column, mask=column < N - 1)
    tl.store(y + tl.program_id(0) * N + column, value, mask=column < N)


def mask_too_little(x, y, N, BLOCK):
    column = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * N + column, mask=column < N + 1)
    tl.store(y + tl.program_id(0) * N + column, value, mask=column < N)


def step_over_elements(x, y, N, BLOCK):
    at = tl.program_id(0) * N + 2 * tl.arange(0, BLOCK // 4)
    tl.store(y + at, tl.load(x + at))


def transpose(x, y, N, BLOCK):
    at = tl.arange(0, 32)[None, :] * N + tl.arange(0, 32)[:, None]
    tl.store(y + at, tl.load(x + at))


def gather(x, y, N, BLOCK):
    index = tl.load(x + tl.program_id(0) * N)
    tl.store(y + tl.program_id(0) * N, tl.load(x + index))


def work_in_place(x, y, N, BLOCK):
    at = tl.program_id(0) * N + tl.arange(0, 64)
    tl.store(x + at, tl.load(x + at) + tl.load(y + at))


def compare_program(x, y, N, BLOCK):
    at = tl.program_id(0) * N + tl.arange(0, 64)
    if tl.program_id(0) == 0:
        tl.store(y + at, tl.load(x + at))


def begin_before_the_tensor(x, y, N, BLOCK):
    at = tl.program_id(0) * N + tl.arange(0, 64) - 1
    tl.store(y + at, tl.load(x + at))


def mix_rows_and_columns(x, y, N, BLOCK):
    at = tl.arange(0, 32)[:, None] * N + tl.arange(0, 32)[None, :]
    value = tl.load(x + at)
    tl.store(y + at, value - tl.sum(value, 1))


def store_sums_along_columns(x, y, N, BLOCK):
    at = tl.arange(0, 32)[:, None] * N + tl.arange(0, 32)[None, :]
    tl.store(y + at, tl.sum(tl.load(x + at), 1))


def reduce_no_axis(x, y, N, BLOCK):
    at = tl.arange(0, 32)[:, None] * N + tl.arange(0, 32)[None, :]
    tl.store(y, tl.sum(tl.load(x + at)))


def round_to_multiples(x, y, N, BLOCK):
    at = tl.program_id(0) % 4 * N + tl.arange(0, 64)
    tl.store(y + at, tl.load(x + at))


def hint_at_memory(x, y, N, BLOCK):
    at = tl.program_id(0) * N + tl.arange(0, 64)
    tl.store(y + at, tl.load(x + at, volatile=True))


@pytest.mark.parametrize(
    ("function", "line", "why"),
    [
        (branch_on_data, 2, "reaches 127; mask it by < 100"),
        (multiply_matrices, 2, r"loops have no tl\.dot"),
        (forget_the_mask, 2, r"the coordinate along dimension 1 of \(37, 100\) reaches 127; mask it by < 100"),
        (mask_too_much, 2, "mask it by < 100"),
        (mask_too_little, 2, "mask it by < 100"),
        (step_over_elements, 2, r"the elements of the tile \(32,\) are no box of the tensor \(37, 100\)"),
        (transpose, 2, "no box"),
        (gather, 2, "an operand is no integer"),
        (work_in_place, 2, "'x' is also stored to, and loops read no output"),
        (compare_program, 2, "only <, <=, > and >= make masks"),
        (begin_before_the_tensor, 2, "may be -1; begin at 0"),
        (mix_rows_and_columns, 3, r"write \[:, None\] after the reduction"),
        (store_sums_along_columns, 2, r"a tile of \(32,\) is stored to pointers of \(32, 32\)"),
        (reduce_no_axis, 2, "no axis None to reduce; name one"),
        (round_to_multiples, 1, "unsupported operand type"),
        (hint_at_memory, 2, r"loops take no \['volatile'\]"),
    ],
)
def test_what_loops_do_not_express_is_refused_with_its_line(function: Any, line: int, why: str) -> None:
    at = inspect.getsourcelines(function)[1] + line
    with pytest.raises(TritonSourceError, match=f"Triton function '{function.__name__}', line {at}: `.*`: .*{why}"):
        convert(function, (M,), "x", "y", BLOCK=128)


def test_branches_on_data_are_refused() -> None:
    with pytest.raises(TritonSourceError, match="`if value > 0:`: a condition that is not known before the run"):
        loops.convert_triton(
            branch_on_data, (1,), {n: il.Tensor(n, (100,), il.fp32) for n in "xy"}, {"N": 100, "BLOCK": 128}
        )


def test_arithmetic_in_bf16_is_refused() -> None:
    with pytest.raises(TritonSourceError, match=r"rounds each operation on bf16; convert by \.to\(tl\.float32\)"):
        convert(softmax, (M,), "x", "y", dtype=il.bf16, stride=N, BLOCK=128)


def test_a_parameter_without_a_value_is_named() -> None:
    with pytest.raises(
        TritonSourceError, match=r"'softmax' takes \['stride', 'BLOCK'\]; pass them in tensors or params"
    ):
        convert(softmax, (M,), "x", "y")

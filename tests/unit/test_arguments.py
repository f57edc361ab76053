"""Arguments of the wrong kind: one typed line that says what, where, and what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

import interlace as il
from interlace.core.arguments import check_int, format_value
from interlace.core.errors import ArgumentError, DTypeError, GraphError, OrderError, ParamError, ShapeError
from interlace.planner.predict import predict
from interlace.planner.search import search

X, Y, W, O = (il.Tensor(name, (16, 16), il.fp32) for name in "xywo")
COPY = il.copy("c", X, Y, (8, 8))
GRAPH = il.Graph("g", (X, Y), (COPY,), ("x",), ("y",))
PLAN = il.build(GRAPH, il.Schedule(1))
CHAIN = il.workloads.two_copies(32, 32, il.fp32, (8, 8))  # ops of 16 tiles each
KERNEL = il.Kernel("k")
(I,) = il.axes(1)

CASES: list[tuple[Callable[[], object], str]] = [
    # a class, or a name, where an object belongs
    (lambda: il.Schedule(4, policy=il.RowSync), "Schedule: policy is the class RowSync; write policy=il.RowSync()"),
    (lambda: il.Schedule(4, policy="row"), "Schedule: policy is 'row'; write policy=il.RowSync()"),
    (lambda: il.Schedule(4, policy="RowSync"), "Schedule: policy is 'RowSync'; write policy=il.RowSync()"),
    (lambda: il.Schedule(4, policy="?"), "Schedule: policy is '?'; write policy=il.TileSync()"),
    (lambda: il.Schedule(4, policy=il.RowMajor()), "Schedule: policy is a RowMajor; write policy=il.TileSync()"),
    (
        lambda: il.Schedule(4, policy={"up": il.RowSync}),
        "Schedule: policy['up'] is the class RowSync; write policy['up']=il.RowSync()",
    ),
    (
        lambda: il.Schedule(4, order=il.GroupedColumnMajor),
        "Schedule: order is the class GroupedColumnMajor; write order=il.GroupedColumnMajor(rows)",
    ),
    (lambda: il.Schedule(4, order="serpentine"), "Schedule: order is 'serpentine'; write order=il.Serpentine()"),
    (lambda: il.Schedule(4, split="split-k"), "Schedule: split is 'split-k'; write split=il.SplitK(parts)"),
    (lambda: il.Schedule(4, split=2), "Schedule: split is 2; write split=il.WholeTiles()"),
    (
        lambda: il.Schedule(4, interleaving="rowpanels"),
        "Schedule: interleaving is 'rowpanels'; write interleaving=il.RowPanels(rows)",
    ),
    (lambda: il.Schedule(4, dispatch="static"), "Schedule: dispatch is 'static'; write dispatch=il.Dispatch.STATIC"),
    (
        lambda: il.Schedule(4, assignment=None),
        "Schedule: assignment is None; write assignment=il.Assignment.STRIPED or il.Assignment.BALANCED",
    ),
    (lambda: il.Schedule(4, chunk_waits=1), "Schedule: chunk_waits is 1; write chunk_waits=True"),
    (
        lambda: il.matmul("m", X, W, O, activation="relu"),
        "op 'm': activation is 'relu'; write activation=il.Activation.RELU",
    ),
    (
        lambda: il.workloads.FFNShape(16, 16, "gelu-tanh", False),
        "FFNShape: activation is 'gelu-tanh'; write activation=il.Activation.GELU_TANH",
    ),
    (lambda: il.Tensor("x", (4,), "fp32"), "tensor 'x': dtype is 'fp32'; write dtype=il.fp32"),
    (lambda: il.Tensor("x", (4,), np.float16), "tensor 'x': dtype is the class float16; write dtype=il.fp16"),
    (lambda: il.Tensor("x", (4,), "torch.bfloat16"), "tensor 'x': dtype is 'torch.bfloat16'; write dtype=il.bf16"),
    (lambda: il.workloads.one_matmul(16, 16, 16, "bf16"), "tensor 'x': dtype is 'bf16'; write dtype=il.bf16"),
    (
        lambda: il.workloads.ffn(16, "llama3-8b"),
        "ffn: shape is 'llama3-8b'; write shape=il.workloads.MODELS['llama3-8b']",
    ),
    # whole numbers
    (lambda: il.Schedule("4"), "Schedule: workers is '4'; write workers=4"),
    (lambda: il.Schedule(4.0), "Schedule: workers is 4.0; write workers=4"),
    (lambda: il.Schedule(2.5), "Schedule: workers is 2.5; write a whole number"),
    (lambda: il.Schedule(True), "Schedule: workers is True; write a whole number"),
    (lambda: il.SplitK("2"), "SplitK: parts is '2'; write parts=2"),
    (lambda: il.StreamK(None), "StreamK: parts is None; write a whole number"),
    (lambda: il.SplitTail(1, "2"), "SplitTail: chunks is '2'; write chunks=2"),
    (lambda: il.RowPanels(1, lag=0.5), "RowPanels: lag is 0.5; write a whole number"),
    (lambda: il.GroupedColumnMajor("2"), "GroupedColumnMajor: rows is '2'; write rows=2"),
    (lambda: il.StridedSync([1]), "StridedSync: stride is [1]; write a whole number"),
    (lambda: I.block("16"), "block: size is '16'; write size=16"),
    (lambda: il.axes("2"), "axes: n is '2'; write n=2"),
    (lambda: il.Span("0", 8), "Span: lo is '0'; write lo=0"),
    # one for another
    (lambda: il.build(GRAPH, 4), "build: schedule is 4; write schedule=il.Schedule(workers)"),
    (
        lambda: il.build(il.Schedule(4), GRAPH),
        "build: graph is a Schedule; write graph=il.Graph(name, tensors, ops, inputs, outputs)",
    ),
    (
        lambda: il.autoplan("ffn"),
        "autoplan: graph is 'ffn'; write graph=il.Graph(name, tensors, ops, inputs, outputs)",
    ),
    (lambda: il.autoplan(GRAPH, "H200"), "autoplan: device is 'H200'; write device=il.H200"),
    (
        lambda: il.autoplan(GRAPH, il.H200, "one_launch"),
        "autoplan: executor is 'one_launch'; pass a class, such as il.PersistentExecutor",
    ),
    (
        lambda: il.autoplan(GRAPH, il.H200, split_k=2),
        "autoplan: a schedule has no ['split_k']; choose among workers, dispatch, assignment, policy, order, "
        "split, interleaving, chunk_waits, stealing, tiles",
    ),
    (
        lambda: search("ffn", il.H200),
        "search: graph is 'ffn'; write graph=il.Graph(name, tensors, ops, inputs, outputs)",
    ),
    (
        lambda: search([GRAPH, 3], il.H200),
        "search: graph[1] is 3; write graph[1]=il.Graph(name, tensors, ops, inputs, outputs)",
    ),
    (lambda: search(GRAPH, "H200"), "search: device is 'H200'; write device=il.H200"),
    (lambda: predict(PLAN, "H200"), "predict: device is 'H200'; write device=il.H200"),
    (lambda: predict(GRAPH, il.H200), "predict: plan is a Graph; write plan=il.build(graph, schedule)"),
    (lambda: search(GRAPH, il.H200, "serial"), "search: mode is 'serial'; write mode=il.PERSISTENT"),
    (lambda: il.matmul("m", X, W, "o"), "op 'm': out is 'o'; write out=il.Tensor(name, shape, dtype)"),
    (lambda: il.matmul("m", X, W, O, bias="b"), "op 'm': bias is 'b'; write bias=il.Tensor(name, shape, dtype)"),
    (
        lambda: il.matmul("m", X, W, O, tile=(16, 16, 16)),
        "op 'm': tile is (16, 16, 16); write tile=il.MatmulTile(m, n, k)",
    ),
    (lambda: il.copy("c", X, "y"), "op 'c': y is 'y'; write y=il.Tensor(name, shape, dtype)"),
    (lambda: il.copy("c", X, Y, 16), "op 'c': tile is 16; write a tuple"),
    (lambda: il.copy("c", X, Y, ("8", 8)), "op 'c': tile[0] is '8'; write an int"),
    (lambda: il.check_footprint(GRAPH, COPY), "check_footprint: op is an Op; write op='c'"),
    (lambda: il.check_footprint(GRAPH, "c", tiles=3), "check_footprint: tiles is 3; write a tuple"),
    # graphs and ops
    (lambda: il.Tensor("x", 4, il.fp32), "tensor 'x': shape is 4; write shape=(4,)"),
    (lambda: il.Tensor(3, (4,), il.fp32), "Tensor: name is 3; write name='x'"),
    (lambda: il.Graph("g", (X, Y), (COPY,), "x", ("y",)), "graph 'g': inputs is 'x'; write inputs=('x',)"),
    (lambda: il.Graph("g", (X, Y), (COPY,), (X,), ("y",)), "graph 'g': inputs[0] is a Tensor; write inputs[0]='x'"),
    (lambda: il.Graph("g", (X, Y), COPY, ("x",), ("y",)), "graph 'g': ops is an Op; write a tuple"),
    (lambda: il.Access("x", "x", (I,)), "access 'x': spans[0] is an Affine; write spans[0]=il.Span(lo, hi)"),
    (lambda: KERNEL.make_op("o", 4, {}, {}), "op 'o': grid is 4; write grid=(4,)"),
    (lambda: KERNEL.make_op("o", (4,), {"x": X}, {}), "op 'o': x is a Tensor; write x=(tensor, spans)"),
    (lambda: KERNEL.make_op("o", (4,), {"x": (X, il.ALL)}, {}), "op 'o': spans of 'x' is a Span; write a tuple"),
    (
        lambda: KERNEL.make_op("o", (4,), {}, {}, reduction=16),
        "op 'o': reduction is 16; write reduction=il.Reduction(extent, block)",
    ),
]


@pytest.mark.parametrize(("call", "message"), CASES, ids=[message for _, message in CASES])
def test_a_wrong_argument_is_answered_with_what_to_write(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value) == message


def test_what_means_the_same_is_taken() -> None:
    """Lists for tuples, integers of NumPy, numbers for bounds."""
    assert il.Graph("g", [X, Y], [COPY], ["x"], ["y"]) == GRAPH
    assert il.Tensor("x", [16, 16], il.fp32) == X
    assert hash(il.Graph("g", [X, Y], [COPY], ["x"], ["y"])) == hash(GRAPH)
    assert type(il.Schedule(np.int64(4)).workers) is int
    assert il.Span(0, 8) == il.constant_span(0, 8)
    assert I.block(np.int32(16)) == I.block(16)
    assert il.ExplicitOrder([1, 0]).compute_permutation((2,)).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: il.SplitK(0), OrderError, "SplitK(0); use at least one part"),
        (lambda: il.StridedSync(-1), OrderError, "StridedSync stride is -1; use a positive number"),
        (lambda: il.GroupedSerpentine(0), OrderError, "GroupedSerpentine rows is 0; use a positive number"),
        (lambda: il.copy("c", X, Y, (0, 16)), ShapeError, "op 'c'"),
        (lambda: il.dtype(["fp32"]), DTypeError, "unknown dtype ['fp32']; use one of bf16, fp16, fp32"),
        (
            lambda: il.build(GRAPH, il.Schedule(4, policy={0: il.RowSync(), "d": il.RowSync()})),
            OrderError,
            "a schedule names ops [0, 'd']; graph 'g' has ['c']",
        ),
    ],
)
def test_what_is_of_the_right_kind_but_means_nothing_is_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


# ---------------------------------------------------------------- what a user's own policies and orders give


def order(given: object) -> il.Schedule:
    class Mine(il.RowMajor):
        def compute_permutation(self, grid: tuple[int, ...]) -> object:
            return given

    return il.Schedule(4, order=Mine())


def make_ranked(keys: object) -> il.Schedule:
    class Mine(il.RowMajor):
        def rank(self, *_: object) -> object:
            return keys

    return il.Schedule(4, order=Mine())


def policy(given: object) -> il.Schedule:
    class Mine(il.TileSync):
        def assign_semaphores(self, *_: object) -> object:
            return given

    return il.Schedule(4, policy=Mine())


def cut(given: object) -> il.Schedule:
    class Mine(il.WholeTiles):
        def compute_cuts(self, *_: object) -> object:
            return given

    return il.Schedule(4, split=Mine())


def split(given: object) -> il.Schedule:
    class Mine(il.WholeTiles):
        def list_items(self, *_: object) -> object:
            return given

    return il.Schedule(4, split=Mine())


def interleaving(given: object) -> il.Schedule:
    class Mine(il.OpAfterOp):
        def interleave(self, *_: object) -> object:
            return given

    return il.Schedule(4, interleaving=Mine())


TILES = np.arange(16)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (order(None), "order for op 'first', grid (4, 4) gave None; give an array of integers"),
        (order(TILES * 1.0), "order for op 'first', grid (4, 4) gave float64 values; give an array of integers"),
        (order(TILES > 3), "order for op 'first', grid (4, 4) gave bool values; give an array of integers"),
        (order(TILES.reshape(4, 4)), "gave an array of shape (4, 4); give one of one dimension"),
        (order(TILES[:3]), "order for op 'first', grid (4, 4) lists entry 3 0 times; list each of 16 exactly once"),
        (make_ranked([TILES]), "rank of Mine must give a tuple of keys, each with one entry per tile"),
        (make_ranked((TILES[:3],)), "rank of Mine must give a tuple of keys, each with one entry per tile"),
        (policy(3), "policy of op 'first' gave 3; give an array of integers"),
        (policy(TILES / 2), "policy of op 'first' gave float64 values; give an array of integers"),
        (policy(TILES[:3]), "policy of op 'first' gave an array of shape (3,); give one of shape (16,)"),
        (cut(np.array([0.5])), "gave float64 values; give an array of integers"),
        (cut(np.array([17])), "cuts from 17 to 17; keep within 0 to 16"),
        (split((TILES + 1, 0 * TILES, 0 * TILES + 1)), "split of op 'first' names tile 16 of 16; keep within 0 to 15"),
        (split((TILES, TILES[:3], TILES)), "split of op 'first' gave an array of shape (3,); give one of shape (16,)"),
        (split(TILES), "split of op 'first' must give three arrays of items: tiles, first chunks, chunks after"),
        (interleaving(None), "order for the items gave None; give an array of integers"),
    ],
)
def test_what_a_choice_gives_is_checked(schedule: il.Schedule, message: str) -> None:
    with pytest.raises(OrderError, match=re.escape(message)):
        il.build(CHAIN, schedule)


def test_a_list_of_integers_is_an_array_of_them() -> None:
    assert il.build(CHAIN, order(list(range(16)))).items.tile.tolist() == 2 * list(range(16))
    assert il.build(CHAIN, policy([0] * 16)).semaphores == 1


def test_an_error_of_an_argument_is_one_of_ours() -> None:
    assert issubclass(ArgumentError, il.InterlaceError)
    assert not issubclass(ArgumentError, GraphError)


def test_numbers_that_python_does_not_print_are_told_by_their_bits() -> None:
    huge = 10**5000
    assert format_value(-huge) == "an int of 16,610 bits"
    assert format_value((huge, 1)) == "(an int of 16,610 bits, 1)"
    assert format_value(10**12) == "1000000000000"
    x, y = (il.Tensor(name, (8,), il.fp32) for name in "xy")
    kernel = il.Kernel("any", il.Reference(lambda _, regions, params: {"y": regions["x"]}))
    for name in ("num_warps", "N"):
        with pytest.raises(ParamError, match=f"param {name} is an int of 16,610 bits; give one of 10,000 bits at most"):
            kernel.make_op("op", (1,), {"x": (x, (il.ALL,))}, {"y": (y, (il.ALL,))}, params={name: huge})


def test_numbers_whose_own_methods_fail_are_typed_errors() -> None:
    class Failing:
        def __index__(self) -> int:
            raise NotImplementedError("no data")

        def __float__(self) -> float:
            raise RuntimeError("no data")

    assert check_int(np.array(3), "f", "x") == 3
    for value in (Failing(), Fraction(10**400), Decimal("1e999"), 1j, np.array([1, 2]), np.array(True), np.bool_(True)):
        with pytest.raises(ArgumentError, match=r"^f: x is .*; write (a whole number|x=)"):
            check_int(value, "f", "x")

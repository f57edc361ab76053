"""The footprint check on a GPU: by poison, on inputs of several kinds, with a plain word on what it cannot see."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

import interlace as il
from interlace.core.errors import FootprintError

from .cases import case

i, j = il.axes(2)
OWN = (i.block(16), j.block(16))


@triton.jit
def stray_tile(tile, x, y, M, N, BM: tl.constexpr, BN: tl.constexpr, KIND: tl.constexpr):
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tile.j * BN + tl.arange(0, BN)[None, :]
    at = row * N + column
    inside = (row < M) & (column < N)
    value = tl.load(x + at, mask=inside, other=0.0)
    if KIND == "a neighbour where negative":
        below = tl.load(x + at + N, mask=inside & (value < 0.0) & (row + 1 < M), other=0.0)
        value = tl.where(value < 0.0, below, value)
    tl.store(y + at, value, mask=inside)
    if KIND == "writes back":
        right = at + BN
        some = inside & (column + BN < N)
        tl.store(y + right, tl.load(y + right, mask=some, other=0.0), mask=some)


STRAY = il.Kernel("stray", None, lambda: il.TritonBody(stray_tile))


def stray(kind: str, dtype: str) -> il.Graph:
    x, y = (il.Tensor(name, (48, 48), il.dtype(dtype)) for name in "xy")
    params = {"M": 48, "N": 48, "BM": 16, "BN": 16, "KIND": kind}
    op = STRAY.make_op("stray", (3, 3), {"x": (x, OWN)}, {"y": (y, OWN)}, params=params)
    return il.Graph("stray", (x, y), (op,), ("x",), ("y",))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_read_that_happens_for_negative_inputs_alone_is_found(dtype: str) -> None:
    with pytest.raises(
        FootprintError, match=r"tile \(1, 1\), given negative inputs, reads x\[32:33, 16:32\], but declares only"
    ):
        il.check_footprint(stray("a neighbour where negative", dtype), "stray", device="cuda", tiles=[4])


def test_what_is_written_back_unchanged_goes_unseen_and_the_answer_says_so() -> None:
    tried = il.check_footprint(stray("writes back", "fp32"), "stray", device="cuda")
    assert tried.is_complete
    assert str(tried).endswith("undeclared memory poisoned, so what is written back unchanged goes unseen")


# The tile that suits 128 tokens has room in shared memory for three operands of 16 bits, not of 32.
WORKLOADS = [
    (graph, dtype)
    for graph in ("two-copies", "two-matmuls", "ffn", "gated-ffn")
    for dtype in ("bf16", "fp16", "fp32")
    if (graph, dtype) != ("gated-ffn", "fp32")
]


@pytest.mark.parametrize(("graph", "dtype"), WORKLOADS)
def test_every_op_of_the_workloads_touches_what_it_declares(graph: str, dtype: str) -> None:
    """On inputs of every kind, large ones too, of which fp16 makes infinities."""
    g = case(graph, 128, dtype).graph
    for op in g.ops:
        il.check_footprint(g, op.name, device="cuda", tiles=[0, op.tiles - 1])


TEXT = r"""
DEVICE void shift(const Tile& tile, const Arguments& a) {
  for (int at = thread(); at < BM * a.N; at += THREADS) {
    const int row = tile.i * BM + at / a.N, column = at % a.N;
    if (row >= a.M) continue;
    a.y[row * a.N + column] = row + DOWN < a.M ? a.x[(row + DOWN) * a.N + column] : rounded<bf16>(1.0f);
    if (BEYOND && row + 1 == min((tile.i + 1) * BM, a.M)) a.y[(row + 1) * a.N + column] = rounded<bf16>(2.0f);
  }
}
"""
SHIFT = il.Kernel("shift", megakernel=il.CudaBody(TEXT, "shift", constants=("BM", "DOWN", "BEYOND")))


def shift(down: int, beyond: bool = False) -> il.Graph:
    x, y = (il.Tensor(name, (40, 24), il.bf16) for name in "xy")
    rows = (i.block(16), il.ALL)
    params = {"M": 40, "N": 24, "BM": 16, "DOWN": down, "BEYOND": beyond}
    op = SHIFT.make_op("shift", (3,), {"x": (x, rows)}, {"y": (y, rows)}, params=params)
    return il.Graph("shift", (x, y), (op,), ("x",), ("y",))


def test_a_text_for_the_one_launch_is_held_to_its_access_maps() -> None:
    assert il.check_footprint(shift(0), "shift", device="cuda").is_complete
    with pytest.raises(FootprintError, match=r"tile \(0\) reads x\[16:17, 0:24\], but declares only"):
        il.check_footprint(shift(1), "shift", device="cuda")
    with pytest.raises(FootprintError, match=r"tile \(0\) writes y\[16:17, 0:24\]"):
        il.check_footprint(shift(0, beyond=True), "shift", device="cuda")
    assert il.check_footprint(il.workloads.two_copies(100, 200), "first", device="cuda").tiles

"""The footprint check: right declarations pass, wrong ones are named with the region that they miss.

It observes every access here, under the interpreter. The way that a GPU takes, by poison, runs here too: it needs a
device and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

import interlace as il
from interlace.core.errors import FootprintError, GraphError, IntraOpRaceError, NoDeviceError
from interlace.executors.footprint import _list_k_ranges, check_footprint
from interlace.executors.footprint.items import FootprintItem
from interlace.executors.footprint.observe import observe_accesses
from interlace.executors.footprint.poison import check_by_poison
from interlace.graph.access import Span

from ..cases import GRAPHS
from ..draws import EXAMPLES
from ..thorough import some
from .cases import SWAPPED, TILE, case, matmul_case
from .kernels import ROW_SUM, blur, row_sum, scale

i, j = il.axes(2)
OWN = (i.block(16), j.block(16))


def alone(op: il.Op, *tensors: il.Tensor) -> il.Graph:
    """A graph of one op; what it reads is an input."""
    read = tuple(dict.fromkeys(a.tensor for a in op.reads))
    return il.Graph("g", tensors, (op,), read, tuple(a.tensor for a in op.writes))


def failure(graph: il.Graph, op: str, device: str = "cpu", **options: object) -> str:
    with pytest.raises(FootprintError) as caught:
        check_footprint(graph, op, device=device, **options)
    return str(caught.value)


def by_poison(graph: il.Graph, op: str, *, tiles: Sequence[int] | None = None) -> None:
    """The check of a GPU, here."""
    target = graph.op(op)
    tiles = range(target.tiles) if tiles is None else tiles
    items = [FootprintItem(graph, target, tile, lo, hi) for tile in tiles for lo, hi in _list_k_ranges(target)]
    check_by_poison(items, "cpu", 0, lambda done, total: None)


def poisoned_failure(graph: il.Graph, op: str, **options: object) -> str:
    with pytest.raises(FootprintError) as caught:
        by_poison(graph, op, **options)
    return str(caught.value)


def replace_accesses(op: il.Op, maps: Mapping[str, Sequence[Span]]) -> il.Op:
    """The op with other access maps for some arguments, of a kernel that does not say how it is made."""

    def change_spans(accesses: tuple[il.Access, ...]) -> tuple[il.Access, ...]:
        return tuple(replace(a, spans=tuple(maps.get(a.arg, a.spans))) for a in accesses)

    return replace(op, reads=change_spans(op.reads), writes=change_spans(op.writes), body=replace(op.body, make=None))


# ---------------------------------------------------------------- right declarations


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])  # of each size
@pytest.mark.parametrize("graph", some(GRAPHS, lambda graph: graph != "two-matmuls"))
def test_every_op_of_the_workloads_touches_what_it_declares(graph: str, dtype: str) -> None:
    g = case(graph, 20, dtype).graph
    for op in g.ops:
        check_footprint(g, op.name, device="cpu")
        check_footprint(g, op.name)


@pytest.mark.parametrize("tile", [TILE, SWAPPED], ids=["straight", "swapped"])
@pytest.mark.parametrize("activation", list(il.Activation))
def test_matmul_touches_what_it_declares_with_every_option(activation: il.Activation, tile: il.MatmulTile) -> None:
    """Ragged in M, N and K: clamped rows and columns must be the tile's own.

    Bias and residual, which stand before and behind the activation whatever it is, each alone with one of them.
    """
    options = [{}, {"bias": True, "residual": True}]
    if activation is il.Activation.SILU:
        options += [{"bias": True}, {"residual": True}, {"gated": True}, {"gated": True, "residual": True}]
    for chosen in options:
        g = matmul_case(17, 18, 50, "fp16", tile, activation, **chosen).graph
        check_footprint(g, "mm", device="cpu", tiles=[0, 3])
        check_footprint(g, "mm")


@settings(EXAMPLES, max_examples=16)
@given(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_a_stencil_passes_if_and_only_if_its_halo_is_wide_enough(reach: tuple[int, int], halo: tuple[int, int]) -> None:
    """In the middle tile nothing is clipped, so the region that is missed follows from the reach alone."""
    x, y = il.Tensor("x", (24, 24), il.fp32), il.Tensor("y", (24, 24), il.fp32)
    g = alone(blur("blur", x, y, reach, halo, tile=(8, 8)), x, y)
    if all(h >= r for r, h in zip(reach, halo, strict=True)):
        check_footprint(g, "blur", device="cpu", tiles=[4, 7])
        return
    box = ", ".join(f"{8 - r}:{16 + r}" for r in reach)
    seen = failure(g, "blur", tiles=[4])
    assert f"op 'blur', tile (1, 1) reads x[{box}]" in seen
    for d, (r, h) in enumerate(zip(reach, halo, strict=True)):
        assert (f"{r - h} below in dimension {d}" in seen) == (r > h)
        assert (f"{r - h} above in dimension {d}" in seen) == (r > h)


def test_kernels_of_ones_own_pass() -> None:
    x, y, z = (
        il.Tensor("x", (20, 40), il.bf16),
        il.Tensor("y", (20, 1), il.bf16),
        il.Tensor("z", (20, 40), il.bf16),
    )
    for device in ("cpu", "reference"):
        check_footprint(alone(row_sum("sum", x, y), x, y), "sum", device=device)
        check_footprint(alone(scale("scale", x, z, 3.0), x, z), "scale", device=device)


def test_an_op_in_place_passes_even_where_it_changes_nothing() -> None:
    x = il.Tensor("x", (20, 40), il.fp16)
    for factor in (2.0, 1.0):
        check_footprint(alone(scale("scale", x, x, factor), x), "scale", device="cpu")


def test_a_map_may_read_more_than_the_body_does() -> None:
    x, y = il.Tensor("x", (20, 24), il.fp32), il.Tensor("y", (20, 24), il.fp32)
    check_footprint(alone(replace_accesses(scale("a", x, y, 2.0), {"x": (il.ALL, il.ALL)}), x, y), "a", device="cpu")


# ---------------------------------------------------------------- wrong declarations


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_missing_halo_is_named(dtype: str) -> None:
    x, y = il.Tensor("x", (40, 20), il.dtype(dtype)), il.Tensor("y", (40, 20), il.dtype(dtype))
    g = alone(blur("blur", x, y, (2, 0), (0, 0)), x, y)
    assert (
        failure(g, "blur")
        == poisoned_failure(g, "blur")
        == (
            "op 'blur', tile (0, 0) reads x[16:18, 0:16], but declares only x[0:16, 0:16]; "
            "widen the access map of 'x' by 2 above in dimension 0, or mask its loads"
        )
    )
    assert (
        failure(g, "blur", tiles=[2])
        == poisoned_failure(g, "blur", tiles=[2])
        == (
            "op 'blur', tile (1, 0) reads x[14:34, 0:16], but declares only x[16:32, 0:16]; "
            "widen the access map of 'x' by 2 below in dimension 0 and 2 above in dimension 0, or mask its loads"
        )
    )


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (
            {"x": (Span(i * 16, i * 16 + 12), j.block(16))},
            "tile (0, 0) reads x[12:16, 0:16], but declares only x[0:12, 0:16]; "
            "widen the access map of 'x' by 4 above in dimension 0",
        ),
        (
            {"x": (i.block(8), j.block(8))},
            "tile (0, 0) reads x[0:16, 0:16], but declares only x[0:8, 0:8]; "
            "widen the access map of 'x' by 8 above in dimension 0 and 8 above in dimension 1",
        ),
        (
            {"x": (j.block(16), i.block(16))},
            "tile (0, 1) reads x[0:16, 16:32], but declares only x[16:32, 0:16]; "
            "widen the access map of 'x' by 16 below in dimension 0 and 16 above in dimension 1",
        ),
        (
            {"y": (i.block(16), Span(j * 16, j * 16 + 15))},
            "tile (0, 0) writes y[0:16, 15:16], but declares only y[0:16, 0:15]; "
            "widen the access map of 'y' by 1 above in dimension 1, or mask its stores",
        ),
        (
            {"x": (j.block(16), i.block(16)), "y": (j.block(16), i.block(16))},
            "tile (0, 1) writes y[0:16, 16:32], but declares only y[16:32, 0:16]; "
            "widen the access map of 'y' by 16 below in dimension 0 and 16 above in dimension 1",
        ),
    ],
    ids=[
        "block too small",
        "block too small both ways",
        "transposed read",
        "write too wide",
        "transposed write",
    ],
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_wrong_map_of_a_copy_is_named(dtype: str, maps: Mapping[str, Sequence[Span]], message: str) -> None:
    x, y = il.Tensor("x", (40, 40), il.dtype(dtype)), il.Tensor("y", (40, 40), il.dtype(dtype))
    g = alone(replace_accesses(il.copy("copy", x, y, (16, 16)), maps), x, y)
    assert f"op 'copy', {message}" in failure(g, "copy")


@pytest.mark.parametrize(
    ("arg", "spans", "message"),
    [
        ("x", (Span(i * 16, i * 16 + 8), il.K), r"reads x\[8:16, 0:50\], .* 'x' by 8 above in dimension 0"),
        ("weight", (i.block(16), il.K), r"tile \(0, 1\) reads weight\[16:18, 0:50\]"),
        (
            "weight",
            (j.block(16), il.constant_span(0, 32)),
            r"reads weight\[0:16, 32:50\], .* by 18 above in dimension 1",
        ),
        ("bias", (Span(j * 16, j * 16 + 1),), r"reads bias\[1:16\], .* 'bias' by 15 above in dimension 0"),
        (
            "residual",
            (i.block(16), Span(j * 16, j * 16)),
            r"reads residual\[0:16, 0:16\], .*residual\[0:16, 0:0\]",
        ),
        ("out", (i.block(8), j.block(16)), r"writes out\[8:16, 0:16\], but declares only out\[0:8, 0:16\]"),
    ],
    ids=["x", "weight", "weight over k", "bias", "residual", "out"],
)
@pytest.mark.parametrize("tile", [TILE, SWAPPED], ids=["straight", "swapped"])
def test_a_wrong_map_of_a_matmul_is_named(tile: il.MatmulTile, arg: str, spans: Sequence[Span], message: str) -> None:
    g = matmul_case(17, 18, 50, "bf16", tile, bias=True, residual=True).graph
    seen = failure(replace(g, ops=(replace_accesses(g.ops[0], {arg: spans}),)), "mm")
    assert re.search(message, seen), seen


# ---------------------------------------------------------------- bodies that stray


@triton.jit
def stray_tile(tile, x, y, M, N, BM: tl.constexpr, BN: tl.constexpr, KIND: tl.constexpr):
    """A copy that does one thing more, or one less."""
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    column = tile.j * BN + tl.arange(0, BN)[None, :]
    at = row * N + column
    inside = (row < M) & (column < N)
    if KIND == "unmasked load":
        value = tl.load(x + at)
    else:
        value = tl.load(x + at, mask=inside, other=0.0)
    if KIND == "adds up":
        value += tl.load(y + at, mask=inside, other=0.0)
    elif KIND == "neighbour, hidden by relu":
        value = tl.maximum(tl.load(x + at + N, mask=inside & (row + 1 < M), other=1.0), 0.0) + value
    elif KIND == "discards":
        value = tl.where(column < 0, tl.load(x + at - row * N), value)
    elif KIND == "nan":
        value = ((value - value) / (value - value)).to(value.dtype)
    elif KIND == "a neighbour where negative":
        below = tl.load(x + at + N, mask=inside & (value < 0.0) & (row + 1 < M), other=0.0)
        value = tl.where(value < 0.0, below, value)
    elif KIND == "a neighbour if all are zero":
        if tl.max(tl.abs(value.to(tl.float32))) == 0.0:
            value += tl.load(x + at + N, mask=inside & (row + 1 < M), other=0.0)
    elif KIND == "large ones only":
        inside = inside & (tl.abs(value.to(tl.float32)) > 100.0)
    elif KIND == "one tile":
        if (tile.i == 1) & (tile.j == 2):
            value += tl.load(x + at + N)
    elif KIND == "far away":
        value += tl.load(x + at + (1 << 40), mask=row + column == 0, other=0.0)
    elif KIND == "wider than an element":
        wide = tl.load((x + row * N + column).to(tl.pointer_type(tl.int64)), mask=inside & (column == 15), other=0)
        value += wide.to(value.dtype) * 0
    elif KIND == "scribbles on its input":
        tl.store(x + at, value + value, mask=inside & (row % 8 == 3))
    elif KIND == "half a tile":
        inside = inside & (row % BM < BM // 2)
    elif KIND == "before the start":
        tl.store(y + at - BN, value, mask=at < BN)
    if KIND == "unmasked store":
        tl.store(y + at, value)
    elif KIND == "writes back":
        lane = tl.arange(0, 2 * BN)[None, :]
        columns = tile.j * BN + lane
        wide = row * N + columns
        some = (row < M) & (columns < N)
        new = tl.load(x + wide, mask=some & (lane < BN), other=0.0)
        old = tl.load(y + wide, mask=some & (lane >= BN), other=0.0)
        tl.store(y + wide, tl.where(lane < BN, new, old), mask=some)
    elif KIND == "writes and restores":
        tl.store(y + at, value, mask=inside)
        kept = tl.load(x + at, mask=inside, other=0.0)
        tl.store(x + at, value + value, mask=inside)
        tl.store(x + at, kept, mask=inside)
    elif KIND == "adds to what is there":
        tl.atomic_add(y + at, value, mask=inside)
    elif KIND == "reads what it wrote":
        tl.store(y + at, value, mask=inside)
        own = tl.load(y + at, mask=inside, other=0.0)
        tl.store(y + at, own + own, mask=inside)
    else:
        tl.store(y + at, value, mask=inside)


STRAY = il.Kernel("stray", None, lambda: il.TritonBody(stray_tile))


def stray(kind: str, dtype: str = "bf16", m: int = 40, n: int = 40) -> il.Graph:
    x, y = il.Tensor("x", (m, n), il.dtype(dtype)), il.Tensor("y", (m, n), il.dtype(dtype))
    params = {"M": m, "N": n, "BM": 16, "BN": 16, "KIND": kind}
    grid = (-(-m // 16), -(-n // 16))
    return alone(STRAY.make_op("stray", grid, {"x": (x, OWN)}, {"y": (y, OWN)}, params=params), x, y)


SEEN = "as observed"  # by poison, too


#: Kind, tile, what observing says, what poison says; the dtypes take turns.
STRAYS = [
    (
        "adds up",
        0,
        "reads y[0:16, 0:16], but the op declares no such access; add 'y' to what it reads",
        SEEN,
    ),
    ("neighbour, hidden by relu", 4, "reads x[32:33, 16:32], but declares only x[16:32, 16:32]; widen", SEEN),
    ("scribbles on its input", 5, "writes x[19:28, 32:40], but the op declares no such access; add 'x' to", SEEN),
    ("half a tile", 1, "does not write all of y[8:16, 16:32], but declares that it writes y[0:16, 16:32]", SEEN),
    ("half a tile", 8, None, None),
    ("unmasked store", 2, "writes y[1:17, 0:8], but declares only y[0:16, 32:40]; widen", SEEN),
    ("unmasked store", 8, "writes memory past the end of y[40 x 40]", SEEN),
    ("before the start", 0, "writes memory before the start of y[40 x 40]", SEEN),
    ("unmasked load", 8, "reads memory past the end of x[40 x 40]", None),
    ("discards", 4, "reads x[0:1, 16:32], but declares only x[16:32, 16:32]; widen", None),
    ("nan", 0, None, "makes NaN of finite inputs of every kind"),
    ("writes back", 4, "writes y[16:32, 32:40], but declares only y[16:32, 16:32]; widen", None),
    ("writes and restores", 4, "writes x[16:32, 16:32], but the op declares no such access", None),
    (
        "a neighbour where negative",
        4,
        ", given negative inputs, reads x[32:33, 16:32], but declares only x[16:32, 16:32]; widen",
        SEEN,
    ),
    (
        "a neighbour if all are zero",
        4,
        ", given inputs of zero, reads x[32:33, 16:32], but declares only x[16:32, 16:32]; widen",
        SEEN,
    ),
    ("large ones only", 4, "does not write all of y[16:32, 16:32]", SEEN),
    ("reads what it wrote", 4, None, None),
]
DTYPES = ("bf16", "fp16", "fp32")


@pytest.mark.parametrize(
    ("kind", "tile", "observed", "poisoned", "dtype"), [(*row, DTYPES[n % 3]) for n, row in enumerate(STRAYS)]
)
def test_a_body_that_strays_is_named(
    kind: str, tile: int, observed: str | None, poisoned: str | None, dtype: str
) -> None:
    """None: what the body does in that tile can do no harm, or leaves no trace for this way to see."""
    g = stray(kind, dtype)
    for message, check, caught in (
        (observed, lambda: check_footprint(g, "stray", device="cpu", tiles=[tile]), failure),
        (observed if poisoned is SEEN else poisoned, lambda: by_poison(g, "stray", tiles=[tile]), poisoned_failure),
    ):
        if message is None:
            check()
        else:
            space = "" if message.startswith(",") else " "
            assert f"{g.ops[0].format_tile(tile)}{space}{message}" in caught(g, "stray", tiles=[tile])


def test_an_access_far_from_all_memory_is_named_before_it_crashes() -> None:
    assert failure(stray("far away"), "stray") == (
        "op 'stray', tile (0, 0) reads memory far from any tensor; mask its loads at the tensor's edge"
    )


def test_every_element_under_a_pointer_of_another_dtype_counts() -> None:
    """Eight bytes from the last element of a row of the tile on are it and three of its neighbours."""
    assert "reads x[0:16, 16:19], but declares only x[0:16, 0:16]" in failure(
        stray("wider than an element"), "stray", tiles=[0]
    )


def test_an_atomic_reads_and_writes() -> None:
    assert "reads y[0:16, 0:16], but the op declares no such access" in failure(
        stray("adds to what is there", "fp32"), "stray", tiles=[0]
    )


def test_observing_leaves_the_interpreter_as_it_was() -> None:
    builder = triton.runtime.interpreter.interpreter_builder
    before = dict(vars(builder))
    x = il.Tensor("x", (16, 16), il.fp32)
    g = alone(scale("scale", x, x, 2.0, (16, 16)), x)
    seen: list[tuple[str, int, int]] = []
    executor = il.SerialExecutor(il.build(g, il.Schedule(1)), il.RunOptions("cpu"))
    with observe_accesses(lambda verb, at, width: seen.append((verb, len(at), width))):
        executor.run({"x": torch.ones(16, 16)})
    with pytest.raises(ZeroDivisionError), observe_accesses(lambda verb, at, width: None):
        1 / 0  # noqa: B018
    assert ("reads", 256, 4) in seen
    assert ("writes", 256, 4) in seen
    assert vars(builder) == before
    n = len(seen)
    executor.run({"x": torch.ones(16, 16)})
    assert len(seen) == n


# ---------------------------------------------------------------- what was tried


def test_what_was_tried_is_told() -> None:
    g = case("ffn", 20).graph
    tried = check_footprint(g, "up", device="cpu", tiles=[0, 3])
    assert (tried.op, tried.grid, tried.tiles, tried.is_complete) == ("up", (2, 3), (0, 3), False)
    assert tried.parts == ((0, 24), (0, 16), (16, 24))
    assert len(tried.inputs) == 7
    assert str(tried) == (
        "op 'up': 2 of 6 tiles on positive inputs, negative inputs, inputs of both signs, inputs of zero, large "
        "inputs, tiny inputs and whole numbers, 2 parts of their reductions on positive inputs; every load and store "
        "observed; for the other tiles pass tiles=range(6)"
    )
    assert str(check_footprint(g, "up")) == (
        "op 'up': all 6 tiles on positive inputs, 2 parts of their reductions on positive inputs; what the reference "
        "asks for and returns"
    )


def test_strays_between_the_sampled_tiles_are_found_with_all_tiles() -> None:
    """One tile of 49 reads a neighbour; a sample misses it and says how many it tried."""
    g = stray("one tile", m=7 * 16, n=7 * 16)
    tried = check_footprint(g, "stray", device="cpu")
    assert not tried.is_complete
    assert f"{len(tried.tiles)} of 49 tiles on" in str(tried)
    assert 1 * 7 + 2 not in tried.tiles
    runs: list[tuple[int, int]] = []
    with pytest.raises(FootprintError, match=r"op 'stray', tile \(1, 2\) reads x\[32:33, 32:48\]"):
        check_footprint(
            g, "stray", device="cpu", tiles=range(g.op("stray").tiles), progress=lambda *done: runs.append(done)
        )
    assert runs == [(n, 7 * 49) for n in range(1, 7 + 2 + 1)]


# ---------------------------------------------------------------- parts of a reduction


@triton.jit
def straying_sum(tile, sync, x, M, K, BM: tl.constexpr, BK: tl.constexpr, KIND: tl.constexpr):
    """Sums rows, but over another k-range than its part."""
    row = tile.i * BM + tl.arange(0, BM)[:, None]
    acc = tl.zeros((BM, 1), tl.float32)
    lo, hi = tile.k_lo, tile.k_hi
    if KIND == "all of it":
        lo, hi = 0, K
    elif KIND == "one chunk more":
        hi = tl.minimum(hi + BK, K)
    elif KIND == "one element less":
        lo = tl.maximum(lo - 1, 0)
    for k in range(lo, hi, BK):
        column = k + tl.arange(0, BK)[None, :]
        value = tl.load(x + row * K + column, mask=(row < M) & (column < hi), other=0.0)
        acc += tl.sum(value.to(tl.float32), 1)[:, None]
    return (acc,)


@pytest.mark.parametrize(
    ("kind", "part", "region", "own"),
    [
        ("all of it", "k 0:16", "16:72", "0:16"),
        ("one chunk more", "k 0:16", "16:32", "0:16"),
        ("one element less", "k 16:48", "15:16", "16:48"),
    ],
)
def test_a_part_of_a_reduction_that_reads_beyond_its_k_range_is_named(
    kind: str, part: str, region: str, own: str
) -> None:
    """As whole tiles all of these are right, so only a split would have shown it."""
    x, y = il.Tensor("x", (20, 72), il.fp32), il.Tensor("y", (20, 1), il.fp32)
    body = ROW_SUM.triton()
    kernel = replace(ROW_SUM, triton=lambda: replace(body, accumulate=straying_sum))
    op = row_sum("sum", x, y)
    op = replace(op, body=kernel, params=(*op.params, ("KIND", kind)))
    assert failure(alone(op, x, y), "sum") == (
        f"op 'sum', tile (0), {part} reads x[0:16, {region}], but declares only x[0:16, {own}]; "
        "the rest is for other parts of the reduction, so keep to tile.k_lo:tile.k_hi"
    )
    whole = replace(op, reduction=il.Reduction(72, 128))
    check_footprint(alone(whole, x, y), "sum", device="cpu")


def test_an_item_of_a_part_is_checked_against_what_finish_reads_too() -> None:
    """Bias and residual do not move with k: every part may read them whole."""
    g = matmul_case(17, 18, 72, "bf16", bias=True, residual=True).graph
    check_footprint(g, "mm", device="cpu", tiles=[3])


# ---------------------------------------------------------------- references


def test_a_reference_that_returns_another_shape_is_named() -> None:
    """It returns whole tiles; only the ragged edge, which every sample of tiles has, shows it."""
    x, y = il.Tensor("x", (200, 200), il.fp32), il.Tensor("y", (200, 200), il.fp32)
    kernel = il.Kernel("fill", il.Reference(lambda acc, regions, params: {"y": np.ones((16, 16))}))
    g = alone(kernel.make_op("fill", (13, 13), {"x": (x, OWN)}, {"y": (y, OWN)}), x, y)
    assert failure(g, "fill", "reference") == (
        "op 'fill', tile (0, 12): the reference returns {'y': (16, 16)}, its op declares {'y': (16, 8)}; fix one"
    )
    check_footprint(g, "fill", tiles=range(12))


def test_a_reference_that_returns_other_arguments_is_named() -> None:
    x, y = il.Tensor("x", (16, 16), il.fp32), il.Tensor("y", (16, 16), il.fp32)
    kernel = il.Kernel("odd", il.Reference(lambda acc, regions, params: {"z": regions["x"]}))
    g = alone(kernel.make_op("odd", (1, 1), {"x": (x, OWN)}, {"y": (y, OWN)}), x, y)
    assert "returns {'z': (16, 16)}, its op declares {'y': (16, 16)}" in failure(g, "odd", "reference")


def test_a_reference_that_asks_for_more_is_named() -> None:
    x, y = il.Tensor("x", (16, 16), il.fp32), il.Tensor("y", (16, 16), il.fp32)
    kernel = il.Kernel("more", il.Reference(lambda acc, regions, params: {"y": regions["x"] + regions["bias"]}))
    g = alone(kernel.make_op("more", (1, 1), {"x": (x, OWN)}, {"y": (y, OWN)}), x, y)
    assert re.search(r"asks for 'bias', .*\['x'\] otherwise, for finish; declare", failure(g, "more", "reference"))


# ---------------------------------------------------------------- arguments


def test_what_cannot_be_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = il.Tensor("x", (40, 40), il.fp32), il.Tensor("y", (40, 40), il.fp32)
    g = alone(il.copy("copy", x, y, (16, 16)), x, y)
    with pytest.raises(GraphError, match="no op 'paste'"):
        check_footprint(g, "paste")
    with pytest.raises(GraphError, match=r"op 'copy' has no tile 9; grid \(3, 3\) has 0..8"):
        check_footprint(g, "copy", device="cpu", tiles=[0, 9])
    with pytest.raises(GraphError, match=r"op 'copy': no tiles to check; give some of 0..8"):
        check_footprint(g, "copy", tiles=[])
    with pytest.raises(NoDeviceError, match="on 'reference', 'cpu' or 'cuda', not on 'meta'"):
        check_footprint(g, "copy", device="meta")
    with pytest.raises(GraphError, match="kernel 'stray' has no NumPy reference"):
        check_footprint(stray("discards"), "stray")
    with pytest.raises(GraphError, match="has no body for kernel 'copy'"):
        check_footprint(replace(g, ops=(replace(g.ops[0], body=None),)), "copy", device="cpu")
    in_place = alone(replace_accesses(scale("a", x, x, 2.0), {"x": (i.block(16, 1), j.block(16))}), x)
    with pytest.raises(IntraOpRaceError, match="tiles of one op run in any order"):
        check_footprint(in_place, "a", device="cpu")
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(NoDeviceError, match="TRITON_INTERPRET=1"):
        check_footprint(g, "copy", device="cpu")


def test_corners_and_edges_of_a_large_grid_are_always_checked() -> None:
    """400 tiles, of which only the ragged last row strays; a few in the middle pass."""
    g = stray("unmasked store", m=16 * 20 - 5, n=16 * 20)
    check_footprint(g, "stray", device="cpu", tiles=[0, 20, 210, 379])
    for seed in range(3):
        assert re.match(r"op 'stray', tile \(19, \d+\) writes memory past", failure(g, "stray", seed=seed))

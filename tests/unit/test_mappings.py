"""Curves of the best tiling against mappings walked loop by loop, and against lower bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.devices import CPU, H200
from interlace.core.errors import ModelError
from interlace.planner.bounds import (
    CONVOLUTION,
    COSMA,
    BoundedQuantity,
    Convolution,
    Gemm,
    Label,
    bound_chain,
    bound_convolutions,
    bound_matmul,
    bound_pebbling,
)
from interlace.planner.conv_mappings import map_conv_pair, map_convolution
from interlace.planner.mappings import TrafficCurve, list_fused_mappings, list_tiles, map_chain, map_gemm

from ..draws import EXAMPLES

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "bounds-predicted.json"
Point = tuple[int, int]


def cut(extent: int, tile: int) -> list[range]:
    return [range(at, min(at + tile, extent)) for at in range(0, extent, tile)]


def check_equal(curve: TrafficCurve, points: list[Point]) -> None:
    """The curve's steps are those of the points."""
    found, least = [], 1 << 60
    for size, moved in sorted(points):
        if moved < least:
            found, least = [p for p in found if p[0] < size] + [(size, moved)], moved
    assert list(zip(curve.buffer.tolist(), curve.accesses.tolist(), strict=True)) == found


class Buffer:
    """Elements in a buffer, by tensor: loads what is not there, and stores what was written when it leaves.

    Elements of ``h`` are computed and dropped.
    """

    def __init__(self, written: str = "") -> None:
        self.held: dict[str, set[object]] = {}
        self.stored: set[object] = set()
        self.written, self.moved, self.peak = written, 0, 0

    def need(self, tensor: str, elements: set[object]) -> None:
        """Hold these elements, and no others, of a tensor."""
        old = self.held.get(tensor, set())
        loaded = (elements - old) & self.stored if tensor == self.written else elements - old
        self.moved += len(loaded) if tensor != "h" else 0
        self.drop(tensor, old - elements)
        self.held[tensor] = set(elements)
        self.peak = max(self.peak, sum(map(len, self.held.values())))

    def drop(self, tensor: str, elements: set[object]) -> None:
        if tensor == self.written:
            self.moved += len(elements)
            self.stored |= elements
        self.held[tensor] = self.held.get(tensor, set()) - elements

    def finish(self) -> Point:
        for tensor, elements in list(self.held.items()):
            self.drop(tensor, elements)
        return self.peak, self.moved


def walk_gemm(gemm: Gemm) -> Iterator[Point]:
    """Every tile and loop order; a tile that the loops leave is moved again."""
    extents = {"m": gemm.m, "n": gemm.n, "k": gemm.k}
    for sizes in product(*(range(1, extent + 1) for extent in extents.values())):
        tiles = {name: cut(extents[name], size) for name, size in zip(extents, sizes, strict=True)}
        for order in permutations(extents):
            buffer, last = Buffer("c"), {}
            for steps in product(*(range(len(tiles[name])) for name in order)):
                at = {name: tiles[name][step] for name, step in zip(order, steps, strict=True)}
                for tensor, dims in {"a": "mk", "b": "kn", "c": "mn"}.items():
                    place = tuple(at[d] for d in dims)
                    if last.get(tensor) != place:
                        buffer.need(tensor, set())
                        buffer.need(tensor, {(tensor, *p) for p in product(*place)})
                        last[tensor] = place
            yield buffer.finish()


@pytest.mark.parametrize("gemm", [Gemm(4, 4, 4), Gemm(5, 3, 4), Gemm(1, 6, 3), Gemm(2, 2, 7)])
def test_the_curve_of_a_matmul_is_that_of_all_its_mappings(gemm: Gemm) -> None:
    # A tile's peak is counted with a whole tile of each tensor, which the first step of all loops has.
    check_equal(map_gemm(gemm), list(walk_gemm(gemm)))


def test_a_small_matmul_has_the_curve_of_its_docstring() -> None:
    curve = map_gemm(Gemm(4, 4, 4))
    assert (curve.buffer.tolist(), curve.accesses.tolist()) == ([3, 5, 8, 14, 24], [144, 112, 80, 64, 48])
    assert [curve.evaluate(size) for size in (2, 3, 8, 13.5, 1000)] == [None, 144, 80, 80, 48]


SIZES = st.integers(1, 40)


@settings(EXAMPLES, max_examples=60)
@given(st.builds(Gemm, SIZES, SIZES, SIZES))
def test_no_tiling_of_a_matmul_moves_less_than_its_safe_bound(gemm: Gemm) -> None:
    curve = map_gemm(gemm)
    for size, moved in zip(curve.buffer.tolist(), curve.accesses.tolist(), strict=True):
        device = replace(CPU, sms=1, l2_bytes=size, l1_bytes=0, register_bytes=0)
        assert moved >= bound_matmul(gemm, 1, device)[1].bytes
    assert curve.accesses[-1] == gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n


def walk_chain(first: Gemm, second: Gemm, tile: Point, rows_first: bool, stays: tuple[bool, ...]) -> Point:
    """Peak and accesses of a fused mapping, element by element."""
    k, n, halves = first.k, second.n, range(first.n // second.k)
    x_stays, w_stays, v_stays, y_stays = stays
    rows, columns = cut(first.m, tile[0]), cut(second.k, tile[1])
    buffer = Buffer("y")
    kept: dict[str, set[object]] = {"x": set(), "w": set(), "v": set(), "y": set()}

    def step(needed: dict[str, tuple[set[object], bool]]) -> None:
        for tensor, (elements, stay) in needed.items():
            kept[tensor] = kept[tensor] | elements if stay else elements
            buffer.need(tensor, kept[tensor])

    for outer, inner in product(rows, columns) if rows_first else product(columns, rows):
        r, c = (outer, inner) if rows_first else (inner, outer)
        if inner == (columns if rows_first else rows)[0]:
            kept |= {"x": set(), "y": set()} if rows_first else {"w": set(), "v": set()}
        buffer.need("h", {*product(r, c, halves)})
        for p in range(k):
            step({"x": ({(row, p) for row in r}, x_stays), "w": ({*product([p], c, halves)}, w_stays)})
        step({tensor: (set(), stay) for tensor, stay in (("x", x_stays), ("w", w_stays))})
        for q in range(n):
            step({"v": ({(column, q) for column in c}, v_stays), "y": ({(row, q) for row in r}, y_stays)})
        step({tensor: (set(), stay) for tensor, stay in (("v", v_stays), ("y", y_stays))})
    return buffer.finish()


@pytest.mark.parametrize(
    ("first", "second"),
    [(Gemm(3, 4, 2), Gemm(3, 2, 4)), (Gemm(4, 6, 2), Gemm(4, 2, 3)), (Gemm(1, 5, 3), Gemm(1, 1, 5))],
)
def test_fused_mappings_move_what_a_walk_of_their_loops_moves(first: Gemm, second: Gemm) -> None:
    tiles = [extent[0].tolist() for extent in (list_tiles(first.m), list_tiles(second.k))]
    points = []
    for mapping in list_fused_mappings(first, second):
        for at in product(*(range(len(sizes)) for sizes in tiles)):
            tile = tiles[0][at[0]], tiles[1][at[1]]
            peak, moved = walk_chain(first, second, tile, mapping.rows_first, mapping.stays)
            assert moved == mapping.accesses[at]
            assert peak <= mapping.buffer[at]
            if all(2 * size == extent for size, extent in zip(tile, (first.m, second.k), strict=True)):
                assert peak == mapping.buffer[at]
            points.append((int(mapping.buffer[at]), moved))
    apart = map_gemm(first) + map_gemm(second)
    points += zip(apart.buffer.tolist(), apart.accesses.tolist(), strict=True)
    check_equal(map_chain(first, second), points)


@settings(EXAMPLES, max_examples=60)
@given(SIZES, SIZES, SIZES, SIZES, st.sampled_from((1, 2)))
def test_no_mapping_of_a_chain_moves_less_than_its_safe_bound(m: int, k: int, j: int, n: int, halves: int) -> None:
    chain = Gemm(m, halves * j, k), Gemm(m, n, j)
    curve = map_chain(*chain)
    for size, moved in zip(curve.buffer.tolist(), curve.accesses.tolist(), strict=True):
        device = replace(CPU, sms=1, l2_bytes=size, l1_bytes=0, register_bytes=0)
        assert moved >= bound_chain(chain, 1, device)[1].bytes
    assert curve.accesses[-1] == m * k + halves * k * j + j * n + m * n
    apart = map_gemm(chain[0]) + map_gemm(chain[1])
    assert all(curve.evaluate(size) <= moved for size, moved in zip(apart.buffer, apart.accesses, strict=True))


def test_curves_of_problems_one_after_another_add_up() -> None:
    curve = map_gemm(Gemm(4, 4, 4))
    assert (curve + curve).accesses.tolist() == curve.scale(2).accesses.tolist() == (2 * curve.accesses).tolist()
    both = map_gemm(Gemm(4, 4, 4)) + map_gemm(Gemm(1, 1, 1))
    assert (both.buffer.tolist(), both.accesses.tolist()) == ([3, 5, 8, 14, 24], [147, 115, 83, 67, 51])


def walk_convolution(conv: Convolution) -> Iterator[Point]:
    """Every tile of rows or images and of channels, with each of the three innermost loops."""
    half, taps = conv.taps // 2, range(conv.taps)
    rows_of = [(i, r) for i in range(conv.images) for r in range(conv.out_rows)]
    tiles = [
        [[(i, r) for r in part] for i in range(conv.images) for part in cut(conv.out_rows, size)]
        for size in range(1, conv.out_rows + 1)
    ]
    tiles += [
        [[x for x in rows_of if x[0] in part] for part in cut(conv.images, size)] for size in range(1, conv.images + 1)
    ]

    def read(part: list[Point], channels: range) -> set[object]:
        rows = {(i, r * conv.stride - half + t) for i, r in part for t in taps}
        return {(i, r, c) for i, r in rows for c in channels if 0 <= r < conv.rows}

    for parts, to, tc in product(tiles, range(1, conv.out_channels + 1), range(1, conv.channels + 1)):
        outs, ins = cut(conv.out_channels, to), cut(conv.channels, tc)
        for innermost in "cop":
            if (
                (innermost == "c" and tc > 1)
                or (innermost == "o" and to > 1)
                or (innermost == "p" and parts != tiles[0])
            ):
                continue
            loops = {"p": range(len(parts)), "o": range(len(outs)), "c": range(len(ins))}
            order = [*(name for name in loops if name != innermost), innermost]
            x, w, y, last = Buffer(), Buffer(), Buffer("y"), {}
            for at in product(*(loops[name] for name in order)):
                place = dict(zip(order, at, strict=True))
                part, o, c = parts[place["p"]], outs[place["o"]], ins[place["c"]]
                for buffer, dims, elements in (
                    (x, "pc", read(part, c)),
                    (w, "oc", {*product(o, c)}),
                    (y, "po", {(*pixel, k) for pixel in part for k in o}),
                ):
                    # With input channels innermost, there is a loop over taps in a step, so that no weight stays.
                    if last.get(dims) != tuple(place[d] for d in dims) or (innermost, dims) == ("c", "oc"):
                        slides = dims == "pc" and innermost == "p" and last.get(dims, (-1, -1))[1] == place["c"]
                        if not slides or place["p"] == 0:  # the halo leaves too
                            buffer.need(buffer.written or "x", set())
                        buffer.need(buffer.written or "x", elements)
                        last[dims] = tuple(place[d] for d in dims)
            (x_peak, x_moved), (w_peak, w_moved), (y_peak, y_moved) = x.finish(), w.finish(), y.finish()
            peaks = {
                "c": y_peak * conv.out_columns + x_peak * conv.columns + to,
                "o": y_peak * conv.out_columns + x_peak * conv.columns + w_peak * conv.taps**2,
                "p": y_peak * conv.out_columns + x_peak * conv.columns + w_peak * conv.taps**2,
            }
            moved = x_moved * conv.columns + w_moved * conv.taps**2 + y_moved * conv.out_columns
            yield peaks[innermost], moved


@pytest.mark.parametrize(
    "conv",
    [
        Convolution(1, 4, 4, 1, 1),
        Convolution(2, 5, 3, 2, 3),
        Convolution(2, 7, 2, 2, 2, 3, 2),
        Convolution(1, 9, 2, 2, 1, 5),
    ],
)
def test_the_curve_of_a_convolution_is_that_of_all_its_mappings(conv: Convolution) -> None:
    check_equal(map_convolution(conv), list(walk_convolution(conv)))


CONVS = st.builds(Convolution, st.integers(1, 4), SIZES, SIZES, SIZES, SIZES, st.sampled_from((1, 3, 5)))


@settings(EXAMPLES, max_examples=40)
@given(CONVS, SIZES)
def test_convolutions_with_room_for_all_move_each_element_once(first: Convolution, channels: int) -> None:
    curve = map_convolution(first)
    assert curve.accesses[-1] == first.inputs + first.weights + first.outputs
    second = Convolution(first.images, first.rows, first.columns, first.out_channels, channels)
    pair = map_conv_pair(first, second)
    assert pair.accesses[-1] == first.inputs + first.weights + second.weights + second.outputs
    apart = curve + map_convolution(second)
    assert all(pair.evaluate(size) <= moved for size, moved in zip(apart.buffer, apart.accesses, strict=True))


def test_a_fused_pair_keeps_the_halo_of_the_intermediate_and_moves_it_never() -> None:
    # Rows of 8 elements, 1 channel: 3 rows of the intermediate, 3 of the input, 2 * 9 weights, a row of the output.
    conv = Convolution(1, 16, 8, 1, 1)
    pair = map_conv_pair(conv, conv)
    assert pair.evaluate(3 * 8 + 3 * 8 + 18 + 8) == 128 + 18 + 128
    assert pair.evaluate(3 * 8 + 3 * 8 + 18 + 7) > 128 + 18 + 128


def test_a_pebble_bound_is_none_where_its_leading_term_does_not_count() -> None:
    small = replace(CPU, sms=2, l2_bytes=1024, l1_bytes=1024, register_bytes=512)
    found = bound_pebbling((Gemm(256, 256, 256),), 1, small)
    # 2 * 256^3 / 32 + 256^2
    assert found is not None
    assert (found.bytes, found.label, found.counts, found.source) == (
        1_048_576 + 65_536,
        Label.LEADING,
        BoundedQuantity.LOADS_AND_STORES,
        COSMA,
    )
    assert bound_pebbling((Gemm(256, 256, 31),), 1, small) is None
    assert bound_pebbling((Gemm(256, 256, 256), Gemm(256, 16, 256)), 1, small) is None
    assert bound_pebbling((Gemm(8192, 8192, 8192),), 2, H200).bytes == 392_075_078 + 2 * 8192**2  # type: ignore[union-attr]


def test_convolutions_are_bounded_by_compulsory_bytes_and_reuse_of_the_window() -> None:
    small = replace(CPU, sms=2, l2_bytes=1024, l1_bytes=1024, register_bytes=512)
    conv = Convolution(2, 16, 16, 64, 64)
    read, both, leading = bound_convolutions((conv,), 1, small)
    assert read.bytes == 2 * 256 * 64 + 9 * 64 * 64
    assert both.bytes == read.bytes + 2 * 256 * 64
    # 2 products / (3 * 32) and the stores; a matmul of as many products has 2 products / 32.
    assert leading.bytes == 2 * (512 * 64 * 64 * 9) // 96 + 32_768
    assert (leading.label, leading.source) == (Label.LEADING, CONVOLUTION)
    pair = bound_convolutions((conv, conv), 1, small)
    assert pair[2].bytes == 2 * 2 * (512 * 64 * 64 * 9) // 96 + 32_768 - 32_768
    assert pair[0].name == "2 chained convolutions"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: map_chain(Gemm(4, 4, 4), Gemm(5, 4, 4)), "cannot take the 4 x 4 result"),
        (lambda: map_chain(Gemm(4, 6, 4), Gemm(4, 4, 4)), "use m = 4 and a k that divides 6"),
        (lambda: Convolution(1, 4, 0, 1, 1), "columns is 0; use at least 1"),
        (lambda: Convolution(1, 4, 4, 1, 1, 2), "2 taps with a stride of 1; use odd taps"),
        (lambda: map_conv_pair(Convolution(1, 4, 4, 1, 2), Convolution(1, 4, 4, 1, 2)), "cannot read the output"),
        (lambda: map_conv_pair(*[Convolution(1, 1, 1, 1, 1, 3, 2)] * 2), "strides 2 and 2; fused convolutions"),
        (lambda: bound_convolutions((), 2, H200), "a chain of no convolutions"),
        (lambda: bound_convolutions([Convolution(1, 4, 4, 1, 2)] * 2, 2, H200), "cannot read the output"),
    ],
)
def test_problems_that_do_not_fit_are_refused(call, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call()


def test_the_record_of_the_picture_keeps_its_bounds() -> None:
    record = json.loads(RECORD.read_text())
    rows = {row["name"]: row for row in record["rows"]}
    assert list(rows) == ["gemm", "mlp", "attention", "convolutions"]
    for row in rows.values():
        lines = zip(row["safe_bytes"], row["tiling_bytes"], row["predicted"], strict=True)
        for safe, tiling, predicted in lines:
            assert safe <= min(tiling, predicted["bytes"])
        assert row["tiling_bytes"] == sorted(row["tiling_bytes"], reverse=True)
    curve = map_gemm(Gemm(8192, 8192, 8192))
    assert rows["gemm"]["tiling_bytes"] == [2 * curve.evaluate(size / 2) for size in record["sizes_bytes"]]
    # Op after op, the image between two convolutions is stored, and loaded again from a small cache.
    image, both = 32 * 56 * 56 * 64 * 2, rows["convolutions"]
    assert both["tiling_bytes"][-1] == 2 * image + 2 * 9 * 64 * 64 * 2
    largest, smallest = both["predicted"][-1]["bytes"], both["predicted"][0]["bytes"]
    assert largest == both["tiling_bytes"][-1] + image + 2 * 64 * 2
    assert smallest > largest + 0.9 * image
    counted = rows["gemm"]["counted"]
    assert counted["bytes"] > 2 * curve.evaluate(counted["l2_bytes"] / 2)


def test_the_page_quotes_the_record_of_the_picture() -> None:
    record = json.loads(RECORD.read_text())
    page = (RECORD.parents[2] / "docs" / "planner.md").read_text()
    at = record["sizes_bytes"].index(66_160_672)
    for row in record["rows"]:
        figures = row["safe_bytes"][at], row["tiling_bytes"][at], row["predicted"][at]["bytes"]
        counted = f"{row['counted']['bytes'] / 1e6:.0f}" if row["counted"] else "not yet"
        quoted = " | ".join([*(f"{figure / 1e6:.0f}" for figure in figures), counted])
        assert f" | {quoted} |" in page, (row["title"], quoted)

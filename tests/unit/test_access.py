"""Access maps: bounds by arithmetic that anyone can redo by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.core.errors import ShapeError
from interlace.graph.access import ALL, Access, Affine, K, Span, axes, constant_span
from interlace.graph.tensor import Region

from ..draws import EXAMPLES
from .graphs import column


def bounds(spans: tuple[Span, ...], shape: tuple[int, ...], coords: tuple[int, ...], k: tuple[int, int] = (0, 1)):
    """Lower and upper bounds of one tile as two lists."""
    lo, hi = Access("a", "A", spans).compute_bounds(shape, column(*coords)[None], column(k[0]), column(k[1]))
    return lo[0].tolist(), hi[0].tolist()


def test_bounds_of_the_worked_example_in_the_module() -> None:
    i, j = axes(2)
    tile, k = (1, 3), (256, 320)
    assert bounds((i.block(64), K), (100, 512), tile, k) == ([64, 256], [100, 320])
    assert bounds((K, j.block(128)), (512, 512), tile, k) == ([256, 384], [320, 512])
    assert bounds((i.block(64), j.block(128)), (100, 512), tile, k) == ([64, 384], [100, 512])


def test_affine_adds_subtracts_and_scales_term_by_term() -> None:
    i, j = axes(2)
    k = K.hi
    value = 3 * (i * 2 + j - 4) + 5 - k
    assert value == Affine(-7, (6, 3), 0, -1)
    assert value.evaluate(column(10, 100)[None], column(0), column(1000)).tolist() == [-7 + 60 + 300 - 1000]


def test_affine_negates_and_is_taken_from_a_number() -> None:
    i, j = axes(2)
    assert -i == Affine(0, (-1,))
    assert 4 - i == Affine(4, (-1,))
    assert 16 - K.hi == Affine(16, k_hi=-1)
    assert (4 - (i - j)).evaluate(column(10, 3)[None], column(0), column(1)).tolist() == [4 - 7]
    assert str(Span(8 - K.hi, 8 - K.lo)) == "-1*k.hi + 8 : -1*k.lo + 8"


def test_expressions_of_one_meaning_are_equal() -> None:
    i, j = axes(2)
    assert i + 0 * j == i
    assert i + j - j == i
    assert i - i == Affine()
    assert Affine(1, (2, 0, 0)) == Affine(1, (2,))
    assert hash(i + 0 * j) == hash(i)
    assert j.tile == (0, 1)


def test_factors_may_be_numpy_integers_and_become_plain_ones() -> None:
    (i,) = axes(1)
    bound = i * np.int64(4) + np.int64(3)
    assert bound == Affine(3, (4,))
    assert [type(n) for n in (bound.const, *bound.tile)] == [int, int]


def test_factors_that_are_no_integers_are_refused() -> None:
    (i,) = axes(1)
    for make in (lambda: i * 0.5, lambda: i + 1.5, lambda: i * i, lambda: Affine("1")):
        with pytest.raises(ShapeError, match=r"a bound of an access map has factors .*; use integers"):
            make()


def test_evaluate_gives_one_value_per_tile() -> None:
    i, j = axes(2)
    coords = np.array([[0, 0], [1, 0], [0, 1], [2, 3]])
    k_lo, k_hi = column(0, 0, 8, 16), column(8, 8, 16, 24)
    assert (i * 10 + j).evaluate(coords, k_lo, k_hi).tolist() == [0, 10, 1, 23]
    assert (K.lo + K.hi + j).evaluate(coords, k_lo, k_hi).tolist() == [8, 8, 25, 43]


def test_constant_map_ignores_coordinates_and_k() -> None:
    coords = np.array([[5], [7]])
    assert Affine(3).evaluate(coords, column(1, 2), column(3, 4)).tolist() == [3, 3]


def test_bounds_are_clipped_to_the_tensor() -> None:
    (i,) = axes(1)
    assert bounds((i.block(64),), (100,), (1,)) == ([64], [100])
    assert bounds((i.block(64),), (100,), (2,)) == ([100], [100])
    assert bounds((Span(i - 10, i + 10),), (100,), (3,)) == ([0], [13])


def test_halo_widens_both_sides_and_is_clipped_at_the_edges() -> None:
    (i,) = axes(1)
    assert [bounds((i.block(4, halo=1),), (12,), (t,)) for t in range(3)] == [
        ([0], [5]),
        ([3], [9]),
        ([7], [12]),
    ]


def test_all_spans_whole_rows_of_any_extent() -> None:
    i, _ = axes(2)
    assert bounds((i.block(2), ALL), (8, 10**9), (3, 0)) == ([6, 0], [8, 10**9])


def test_fixed_is_the_same_for_every_tile() -> None:
    coords = np.array([[0, 0], [3, 5]])
    lo, hi = Access("b", "B", (constant_span(2, 7),)).compute_bounds((5,), coords, column(0, 0), column(1, 1))
    assert (lo.tolist(), hi.tolist()) == ([[2], [2]], [[5], [5]])


def test_causal_bound_grows_with_the_tile() -> None:
    (i,) = axes(1)
    causal = Span(Affine(), i * 4 + 4)
    assert [bounds((causal,), (10,), (t,)) for t in range(3)] == [([0], [4]), ([0], [8]), ([0], [10])]


def test_only_spans_that_move_with_k_say_so() -> None:
    i, j = axes(2)
    assert K.uses_k
    assert Span(i, K.hi + j).uses_k
    assert not any(span.uses_k for span in (ALL, constant_span(0, 3), i.block(4), i.block(4, halo=2)))
    assert Access("a", "A", (i.block(4), K)).uses_k
    assert not Access("a", "A", (i.block(4), ALL)).uses_k


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Affine(), "0"),
        (Affine(-3), "-3"),
        (axes(2)[1], "t1"),
        (axes(2)[0] * 64 + 64, "64*t0 + 64"),
        (axes(2)[0] * 64 - 1, "64*t0 - 1"),
        (axes(2)[0] - axes(2)[1] * 2, "t0 - 2*t1"),
        (K.lo + axes(1)[0], "t0 + k.lo"),
        (K.hi * 2 + 1, "2*k.hi + 1"),
        (K, "k.lo : k.hi"),
        (ALL, ":"),
        (constant_span(0, 3), "0 : 3"),
        (axes(1)[0].block(4, halo=1), "4*t0 - 1 : 4*t0 + 5"),
        (Access("a", "A", (axes(2)[0].block(64), K, ALL)), "a: A[64*t0 : 64*t0 + 64, k.lo : k.hi, :]"),
        (Region("h", (0, 64), (16, 128)), "h[0:16, 64:128]"),
    ],
)
def test_maps_print_as_index_expressions(value: object, text: str) -> None:
    assert str(value) == text


def test_maps_are_values() -> None:
    i, j = axes(2)
    assert Access("a", "A", (i.block(4), K)) == Access("a", "A", (i.block(4), K))
    assert len({i.block(4), i.block(4), j.block(4), i.block(5)}) == 3


@pytest.mark.parametrize("spans", [(), (K,), (K, K, K)])
def test_map_of_another_rank_names_argument_tensor_and_shape(spans: tuple[Span, ...]) -> None:
    expected = rf"argument 'a' has {len(spans)} spans, but tensor 'A' has shape \(4, 6\); give one span"
    with pytest.raises(ShapeError, match=expected):
        bounds(spans, (4, 6), (0, 0))


def test_regions_intersect_and_index_arrays() -> None:
    a, b = Region("x", (0, 2), (4, 6)), Region("x", (3, 0), (8, 3))
    assert a.intersect(b) == Region("x", (3, 2), (4, 3))
    assert not a.intersect(b).is_empty
    assert a.intersect(Region("x", (4, 2), (8, 6))).is_empty
    assert np.arange(48).reshape(8, 6)[a.intersect(b).slices].tolist() == [[20]]


@EXAMPLES
@given(
    const=st.integers(-20, 20),
    factors=st.tuples(st.integers(-3, 3), st.integers(-3, 3)),
    k_factors=st.tuples(st.integers(-2, 2), st.integers(-2, 2)),
    coords=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5),
    k=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    extent=st.integers(1, 30),
)
def test_bounds_equal_the_formula_for_any_map(const, factors, k_factors, coords, k, extent) -> None:
    low = Affine(const, factors, *k_factors)
    access = Access("a", "A", (Span(low, low + 5),))
    n = len(coords)
    lo, hi = access.compute_bounds((extent,), np.array(coords), np.full(n, k[0]), np.full(n, k[1]))
    expected = [const + factors[0] * a + factors[1] * b + k_factors[0] * k[0] + k_factors[1] * k[1] for a, b in coords]
    assert lo[:, 0].tolist() == [min(max(v, 0), extent) for v in expected]
    assert hi[:, 0].tolist() == [min(max(v + 5, 0), extent) for v in expected]

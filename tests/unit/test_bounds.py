"""Lower bounds on traffic against numbers worked out by hand, and energy estimates."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.devices import CPU, H200
from interlace.core.errors import ModelError
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.orders.replay import count_loads
from interlace.planner.bounds import (
    COMPULSORY,
    FUSION,
    SAHA,
    SMITH,
    BoundedQuantity,
    Gemm,
    Label,
    TrafficBound,
    bound_attention,
    bound_chain,
    bound_compulsory,
    bound_matmul,
)
from interlace.planner.energy import PUBLISHED, Level, estimate_energy

from ..draws import EXAMPLES

SAFE, LEADING = Label.SAFE, Label.LEADING
LOADS, BOTH = BoundedQuantity.LOADS, BoundedQuantity.LOADS_AND_STORES
#: 4096 elements of a byte on the chip, so that sqrt(S) is 64; 1024 of them in L2, sqrt 32.
SMALL = replace(CPU, sms=2, l2_bytes=1024, l1_bytes=1024, register_bytes=512)


def test_everything_on_the_chip_counts_as_cache() -> None:
    assert SMALL.on_chip_bytes == 4096
    assert H200.on_chip_bytes == (60 << 20) + 132 * (512 << 10) == 132_120_576


def test_matmul_bounds_are_those_worked_out_by_hand() -> None:
    # 2 * 256^3 / 64 = 524,288; less 2S = 8,192 that is 516,096, and less mn = 65,536 it is 450,560 for loads.
    assert bound_matmul(Gemm(256, 256, 256), 1, SMALL) == (
        TrafficBound("matmul", 450_560, SAFE, LOADS, SMITH),
        TrafficBound("matmul", 516_096, SAFE, BOTH, SMITH),
        TrafficBound("matmul", 1_048_576, LEADING, LOADS, SMITH),  # 2 * 256^3 / 32
    )


def test_bounds_count_bytes_and_capacity_in_elements() -> None:
    # S = 1,024 elements of four bytes: 2 * 256^3 / 32 - 2 * 1,024 = 1,046,528 elements.
    safe, total, leading = bound_matmul(Gemm(256, 256, 256), 4, SMALL)
    assert (safe.bytes, total.bytes) == (4 * (1_046_528 - 65_536), 4 * 1_046_528)
    assert leading.bytes == 4 * int(2 * 256**3 / 16)


def test_a_matmul_that_fits_must_still_load_its_operands() -> None:
    safe, total, leading = bound_matmul(Gemm(8192, 8192, 8192), 2, H200)
    assert safe.bytes == 2 * 2 * 8192**2
    assert total.bytes == 2 * 3 * 8192**2
    assert leading.bytes == 392_075_078
    assert [bound.bytes for bound in bound_matmul(Gemm(3, 5, 7), 1, SMALL)] == [56, 71, 56]


def test_a_chain_may_save_what_it_passes_on() -> None:
    # 2 * 512 * 1024 * 256 / 64 twice is 8,388,608; less 4S = 16,384 and h stored and loaded, 2 * 524,288.
    up, down = Gemm(512, 1024, 256), Gemm(512, 256, 1024)
    safe, total, leading = bound_chain((up, down), 1, SMALL)
    assert (safe.name, safe.source) == ("2 chained matmuls", FUSION)
    assert total.bytes == 8_388_608 - 16_384 - 2 * 524_288 == 7_323_648
    assert safe.bytes == total.bytes - 512 * 256
    assert leading.bytes == 2 * 8_388_608 - 524_288
    apart = [bound_matmul(gemm, 1, SMALL) for gemm in (up, down)]
    assert total.bytes == sum(bounds[1].bytes for bounds in apart) - 2 * 524_288


def test_a_gated_ffn_folds_the_columns_that_it_passes_on() -> None:
    up, down = Gemm(512, 2048, 256), Gemm(512, 256, 1024)
    total = bound_chain((up, down), 1, SMALL)[1]
    terms = 2 * 512 * 2048 * 256 // 64 + 2 * 512 * 256 * 1024 // 64
    assert total.bytes == terms - 4 * 4096 - 512 * 2048 - 512 * 1024


def test_attention_is_bounded_up_to_a_constant() -> None:
    # L2 holds 1,024 elements: d = 16 gives N^2 d^2 / S = 2^20 * 256 / 1,024; d = 64 > 32 gives N^2 d / 32.
    read, moved, leading = bound_attention(1024, 1024, 16, 1, 1, SMALL, key_heads=1)
    assert (read.bytes, moved.bytes) == (3 * 16_384, 4 * 16_384)
    assert leading == TrafficBound("attention", 262_144, LEADING, BOTH, SAHA)
    assert bound_attention(1024, 1024, 64, 1, 1, SMALL, key_heads=1)[2].bytes == 1024**2 * 64 // 32
    shared = bound_attention(128, 1024, 16, 8, 1, SMALL, key_heads=2)
    assert shared[0].bytes == 128 * 16 * 8 + 2 * 1024 * 16 * 2


def test_compulsory_counts_reads_and_then_writes_too() -> None:
    assert [(b.bytes, b.counts, b.source) for b in bound_compulsory("copy", 30, 12)] == [
        (30, LOADS, COMPULSORY),
        (42, BOTH, COMPULSORY),
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Gemm(4, 0, 4), "n is 0; use at least 1"),
        (lambda: bound_matmul(Gemm(4, 4, 4), 0, SMALL), "element_bytes is 0; use at least 1"),
        (lambda: bound_chain((), 2, SMALL), "a chain of no matmuls moves nothing"),
        (lambda: bound_chain((Gemm(4, 6, 4), Gemm(4, 4, 4)), 2, SMALL), "use m = 4 and a k that divides 6"),
        (lambda: bound_chain((Gemm(4, 4, 4), Gemm(5, 4, 4)), 2, SMALL), "cannot take the 4 x 4 result"),
        (lambda: bound_attention(4, 4, 4, 3, 2, SMALL, key_heads=2), "3 heads cannot share 2 key heads evenly"),
        (lambda: estimate_energy({Level.L2: -1}), "L2 moves -1; use 0 or more"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(call, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call()


@settings(EXAMPLES, max_examples=80)
@given(st.data())
def test_no_order_of_a_small_grid_loads_less_than_its_safe_bound(data: st.DataObject) -> None:
    """Tiles of t x t elements, chunks of one element of K: the cache holds chunks, the registers one tile."""
    t, k = data.draw(st.integers(1, 3)), data.draw(st.sampled_from((1, 4, 24)))
    grid = PanelGrid(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)), k)
    capacity = data.draw(st.integers(2, 12))
    tiles = data.draw(st.permutations(list(product(range(grid.rows), range(grid.columns)))))
    walk = [Visit(*tile, backwards=data.draw(st.booleans())) for tile in tiles]
    device = replace(CPU, sms=1, l2_bytes=capacity * t, l1_bytes=0, register_bytes=t * t)
    safe, total, _ = bound_matmul(Gemm(grid.rows * t, grid.columns * t, k), 1, device)
    for cache in EvictionPolicy:
        loaded = count_loads(grid, walk, capacity, cache) * t
        assert 0 < safe.bytes <= loaded
        assert total.bytes <= loaded + grid.tiles * t * t


def test_the_safe_bound_says_more_than_compulsory_where_the_cache_is_small() -> None:
    device = replace(CPU, sms=1, l2_bytes=2, l1_bytes=0, register_bytes=1)
    grid = PanelGrid(5, 5, 24)
    safe = bound_matmul(Gemm(5, 5, 24), 1, device)[0]
    assert safe.bytes == int(2 * 600 / sqrt(3) - 6 - 25) == 661
    walk = [Visit(*tile) for tile in product(range(5), range(5))]
    assert 2 * 5 * 24 < safe.bytes <= count_loads(grid, walk, 2, EvictionPolicy.OPT)


def test_energy_is_by_level_with_its_sources() -> None:
    run = estimate_energy({Level.DRAM: 10**9, Level.L2: 10**9, Level.REGISTERS: 10**9})
    assert [part.level for part in run.parts] == [Level.DRAM, Level.L2, Level.REGISTERS]
    assert [round(part.joules * 1e3, 2) for part in run.parts] == [31.36, 12.5, 1.25]
    assert run.joules == pytest.approx(45.11e-3)
    assert "O'Connor" in run.parts[0].source
    assert "Horowitz" in run.parts[1].source
    assert run.label.startswith("estimate")
    assert estimate_energy({Level.ARITHMETIC: 2 * 4096**3}).joules == pytest.approx(0.103, rel=0.01)
    assert all(rate.picojoules > 0 and rate.source for rate in PUBLISHED.values())
    assert set(PUBLISHED) == set(Level)

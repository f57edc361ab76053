"""Settings of the Hopper executor: which make a launch, and the defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interlace.bench.hopper import ROWS
from interlace.kernels.matmul import Activation
from interlace.workloads.ffn import FFNShape
from interlace.workloads.hopper import HopperSetting, fits, hopper_setting

PLAIN = FFNShape(4096, 14336, Activation.RELU, False)
GATED = FFNShape(4096, 14336, Activation.SILU, True)


@pytest.mark.parametrize("name", ROWS)
def test_default_settings_fit(name: str) -> None:
    shape = ROWS[name].shape
    for m in (1, 16, 17, 32, 64, 65, 128, 129, 256, 257, 1024, 8192):
        assert fits(m, shape, hopper_setting(m, shape)), m


def test_a_setting_fits_if_its_ring_its_sums_and_its_panels_do() -> None:
    wide = HopperSetting(128, 256, 64, False, 2)  # 128 x 256 sums in 256 threads; 4 stages of 48 KiB
    assert fits(1024, PLAIN, wide)
    assert not fits(1024, PLAIN, replace(wide, shares=1)), "256 floats per thread"
    assert not fits(1024, PLAIN, replace(wide, k=128)), "2 stages of 96 KiB"
    assert fits(1024, GATED, wide), "the gated op takes half of n"
    assert not fits(1024, GATED, replace(wide, m=256)), "2 stages of 64 KiB, and 256 floats per thread"


@pytest.mark.parametrize(
    "change",
    [
        *({"m": 0}, {"m": -128}, {"n": 96}, {"k": 32}, {"shares": 0}),
        *({"split_up": 0}, {"split_down": 10**9}, {"in_flight": -1}, {"group": -8}),
        *({"level_up": True, "split_up": 2}, {"level_down": True, "split_down": 2}),
    ],
)
def test_numbers_that_mean_nothing_do_not_fit(change: dict[str, int]) -> None:
    assert not fits(16, PLAIN, replace(hopper_setting(16, PLAIN), **change))


def test_a_setting_is_the_same_after_json_and_other_data_is_refused() -> None:
    setting = hopper_setting(16, PLAIN)
    data = setting.to_data()
    assert HopperSetting.from_data(data) == setting
    for wrong in ({**data, "m": 16.0}, {**data, "swap": 1}, {**data, "more": 1}, {"m": 16}):
        with pytest.raises(ValueError, match="not a Hopper setting"):
            HopperSetting.from_data(wrong)

"""The default settings of the Hopper executor compile for sm_90, within its registers and its shared memory."""

from __future__ import annotations

import pytest

import interlace as il
from interlace.kernels.lint import count, resources
from interlace.workloads.hopper import HopperSetting, hopper_executor, hopper_setting

PLAIN = il.workloads.FFNShape(1024, 2048, il.Activation.RELU, False)
GATED = il.workloads.FFNShape(1024, 2048, il.Activation.SILU, True)
META = il.Options("meta", dependent_launch=True)


@pytest.mark.parametrize("shape", [PLAIN, GATED], ids=["plain", "gated"])
@pytest.mark.parametrize("m", [16, 32, 64, 128, 256, 512])
def test_default_settings_compile_multiply_in_both_ops_and_do_not_spill(m: int, shape: il.workloads.FFNShape) -> None:
    setting = hopper_setting(m, shape)
    (launch,) = hopper_executor(m, shape, setting, META).launches()
    compiled = launch.compile_ahead()
    used = resources(compiled.asm["ptx"])
    assert (used.spill_bytes, used.serialised) == (0, False)
    assert compiled.metadata.shared <= il.H200.smem_bytes
    rows = (setting.n if setting.swap else setting.m) // setting.shares
    issued = setting.k // 16 * (rows // 64) * setting.shares  # each op multiplies k by 16 and rows by 64
    assert count(compiled.asm["ptx"], r"wgmma\.mma_async") == 2 * issued


def test_a_gated_stage_that_has_no_room_for_both_weights_is_refused() -> None:
    executor = hopper_executor(512, GATED, HopperSetting(128, 128, 64, False, 2), META)
    with pytest.raises(il.errors.ShapeError, match=r"op 'up' is gated.*multiple of 128 along k"):
        executor.launches()

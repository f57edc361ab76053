"""Settings of the Hopper executor are plain data, and its tables count one post per warpgroup."""

from __future__ import annotations

import json

import pytest

import interlace as il
from interlace.executors.table import for_workers
from interlace.workloads.hopper import HopperSetting, hopper_setting

PLAIN = il.workloads.FFNShape(4096, 14336, il.Activation.RELU, False)
GATED = il.workloads.MODELS["llama3-8b"]
SETTING = HopperSetting(32, 64, 256, True, 2, split_up=2, split_down=4, in_flight=3, group=8)


@pytest.mark.parametrize("shape", [PLAIN, GATED], ids=["plain", "gated"])
@pytest.mark.parametrize("m", [1, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 4096])
def test_default_settings_are_tiles_that_fit_the_tokens_and_survive_json(
    m: int, shape: il.workloads.FFNShape
) -> None:
    setting = hopper_setting(m, shape)
    assert setting.m >= min(m, 128)
    # Each warpgroup owns whole 64-row operands of the tensor core, and a bulk load brings at most 256 rows.
    rows = setting.n if setting.swap else setting.m
    assert rows % (64 * setting.shares) == 0
    assert max(setting.m, setting.n) <= 256
    assert setting.k % 64 == 0
    assert HopperSetting.from_data(json.loads(json.dumps(setting.to_data()))) == setting


def test_a_setting_survives_json_in_every_field() -> None:
    data = json.loads(json.dumps(SETTING.to_data()))
    assert list(data) == [
        *("m", "n", "k", "swap", "shares", "split_up", "split_down", "in_flight", "group", "level_up", "level_down")
    ]
    assert HopperSetting.from_data(data) == SETTING


DAMAGED = {
    "empty": {},
    "one missing": {name: value for name, value in SETTING.to_data().items() if name != "in_flight"},
    "one unknown": {**SETTING.to_data(), "stages": 4},
    "text for a number": {**SETTING.to_data(), "m": "32"},
    "fraction": {**SETTING.to_data(), "k": 256.0},
    "null": {**SETTING.to_data(), "group": None},
    "truth for a number": {**SETTING.to_data(), "shares": True},
    "number for a truth": {**SETTING.to_data(), "swap": 1},
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_setting_data_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match="not a Hopper setting"):
        HopperSetting.from_data(DAMAGED[what])


def test_a_setting_prints_what_it_sets_and_leaves_out_the_rest() -> None:
    assert str(HopperSetting(128, 256, 64, False, 2, group=8)) == "128x256x64, 2 warpgroups, groups of 8"
    assert str(SETTING) == (
        "32x64x256, swapped, 2 warpgroups, up / 2, down / 4, 3 in flight, groups of 8"
    )


@pytest.mark.parametrize("policy", [il.TileSync(), il.RowSync()], ids=["tile", "row"])
@pytest.mark.parametrize("chunk_waits", [False, True])
def test_thresholds_count_one_post_per_warpgroup_and_nothing_else_changes(
    policy: il.SyncPolicy, chunk_waits: bool
) -> None:
    tile = il.MatmulTile(64, 64, 64)
    graph = il.workloads.ffn(300, il.workloads.FFNShape(256, 512, il.Activation.RELU, False), il.bf16, tile, tile)
    plan = il.build(graph, il.Choices(8, policy=policy, split=il.SplitK(2), chunk_waits=chunk_waits))
    one, two = (for_workers(plan, [True, True], shares) for shares in (1, 2))
    count = len(plan.waits)
    assert count > 0
    assert (two.waits["threshold"][:count] == 2 * plan.waits.threshold).all()
    assert (one.waits["threshold"][:count] == plan.waits.threshold).all()
    others = ["first", "count", "stride", "k"]
    assert (one.waits[others] == two.waits[others]).all()
    assert (one.items == two.items).all()
    assert (one.slots, one.splits, one.chunked) == (two.slots, two.splits, two.chunked)
    assert one.parts.tolist() == two.parts.tolist() == [2, 2]

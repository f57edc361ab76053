"""Settings are plain data; the rules' own are pinned, make a launch and fit the tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import interlace as il
from interlace.core.errors import InterlaceError
from interlace.executors import SINGLE_LAUNCH_EXECUTORS
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentTicketExecutor
from interlace.policies.setting import OpSetting, Setting
from interlace.workloads import FeedForward, FFNShape, ffn

from ..ring import Ring
from .gpus import A100

PLAIN = FFNShape(4096, 14336, il.Activation.RELU, False)
GATED = FFNShape(4096, 14336, il.Activation.SILU, True)
SETTING = Setting(
    (
        ("up", OpSetting((("BM", 32), ("SWAP", True)), parts=2, group=8)),
        ("down", OpSetting((("BM", 32), ("SWAP", True)), split_tail=True)),
        ("act", OpSetting()),
    ),
)

# ---------------------------------------------------------------- plain data


def test_a_setting_survives_json_in_every_field() -> None:
    data = json.loads(json.dumps(SETTING.to_data()))
    assert data["ops"]["up"] == {"params": {"BM": 32, "SWAP": True}, "parts": 2, "split_tail": False, "group": 8}
    assert Setting.from_data(data) == SETTING
    assert Setting.from_data(Setting().to_data()) == Setting()


def damaged(**changes: Any) -> dict[str, Any]:
    """A setting of one op with another value in some fields."""
    return {"ops": {"up": {**SETTING.to_data()["ops"]["up"], **changes}}}


DAMAGED = {
    "empty": {},
    "list": [SETTING.to_data()],
    "one unknown": {**SETTING.to_data(), "stages": 4},
    "text for a number": damaged(parts="3"),
    "op is a number": {"ops": {"up": 3}},
    "op lacks a field": {"ops": {"up": {"params": {}}}},
    "fraction": damaged(parts=2.0),
    "null": damaged(group=None),
    "truth for a number": damaged(parts=True),
    "number for a truth": damaged(split_tail=1),
    "a param that is a list": damaged(params={"BM": [16]}),
    "no parts": damaged(parts=0),
    "huge": damaged(parts=10**12),
    "parts beside a split tail": damaged(parts=2, split_tail=True),
    "negative group": damaged(group=-1),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_setting_data_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=r"^(not a setting|a setting|params|a reduction|an order)"):
        Setting.from_data(DAMAGED[what])


def test_a_setting_prints_what_it_sets_and_ops_alike_once() -> None:
    assert str(SETTING) == (
        "up BM=32 SWAP=True in 2 parts groups of 8; down BM=32 SWAP=True last wave split; act as tiled"
    )
    assert str(Setting((("a", OpSetting((("BM", 16),))), ("b", OpSetting((("BM", 16),)))))) == "a and b BM=16"


# ---------------------------------------------------------------- the rules' own


@pytest.mark.parametrize(
    "shape", [PLAIN, GATED, *(FeedForward.of({}, True, name).shape for name in FeedForward.record)], ids=str
)
def test_default_settings_make_a_launch_and_fit_the_tokens(shape: FFNShape) -> None:
    for m in (1, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 1024, 4096):
        graph = ffn(m, shape)
        for executor, device in (
            (SINGLE_LAUNCH_EXECUTORS[0], il.H200),
            (SINGLE_LAUNCH_EXECUTORS[1], il.H200),
            (SINGLE_LAUNCH_EXECUTORS[1], A100),
        ):
            setting = executor.select_default(graph, device)
            tiled = executor.check_setting(graph, setting, device)
            assert all(int(op.param("BM")) >= min(m, 64) for op in tiled.ops)
            assert Setting.from_data(json.loads(json.dumps(setting.to_data()))) == setting


def test_stages_shrink_to_shared_memory_and_chunks_keep_their_bytes() -> None:
    # A stage of 64 x (128 + 2 * 128) bf16 takes 48 KiB: four in 227 KiB, three in 163.
    for device, dtype, k, stages in ((il.H200, il.bf16, 64, 4), (A100, il.bf16, 64, 3), (il.H200, il.fp32, 32, 4)):
        graph = ffn(1024, GATED, dtype)
        params = dict(PersistentTicketExecutor.select_default(graph, device).op("up").params)
        assert [params[name] for name in ("BM", "BN", "BK", "STAGES")] == [128, 128, k, stages]


def fits(ring: Ring, shape: FFNShape, m: int = 1024) -> bool:
    graph = ffn(m, shape)
    try:
        MegakernelExecutor.check_setting(graph, ring.setting(graph), il.H200)
    except InterlaceError:
        return False
    return True


def test_tiles_make_a_launch_if_their_ring_their_sums_and_their_panels_fit() -> None:
    wide = Ring(128, 256, 64, False, 2)  # 128 x 256 sums in 256 threads; 4 stages of 48 KiB
    assert fits(wide, PLAIN)
    assert not fits(replace(wide, warpgroups=1), PLAIN), "256 floats per thread"
    assert not fits(replace(wide, k=128), PLAIN), "2 stages of 96 KiB"
    assert fits(wide, GATED), "the gated op takes half of n"
    assert not fits(replace(wide, m=256), GATED), "2 stages of 64 KiB, and 256 floats per thread"
    assert not fits(Ring(16, 64, 32, True), PLAIN, 16), "half a panel"

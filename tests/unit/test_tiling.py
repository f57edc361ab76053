"""Tilings are plain data; the rules' own are pinned, make a launch and fit the tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import interlace as il
from interlace.core.errors import ArgumentError, InterlaceError, PlanError
from interlace.executors import SINGLE_LAUNCH_EXECUTORS
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentTicketExecutor
from interlace.policies.tiling import OpTiling, decode_tilings, encode_tilings, format_tilings
from interlace.workloads import FeedForward, FFNShape, ffn

from ..ring import Ring
from .gpus import A100

PLAIN = FFNShape(4096, 14336, il.Activation.RELU, False)
GATED = FFNShape(4096, 14336, il.Activation.SILU, True)
TILINGS = {
    "up": OpTiling((("BM", 32), ("SWAP", True)), parts=2, group=8),
    "down": OpTiling((("BM", 32), ("SWAP", True)), split_tail=True),
    "act": OpTiling(),
}
DATA = encode_tilings(TILINGS)

# ---------------------------------------------------------------- plain data


def test_tilings_survive_json_in_every_field() -> None:
    data = json.loads(json.dumps(DATA))
    assert data["ops"]["up"] == {"params": {"BM": 32, "SWAP": True}, "parts": 2, "split_tail": False, "group": 8}
    assert decode_tilings(data) == TILINGS
    assert decode_tilings(encode_tilings({})) == {}


def test_schedule_keeps_the_tilings_it_was_made_of() -> None:
    graph = ffn(1024, PLAIN)
    tilings = Ring(128, 256, 64, False, 2, parts=(1, 2), group=8).tilings(graph)
    schedule = MegakernelExecutor.make_schedule(graph, il.H200, tilings)
    assert schedule.op_tilings == tilings
    assert (schedule.order, schedule.split["down"]) == (il.GroupedColumnMajor(8), il.SplitK(2))
    plan = il.build(graph, schedule)
    assert [op.param("BN") for op in plan.graph.ops] == [256, 256]
    assert plan == il.build(plan.graph, replace(schedule, tiles={}))


def test_schedules_with_equal_values_are_equal_and_hash_alike() -> None:
    one, other = (
        il.Schedule(4, order=dict(orders), tiles={"up": {"BM": 64}})
        for orders in ((("a", il.RowMajor()), ("b", il.Hilbert())), (("b", il.Hilbert()), ("a", il.RowMajor())))
    )
    assert one == other
    assert len({one, other, replace(one, workers=5), replace(one, tiles={})}) == 3


def test_unknown_ops_and_dependencies_of_other_tiles_are_refused() -> None:
    graph = ffn(16, PLAIN)
    with pytest.raises(PlanError, match=r"a schedule has tiles for ops \['off'\]; graph .* has \['up', 'down'\]"):
        il.build(graph, il.Schedule(4, tiles={"off": {"BM": 64}}))
    with pytest.raises(ArgumentError, match="dependencies hold for the graph's own tiles; retile the graph"):
        il.build(graph, il.Schedule(4, tiles={"up": {"BM": 64}}), il.Dependencies(graph))


def damage(**changes: Any) -> dict[str, Any]:
    """Data of one op with another value in some fields."""
    return {"ops": {"up": {**DATA["ops"]["up"], **changes}}}


DAMAGED = {
    "empty": {},
    "list": [DATA],
    "one unknown": {**DATA, "stages": 4},
    "text for a number": damage(parts="3"),
    "op is a number": {"ops": {"up": 3}},
    "op lacks a field": {"ops": {"up": {"params": {}}}},
    "fraction": damage(parts=2.0),
    "null": damage(group=None),
    "truth for a number": damage(parts=True),
    "number for a truth": damage(split_tail=1),
    "a param that is a list": damage(params={"BM": [16]}),
    "no parts": damage(parts=0),
    "huge": damage(parts=10**12),
    "parts beside a split tail": damage(parts=2, split_tail=True),
    "negative group": damage(group=-1),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_data_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=r"^(not a setting|a setting|params|a reduction|an order)"):
        decode_tilings(DAMAGED[what])


def test_equal_tilings_are_listed_once() -> None:
    assert format_tilings(TILINGS) == (
        "up BM=32 SWAP=True in 2 parts groups of 8; down BM=32 SWAP=True last wave split; act as tiled"
    )
    assert format_tilings(dict.fromkeys(("a", "b"), OpTiling((("BM", 16),)))) == "a and b BM=16"
    assert format_tilings({}) == "as tiled"


# ---------------------------------------------------------------- the rules' own


@pytest.mark.parametrize(
    "shape", [PLAIN, GATED, *(FeedForward.from_fields({}, True, name).shape for name in FeedForward.record)], ids=str
)
def test_default_tilings_make_a_launch_and_fit_the_tokens(shape: FFNShape) -> None:
    for m in (1, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 1024, 4096):
        graph = ffn(m, shape)
        for executor, device in (
            (SINGLE_LAUNCH_EXECUTORS[0], il.H200),
            (SINGLE_LAUNCH_EXECUTORS[1], il.H200),
            (SINGLE_LAUNCH_EXECUTORS[1], A100),
        ):
            schedule = executor.select_default(graph, device)
            assert all(int(params["BM"]) >= min(m, 64) for params in schedule.tiles.values())
            tilings = decode_tilings(json.loads(json.dumps(encode_tilings(schedule.op_tilings))))
            assert executor.make_schedule(graph, device, tilings) == schedule


def test_stages_shrink_to_shared_memory_and_chunks_keep_their_bytes() -> None:
    # A stage of 64 x (128 + 2 * 128) bf16 takes 48 KiB: four in 227 KiB, three in 163.
    for device, dtype, k, stages in ((il.H200, il.bf16, 64, 4), (A100, il.bf16, 64, 3), (il.H200, il.fp32, 32, 4)):
        graph = ffn(1024, GATED, dtype)
        params = PersistentTicketExecutor.select_default(graph, device).tiles["up"]
        assert [params[name] for name in ("BM", "BN", "BK", "STAGES")] == [128, 128, k, stages]


def fits(ring: Ring, shape: FFNShape, m: int = 1024) -> bool:
    graph = ffn(m, shape)
    try:
        ring.schedule(graph)
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

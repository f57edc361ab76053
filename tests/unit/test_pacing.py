"""How launches are paced: lists or tickets, and how much is under way."""

from __future__ import annotations

from dataclasses import replace

import pytest

import interlace as il
from interlace.deploy import make_executor
from interlace.megakernel.dispatch import CODES, select_code
from interlace.megakernel.pacing import select_bytes_in_flight, select_dispatch
from interlace.workloads import BlockSparse, Decode, FeedForward, FFNShape, MoE, RaggedAttention, ffn

LARGE = FFNShape(4096, 14336, il.Activation.RELU, False)
SMALL = FFNShape(896, 4864, il.Activation.SILU, True)
MANY = 96 << 10  # bytes under way that saturate memory


def share(device: il.DeviceSpec) -> int:
    """Return an SM's share of the bytes that memory delivers in 1.75 us."""
    return int(1.75e-6 * device.dram_bytes_per_s / device.sms)


@pytest.mark.parametrize(
    ("shape", "m", "dispatch"),
    [
        (LARGE, 16, il.Dispatch.TICKET),
        (replace(LARGE, norm=1e-5), 16, il.Dispatch.TICKET),  # the norm waits for nobody
        (SMALL, 16, il.Dispatch.STATIC),  # 26 MB: the rings hold all of it
        (replace(SMALL, norm=1e-5), 1, il.Dispatch.STATIC),
        (FFNShape(1600, 6400, il.Activation.GELU_TANH, False), 1, il.Dispatch.TICKET),  # 41 MB: they do not
    ],
)
def test_lists_are_for_weights_that_the_rings_hold(shape: FFNShape, m: int, dispatch: il.Dispatch) -> None:
    assert select_dispatch(ffn(m, shape), il.H200) is dispatch


@pytest.mark.parametrize("norm", [None, 1e-5])
def test_parts_share_sums_under_lists_whatever_stands_before_the_products(norm: float | None) -> None:
    graph = ffn(64, FFNShape(12288, 6144, il.Activation.GELU_TANH, False, norm))
    schedule = il.MegakernelExecutor.select_default(graph, il.H200)
    assert schedule.get_op_tiling("up").parts > 1
    assert il.build(graph, schedule).dispatch is il.Dispatch.STATIC


@pytest.mark.parametrize("tokens", [1, 64, 4096])
def test_experts_run_under_the_dispatch_that_their_tuning_names(tokens: int) -> None:
    """Hybrid is the fastest dispatch in 13 of 16 measured cases (``moe-h200.json``)."""
    graph = MoE.from_fields({"tokens": tokens}, True, "mixtral-8x7b").build_graph(il.H200)
    assert select_dispatch(graph, il.H200) is il.Dispatch.HYBRID
    assert il.autoplan(graph, il.H200, il.MegakernelExecutor).dispatch is il.Dispatch.HYBRID


@pytest.mark.parametrize(("m", "dispatch"), [(64, il.Dispatch.STATIC), (4096, il.Dispatch.TICKET)])
def test_uneven_block_rows_are_claimed_where_workers_have_several(m: int, dispatch: il.Dispatch) -> None:
    """The rings hold a twentieth of the weight in either case."""
    graph = BlockSparse.from_fields({"m": m}, True, "zeros-95").build_graph(il.H200)
    plan = il.autoplan(graph, il.H200, il.MegakernelExecutor)
    assert (plan.graph.ops[0].tiles > il.H200.sms, plan.dispatch) == (m == 4096, dispatch)


def test_what_is_under_way_is_less_where_ops_are_short() -> None:
    wide = FFNShape(12288, 6144, il.Activation.GELU_TANH, False)
    assert select_bytes_in_flight(ffn(1, wide), il.H200) == MANY  # 34 us an op
    assert select_bytes_in_flight(ffn(1, LARGE), il.H200) == MANY
    for shape in (SMALL, replace(SMALL, norm=1e-5), FeedForward.from_fields({}, True, "swiglu-tp8").shape):
        assert select_bytes_in_flight(ffn(1, shape), il.H200) == share(il.H200) < MANY
    step = Decode.from_fields({"batch": 1, "layers": 2}, True, "llama3.2-1b").build_graph(il.H200)
    assert select_bytes_in_flight(step, il.H200) == share(il.H200)
    # Where nothing is loaded ahead of waits by products there is nothing to hold back.
    assert select_bytes_in_flight(RaggedAttention.from_fields({}, gpu=False).build_graph(il.H200), il.H200) == MANY


@pytest.mark.parametrize("shape", [LARGE, SMALL])
def test_everything_is_under_way_where_products_take_longer_than_weights(shape: FFNShape) -> None:
    # A weight is two bytes, and two FLOPs of each token.
    even = il.H200.flops_per_s(il.bf16) / il.H200.dram_bytes_per_s
    assert 128 < even < 256
    assert (
        select_bytes_in_flight(ffn(128, shape), il.H200)
        < select_bytes_in_flight(ffn(256, shape), il.H200)
        == il.H200.smem_bytes
    )
    # Fences between the ops of a chain wait for what is under way, however long its products take.
    step = Decode.from_fields({"batch": 512, "layers": 2}, True, "llama3.2-1b").build_graph(il.H200)
    assert select_bytes_in_flight(step, il.H200) == share(il.H200)


def test_only_tickets_are_drawn_ahead() -> None:
    assert [d for d in CODES if select_code(d, loads_ahead=True).claims_ahead] == [il.Dispatch.TICKET]
    assert not any(select_code(d, loads_ahead=False).claims_ahead for d in CODES)
    kind = il.MegakernelExecutor
    for shape, ahead in ((LARGE, 1), (SMALL, 0)):
        graph = ffn(16, replace(shape, norm=1e-5))
        schedule = kind.select_default(graph, il.H200)
        executor = make_executor(graph, il.H200, kind, schedule, il.RunOptions("meta"))
        assert f"CLAIMS_AHEAD = {ahead};" in executor.composition.source  # type: ignore[attr-defined]

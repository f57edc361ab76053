"""Plans that the Hopper executor cannot run are refused with a typed error before anything is compiled."""

from __future__ import annotations

import pytest

import interlace as il
from interlace.core.errors import (
    CoverageError,
    DTypeError,
    GraphError,
    InterlaceError,
    NoDeviceError,
    PlanError,
    ShapeError,
)
from interlace.kernels.bodies import MOST_GLUON_OPS as OPS

from ..ring import Ring, hopper_executor

META = il.Options("meta")
SHAPE = il.workloads.FFNShape(1024, 2048, il.Activation.RELU, False)
TILE = il.MatmulTile(64, 64, 64)


def chain(ops: int) -> il.Graph:
    """``ops`` square matmuls one after another."""
    tensors = [il.Tensor(f"x{i}", (64, 64), il.bf16) for i in range(ops + 1)]
    weights = [il.Tensor(f"w{i}", (64, 64), il.bf16) for i in range(ops)]
    steps = tuple(
        il.matmul(f"op{i}", tensors[i], weights[i], tensors[i + 1], tile=TILE) for i in range(ops)
    )
    inputs = ("x0", *(w.name for w in weights))
    return il.Graph("chain", (*tensors, *weights), steps, inputs, (f"x{ops}",))


def test_static_dispatch_is_refused() -> None:
    plan = il.build(il.workloads.ffn(16, SHAPE, il.bf16, TILE, TILE), il.Choices(132, il.Dispatch.STATIC))
    with pytest.raises(PlanError, match=r"hopper executor runs plans with ticket dispatch; .*Dispatch\.TICKET"):
        il.HopperExecutor(plan, META)


def test_ops_may_have_tiles_of_their_own_if_one_ring_serves_them() -> None:
    graph = il.workloads.ffn(16, SHAPE, il.bf16, TILE, il.MatmulTile(64, 128, 64))
    pipeline = il.HopperExecutor(il.build(graph, il.Choices(132)), META).pipeline
    assert (pipeline.independent_rows, pipeline.dependent_rows) == (128, 64)


def test_fp32_is_sent_to_the_persistent_executor() -> None:
    with pytest.raises(DTypeError, match=r"op 'up' reads .*fp32.*persistent executor"):
        hopper_executor(16, SHAPE, None, META, dtype=il.fp32)


@pytest.mark.parametrize("width", [1032, 1025])
def test_rows_that_bulk_loads_cannot_address_are_refused(width: int) -> None:
    shape = il.workloads.FFNShape(width, 2048, il.Activation.RELU, False)
    with pytest.raises(ShapeError, match=r"op 'up' reads x.*multiple of 16 elements.*persistent executor"):
        hopper_executor(16, shape, None, META)
    shape = il.workloads.FFNShape(1024, width, il.Activation.RELU, False)
    with pytest.raises(ShapeError, match=r"op 'down' reads hidden.*multiple of 16 elements"):
        hopper_executor(16, shape, None, META)


def test_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoDeviceError, match="TRITON_INTERPRET=1"):
        hopper_executor(16, SHAPE, None, il.Options("cpu"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(NoDeviceError, match="Gluon kernels do not run under the interpreter"):
        hopper_executor(16, SHAPE, None, il.Options("cpu"))


def test_as_many_ops_as_a_launch_takes_pass_and_one_more_is_refused() -> None:
    plans = [il.build(chain(ops), il.Choices(132)) for ops in (OPS, OPS + 1)]
    assert len(il.HopperExecutor(plans[0], META).launches()) == 1
    with pytest.raises(PlanError, match=f"'chain' has {OPS + 1} ops; one launch takes {OPS}"):
        il.HopperExecutor(plans[1], META)


def test_a_plan_that_is_not_safe_is_refused() -> None:
    graph = il.workloads.ffn(16, SHAPE, il.bf16, TILE, TILE)
    with pytest.raises(PlanError):
        il.HopperExecutor(il.build(graph, il.Choices(132, policy=il.NoSync())), META)


def test_a_plan_that_rests_on_one_workers_order_is_refused() -> None:
    """Loads of the worker's next item run ahead of the stores of this one."""
    graph = il.workloads.ffn(16, SHAPE, il.bf16, TILE, TILE)
    proof = il.verify(il.build(graph, il.Choices(1, policy=il.NoSync())))
    with pytest.raises(CoverageError, match=r"op 'up', tile \(0, 0\) writes .* plan op 'up' with .* TileSync\(\)"):
        il.HopperExecutor(proof, META)
    assert len(il.HopperExecutor(il.build(graph, il.Choices(1, policy=il.TileSync())), META).launches()) == 1


def test_the_rings_depth_follows_from_the_tile() -> None:
    """227 KiB less 2 KiB and the epilogue's block, in stages of both operands."""
    pipeline = hopper_executor(16, SHAPE, Ring(16, 64, 256, True), META).pipeline
    assert pipeline.stages == ((227 - 2) * 1024 - 64 * 16 * 2) // ((16 + 64) * 256 * 2) == 5
    assert (pipeline.independent_rows, pipeline.dependent_rows) == (64 * 4, 16 * 4)
    assert (pipeline.in_flight, pipeline.warpgroups) == (3, 1)
    limited = hopper_executor(16, SHAPE, Ring(16, 64, 256, True, in_flight=2), META).pipeline
    assert (limited.stages, limited.in_flight) == (5, 2)


def test_a_kernel_without_a_hopper_body_is_named() -> None:
    with pytest.raises(GraphError, match=r"op 'first': kernel 'copy' has no Gluon body"):
        il.HopperExecutor(il.build(il.workloads.two_copies(300, 400), il.Choices(132)), META).launches()


def test_weights_that_an_earlier_op_writes_are_refused() -> None:
    """They are loaded ahead of every wait, so the plan's order would not hold."""
    shapes = {"x": (64, 128), "y": (256, 128), "w": (128, 128), "keys": (256, 128), "out": (64, 256)}
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    ops = (
        il.matmul("project", t["y"], t["w"], t["keys"], tile=TILE),
        il.matmul("scores", t["x"], t["keys"], t["out"], tile=TILE),
    )
    graph = il.Graph("scores", tuple(t.values()), ops, ("x", "y", "w"), ("out",))
    with pytest.raises(InterlaceError, match="keys"):
        il.HopperExecutor(il.build(graph, il.Choices(132)), META)


UNFIT = {
    "half a panel per stage": Ring(16, 64, 32, True),
    "half a 64-row operand per warpgroup": Ring(16, 64, 64, True, 2),
    "stages larger than shared memory": Ring(256, 256, 256, False, 2),
    "more rows than a bulk load brings": Ring(512, 64, 64, False, 2),
}


@pytest.mark.parametrize("what", UNFIT)
def test_tiles_that_the_hardware_does_not_take_are_refused(what: str) -> None:
    with pytest.raises(InterlaceError):
        hopper_executor(16, SHAPE, UNFIT[what], META)

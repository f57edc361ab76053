"""Inputs with fewer rows than the graph says: the launch is the same, only the descriptor knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import interlace as il
from interlace.core.errors import DeviceError, GraphError, InterlaceError, PlanError, ShapeError
from interlace.executors.launch import Launch

from ..ring import hopper_executor

SHAPE = il.workloads.FFNShape(256, 512, il.Activation.RELU, False)
SHORT = il.Options("meta", short=("x",))


def launch(executor: il.HopperExecutor, rows: int) -> Launch:
    """On tensors of so many rows of x; on ``meta`` all of them lie at the same address."""
    tensors = {name: executor.empty(name) for name in ("w_up", "w_down", "out")}
    (found,) = executor.launches(tensors | {"x": torch.empty(rows, 256, dtype=torch.bfloat16, device="meta")})
    assert isinstance(found, Launch)
    return found


def test_a_launch_takes_fewer_rows_and_all_that_it_is_specialised_on_stays() -> None:
    executor = hopper_executor(32, SHAPE, None, SHORT)
    found = {rows: launch(executor, rows) for rows in (32, 17, 1, 32)}
    extents = {rows: of.arguments[4].shape for rows, of in found.items()}
    assert extents == {32: [32, 256], 17: [17, 256], 1: [1, 256]}
    for of in found.values():
        assert [arguments.M for arguments in of.arguments[3]] == [32, 32]
        assert [arguments.out.shape[0] for arguments in of.arguments[3]] == [32, 32]
        assert of.arguments[4].block_shape == found[32].arguments[4].block_shape


def test_a_launch_is_bound_anew_when_the_rows_at_an_address_change() -> None:
    executor = hopper_executor(32, SHAPE, None, SHORT)
    first = launch(executor, 17)
    assert launch(executor, 20) is not first
    x = torch.empty(5, 256, dtype=torch.bfloat16, device="meta")
    tensors = {name: executor.empty(name) for name in ("w_up", "w_down", "out")} | {"x": x}
    assert executor.launches(tensors)[0] is executor.launches(tensors)[0]


@pytest.mark.parametrize("rows", [0, 33])
def test_more_rows_or_none_are_refused(rows: int) -> None:
    with pytest.raises(ShapeError, match=rf"'x' has shape \({rows}, 256\); .* built for \(32, 256\) or fewer rows"):
        launch(hopper_executor(32, SHAPE, None, SHORT), rows)


def test_nothing_else_may_be_short() -> None:
    with pytest.raises(ShapeError, match=r"'x' has shape \(17, 256\); graph 'ffn' was built for \(32, 256\)$"):
        launch(hopper_executor(32, SHAPE, None, il.Options("meta")), 17)
    executor = hopper_executor(32, SHAPE, None, SHORT)
    tensors: dict[str, Any] = {name: executor.empty(name) for name in ("x", "w_up", "w_down")}
    with pytest.raises(ShapeError, match=r"'out' has shape \(17, 256\)"):
        executor.launches(tensors | {"out": torch.empty(17, 256, dtype=torch.bfloat16, device="meta")})


def residual() -> il.Graph:
    x, w, out = (il.Tensor(name, (64, 64), il.bf16) for name in ("x", "w", "out"))
    op = il.matmul("op", x, w, out, residual=x, tile=il.MatmulTile(64, 64, 64))
    return il.Graph("residual", (x, w, out), (op,), ("x", "w"), ("out",))


@pytest.mark.parametrize(
    ("short", "error", "message"),
    [
        (("out",), GraphError, "Options.short names 'out', which is no input of graph 'residual'"),
        (("x",), PlanError, "op 'op' reads it as 'residual', where the hopper executor fills nothing in; .* pad it"),
    ],
)
def test_what_no_load_fills_in_is_refused(short: tuple[str, ...], error: type[InterlaceError], message: str) -> None:
    plan = il.build(residual(), il.Choices(132))
    with pytest.raises(error, match=message):
        il.HopperExecutor(plan, il.Options("meta", short=short))


def test_the_one_launch_takes_short_inputs_where_bulk_loads_alone_read_them() -> None:
    plan = il.plan_graph(il.workloads.ffn(32, SHAPE), il.H200, il.OneLaunchExecutor)
    assert il.OneLaunchExecutor(plan, SHORT).options.short == ("x",)
    plan = il.plan_graph(residual(), il.H200, il.OneLaunchExecutor)
    with pytest.raises(PlanError, match="reads it as 'residual', where the one_launch executor fills nothing in"):
        il.OneLaunchExecutor(plan, SHORT)


def test_executors_of_triton_bodies_take_no_short_inputs() -> None:
    plan = il.build(residual(), il.Choices(132))
    with pytest.raises(PlanError, match="reads it as 'x', where the persistent executor fills nothing in"):
        il.PersistentExecutor(plan, SHORT)


@pytest.mark.parametrize("short", ["x", ["x"], (1,)])
def test_names_come_as_a_tuple(short: Any) -> None:
    with pytest.raises(DeviceError, match=r"Options.short is .*; give names of inputs as a tuple, such as \('x',\)"):
        il.Options(short=short)

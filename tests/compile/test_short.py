"""Inputs with fewer rows than the graph declares: the launch is the same except for the tensor map."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import interlace as il
from interlace.core.errors import DeviceError, GraphError, InterlaceError, PlanError, ShapeError
from interlace.executors.bound_launches import make_tensor_key
from interlace.executors.launch import CudaSourceLaunch
from interlace.kernels.cuda import launcher
from interlace.kernels.cuda.launcher import TensorMap
from interlace.kernels.matmul.megakernel_body import MEGAKERNEL_BODY
from interlace.megakernel.parts import build_bodies

from ..cases import by_default

SHAPE = il.workloads.FFNShape(256, 512, il.Activation.RELU, False)
META, SHORT = il.RunOptions("meta"), il.RunOptions("meta", short_inputs=("x",))


def one_launch(options: il.RunOptions, m: int = 32) -> il.MegakernelExecutor:
    graph = il.workloads.ffn(m, SHAPE)
    return il.MegakernelExecutor(by_default(graph), options)


def launch(executor: il.MegakernelExecutor, rows: int) -> CudaSourceLaunch:
    """Build the launch with this number of rows of x; on ``meta``, all tensors have the same address."""
    tensors = {name: executor.allocate_tensor(name) for name in ("w_up", "w_down", "out")}
    (found,) = executor.build_launches(tensors | {"x": torch.empty(rows, 256, dtype=torch.bfloat16, device="meta")})
    assert isinstance(found, CudaSourceLaunch)
    return found


def told_of_x(monkeypatch: pytest.MonkeyPatch, m: int, rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the launch's operand fields for this number of rows of x, and shape and box of each tensor map."""
    maps: dict[str, Any] = {}

    def tensor_map(address: int, shape: Any, strides: Any, box: Any, dtype: Any, **rest: Any) -> TensorMap:
        maps.setdefault("x" if address == 1 << 20 else "weight", []).append((tuple(shape), tuple(box)))
        return TensorMap(bytes(128))

    class Somewhere:
        def __init__(self, *shape: int, address: int) -> None:
            self.shape, self.address = shape, address

        def data_ptr(self) -> int:
            return self.address

        def stride(self) -> tuple[int, int]:
            return self.shape[1], 1

    monkeypatch.setattr(launcher, "encode_tensor_map", tensor_map)
    up = one_launch(il.RunOptions("meta", short_inputs=("x",)), m).plan.graph.ops[0]
    tensors = {
        "x": Somewhere(rows, 256, address=1 << 20),
        "weight": Somewhere(512, 256, address=1 << 21),
        "out": Somewhere(m, 512, address=1 << 22),
    }
    packed = MEGAKERNEL_BODY.pack(up, tensors, il.bf16)
    at, of = MEGAKERNEL_BODY.operands.offsets["x_rows"], MEGAKERNEL_BODY.operands.offsets["m"]
    read = {"x_rows": int.from_bytes(packed[at : at + 4], "little"), "m": int.from_bytes(packed[of : of + 4], "little")}
    return read, maps


@pytest.mark.parametrize("m", [24, 32, 300])
@pytest.mark.parametrize("missing", [0, 1, 13])
def test_a_launch_takes_fewer_rows_and_loads_none_that_are_not_there(
    m: int, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = m - missing
    told, maps = told_of_x(monkeypatch, m, rows)
    assert told == {"x_rows": rows, "m": m}
    (shape, box), (_, last) = maps["x"]
    assert shape == (rows, 256)
    beyond = -(-rows // box[0]) * box[0] - rows
    assert last[0] == box[0] - beyond // 8 * 8  # the last box, in steps of 8 rows


def test_the_text_of_a_launch_does_not_depend_on_rows_that_are_missing() -> None:
    texts = {one_launch(il.RunOptions("meta", short_inputs=short)).composition.source for short in ((), ("x",))}
    assert len(texts) == 1


def test_a_launch_is_bound_anew_when_the_rows_at_an_address_change() -> None:
    executor = one_launch(SHORT)
    first = launch(executor, 17)
    assert launch(executor, 20) is not first
    x = torch.empty(5, 256, dtype=torch.bfloat16, device="meta")
    tensors = {name: executor.allocate_tensor(name) for name in ("w_up", "w_down", "out")} | {"x": x}
    assert executor.build_launches(tensors)[0] is executor.build_launches(tensors)[0]


@pytest.mark.parametrize("rows", [0, 33])
def test_more_rows_or_none_are_refused(rows: int) -> None:
    with pytest.raises(ShapeError, match=rf"'x' has shape \({rows}, 256\); .* built for \(32, 256\) or fewer rows"):
        launch(one_launch(SHORT), rows)


def test_a_layer_that_normalises_its_few_tokens_may_have_fewer() -> None:
    graph = il.workloads.ffn(16, replace(SHAPE, norm=1e-5))
    assert [op.name for op in graph.ops] == ["up", "down"]
    executor = il.MegakernelExecutor(by_default(graph), SHORT)
    tensors = {name: executor.allocate_tensor(name) for name in ("w_norm", "w_up", "w_down", "out")}
    for rows in (16, 9, 1):
        x = torch.empty(rows, 256, dtype=torch.bfloat16, device="meta")
        assert len(executor.build_launches(tensors | {"x": x})) == 1


@pytest.mark.parametrize("rows", [16, 9, 1])
def test_tiles_of_few_weight_rows_load_none_that_are_not_there(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensor map has panels of 64 elements, rows, panels; elements beyond the rows of x are filled with zeros."""
    told, maps = told_of_x(monkeypatch, 16, rows)
    assert told == {"x_rows": rows, "m": 16}
    assert maps["x"][0] == ((4, rows, 64), (4, 16, 64))


def test_nothing_else_may_be_short() -> None:
    with pytest.raises(ShapeError, match=r"'x' has shape \(17, 256\); graph 'ffn' was built for \(32, 256\)$"):
        launch(one_launch(il.RunOptions("meta")), 17)
    executor = one_launch(SHORT)
    tensors: dict[str, Any] = {name: executor.allocate_tensor(name) for name in ("x", "w_up", "w_down")}
    with pytest.raises(ShapeError, match=r"'out' has shape \(17, 256\)"):
        executor.build_launches(tensors | {"out": torch.empty(17, 256, dtype=torch.bfloat16, device="meta")})


def build_gated() -> il.Graph:
    """Build a graph in which x is also a weight."""
    x, w, out = (il.Tensor(name, (64, 64), il.bf16) for name in ("x", "w", "out"))
    op = il.matmul("op", x, w, out, gate=x, activation=il.Activation.SILU, tile=il.MatmulTile(64, 64, 64))
    return il.Graph("gated", (x, w, out), (op,), ("x", "w"), ("out",))


@pytest.mark.parametrize(
    ("short", "error", "message"),
    [
        (("out",), GraphError, "RunOptions.short_inputs names 'out', which is no input of graph 'gated'"),
        (("x",), PlanError, "op 'op' reads it as 'gate', where the one_launch executor fills nothing in; .* pad"),
    ],
)
def test_what_no_load_fills_in_is_refused(short: tuple[str, ...], error: type[InterlaceError], message: str) -> None:
    plan = il.build(build_gated(), il.Schedule(132))
    with pytest.raises(error, match=message):
        il.MegakernelExecutor(plan, il.RunOptions("meta", short_inputs=short))


def test_what_an_op_writes_is_not_short() -> None:
    """An in-place epilogue would write the missing rows."""
    x, w, y = (il.Tensor(name, (64, 64), il.bf16) for name in ("x", "w", "y"))
    op = il.matmul("op", x, w, y, residual=y, tile=il.MatmulTile(64, 64, 64))
    plan = il.build(il.Graph("in place", (x, w, y), (op,), ("x", "w", "y"), ("y",)), il.Schedule(132))
    message = r"tensor 'y' may not have fewer rows .*: op 'op' writes all of them; leave it out"
    with pytest.raises(PlanError, match=message):
        il.MegakernelExecutor(plan, il.RunOptions("meta", short_inputs=("y",)))


@pytest.mark.parametrize("norm", [None, 1e-5])
def test_the_one_launch_takes_short_inputs_where_all_leave_out_what_is_missing(norm: float | None) -> None:
    plan = il.autoplan(il.workloads.ffn(32, replace(SHAPE, norm=norm)), il.H200, il.MegakernelExecutor)
    assert il.MegakernelExecutor(plan, SHORT).options.short_inputs == ("x",)


def test_norm_and_residual_are_told_of_rows_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "encode_tensor_map", lambda *args, **rest: TensorMap(bytes(128)))
    graph = il.workloads.ffn(200, replace(SHAPE, norm=1e-5), device=il.CPU)
    parts = dict(zip(("norm", "up", "down"), zip(graph.ops, build_bodies(graph), strict=True), strict=True))
    for name, arg, field in (("norm", "x", "M"), ("down", "residual", "residual_rows")):
        op, body = parts[name]
        assert arg in body.loads.short_names
        tensors = {a.arg: torch.empty(graph.tensor(a.tensor).shape, dtype=torch.bfloat16) for a in op.accesses}
        for rows in (200, 120, 1):
            packed = body.pack(op, tensors | {arg: tensors[arg][:rows]}, il.bf16)
            at = body.operands.offsets[field]
            assert int.from_bytes(packed[at : at + 4], "little") == rows


def test_executors_of_triton_bodies_take_no_short_inputs() -> None:
    plan = il.build(build_gated(), il.Schedule(132))
    with pytest.raises(PlanError, match="reads it as 'x', where the persistent executor fills nothing in"):
        il.PersistentExecutor(plan, SHORT)


@pytest.mark.parametrize("short", ["x", ["x"], (1,)])
def test_names_come_as_a_tuple(short: Any) -> None:
    with pytest.raises(
        DeviceError, match=r"RunOptions.short_inputs is .*; give names of inputs as a tuple, such as \('x',\)"
    ):
        il.RunOptions(short_inputs=short)


# ---- operands


def test_a_launch_of_few_ops_has_their_operands_with_it() -> None:
    found = one_launch(SHORT).composition
    assert found.has_inline_operands
    assert "unsigned char operands[2176]" in found.source
    assert found.launch.size == 2176 + 256 <= 4096
    packed = one_launch(SHORT).pack_parameter(bytes(range(136)) * 16)
    assert len(packed) == found.launch.size
    assert packed[:2176] == bytes(range(136)) * 16


def test_of_many_ops_they_lie_in_memory() -> None:
    x = il.Tensor("x", (16, 64), il.bf16)
    tensors = [x, *(il.Tensor(f"y{n}", (16, 64), il.bf16) for n in range(6))]
    ops = [il.matmul(f"op{n}", tensors[n], il.Tensor(f"w{n}", (64, 64), il.bf16), tensors[n + 1]) for n in range(6)]
    weights = tuple(il.Tensor(f"w{n}", (64, 64), il.bf16) for n in range(6))
    graph = il.Graph("chain", (*tensors, *weights), tuple(ops), ("x", *(w.name for w in weights)), ("y5",))
    found = il.MegakernelExecutor(il.autoplan(graph, il.H200, il.MegakernelExecutor), META).composition
    assert not found.has_inline_operands
    assert "const unsigned char* operands" in found.source


def test_tensors_that_lie_alike_have_one_launch() -> None:
    x = torch.zeros(4, 8)
    same = make_tensor_key(torch, {"x": x})
    assert make_tensor_key(torch, {"x": x.view(4, 8)}) == same
    others = [{"y": x}, {"x": x[:3]}, {"x": x.T}, {"x": x[1:]}, {"x": x.view(torch.int32)}, {"x": torch.zeros(4, 8)}]
    others += [{"x": x.to_sparse()}, {"x": None}]
    assert same not in [make_tensor_key(torch, other) for other in others]

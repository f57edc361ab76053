"""A plan file is untrusted input: params are held against tensors, grid and access maps by the kernel itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import interlace as il
from interlace.core.errors import DTypeError, GraphError, ParamError, PlanError, PlanFormatError, ShapeError
from interlace.loops import library
from interlace.loops.ops.op import as_op
from interlace.megakernel.table import build_op_tables, build_worker_tables
from interlace.planner.predict import predict
from interlace.sim.modes import MAX_WORKERS

from ..loops_graphs import mark_rings

Change = Callable[[dict[str, Any]], None]


def ffn() -> il.Graph:
    """A gated matmul with a residual, one with bias and activation, and a copy: every variant of both kernels."""
    x, hidden, biased, out = (il.Tensor(name, (40, 64), il.fp32) for name in ("x", "hidden", "biased", "out"))
    up, gate, down = (il.Tensor(name, (64, 64), il.fp32) for name in ("up", "gate", "down"))
    bias = il.Tensor("bias", (64,), il.fp32)
    tile = il.MatmulTile(16, 32, 16, stages=2, swap_ab=True, prefetch_bytes=4096)
    relu = il.Activation.RELU
    ops = (
        il.matmul("up", x, up, hidden, gate=gate, residual=x, activation=il.Activation.SILU, tile=tile),
        il.matmul("down", hidden, down, biased, bias=bias, activation=relu, tile=il.MatmulTile(32, 16, 32)),
        il.copy("copy", biased, out, (16, 16)),
    )
    inputs = (x, up, gate, down, bias)
    return il.Graph("ffn", (*inputs, hidden, biased, out), ops, tuple(t.name for t in inputs), ("out",))


def param(op: int, name: str, value: Any) -> Change:
    return lambda data: data["ops"][op]["params"].update({name: value})


def field(op: int, *path: Any, to: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        at = data["ops"][op]
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


def dtypes(name: str) -> Change:
    return lambda data: [t.update(dtype=name) for t in data["tensors"] if t["name"] == "hidden"] and None


CHANGES: dict[str, tuple[Change, str]] = {
    "K beyond the tensors": (param(0, "K", 100_000), "op 'up' has param K 100000, .*makes an op with 64"),
    "K below": (param(0, "K", 10), "op 'up' has param K 10, .*makes an op with 64"),
    "M below": (param(1, "M", 8), "op 'down' has param M 8, .*makes an op with 40"),
    "M that is a text": (param(0, "M", "x"), "op 'up' has param M 'x', .*makes an op with 40"),
    "M of 400 digits": (param(0, "M", 10**400), "op 'up' has param M 1000"),
    "N that is a fraction": (param(1, "N", 64.0), "op 'down' has param N 64.0, .*makes an op with 64"),
    "N that is true": (param(1, "N", True), "op 'down' has param N True"),
    "no warps": (param(0, "num_warps", -1), "op 'up' has num_warps -1; use one of 1, 2, 4"),
    "three warps": (param(2, "num_warps", 3), "op 'copy' has num_warps 3"),
    "true warps": (param(2, "num_warps", True), "op 'copy' has num_warps True"),
    "an unknown activation": (param(1, "ACTIVATION", "swish"), "'swish' is not a valid Activation"),
    "a gate that is not of SiLU": (param(0, "ACTIVATION", "relu"), r"a gated matmul is silu\(gate\)"),
    "another activation": (param(1, "ACTIVATION", 3), "3 is not a valid Activation"),
    "another tile": (param(0, "BM", 32), r"op 'up' has grid \(3, 2\), .*makes an op with \(2, 2\)"),
    "another chunk": (param(0, "BK", 32), r"op 'up' has reduction Reduction\(extent=64, block=16\)"),
    "a tile that is no multiple of 8": (param(0, "BM", 20), "extents must be multiples of 8"),
    "a tile that is a text": (param(0, "BM", "16"), "extents must be multiples of 8"),
    "a tile beyond a block": (param(0, "BM", 2**30), "use positive ints, and at most 2\\^20 elements"),
    "a tile of nothing": (param(2, "BM", 0), "use positive ints, and at most 2\\^20 elements"),
    "no stages": (param(0, "STAGES", 0), "has 0 stages; use 1 to 64"),
    "stages without end": (param(0, "STAGES", 10**9), "has 1000000000 stages; use 1 to 64"),
    "swap_ab that is a number": (param(0, "SWAP", 1), "has swap_ab 1; use True or False"),
    "prefetch of less than nothing": (param(0, "PREFETCH", -1), "prefetches -1 bytes"),
    "a param that is missing": (lambda d: d["ops"][0]["params"].pop("BN") and None, r"no param 'BN'"),
    "a param too many": (param(2, "EPS", 1e-5), "op 'copy' has param EPS 1e-05, .*makes an op with none"),
    "another grid": (field(0, "grid", to=[3, 1]), r"op 'up' has grid \(3, 1\), .*makes an op with \(3, 2\)"),
    "another kernel": (field(2, "kernel", to="matmul"), "kernel 'matmul' takes no params .* on arguments"),
    "another reduction": (field(0, "reduction", to=[48, 16]), r"has reduction Reduction\(extent=48, block=16\)"),
    "other FLOPs": (field(0, "flops", to=0), "op 'up' has flops 0, .*makes an op with 131072.0"),
    "an access map that ends short": (
        field(1, "writes", 0, "spans", 0, 1, to=[16, [32], 0, 0]),
        "op 'down' has write 'out' out: biased",
    ),
    "an access map of another tile": (
        field(0, "reads", 1, "spans", 0, 0, to=[0, [0, 16], 0, 0]),
        "op 'up' has read 'weight' weight: up",
    ),
    "an argument of another name": (field(0, "reads", 1, "arg", to="w"), "unexpected keyword argument 'w'"),
    "an argument twice": (field(0, "reads", 1, "arg", to="x"), "give each access one of its own"),
    "an argument left out": (field(1, "reads", to=[]), "missing 2 required positional arguments"),
    "mixed dtypes": (dtypes("bf16"), "op 'up' mixes dtypes"),
}


def change_graph(plan: il.Plan, change: Change) -> str:
    data = json.loads(plan.to_json())
    change(data["graph"])
    return json.dumps(data)


@pytest.mark.parametrize("name", CHANGES)
def test_a_plan_whose_op_is_none_of_its_kernel_is_not_read(name: str) -> None:
    change, message = CHANGES[name]
    text = change_graph(il.build(ffn(), il.Schedule(2)), change)
    with pytest.raises(PlanFormatError, match=message) as caught:
        il.read_plan(text)
    assert isinstance(caught.value.__cause__, GraphError)


def test_a_plan_of_built_in_kernels_is_read_and_runs_without_naming_them() -> None:
    graph = ffn()
    again = il.read_plan(il.build(graph, il.Schedule(3, split={"down": il.SplitK(2)})).to_json())
    assert [op.body for op in again.graph.ops] == [op.body for op in graph.ops]
    random = np.random.default_rng(0)
    t = {name: random.standard_normal(graph.tensor(name).shape) for name in graph.inputs}
    gate = t["x"] @ t["gate"].T
    hidden = gate / (1 + np.exp(-gate)) * (t["x"] @ t["up"].T) + t["x"]
    expected = np.maximum(hidden @ t["down"].T + t["bias"], 0)
    np.testing.assert_allclose(il.ReferenceExecutor(again).run(t)["out"], expected, rtol=1e-9)


def test_the_order_of_params_and_arguments_in_a_file_means_nothing() -> None:
    def reverse(data: dict[str, Any]) -> None:
        for op in data["ops"]:
            op["params"] = dict(reversed(op["params"].items()))
            op["reads"].reverse()

    assert il.verify(il.read_plan(change_graph(il.build(ffn(), il.Schedule(2)), reverse))).edges > 0


def test_a_graph_takes_no_op_that_is_not_its_kernels() -> None:
    graph = ffn()
    up, down, copy = graph.ops
    params = tuple((name, 8 if name == "M" else value) for name, value in down.params)
    for wrong in (replace(down, params=params), replace(down, grid=(1, 4)), replace(down, body=copy.body)):
        with pytest.raises(ParamError):
            replace(graph, ops=(up, wrong, copy))


def test_built_in_ops_are_checked_when_they_are_made() -> None:
    x, y = (il.Tensor(name, (2**31 - 16, 16), il.fp32) for name in "xy")
    for wrong in (
        lambda: il.copy("c", x, y, (64, 16)),  # its last tile ends beyond 2^31
        lambda: il.copy("c", x, y, (0, 16)),
        lambda: il.MatmulTile(16, 16.0, 16),  # type: ignore[arg-type]
        lambda: il.MatmulTile(1 << 16, 16, 1 << 16),
        lambda: il.MatmulTile(stages=0),
    ):
        with pytest.raises(ShapeError):
            wrong()
    assert il.copy("c", x, y, (16, 16)).tiles == (2**31 - 16) // 16
    small = il.Tensor("x", (16, 16), il.fp32), il.Tensor("y", (16, 16), il.fp32)
    with pytest.raises(ParamError, match="op 'c' has num_warps 5"):
        il.copy("c", *small, num_warps=5)
    some = il.Graph("some", small, (il.copy("c", *small, num_warps=12),), ("x",), ("y",))
    with pytest.raises(ParamError, match="op 'c' has num_warps 12, and Triton takes powers of two"):
        il.SerialExecutor(il.build(some, il.Schedule(1)), il.RunOptions("meta"))


def loops() -> il.Graph:
    a, b = (il.Tensor(name, (64, 64), il.fp32) for name in "ab")
    op = as_op("copy", mark_rings(library.copy_2d(tile=(16, 32)), s=2), {"x": a, "y": b})
    return il.Graph("loops", (a, b), (op,), ("a",), ("b",))


LOOPS: dict[str, tuple[Change, str]] = {
    "an extent": (param(0, "m", 128), "op 'copy' has param m 128, .*makes an op with 64"),
    "the form": (param(0, "warp-specialised", True), "op 'copy' has param warp-specialised True"),
    "the grid": (field(0, "grid", to=[2, 2]), r"op 'copy' has grid \(2, 2\), .*makes an op with \(4, 1\)"),
    "an access map": (field(0, "reads", 0, "spans", 1, 1, to=[8, [0, 32], 0, 0]), "op 'copy' has read 'x' x: a"),
    "an argument": (field(0, "reads", 0, "arg", to="z"), "takes a tensor 'x'; pass one"),
    "the extents of the tensors": (
        lambda data: [t.update(shape=[32, 64]) for t in data["tensors"]] and None,
        "can be seen as .* in no way",
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_an_op_of_loops_is_held_against_its_loops(name: str) -> None:
    graph, (change, message) = loops(), LOOPS[name]
    plan = il.build(graph, il.Schedule(2))
    kernels = [op.body for op in graph.ops]
    assert il.read_plan(plan.to_json(), kernels) == plan  # type: ignore[arg-type]
    with pytest.raises(PlanFormatError, match=message):
        il.read_plan(change_graph(plan, change), kernels)  # type: ignore[arg-type]


def make_double_op(name: str, x: il.Tensor, y: il.Tensor, b: int) -> il.Op:
    (i,) = il.axes(1)
    accesses = {"x": (x, (i.block(b),))}, {"y": (y, (i.block(b),))}
    return DOUBLE.make_op(name, (-(-x.shape[0] // b),), *accesses, params={"N": x.shape[0], "B": b})


def make_doubled(name: str, tensors: Any, params: Any) -> il.Op:
    return make_double_op(name, tensors["x"], tensors["y"], params["B"])


DOUBLE = il.Kernel("double", il.Reference(lambda _, regions, params: {"y": 2 * regions["x"]}), dtypes=("fp32",))


@pytest.mark.parametrize("value", ["0", "'a'", "None", "-4", "2.5", "10**400"])
def test_a_kernel_of_a_user_is_checked_by_how_it_is_made(value: str) -> None:
    kernel = replace(DOUBLE, make=make_doubled)
    x, y = il.Tensor("x", (10,), il.fp32), il.Tensor("y", (10,), il.fp32)
    plan = il.build(il.Graph("g", (x, y), (make_double_op("d", x, y, 4),), ("x",), ("y",)), il.Schedule(1))
    assert il.read_plan(plan.to_json(), [kernel]) == plan
    wrong = change_graph(plan, param(0, "B", eval(value)))
    with pytest.raises(PlanFormatError):
        il.read_plan(wrong, [kernel])


def test_the_dtypes_of_a_kernel_hold_for_plans_that_are_read() -> None:
    x, y = il.Tensor("x", (10,), il.fp32), il.Tensor("y", (10,), il.fp32)
    plan = il.build(il.Graph("g", (x, y), (make_double_op("d", x, y, 4),), ("x",), ("y",)), il.Schedule(1))
    text = plan.to_json().replace('"fp32"', '"bf16"')
    with pytest.raises(PlanFormatError, match="kernel 'double' takes fp32 for argument 'x'") as caught:
        il.read_plan(text, [DOUBLE])
    assert isinstance(caught.value.__cause__, DTypeError)


def test_a_plan_without_its_kernel_is_proved_and_says_what_to_pass() -> None:
    x, y = il.Tensor("x", (10,), il.fp32), il.Tensor("y", (10,), il.fp32)
    plan = il.build(il.Graph("g", (x, y), (make_double_op("d", x, y, 4),), ("x",), ("y",)), il.Schedule(1))
    again = il.read_plan(plan.to_json())
    assert il.verify(again).longest_chain == 1
    with pytest.raises(GraphError, match=r"op 'd' has no body for kernel 'double'; .*interlace.read_plan\(text, "):
        il.ReferenceExecutor(again)


# ---------------------------------------------------------------- any damage


EXTREME: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 16, 64, 2**30, 2**31 - 1, 2**31, -(2**31), 2**32, 2**32 + 16, -(2**32) + 16),
    *(2**62, 2**63 - 1, -(2**63), 2**63, 10**30, 10**400, 1.5, 1e308),
    *("x", "", "relu", "silu", "bf16", None, True, False, [], {}, [1]),
)
TABLES = ("items", "waits", "workers", "semaphores", "dispatch")


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything inside a JSON value."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def damage(text: str, random: Random) -> str:
    """With one to three places replaced, moved far, dropped or doubled; mostly in the tables, where proofs look."""
    data = json.loads(text)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        kinds: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        for path in places(data):
            kinds.setdefault(tuple("*" if isinstance(key, int) else key for key in path), []).append(path)
        some = [kind for kind in sorted(kinds) if random.random() < 0.1 or kind[0] in TABLES]
        *way, last = random.choice(kinds[random.choice(some or sorted(kinds))])
        node = data
        for key in way:
            node = node[key]
        action = random.random()
        if action < 0.08:
            del node[last]
        elif action < 0.16 and isinstance(node, list):
            node.insert(last, node[last])
        elif action < 0.4 and type(node[last]) is int:
            node[last] += random.choice((-1, 1, 2**31, 2**32, -(2**32)))
        else:
            node[last] = random.choice(EXTREME)
    return json.dumps(data)


PLANS = {
    "split": il.Schedule(3, split={"down": il.SplitK(2)}, chunk_waits=True),
    "static": il.Schedule(3, il.Dispatch.STATIC, policy=il.RowSync()),
    "one worker": il.Schedule(1, policy=il.NoSync()),
    "panels": il.Schedule(2, policy=il.KernelSync(), interleaving=il.RowPanels(1)),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_damaged_plan_is_refused_or_runs_right(name: str) -> None:
    text, random = il.build(ffn(), PLANS[name]).to_json(), Random(name)
    ended: Counter[str] = Counter()
    for seed in range(150):
        try:
            proof = il.verify(il.read_plan(damage(text, random)))
        except (PlanError, GraphError) as error:
            ended[type(error).__name__ if len(str(error)) > 10 else "says nothing"] += 1
            continue
        graph, ended["verified"] = proof.plan.graph, ended["verified"] + 1
        # What is proved has a form that fits the 32 bits of a device as it stands.
        for table in (build_op_tables(proof.plan, [True] * 3), build_worker_tables(proof.plan, [True] * 3)):
            waits = proof.plan.waits
            for column in ("first", "count", "stride", "threshold", "k"):
                np.testing.assert_array_equal(table.waits[column][: len(waits)], getattr(waits, column))
            assert table.items.view(np.int32).min() >= -1
        if proof.plan.workers <= MAX_WORKERS:
            predict(proof.plan, il.H200)
        draw = np.random.default_rng(seed)
        tensors = {tensor: draw.standard_normal(graph.tensor(tensor).shape) for tensor in graph.inputs}
        if all(op.body for op in graph.ops):
            plain = il.build(graph, il.Schedule(1, policy=il.NoSync()))
            right = il.ReferenceExecutor(plain).run(tensors)
            for found in (il.ReferenceExecutor(proof), il.ReferenceExecutor(proof, seed=seed)):
                np.testing.assert_allclose(found.run(tensors)["out"], right["out"], rtol=1e-9, atol=1e-12)
    assert not ended["says nothing"]
    assert ended["verified"] > 0, ended
    assert min(ended["PlanFormatError"], ended["ItemError"]) >= 3, ended


def test_a_repeated_param_is_refused() -> None:
    """Plan files and digests hold params by name, so two plans would look like one."""
    op = il.workloads.two_copies(64, 64).ops[0]
    with pytest.raises(ParamError, match=r"params \['BM', 'BM'\] repeat a name"):
        replace(op, params=(("BM", 1), ("BM", 2)), body=None)

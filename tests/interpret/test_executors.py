"""Every device executor computes the right thing on every graph, whatever the plan."""

from __future__ import annotations

import asyncio
import warnings

import numpy as np
import pytest
import torch
import triton

import interlace as il
from interlace.core.errors import CoverageError, DTypeError, GraphError, NoDeviceError, ShapeError
from interlace.executors import device

from ..cases import GRAPHS, relative_error, split
from ..loops_graphs import norm_chain_sum
from ..thorough import some
from .cases import EXECUTORS, SWAPPED, TILE, case, equal_bits, executor, matmul_case

CPU = il.RunOptions("cpu")


#: Executors that together run whole and split tiles; what a body does with a dtype is the same in the others.
OF_EVERY_DTYPE = ("serial", "ticket-split")


#: An FFN is two matmuls with an activation between.
OFTEN = some(GRAPHS, lambda graph: graph != "two-matmuls")


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("graph", OFTEN)
def test_every_executor_matches_float64_and_the_reference_run_after_run(graph: str, dtype: str) -> None:
    c = case(graph, 20, dtype)
    for name in EXECUTORS if dtype == "bf16" else OF_EVERY_DTYPE:
        run = executor(name, c.graph)
        for seed in range(2 if dtype == "bf16" else 1):  # the second run counts on from the first
            inputs = c.inputs(seed)
            out = c.run(run, inputs)
            c.check(out, inputs)
            assert relative_error(c.reference(run.plan, inputs), c.compute_exact(inputs)) < 1e-12
            run.synchronize()


@pytest.mark.parametrize("name", ["semaphore_streams-chunked", "static", "ticket-split", "ticket-chunked"])
def test_scheduling_changes_no_bit_of_the_result(name: str) -> None:
    """One body under every executor: with the same split the sums are the same, bit for bit."""
    c = case("gated-ffn", 33)
    inputs = c.inputs()
    run = executor(name, c.graph)
    serial = il.SerialExecutor(run.plan, CPU)
    assert equal_bits(c.run(run, inputs), c.run(serial, inputs))


@pytest.mark.parametrize("graph", OFTEN)
@pytest.mark.parametrize("m", [1, 15, 16, 17, 33])
def test_rows_may_be_any_number(graph: str, m: int) -> None:
    c = case(graph, m)
    inputs = c.inputs(m)
    for name in ("semaphore_streams", "ticket-split"):
        c.check(c.run(executor(name, c.graph), inputs), inputs)


@pytest.mark.parametrize("tile", [TILE, SWAPPED, il.MatmulTile(16, 32, 16), il.MatmulTile(32, 16, 32, swap_ab=True)])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_matmul_takes_any_m_n_and_k(dtype: str, tile: il.MatmulTile) -> None:
    for m, n, k in [(1, 1, 1), (16, 32, 32), (17, 31, 33), (3, 40, 50), (33, 15, 16)]:
        for gated in (False, True):
            activation = il.Activation.SILU if gated else il.Activation.NONE
            c = matmul_case(m, n, k, dtype, tile, activation, gated)
            inputs = c.inputs()
            run = il.SerialExecutor(il.build(c.graph, il.Schedule(2)), CPU)
            c.check(c.run(run, inputs), inputs)


@pytest.mark.parametrize("tile", [TILE, SWAPPED], ids=["straight", "swapped"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", list(il.Activation))
def test_matmul_has_every_epilogue(activation: il.Activation, bias: bool, residual: bool, tile: il.MatmulTile) -> None:
    c = matmul_case(17, 18, 33, "fp16", tile, activation, bias=bias, residual=residual)
    inputs = c.inputs()
    for how in (il.WholeTiles(), il.SplitK(3)):
        run = il.PersistentExecutor(il.build(c.graph, il.Schedule(2, split=how)), CPU)
        c.check(c.run(run, inputs), inputs)


@pytest.mark.parametrize("tile", [TILE, SWAPPED], ids=["straight", "swapped"])
@pytest.mark.parametrize("residual", [False, True])
def test_a_gated_matmul_multiplies_silu_of_the_gate(residual: bool, tile: il.MatmulTile) -> None:
    c = matmul_case(17, 18, 33, "bf16", tile, il.Activation.SILU, gated=True, residual=residual)
    inputs = c.inputs()
    for how in (il.WholeTiles(), il.SplitK(2)):
        run = il.PersistentExecutor(il.build(c.graph, il.Schedule(2, split=how)), CPU)
        c.check(c.run(run, inputs), inputs)


@pytest.mark.parametrize(
    "how", [il.SplitK(1), il.SplitK(2), il.SplitK(9), il.StreamK(1), il.StreamK(4), il.StreamK(7)], ids=str
)
@pytest.mark.parametrize(("graph", "chunk_waits"), [("ffn", False), ("ffn", True), ("gated-ffn", True)])
def test_every_split_gives_the_sum_of_its_parts(graph: str, chunk_waits: bool, how: il.Split) -> None:
    """Both ops are split, so partial sums of one wait for tiles that were themselves split."""
    c = case(graph, 20, "fp32")
    inputs = c.inputs()
    plan = il.build(c.graph, il.Schedule(3, split=how, chunk_waits=chunk_waits))
    serial = c.run(il.SerialExecutor(plan, CPU), inputs)
    c.check(serial, inputs)
    run = il.PersistentExecutor(plan, CPU)
    for _ in range(2):  # arrival counters of split tiles count on, too
        assert equal_bits(c.run(run, inputs), serial)


def test_partial_sums_stay_within_the_workspace_and_fill_it() -> None:
    c = case("ffn", 20, "fp32")  # whose ops have partial sums of one size
    inputs = c.inputs()
    run = il.PersistentExecutor(il.build(c.graph, il.Schedule(3, split=il.SplitK(2))), CPU)
    size, guard = run._workspace.numel(), 256
    memory = torch.full((guard + size + guard,), float("nan"))
    run._workspace = memory[guard:-guard]
    c.check(c.run(run, inputs), inputs)
    assert memory[:guard].isnan().all()
    assert memory[-guard:].isnan().all()
    assert not memory[guard:-guard].isnan().any()


POLICIES = (
    il.TileSync(),
    il.RowSync(),
    il.ColumnSync(),
    il.BatchedRowSync(2),
    il.StridedSync(2),
    il.Conv2DSync(),
    il.KernelSync(),
)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_policy_in_every_order_gives_the_same_bits(policy: il.SyncPolicy) -> None:
    c = case("ffn", 33)
    inputs = c.inputs()
    expected = c.run(il.SerialExecutor(il.build(c.graph, il.Schedule(1)), CPU), inputs)
    for order, interleaving in (
        (il.RowMajor(), il.HalfRowPanels()),
        (il.ColumnMajor(), il.OpAfterOp()),
        (il.Serpentine(), il.RowPanels(1)),
        (il.Hilbert(), il.RowPanels(1, lag=1)),
    ):
        schedule = il.Schedule(2, policy=policy, order=order, interleaving=interleaving, chunk_waits=True)
        run = il.PersistentExecutor(il.build(c.graph, schedule), CPU)
        assert equal_bits(c.run(run, inputs), expected), f"{order}, {interleaving}"


@pytest.mark.parametrize("dispatch", il.PersistentExecutor.dispatches)
def test_a_plan_that_rests_on_a_workers_order_runs_only_where_that_is_kept(dispatch: il.Dispatch) -> None:
    c = case("ffn", 20)
    inputs = c.inputs()
    proof = il.verify(il.build(c.graph, il.Schedule(1, dispatch, policy=il.NoSync())))
    for cls in (il.SerialExecutor, il.CudaGraphExecutor, il.PdlExecutor, il.PersistentExecutor):
        c.check(c.run(cls(proof, CPU), inputs), inputs)
    with pytest.raises(CoverageError, match=r"op 'down', tile \(0, 0\) reads .*; plan op 'up' with .* TileSync\(\)"):
        il.SemaphoreStreamsExecutor(proof, CPU)


def test_chunk_waits_stand_inside_the_reduction() -> None:
    """The plan that the tests above run really has waits at k > 0, and the executor keeps them there."""
    c = case("ffn", 20)
    run = executor("ticket-chunked", c.graph)
    late = run._table.items["wait_hi"] - run._table.items["wait_mid"]
    assert run._table.is_chunked
    assert late.tolist() == [0] * 6 + [1] * 4  # hidden is three tiles wide; two of them share a semaphore


@pytest.mark.parametrize("name", ["semaphore_streams", "static", "ticket-split"])
def test_semaphores_survive_2_to_the_31_posts(name: str) -> None:
    """Counters are set as after so many runs that the next few cross a wrap of 32 bits."""
    c = case("ffn", 20)
    run = executor(name, c.graph)
    inputs = c.inputs()
    expected = c.run(run, inputs)
    posts, starts = run._semaphores.clone().long(), run._counters.clone()
    for limit in (2**31, 2**32):
        first = limit // int(posts.max()) - 1
        run._semaphores.copy_(((posts * first + 2**31) % 2**32 - 2**31).int())
        run._counters.copy_(starts * first)
        for _ in range(3):
            assert equal_bits(c.run(run, inputs), expected)


def test_intermediates_may_be_passed_and_tensors_may_move() -> None:
    c = case("ffn", 17)
    run = executor("ticket", c.graph)
    (hidden,) = c.graph.intermediates
    for seed in range(3):
        inputs, out = c.inputs(seed), c.make_poisoned_output()
        mine = run.allocate_tensor(hidden).fill_(float("nan"))
        run.run({**inputs, c.output: out, hidden: mine})
        c.check(out, inputs)
        gelu = torch.nn.functional.gelu(inputs["x"].double() @ inputs["w_up"].double().T, approximate="tanh")
        assert relative_error(mine, gelu) < 4e-3


def test_a_trace_has_every_item_and_its_worker() -> None:
    c = case("ffn", 20)
    plan = il.build(c.graph, il.Schedule(3, split=split(c.graph, il.SplitK(2))))
    run = il.PersistentExecutor(plan, il.RunOptions("cpu", trace=True))
    c.run(run, c.inputs())
    trace = run.read_trace()
    assert np.array_equal(trace.op, plan.items.op)
    assert np.array_equal(trace.tile, plan.items.tile)
    assert (trace.worker == 0).all()  # the first program draws every ticket before the second begins
    with pytest.raises(GraphError, match="trace=True"):
        il.PersistentExecutor(plan, CPU).read_trace()


def test_wrong_arguments_are_named() -> None:
    c = case("ffn", 17)
    run, inputs, out = executor("ticket", c.graph), c.inputs(), c.make_poisoned_output()
    with pytest.raises(GraphError, match=r"writes outputs \['out'\]"):
        run.run(inputs)
    with pytest.raises(GraphError, match=r"needs inputs \['x'\]"):
        run.run({name: value for name, value in inputs.items() if name != "x"} | {c.output: out})
    with pytest.raises(ShapeError, match=r"'x' has shape \(16, 24\)"):
        run.run({**inputs, "x": inputs["x"][:16], c.output: out})
    with pytest.raises(DTypeError, match=r"'x' is torch\.float32"):
        run.run({**inputs, "x": inputs["x"].float(), c.output: out})
    with pytest.raises(GraphError, match="'x' is not contiguous"):
        run.run({**inputs, "x": inputs["x"].T.contiguous().T, c.output: out})


@pytest.mark.parametrize("name", ["serial", "semaphore_streams", "ticket"])
def test_tensors_that_share_bytes_with_one_that_is_written_are_refused(name: str) -> None:
    c = case("two-copies", 17, "fp32")  # x to y to z, all (17, 24)
    run, inputs = executor(name, c.graph), c.inputs()
    n = c.make_poisoned_output().numel()
    room = torch.full((2 * n,), float("nan"))

    def at(first: int) -> torch.Tensor:
        return room[first : first + n].view(17, 24)

    def expect_overlap_error(first: str, second: str, writer: str, **tensors: torch.Tensor) -> None:
        with pytest.raises(GraphError, match=f"'{first}' and '{second}' share memory, and op '{writer}' writes"):
            run.run({**inputs, **tensors})

    hidden = at(0)
    expect_overlap_error("y", "z", "first", y=hidden, z=hidden)
    expect_overlap_error("y", "z", "first", y=hidden, z=at(n - 1))  # a single element
    expect_overlap_error("z", "y", "second", y=at(1), z=hidden)
    expect_overlap_error("x", "z", "second", z=inputs["x"])
    expect_overlap_error("x", "y", "first", x=at(0), y=at(24), z=c.make_poisoned_output())
    expect_overlap_error("y", "z", "first", z=run.get_intermediate("y"))
    out = at(n)  # side by side is apart
    run.run({**inputs, "y": hidden, "z": out})
    assert torch.equal(out, inputs["x"])
    expect_overlap_error("y", "z", "first", y=hidden, z=at(n // 2))  # addresses changed, so they are looked at again
    again = c.inputs(1)
    inputs["x"].copy_(again["x"])
    run.run({**inputs, "y": hidden, "z": out})
    assert torch.equal(out, again["x"])


def test_ops_of_loops_share_no_bytes_either() -> None:
    graph, _ = norm_chain_sum(8, 192)
    run = il.SerialExecutor(il.build(graph, il.Schedule(1)), CPU)
    tensors = {name: run.allocate_tensor(name) for name in (*graph.inputs, *graph.outputs)}
    with pytest.raises(GraphError, match="'x' and 'normed' share memory, and op 'norm' writes 'normed'"):
        run.run({**tensors, "normed": tensors["x"]})


def test_inputs_that_nothing_writes_may_share_bytes() -> None:
    c = case("gated-ffn", 17)
    run, inputs = executor("ticket", c.graph), c.inputs()
    inputs["w_gate"] = inputs["w_up"]
    c.check(c.run(run, inputs), inputs)


def test_a_run_on_the_same_tensors_looks_at_none_of_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    check = device.check_tensors
    monkeypatch.setattr(device, "check_tensors", lambda *arguments: (looked.append(arguments), check(*arguments)))
    c = case("two-copies", 16)
    run, tensors = executor("serial", c.graph), {**c.inputs(), c.output: c.make_poisoned_output()}
    for _ in range(3):
        run.run(tensors)
    assert len(looked) == 1
    run.run({**tensors, c.output: c.make_poisoned_output()})
    assert len(looked) == 2
    launches = run.build_launches(tensors)
    assert run.build_launches({name: value.view(value.shape) for name, value in tensors.items()}) is launches
    assert len(looked) == 4
    with pytest.raises(GraphError, match="no tensor 'more'"):
        run.run({**tensors, "more": c.make_poisoned_output()})


def test_another_view_of_the_same_memory_is_not_taken_for_the_tensor_before() -> None:
    """A transposed or a shortened tensor has the same address."""
    c = case("two-copies", 24, "fp32")  # (24, 24)
    run, inputs, out = executor("serial", c.graph), c.inputs(), c.make_poisoned_output()
    run.run({**inputs, "z": out})
    for x, error in (
        (inputs["x"].T, "not contiguous"),
        (inputs["x"][:12], r"shape \(12, 24\)"),
        (inputs["x"].view(torch.int32), "torch.int32"),
        (inputs["x"].to_sparse(), "torch.sparse_coo; pass tensor.to_dense"),
    ):
        with pytest.raises(GraphError, match=error):
            run.run({"x": x, "z": out})
    run.run({**inputs, "z": out})
    assert torch.equal(out, inputs["x"])


def test_a_tensor_that_is_changed_in_place_between_runs_is_looked_at_again() -> None:
    c = case("two-copies", 24, "fp32")  # (24, 24)
    run, x, out = executor("serial", c.graph), c.inputs()["x"].clone(), c.make_poisoned_output()
    for change, back, error in (
        (lambda: x.t_(), lambda: x.t_(), "not contiguous"),
        (lambda: x.resize_(12, 24), lambda: x.resize_(24, 24), r"shape \(12, 24\)"),
    ):
        run.run({"x": x, "z": out})
        change()
        with pytest.raises(GraphError, match=error):
            run.run({"x": x, "z": out})
        back()
    run.run({"x": x, "z": out})
    assert torch.equal(out, x)


WRONG: dict[str, tuple[object, str]] = {
    "a NumPy array": (np.ones((17, 24), np.float32), r"a ndarray; pass a tensor of PyTorch on cpu"),
    "a list": ([[1.0] * 24] * 17, "a list; "),
    "a class": (torch.Tensor, "the class Tensor; "),
    "None": (None, "None; "),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_tensor_is_answered_with_one(what: str) -> None:
    c = case("two-copies", 17, "fp32")
    run, inputs, out = executor("serial", c.graph), c.inputs(), c.make_poisoned_output()
    value, message = WRONG[what]
    for _ in range(2):  # also where a run before has bound right ones
        for name, tensors in (("x", {**inputs, "x": value, "z": out}), ("z", {**inputs, "z": value})):
            with pytest.raises(GraphError, match=f"^tensor '{name}' is {message}"):
                run.run(tensors)
        run.run({**inputs, "z": out})
    for nothing in ([inputs["x"], out], inputs["x"], 5, None):
        with pytest.raises(GraphError, match=r"^tensors come by name"):
            run.run(nothing)


def test_a_stage_of_no_op_is_named() -> None:
    run = executor("semaphore_streams", case("two-copies", 17).graph)
    with (
        run.open_stages() as stages,
        pytest.raises(GraphError, match=r"no op 'third' to launch; the graph has \['first', 'second'\]"),
    ):
        stages["third"]


def test_the_reference_executor_asks_for_arrays_where_it_is_given_tensors() -> None:
    c = case("two-copies", 17, "bf16")
    run = il.ReferenceExecutor(il.build(c.graph, il.Schedule(1)))
    with pytest.raises(GraphError, match=r"'x' is a Tensor; .* tensor\.double\(\)\.cpu\(\)\.numpy\(\)"):
        run.run(c.inputs())
    out = run.run({"x": c.inputs()["x"].double().cpu().numpy()})["z"]
    assert np.array_equal(out, c.inputs()["x"].double().numpy())


def test_the_interpreter_must_have_been_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = il.build(case("two-copies", 16).graph, il.Schedule(1))
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(NoDeviceError, match="TRITON_INTERPRET=1"):
        il.SerialExecutor(plan, CPU)


@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_a_device_for_compiled_kernels_is_refused_under_the_interpreter(device: str) -> None:
    plan = il.build(case("two-copies", 16).graph, il.Schedule(1))
    with pytest.raises(NoDeviceError, match=f"device '{device}' needs Triton as a compiler; start Python without"):
        il.SerialExecutor(plan, il.RunOptions(device))


def test_a_numpy_that_the_interpreter_fails_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = il.build(case("two-copies", 16).graph, il.Schedule(1))
    refused = {("3.6.0", "2.4.0"), ("3.6.0", "2.10.1"), ("3.6.0+git1", "3.0.0rc1")}
    for triton_version, numpy_version in refused | {("3.6.0", "2.3.9"), ("3.7.0", "2.4.0"), ("3.10.0", "2.4.6")}:
        monkeypatch.setattr(triton, "__version__", triton_version)
        monkeypatch.setattr(np, "__version__", numpy_version)
        if (triton_version, numpy_version) in refused:
            with pytest.raises(NoDeviceError, match=r"does not run with NumPy .*; `pip install 'numpy<2.4'`, or Tri"):
                il.SerialExecutor(plan, CPU)
        else:
            il.SerialExecutor(plan, CPU)


def test_arithmetic_on_padding_warns_nobody() -> None:
    """exp overflows on the way to a sigmoid of 0, and a masked row divides by zero; NumPy would speak of both."""
    c = matmul_case(17, 18, 50, "fp32", activation=il.Activation.SILU)
    inputs = {name: 1000 * value for name, value in c.inputs().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        c.run(il.SerialExecutor(il.build(c.graph, il.Schedule(1)), CPU), inputs)


def test_a_run_under_the_interpreter_has_ended_when_it_is_returned() -> None:
    c = case("gated-ffn", 20)
    run = executor("streams", c.graph)
    last = run.run({**c.inputs(), c.output: c.make_poisoned_output()})
    assert (last.is_done(), last.event, last.is_captured) == (True, None, False)

    async def wait() -> None:
        await last

    asyncio.run(wait())

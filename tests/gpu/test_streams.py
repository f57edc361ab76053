"""Streams on a GPU: branches of a graph side by side, and pipelines of chunks."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import interlace as il
from interlace.core.errors import ChunkError, DeviceError
from interlace.executors.run import RunHandle
from interlace.streams import pipeline
from interlace.workloads import Dag, Workload

from ..cases import Case, relative_error

WIDE, ROWS = 768, 256


def diamonds(count: int = 3) -> Case:
    """``x`` through several diamonds: two matmuls of one input, a third of the first, a fourth of the second added."""
    tensors, ops, answers = [il.Tensor("x", (ROWS, WIDE), il.bf16)], [], []
    for d in range(count):
        names = [f"{part}{d}" for part in ("wa", "wb", "wc", "wd")]
        weights = [il.Tensor(name, (WIDE, WIDE), il.bf16) for name in names]
        a, b, c, y = (il.Tensor(f"{part}{d}", (ROWS, WIDE), il.bf16) for part in "abcy")
        x = tensors[0] if d == 0 else tensors[-1]
        ops += [
            il.matmul(f"a{d}", x, weights[0], a),
            il.matmul(f"b{d}", x, weights[1], b),
            il.matmul(f"c{d}", a, weights[2], c),
            il.matmul(f"d{d}", b, weights[3], y, residual=c),
        ]
        tensors += [*weights, a, b, c, y]
        answers.append(names)
    inputs = tuple(t.name for t in tensors if t.name == "x" or t.name.startswith("w"))
    graph = il.Graph("diamonds", tuple(tensors), tuple(ops), inputs, (tensors[-1].name,))

    def answer(t: Mapping[str, torch.Tensor]) -> torch.Tensor:
        x = t["x"]
        for wa, wb, wc, wd in answers:
            x = x @ t[wa].T @ t[wc].T + x @ t[wb].T @ t[wd].T
        return x

    return Case(graph, answer, "cuda")


def streams(graph: il.Graph, **options: object) -> il.StreamsExecutor:
    return il.StreamsExecutor(il.build(graph, il.Schedule(132)), il.RunOptions(**options))


def test_branches_of_a_graph_are_right_run_after_run() -> None:
    c = diamonds()
    run = streams(c.graph, jitter_s=20e-6)
    assert (run.streams.count, [len(earlier) for earlier in run.streams.awaited_ops[:4]]) == (2, [0, 0, 0, 1])
    inputs, expected = c.inputs(), c.make_poisoned_output()
    il.SerialExecutor(run.plan).run({**inputs, c.output: expected})
    assert relative_error(expected, c.compute_exact(inputs)) < 2e-2
    wrong, out = torch.zeros((), dtype=torch.int64, device="cuda"), c.make_poisoned_output()
    for _ in range(200):  # no host synchronisation between runs: the next may not overwrite what the last still reads
        out.fill_(float("nan"))
        for name in c.graph.intermediates:
            run.get_intermediate(name).fill_(float("nan"))
        run.run({**inputs, c.output: out})
        wrong += (out != expected).sum()
    run.synchronize()
    assert int(wrong) == 0


def test_the_stream_of_the_critical_path_has_priority_on_the_device() -> None:
    a, b, c, d = tensors = tuple(il.Tensor(name, (128, 128), il.fp16) for name in "abcd")
    copies = il.copy("left", a, b), il.copy("right", a, c), il.copy("more", c, d)
    run = streams(il.Graph("branches", tensors, copies, inputs=("a",), outputs=("b", "d")))
    least, greatest = torch.cuda.Stream.priority_range()
    assert (least, greatest < least) == (0, True)
    assert [stream.priority for stream in run._fork._streams] == [0, -1]


@pytest.mark.parametrize("executor", [il.StreamsExecutor, il.MegakernelExecutor, il.CudaGraphExecutor])
def test_independent_matmuls_are_right(executor: type[il.StreamsExecutor]) -> None:
    problem: Workload = Dag(64, 256, 256, 512)
    plan = il.autoplan(problem.build_graph(il.H200), il.H200, executor)
    c = Case(plan.graph, lambda t: torch.empty(0), "cuda")
    inputs = c.inputs()
    poison = torch.full((256, 256), float("nan"), device="cuda", dtype=torch.bfloat16)
    outs = {name: poison.clone() for name in plan.graph.outputs}
    run = executor(plan)
    for _ in range(3):
        run.run({**inputs, **outs})
    run.synchronize()
    right = problem.run_dense(torch, {name: value.double() for name, value in inputs.items()})
    assert max(relative_error(outs[name], value) for name, value in right.items()) < 1e-2


def test_a_captured_run_replays_its_branches() -> None:
    c = diamonds()
    run, inputs, out = streams(c.graph), c.inputs(), c.make_poisoned_output()
    tensors = {**inputs, c.output: out}
    run.run(tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = run.run(tensors)
        run.run(tensors)
    with pytest.raises(DeviceError, match="captured"):
        first.is_done()
    for seed in range(3):
        for name, value in c.inputs(seed).items():
            inputs[name].copy_(value)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert relative_error(out, c.compute_exact(inputs)) < 2e-2
    out.fill_(float("nan"))
    run.run(tensors)  # and outside of it again
    run.synchronize()
    assert relative_error(out, c.compute_exact(inputs)) < 2e-2


def test_no_kernel_runs_on_the_legacy_default_stream_and_the_host_waits_for_nothing(tmp_path: Path) -> None:
    c = diamonds()
    run, inputs, out = streams(c.graph), c.inputs(), c.make_poisoned_output()
    run.run({**inputs, c.output: out})
    run.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(3):
            run.run({**inputs, c.output: out})
    run.synchronize()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert len(kernels) == 3 * len(c.graph.ops)
    on = {e["args"]["stream"] for e in kernels}
    legacy = 7  # as CUPTI numbers it
    assert (len(on), legacy in on) == (run.streams.count, False)
    calls = {e["name"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")}
    waits = {name for name in calls if "Synchronize" in name} - {"cudaDeviceSynchronize"}  # which the profiler calls
    assert waits == set()


async def wait(last: RunHandle, gate: threading.Event) -> int:
    """For a run that a gate holds, which is opened in the fifth turn of the event loop: the turns that there were."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while not last.is_done():
            turns += 1
            if turns == 5:
                gate.set()
            await asyncio.sleep(1e-3)

    counting = asyncio.ensure_future(count())
    await last
    await counting
    return turns


def test_a_run_is_asked_awaited_and_waited_for_on_another_stream() -> None:
    from cuda.bindings import driver

    c = diamonds()
    run, inputs, out = streams(c.graph), c.inputs(), c.make_poisoned_output()
    tensors = {**inputs, c.output: out}
    run.run(tensors)
    run.synchronize()
    copy, gate, other = torch.empty_like(out), threading.Event(), torch.cuda.Stream()
    hold = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(60) and None)
    stream = torch.cuda.current_stream().cuda_stream
    (status,) = driver.cuLaunchHostFunc(stream, driver.CUhostFn(ctypes.cast(hold, ctypes.c_void_p).value), 0)
    assert int(status) == 0
    try:
        last = run.run(tensors)
        assert not last.is_done()
        other.wait_event(last.event)
        with torch.cuda.stream(other):
            copy.copy_(out)
        assert asyncio.run(wait(last, gate)) >= 5, "the event loop stood still"
        assert last.is_done()
    finally:
        gate.set()
        torch.cuda.synchronize()
    assert torch.equal(copy, out)


# ---------------------------------------------------------------- pipelines

ELEMENTS = 1 << 20


def chunk(n: int, pinned: bool) -> torch.Tensor:
    return torch.full((ELEMENTS,), float(n), pin_memory=pinned)


@pytest.mark.parametrize("streams_", [1, 2, 3])
@pytest.mark.parametrize("pinned", [True, False])
def test_chunks_come_back_right_and_in_order(streams_: int, pinned: bool) -> None:
    chunks = [chunk(n, pinned) for n in range(20)]

    def compute(x: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(200_000)  # what a copy that runs ahead or falls behind would meet
        return x.mul_(2) + 1

    def download(given: torch.Tensor, y: torch.Tensor) -> tuple[float, float, bool]:
        assert y.is_pinned()
        return float(y.min()), float(y.max()), bool((y == 2 * given + 1).all())

    found = pipeline(chunks, lambda given: given, compute, download, streams_)
    assert found == [(2.0 * n + 1, 2.0 * n + 1, True) for n in range(20)]
    assert [float(given[0]) for given in chunks] == [float(n) for n in range(20)]


def test_the_computation_comes_behind_what_the_callers_stream_had() -> None:
    weight = torch.zeros(ELEMENTS, device="cuda")
    torch.cuda._sleep(50_000_000)
    weight.fill_(3.0)
    assert pipeline(range(5), lambda n: chunk(n, False), lambda x: x * weight, lambda n, y: float(y.max())) == [
        3.0 * n for n in range(5)
    ]


def test_an_executor_computes_in_a_pipeline() -> None:
    graph = il.workloads.two_copies(1024, 1024, il.fp32)
    run = il.StreamsExecutor(il.build(graph, il.Schedule(132)))

    def compute(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(1024, 1024, device="cuda")
        run.run({"x": x.view(1024, 1024), "z": out})
        return out

    found = pipeline(range(12), lambda n: chunk(n, True), compute, lambda n, y: bool((y == n).all()))
    assert found == [True] * 12


@pytest.mark.parametrize("part", ["upload", "compute", "download"])
def test_a_chunk_that_fails_leaves_no_memory_behind(part: str) -> None:
    gc.collect()  # what other tests have left
    before = torch.cuda.memory_allocated()

    def failing(name: str, n: float) -> None:
        if (name, n) == (part, 7.0):
            raise ValueError("no")

    def upload(n: int) -> torch.Tensor:
        failing("upload", n)
        return chunk(n, False)

    def compute(x: torch.Tensor) -> torch.Tensor:
        n = float(x[0])
        del x  # else the error's traceback would keep it
        failing("compute", n)
        return torch.full((ELEMENTS,), n, device="cuda")

    def download(n: int, _: torch.Tensor) -> None:
        failing("download", n)

    with pytest.raises(ChunkError, match=f"chunk 7 failed in {part}: ValueError: no") as failed:
        pipeline(range(20), upload, compute, download)
    assert failed.value.delivered_chunks == 7
    assert torch.cuda.memory_allocated() == before
    again = pipeline(range(3), lambda n: chunk(n, True), lambda x: x, lambda n, y: float(y[0]))
    assert again == [0.0, 1.0, 2.0]


def test_memory_does_not_grow_with_the_chunks() -> None:
    nbytes = 4 * ELEMENTS

    def peak(count: int) -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        pipeline(range(count), lambda n: chunk(n, True), lambda x: x + 1, lambda n, y: None)
        return torch.cuda.max_memory_allocated() - before

    assert peak(40) == peak(8) <= 2 * 4 * nbytes  # what comes in and what goes out of four chunks

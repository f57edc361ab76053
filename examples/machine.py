"""What the examples share: which device is here, every executor that it has, and how to run one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

import interlace as il


def find_device() -> str | None:
    """Where kernels run: "cuda", "cpu" (the Triton interpreter), or None if torch or triton is missing."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
    try:
        import triton  # noqa: F401
    except ImportError:
        return None
    return "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


def executors(device: str | None, graph: il.Graph, schedule: il.Schedule) -> Iterator[tuple[str, object]]:
    """(name, executor) for every way to run a graph here; a persistent one sets ``schedule.dispatch``.

    Under the interpreter nothing overlaps: ``cuda_graph`` and ``pdl`` are as ``serial`` there.
    """
    plan = il.build(graph, schedule)
    yield "reference", il.ReferenceExecutor(plan)
    yield "reference, random interleaving", il.ReferenceExecutor(plan, seed=0)
    if device is None:
        return
    options = il.RunOptions(device)
    yield "serial", il.SerialExecutor(plan, options)
    yield "cuda_graph", il.CudaGraphExecutor(plan, options)
    yield "pdl", il.PdlExecutor(plan, options)
    yield "semaphore_streams", il.SemaphoreStreamsExecutor(plan, options)
    ticket = replace(schedule, dispatch=il.Dispatch.TICKET)
    yield "persistent, ticket", il.PersistentExecutor(il.build(graph, ticket), options)
    # The interpreter runs programs one after another, so there a static plan has one worker.
    workers = schedule.workers if device == "cuda" else 1
    static = replace(schedule, dispatch=il.Dispatch.STATIC, workers=workers)
    yield "persistent, static", il.PersistentExecutor(il.build(graph, static), options)


def run(executor: object, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of one run, whatever the executor."""
    if isinstance(executor, il.ReferenceExecutor):
        return executor.run(inputs)
    import torch

    outputs = {name: executor.allocate_tensor(name).fill_(float("nan")) for name in executor.plan.graph.outputs}
    device = next(iter(outputs.values())).device
    executor.run({name: torch.from_numpy(value).to(device) for name, value in inputs.items()} | outputs)
    executor.synchronize()
    return {name: value.cpu().numpy() for name, value in outputs.items()}

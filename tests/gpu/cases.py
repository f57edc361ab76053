"""Graphs of a size for a GPU, and every way to run them there."""

from __future__ import annotations

from collections.abc import Callable

import interlace as il

from ..cases import Case, by_default, ffn_answer, split, workload

HIDDEN, FFN = 400, 1104  # no multiples of any tile


def case(name: str, m: int, dtype: str) -> Case:
    return Case(*workload(name, m, HIDDEN, FFN, dtype, il.MatmulTile.heuristic(m)), "cuda")


#: Executors by name: (class, schedule for a graph, options).
EXECUTORS: dict[str, tuple[type, Callable[[il.Graph], il.Schedule], dict]] = {
    "serial": (il.SerialExecutor, lambda g: il.Schedule(132), {}),
    "serial-split": (il.SerialExecutor, lambda g: il.Schedule(132, split=split(g, il.SplitK(3))), {}),
    "cuda_graph": (il.CudaGraphExecutor, lambda g: il.Schedule(132), {}),
    "pdl": (il.PdlExecutor, lambda g: il.Schedule(132, split=split(g, il.SplitK(2))), {}),
    "streams": (il.StreamsExecutor, lambda g: il.Schedule(132, split=split(g, il.SplitK(2))), {}),
    "semaphore_streams": (il.SemaphoreStreamsExecutor, lambda g: il.Schedule(132, policy=il.RowSync()), {}),
    "semaphore_streams-chunked": (
        il.SemaphoreStreamsExecutor,
        lambda g: il.Schedule(132, chunk_waits=True),
        {},
    ),
    "static": (
        il.PersistentExecutor,
        lambda g: il.Schedule(132, il.Dispatch.STATIC, interleaving=il.RowPanels(1)),
        {},
    ),
    "static-split": (
        il.PersistentExecutor,
        lambda g: il.Schedule(
            100, il.Dispatch.STATIC, il.Assignment.BALANCED, split=split(g, il.SplitK(4)), chunk_waits=True
        ),
        {},
    ),
    "ticket": (il.PersistentExecutor, lambda g: il.Schedule(132, policy=il.TileSync()), {}),
    "ticket-dependent": (
        il.PersistentExecutor,
        lambda g: il.Schedule(132, policy=il.RowSync(), split=split(g, il.SplitK(2)), interleaving=il.HalfRowPanels()),
        {"dependent_launch": True},
    ),
    "ticket-chunked": (
        il.PersistentExecutor,
        lambda g: il.Schedule(264, policy=il.StridedSync(3), chunk_waits=True, order=il.GroupedColumnMajor(2)),
        {},
    ),
}


def executor(name: str, graph: il.Graph, **options: object) -> il.SerialExecutor:
    cls, schedule, defaults = EXECUTORS[name]
    return cls(il.build(graph, schedule(graph)), il.RunOptions(**{**defaults, **options}))


def one_launch(
    m: int,
    shape: il.workloads.FFNShape,
    up: il.MatmulTile | None = None,
    down: il.MatmulTile | None = None,
    dtype: str = "bf16",
    bias: bool = False,
    schedule: il.Schedule | None = None,
    workers: int = 132,
    **options: object,
) -> tuple[il.MegakernelExecutor, Case]:
    """An FFN as one launch, by default as the rules tile it, and its answer."""
    graph = il.workloads.ffn(m, shape, il.dtype(dtype), up, down, bias, device=il.H200)
    if up is None:
        plan = by_default(graph, workers)
    else:
        plan = il.build(graph, schedule or il.Schedule(workers))
    return il.MegakernelExecutor(plan, il.RunOptions(**options)), Case(plan.graph, ffn_answer(shape), "cuda")

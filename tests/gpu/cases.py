"""Graphs with float64 answers, and every way to run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

import interlace as il

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
HIDDEN, FFN = 400, 1104  # no multiples of any tile


@dataclass(frozen=True)
class Case:
    """A graph, and what it computes in float64 and unfused in its own dtype."""

    graph: il.Graph
    answer: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]

    @property
    def output(self) -> str:
        return self.graph.outputs[0]

    def inputs(self, seed: int, device: str = "cuda") -> dict[str, torch.Tensor]:
        """Fresh random inputs; weights scaled to keep magnitudes near one."""
        generator = torch.Generator(device).manual_seed(seed)
        out = {}
        for name in self.graph.inputs:
            t = self.graph.tensor(name)
            value = torch.randn(t.shape, generator=generator, device=device, dtype=torch.float32)
            if name != "x":
                value /= t.shape[-1] ** 0.5
            out[name] = value.to(TORCH[t.dtype.name])
        return out

    def poisoned(self) -> torch.Tensor:
        t = self.graph.tensor(self.output)
        return torch.full(t.shape, float("nan"), device="cuda", dtype=TORCH[t.dtype.name])


def relative_error(out: torch.Tensor, gold: torch.Tensor) -> float:
    return float((out.double() - gold).norm() / gold.norm())


def case(name: str, m: int, dtype: str) -> Case:
    d = il.dtype(dtype)

    tile = il.MatmulTile.heuristic(m)
    silu = torch.nn.functional.silu
    if name == "two-copies":
        return Case(il.workloads.two_copies(m, HIDDEN, d), lambda t: t["x"])
    if name == "two-matmuls":
        graph = il.workloads.two_matmuls(m, HIDDEN, FFN, HIDDEN, d, tile, tile)
        return Case(graph, lambda t: t["x"] @ t["a"].T @ t["b"].T)
    gated = name == "gated-ffn"
    activation = il.Activation.SILU if gated else il.Activation.GELU_TANH
    shape = il.workloads.FFNShape(HIDDEN, FFN, activation, gated)
    graph = il.workloads.ffn(m, shape, d, tile, tile)
    if gated:
        return Case(graph, lambda t: (silu(t["x"] @ t["w_gate"].T) * (t["x"] @ t["w_up"].T)) @ t["w_down"].T)
    return Case(
        graph, lambda t: torch.nn.functional.gelu(t["x"] @ t["w_up"].T, approximate="tanh") @ t["w_down"].T
    )


GRAPHS = ("two-copies", "two-matmuls", "ffn", "gated-ffn")


def split(graph: il.Graph, parts: int) -> dict[str, il.Split]:
    """Split the last op's reduction, if it has one."""
    return {graph.ops[-1].name: il.SplitK(parts)} if graph.ops[-1].reduction else {}


#: Executors by name: (class, choices for a graph, options).
EXECUTORS: dict[str, tuple[type, Callable[[il.Graph], il.Choices], dict]] = {
    "serial": (il.SerialExecutor, lambda g: il.Choices(132), {}),
    "serial-split": (il.SerialExecutor, lambda g: il.Choices(132, split=split(g, 3)), {}),
    "cuda_graph": (il.CudaGraphExecutor, lambda g: il.Choices(132), {}),
    "pdl": (il.PdlExecutor, lambda g: il.Choices(132, split=split(g, 2)), {}),
    "semaphore_streams": (il.SemaphoreStreamsExecutor, lambda g: il.Choices(132, policy=il.RowSync()), {}),
    "semaphore_streams-chunked": (
        il.SemaphoreStreamsExecutor,
        lambda g: il.Choices(132, chunk_waits=True),
        {},
    ),
    "static": (
        il.PersistentExecutor,
        lambda g: il.Choices(132, il.Dispatch.STATIC, interleaving=il.Panels(1)),
        {},
    ),
    "static-split": (
        il.PersistentExecutor,
        lambda g: il.Choices(
            100, il.Dispatch.STATIC, il.Assignment.BALANCED, split=split(g, 4), chunk_waits=True
        ),
        {},
    ),
    "ticket": (il.PersistentExecutor, lambda g: il.Choices(132, policy=il.TileSync()), {}),
    "ticket-dependent": (
        il.PersistentExecutor,
        lambda g: il.Choices(132, policy=il.RowSync(), split=split(g, 2), interleaving=il.HalfRows()),
        {"dependent_launch": True},
    ),
    "ticket-chunked": (
        il.PersistentExecutor,
        lambda g: il.Choices(264, policy=il.StridedSync(3), chunk_waits=True, order=il.GroupedPanels(2)),
        {},
    ),
}


def executor(name: str, graph: il.Graph, **options: object) -> il.SerialExecutor:
    cls, choices, defaults = EXECUTORS[name]
    return cls(il.build(graph, choices(graph)), il.Options(**{**defaults, **options}))

"""Graphs with float64 answers, shared by the tests under the interpreter and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import interlace as il
from interlace.core.errors import HangError
from interlace.executors.device import DeviceExecutor
from interlace.kernels.abi import ITEM

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "int32": torch.int32}
GRAPHS = ("two-copies", "two-matmuls", "ffn", "gated-ffn")

Tensors = dict[str, torch.Tensor]
Answer = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A graph, and a function that computes its only output in the dtype of the given tensors."""

    graph: il.Graph
    answer: Answer
    device: str = "cpu"

    @property
    def output(self) -> str:
        return self.graph.outputs[0]

    def inputs(self, seed: int = 0) -> Tensors:
        """Return new random inputs; weights are scaled to keep magnitudes near one."""
        generator = torch.Generator(self.device).manual_seed(seed)
        out = {}
        for name in self.graph.inputs:
            t = self.graph.tensor(name)
            value = torch.randn(t.shape, generator=generator, device=self.device, dtype=torch.float32)
            if name not in ("x", "bias", "residual", "w_norm"):
                value /= t.shape[-1] ** 0.5
            out[name] = value.to(TORCH[t.dtype.name])
        return out

    def make_poisoned_output(self) -> torch.Tensor:
        t = self.graph.tensor(self.output)
        return torch.full(t.shape, float("nan"), device=self.device, dtype=TORCH[t.dtype.name])

    def compute_exact(self, inputs: Tensors) -> torch.Tensor:
        return self.answer({name: value.double() for name, value in inputs.items()})


def workload(
    name: str,
    m: int,
    hidden: int,
    ffn: int,
    dtype: str,
    tile: il.MatmulTile,
    copy_tile: tuple[int, int] = (64, 64),
) -> tuple[il.Graph, Answer]:
    """Return one of ``GRAPHS`` and its answer."""
    d = il.dtype(dtype)
    silu = torch.nn.functional.silu
    if name == "two-copies":
        return il.workloads.two_copies(m, hidden, d, copy_tile), lambda t: t["x"]
    if name == "two-matmuls":
        graph = il.workloads.two_matmuls(m, hidden, ffn, hidden, d, tile, tile)
        return graph, lambda t: t["x"] @ t["a"].T @ t["b"].T
    gated = name == "gated-ffn"
    activation = il.Activation.SILU if gated else il.Activation.GELU_TANH
    graph = il.workloads.ffn(m, il.workloads.FFNShape(hidden, ffn, activation, gated), d, tile, tile)
    if gated:
        return graph, lambda t: (silu(t["x"] @ t["w_gate"].T) * (t["x"] @ t["w_up"].T)) @ t["w_down"].T
    return (
        graph,
        lambda t: torch.nn.functional.gelu(t["x"] @ t["w_up"].T, approximate="tanh") @ t["w_down"].T,
    )


POINTWISE: dict[il.Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    il.Activation.RELU: torch.relu,
    il.Activation.GELU_TANH: lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
    il.Activation.SILU: torch.nn.functional.silu,
}
#: FFNs by name: (activation, gated).
FFNS = {
    "relu": (il.Activation.RELU, False),
    "gelu-tanh": (il.Activation.GELU_TANH, False),
    "silu": (il.Activation.SILU, False),
    "gated": (il.Activation.SILU, True),
}


def ffn_shape(kind: str, hidden: int = 1024, ffn: int = 2816, norm: float | None = None) -> il.workloads.FFNShape:
    activation, gated = FFNS[kind]
    return il.workloads.FFNShape(hidden, ffn, activation, gated, norm)


def ffn_answer(shape: il.workloads.FFNShape) -> Answer:
    """Return the answer of an FFN of this shape, with biases if given; with a norm, that of half a layer."""
    pointwise = POINTWISE[shape.activation]

    def answer(t: Mapping[str, torch.Tensor]) -> torch.Tensor:
        x = t["x"]
        if shape.norm is not None:
            x = x / (x.square().mean(1, keepdim=True) + shape.norm).sqrt() * t["w_norm"]
        up = x @ t["w_up"].T
        if "b_up" in t:
            up = up + t["b_up"]
        hidden = pointwise(x @ t["w_gate"].T) * up if shape.gated else pointwise(up)
        out = hidden @ t["w_down"].T
        if "b_down" in t:
            out = out + t["b_down"]
        return out if shape.norm is None else out + t["x"]

    return answer


def by_default(graph: il.Graph, workers: int = 132) -> il.Plan:
    """Build the plan in the megakernel's default tiling, under ticket dispatch."""
    schedule = il.MegakernelExecutor.select_default(graph, il.H200)
    return il.build(graph, replace(schedule, workers=workers, dispatch=il.Dispatch.TICKET))


def split(graph: il.Graph, how: il.Split) -> dict[str, il.Split]:
    """Return a split of the last op's reduction, if it has one."""
    return {graph.ops[-1].name: how} if graph.ops[-1].reduction else {}


def relative_error(out: torch.Tensor, gold: torch.Tensor) -> float:
    """Return the relative error in the Frobenius norm; NaN, which fails every limit, if any element is NaN."""
    return float((out.double() - gold).norm() / gold.norm())


def strike_posts(run: DeviceExecutor, items: Iterable[int]) -> None:
    """Let items run without posting, until the executor's next reset."""
    for row in np.flatnonzero(np.isin(run._table.items["number"], [*items])).tolist():
        run._items[row * ITEM.columns + ITEM.get_column("post")] = -1


def check_missing_posts(run: DeviceExecutor, tensors: Tensors, items: Iterable[int], match: str) -> None:
    """Check that a run with missing posts ends in an error that reports them, and that the next run succeeds."""
    strike_posts(run, items)
    run.run(tensors)
    with pytest.raises(HangError, match=match):
        run.synchronize()
    run.run(tensors)
    run.synchronize()

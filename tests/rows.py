"""Graphs of one op over the rows of a matrix, with the answer of PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

import interlace as il
from interlace.kernels.elementwise import elementwise
from interlace.kernels.layer_norm import layer_norm
from interlace.kernels.rms_norm import rms_norm
from interlace.kernels.softmax import softmax

from .cases import TORCH, Answer, Tensors

EPS = 1e-5
_FUNCTIONS = {
    il.Activation.NONE: lambda x: x,
    il.Activation.RELU: torch.relu,
    il.Activation.GELU_TANH: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    il.Activation.SILU: torch.nn.functional.silu,
}


@dataclass(frozen=True)
class Rows:
    """A graph from x to out, and a function that computes out in the dtype of the given tensors.

    Attributes:
        offset: mean of x.
        spread: standard deviation of x.
    """

    graph: il.Graph
    answer: Answer
    offset: float = 0.0
    spread: float = 1.0

    def inputs(self, seed: int = 0, device: str = "cpu") -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        found = {}
        for tensor in map(self.graph.tensor, self.graph.inputs):
            value = torch.randn(tensor.shape, generator=generator)
            if tensor.name == "x":
                value = value * self.spread + self.offset
            found[tensor.name] = value.to(device, TORCH[tensor.dtype.name])
        return found

    def compute_exact(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.answer({name: value.double() for name, value in inputs.items()})

    @property
    def tolerance(self) -> float:
        """Error bound: one rounding of out, sums in float32, and the rounding of the mean."""
        return max(self.graph.tensor("out").dtype.epsilon, 1e-6, self.offset * 2.0**-24)


def _tensors(dtype: il.DType, **shapes: tuple[int, ...]) -> dict[str, il.Tensor]:
    return {name: il.Tensor(name, shape, dtype) for name, shape in shapes.items()}


def _graph(op: il.Op, tensors: dict[str, il.Tensor]) -> il.Graph:
    return il.Graph(op.name, (*tensors.values(),), (op,), tuple(n for n in tensors if n != "out"), ("out",))


def together(cases: Iterable[tuple[str, Rows]]) -> il.Graph:
    """Join several graphs into one; names of tensors are prefixed with the name of their case."""
    ops, tensors, names = [], [], {"in": [], "out": []}
    for case, rows in cases:
        (op,) = rows.graph.ops
        reads, writes = (tuple(replace(a, tensor=case + a.tensor) for a in of) for of in (op.reads, op.writes))
        ops.append(replace(op, name=case, reads=reads, writes=writes))
        tensors += [replace(t, name=case + t.name) for t in rows.graph.tensors]
        names["in"] += [case + name for name in rows.graph.inputs]
        names["out"] += [case + name for name in rows.graph.outputs]
    return il.Graph("rows", (*tensors,), (*ops,), (*names["in"],), (*names["out"],))


def build_layer_norm(m: int, n: int, dtype: il.DType = il.bf16, rows: int = 1, offset: float = 0.0) -> Rows:
    """Build a layer normalisation."""
    t = _tensors(dtype, x=(m, n), weight=(n,), bias=(n,), out=(m, n))

    def answer(t: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.layer_norm(t["x"], (n,), t["weight"], t["bias"], EPS)

    return Rows(_graph(layer_norm("norm", **t, eps=EPS, rows=rows), t), answer, offset)


def build_rms_norm(m: int, n: int, dtype: il.DType = il.bf16, rows: int = 1) -> Rows:
    """Build an RMS normalisation."""
    t = _tensors(dtype, x=(m, n), weight=(n,), out=(m, n))

    def answer(t: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.rms_norm(t["x"], (n,), t["weight"], EPS)

    return Rows(_graph(rms_norm("norm", **t, eps=EPS, rows=rows), t), answer)


def build_softmax(
    m: int, n: int, dtype: il.DType = il.bf16, rows: int = 1, scale: float = 1.0, offset: float = 0.0
) -> Rows:
    """Build a softmax with exponents that differ by up to about a hundred."""
    t = _tensors(dtype, x=(m, n), out=(m, n))
    op = softmax("shares", **t, scale=scale, rows=rows)
    return Rows(_graph(op, t), lambda t: torch.softmax(scale * t["x"], -1), offset, spread=4.0 / scale)


def pointwise(
    m: int,
    n: int,
    dtype: il.DType = il.bf16,
    activation: il.Activation = il.Activation.NONE,
    times: str = "",
    plus: str = "",
    tile: tuple[int, int] = (8, 64),
) -> Rows:
    """Build ``activation(x) * times + plus``; both operands are a "matrix", a "vector" or absent."""
    shapes = {"matrix": (m, n), "vector": (n,)}
    extra = {name: shapes[kind] for name, kind in (("times", times), ("plus", plus)) if kind}
    t = _tensors(dtype, x=(m, n), **extra, out=(m, n))

    def answer(t: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return _FUNCTIONS[activation](t["x"]) * t.get("times", 1.0) + t.get("plus", 0.0)

    return Rows(_graph(elementwise("point", **t, activation=activation, tile=tile), t), answer)


#: Cases by description. Rows of 203 elements have varying alignment within 16 bytes.
CASES = {
    "norm, a row a tile": build_layer_norm(3, 200),
    "norm, a row a warp, in parts of warps": build_layer_norm(11, 203, il.fp16, rows=8),
    "norm, more than a block of Triton": build_layer_norm(2, 4200, il.fp32, rows=2),
    "norm, far from 0": build_layer_norm(3, 264, il.fp32, offset=4000.0),
    "norm, a row by four warps, of many, in several stages": build_layer_norm(9, 1300, il.fp32, rows=8),
    "RMS norm, a row a warp, far more rows than warps": build_rms_norm(35, 136, rows=32),
    "RMS norm, a row by two warps, of many": build_rms_norm(19, 1104, rows=16),
    "softmax, a row a tile": build_softmax(3, 203),
    "softmax, a row a warp": build_softmax(9, 136, il.fp16, rows=4, scale=0.125),
    "softmax, more than a block of Triton": build_softmax(1, 4203, il.fp32),
    "softmax, far from 0": build_softmax(2, 40, il.fp32, offset=1e4),
    "softmax of one number": build_softmax(3, 1, rows=2),
    "gelu": pointwise(5, 203, il.fp32, il.Activation.GELU_TANH),
    "silu of a gate times what it lets through": pointwise(9, 136, activation=il.Activation.SILU, times="matrix"),
    "relu times a vector plus a matrix": pointwise(
        9, 130, il.fp16, il.Activation.RELU, times="vector", plus="matrix", tile=(4, 32)
    ),
    "a bias of one row": pointwise(1, 200, plus="vector", tile=(1, 64)),
}

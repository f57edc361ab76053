"""Graphs for the megakernel that combine ops of loops with matmuls and a user's CUDA source."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

import interlace as il
from interlace import loops

from .cases import TORCH
from .cuda_bodies import norm
from .loops_graphs import mark_rings

WIDTH = 128


def gelu_of_rows(width: int = 64) -> loops.LoopKernel:
    """Build ``y = x * sigmoid(1.702 x) + z`` over 8 rows, ``width`` columns a step, with plain loads of ``z``."""
    k = loops.Builder("gelu", threads=128)
    m, n = k.symbol("m"), k.symbol("n")
    x, z, y = k.input("x", (m, n), il.bf16), k.input("z", (m, n), il.bf16), k.output("y", (m, n), il.bf16)
    tile, other = k.shared("tile", (8, width), il.bf16), k.register("other", (8, width), il.bf16)
    with k.block("b", loops.ceil_div(m, 8)) as b, k.serial("c", loops.ceil_div(n, width)) as c:
        k.load(tile, x.at(b * 8, c * width))
        k.load(other, z.at(b * 8, c * width), loops.Copy.PLAIN)
        k.assign(y.at(b * 8, c * width), tile / (1 + loops.exp(-1.702 * tile)) + other)
    return mark_rings(k.build_kernel(), tile=2)


def head_and_tail(whole: int = 64) -> loops.LoopKernel:
    """Build ``y = sum of each row of x``: TMA loads whole tiles (none in a short row), plain loads the rest."""
    k = loops.Builder("head_and_tail", threads=128)
    m, n = k.symbol("m"), k.symbol("n")
    x, y = k.input("x", (m, n), il.fp32), k.output("y", (m,), il.fp32)
    tile, rest = k.shared("tile", (1, whole), il.fp32), k.register("rest", (1, whole), il.fp32)
    total = k.register("total", (1, 1), il.fp32)
    with k.block("b", m) as b:
        k.assign(total, 0)
        with k.serial("c", n // whole) as c:
            k.load(tile, x.at(b, c * whole))
            k.reduce(total, loops.ReduceOp.SUM, tile, axes=(1,), shape=(1, whole))
        k.load(rest, x.at(b, n // whole * whole), loops.Copy.PLAIN)
        k.reduce(total, loops.ReduceOp.SUM, rest, axes=(1,), shape=(1, whole))
        k.store(y.at(b), total)
    return mark_rings(k.build_kernel(), tile=3)


def chain(m: int, tile: il.MatmulTile) -> il.Graph:
    """Build a chain: a matmul of the package, loops on its rows, a user's CUDA source, and a matmul of loops."""
    shapes = {"w_up": (WIDTH, WIDTH), "w_down": (WIDTH, WIDTH), "scale": (WIDTH,)}
    shapes |= dict.fromkeys(("x", "h", "z", "g", "n", "out"), (m, WIDTH))
    t = {name: il.Tensor(name, shape, il.bf16) for name, shape in shapes.items()}
    product = mark_rings(loops.library.matmul(n=64), a_s=4, b_s=4)
    ops = (
        il.matmul("up", t["x"], t["w_up"], t["h"], tile=tile),
        loops.as_op("gelu", gelu_of_rows(), {"x": t["h"], "z": t["z"], "y": t["g"]}),
        norm("norm", t["g"], t["n"], t["scale"], bm=5),
        loops.as_op("down", product, {"a": t["n"], "b": t["w_down"], "c": t["out"]}, weights=("b",)),
    )
    return il.Graph("joined", (*t.values(),), ops, ("x", "w_up", "z", "scale", "w_down"), ("out",))


def compute_exact(t: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Compute the output of ``chain`` in float64."""
    d = {name: value.double() for name, value in t.items()}
    h = d["x"] @ d["w_up"].T
    g = h * torch.sigmoid(1.702 * h) + d["z"]
    return g * (g.square().mean(1, keepdim=True) + 1e-5).rsqrt() * d["scale"] @ d["w_down"].T


def twice(m: int) -> il.Graph:
    """Build a graph in which loops read the output of the same loops."""
    x, h, z, out = (il.Tensor(name, (m, WIDTH), il.bf16) for name in ("x", "h", "z", "out"))
    kernel = gelu_of_rows()
    first = loops.as_op("first", kernel, {"x": x, "z": z, "y": h})
    return il.Graph(
        "twice",
        (x, h, z, out),
        (first, loops.as_op("second", kernel, {"x": h, "z": z, "y": out})),
        ("x", "z"),
        ("out",),
    )


def side_by_side(kernels: Mapping[str, tuple[loops.LoopKernel, Mapping[str, tuple[int, ...]]]]) -> il.Graph:
    """Build a graph with one op per kernel on its own tensors, ``NAME.ARGUMENT``, given their shapes."""
    tensors: list[il.Tensor] = []
    ops, inputs, outputs = [], [], []
    for name, (kernel, shapes) in kernels.items():
        mine = {}
        for arg, shape in shapes.items():
            declared = kernel.find_tensor(arg)
            mine[arg] = il.Tensor(f"{name}.{arg}", shape, declared.dtype)
            (outputs if declared.is_written else inputs).append(mine[arg].name)
        tensors += mine.values()
        ops.append(loops.as_op(name, kernel, mine))
    return il.Graph("side by side", tuple(tensors), tuple(ops), tuple(inputs), tuple(outputs))


def build_copy() -> il.Graph:
    """Build a copy that stores from the ring by TMA, with 4 steps per item."""
    kernel = loops.library.copy_2d(tile=(8, 64), walk=4)
    return side_by_side({"copy": (kernel, dict.fromkeys("xy", (16, 500)))})


def library() -> il.Graph:
    """Build a graph of library kernels that differ in what roles do; in one of them, items may have no step."""
    of = loops.library
    return side_by_side(
        {
            "copy_2d": (mark_rings(of.copy_2d(tile=(8, 64), walk=2), s=3), {"x": (13, 260), "y": (13, 260)}),
            "transpose": (mark_rings(of.transpose(tile=(32, 32), walk=2), s=2), {"x": (40, 100), "y": (100, 40)}),
            "row_max": (
                mark_rings(of.reduce_inner(tile=(8, 64), walk=2, op=loops.ReduceOp.MAX), s=2),
                {"x": (21, 100), "y": (21,)},
            ),
            "column_sum": (mark_rings(of.reduce_outer(tile=(8, 64)), s=2), {"x": (20, 100), "y": (100,)}),
            "layer_norm": (
                mark_rings(of.layer_norm(columns=256, chunk=128, walk=2), row=2),
                {"x": (5, 256), "y": (5, 256), "weight": (256,), "bias": (256,)},
            ),
            "batched": (
                mark_rings(of.matmul_batched(n=64), a_s=2, b_s=2),
                {"a": (70, 136), "b": (2, 72, 136), "c": (2, 70, 72)},
            ),
            "no_step": (head_and_tail(), {"x": (3, 20), "y": (3,)}),
            "few_steps": (head_and_tail(), {"x": (3, 200), "y": (3,)}),
        }
    )


def inputs_of(graph: il.Graph, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return normally distributed inputs in the graph's dtypes."""
    random = np.random.default_rng(seed)
    made = {t: torch.from_numpy(random.standard_normal(t.shape, np.float32)) for t in map(graph.tensor, graph.inputs)}
    return {t.name: value.to(TORCH[t.dtype.name]) for t, value in made.items()}

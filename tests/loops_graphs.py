"""Graphs with ops made of loops, alone and with Triton ops; torch is imported only to compute an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import interlace as il
from interlace.core.dtypes import bf16, fp32
from interlace.loops import library
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.index import ceil_div
from interlace.loops.ir.statements import LoopKernel, ReduceOp
from interlace.loops.ops.op import as_op
from interlace.loops.rewrite.circular import circular_buffer

Answer = Callable[[Mapping[str, Any]], Any]
HIDDEN = 1024


def mark_rings(kernel: LoopKernel, **stages: int) -> LoopKernel:
    for tile, depth in stages.items():
        kernel = circular_buffer(kernel, tile, depth)
    return kernel


def norm_chain_sum(m: int, columns: int = HIDDEN) -> tuple[il.Graph, Answer]:
    """fp32: layer normalisation, whose tensors merge dimensions; a chain with a plain operand; sums of its rows."""
    x, normed, scale, chained = (il.Tensor(name, (m, columns), il.fp32) for name in ("x", "normed", "scale", "chained"))
    weight, bias = (il.Tensor(name, (columns,), il.fp32) for name in ("weight", "bias"))
    out = il.Tensor("out", (m,), il.fp32)
    chunk = min(columns, 256)
    norm = mark_rings(library.layer_norm(columns=columns, chunk=chunk, walk=4), row=2)
    chain = mark_rings(library.pointwise(tile=(8, min(columns, 128))), x_s=2)
    total = mark_rings(library.reduce_inner(tile=(8, min(columns, 128)), walk=2), s=3)
    ops = (
        as_op("norm", norm, {"x": x, "y": normed, "weight": weight, "bias": bias}),
        as_op("chain", chain, {"x": normed, "z": scale, "y": chained}),
        as_op("total", total, {"x": chained, "y": out}, warp_specialised=True),
    )
    tensors = (x, weight, bias, normed, scale, chained, out)
    graph = il.Graph("norm-chain-sum", tensors, ops, ("x", "weight", "bias", "scale"), ("out",))

    def answer(t: Mapping[str, Any]) -> Any:
        import torch

        rows = torch.nn.functional.layer_norm(t["x"], (columns,), t["weight"], t["bias"])
        return torch.relu(rows * t["scale"] + 1).sum(1)

    return graph, answer


def matmuls(m: int, hidden: int = HIDDEN) -> tuple[il.Graph, Answer]:
    """bf16: a Triton matmul, one of loops (warp-specialised, with a bias), a copy of loops, a Triton copy."""
    x, up, biased, copied, out = (
        il.Tensor(name, (m, hidden), il.bf16) for name in ("x", "up", "biased", "copied", "out")
    )
    w_up, w_down = (il.Tensor(name, (hidden, hidden), il.bf16) for name in ("w_up", "w_down"))
    bias = il.Tensor("bias", (hidden,), il.fp32)
    loops = mark_rings(library.matmul_bias(), a_s=4, b_s=4)
    ops = (
        il.matmul("up", x, w_up, up),
        as_op("down", loops, {"a": up, "b": w_down, "bias": bias, "c": biased}, warp_specialised=True),
        as_op("copy", mark_rings(library.copy_2d(tile=(16, 64), dtype=il.bf16), s=4), {"x": biased, "y": copied}),
        il.copy("last", copied, out),
    )
    tensors = (x, w_up, up, w_down, bias, biased, copied, out)
    graph = il.Graph("matmuls", tensors, ops, ("x", "w_up", "w_down", "bias"), ("out",))
    return graph, lambda t: (t["x"] @ t["w_up"].T).to(t["x"].dtype) @ t["w_down"].T + t["bias"].to(t["x"].dtype)


def beside_a_product(stages: int = 3) -> LoopKernel:
    """A matmul with a loop that also sums a third tile, which only threads read."""
    k = Builder("beside", threads=256)
    m, n, depth = (k.symbol(name) for name in ("m", "n", "depth"))
    inputs = {name: k.input(name, (rows, depth), bf16) for name, rows in (("a", m), ("b", n), ("d", m))}
    c, y = k.output("c", (m, n), fp32), k.output("y", (m,), fp32)
    tiles = {name: k.shared(f"{name}_s", (128, 64), bf16, swizzle_bytes=128) for name in inputs}
    acc, total = k.register("acc", (128, 128), fp32), k.register("total", (128, 1), fp32)
    with k.block("i", ceil_div(m, 128)) as i:
        k.assign(acc, 0)
        k.assign(total, 0)
        with k.serial("s", ceil_div(depth, 64)) as s:
            for name, tile in tiles.items():
                k.load(tile, inputs[name].at(0 if name == "b" else i * 128, s * 64))
            k.matmul(acc, tiles["a"], tiles["b"])
            k.reduce(total, ReduceOp.SUM, tiles["d"], axes=(1,), shape=(128, 64))
        k.store(c.at(i * 128, 0), acc)
        k.store(y.at(i * 128), total)
    kernel = k.build_kernel()
    for tile in ("a_s", "b_s", "d_s"):
        kernel = circular_buffer(kernel, tile, stages)
    return kernel

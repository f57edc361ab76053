"""Floating-point operations of a block, counted in its loops.

Worked example, a matmul of 128 x 256 tiles in 64 steps of 64: ``2 * 128 * 256 * 64`` each, 268 MFLOP in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from interlace.pipeline.index import evaluate
from interlace.pipeline.ir import Block, For, Kernel, Matmul, Pointwise, Reduce, Stmt
from interlace.pipeline.nest import block_loops
from interlace.pipeline.values import Apply, Value


def block_flops(kernel: Kernel, sizes: Mapping[str, int]) -> float:
    """Of the first block, under run-time extents ``sizes``; conditions count as met."""
    loops, body = block_loops(kernel)
    return _flops(body, {loop.var: 0 for loop in loops} | dict(sizes))


def _flops(body: tuple[Stmt, ...], values: dict[str, int]) -> float:
    total = 0.0
    for stmt in body:
        match stmt:
            case For():
                steps = evaluate(stmt.stop, values) - evaluate(stmt.start, values)
                total += max(steps, 0) * _flops(stmt.body, values | {stmt.var: 0})
            case Matmul():
                total += 2.0 * prod(stmt.acc.shape) * stmt.a.shape[-1]
            case Reduce():
                total += prod(stmt.shape) * (1 + _operations(stmt.value))
            case Pointwise():
                total += prod(stmt.dst.shape) * _operations(stmt.value)
            case _ if isinstance(stmt, Block):
                total += _flops(stmt.body, values)
    return total


def _operations(value: Value) -> int:
    return 1 + sum(map(_operations, value.args)) if isinstance(value, Apply) else 0

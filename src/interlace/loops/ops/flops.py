"""Floating-point operations of a block, counted in its loops: the mean over all blocks.

Worked example, a matmul of 128 x 256 tiles in 64 steps of 64: ``2 * 128 * 256 * 64`` each, 268 MFLOP in all.

Where the extents inside a loop depend on its variable, the mean over its values is taken at the first, the last and
the middle value, with weights 1, 1 and 4 (Simpson's rule). It is exact for affine extents, and close where affine
extents are nested or clipped. Causal attention of 9 blocks, where block ``b`` takes ``b + 1`` steps: 1, 5 and 9 steps,
so 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

from interlace.loops.ir.index import evaluate, find_names
from interlace.loops.ir.nest import split_block_loops
from interlace.loops.ir.statements import Block, For, LoopKernel, Matmul, Pointwise, Reduce, Stmt
from interlace.loops.ir.traverse import walk
from interlace.loops.ir.values import Apply, Value


def count_block_flops(kernel: LoopKernel, sizes: Mapping[str, int]) -> float:
    """Return the mean over blocks, under run-time extents ``sizes``; conditions count as true."""
    loops, body = split_block_loops(kernel)
    return _average_blocks(loops, body, dict(sizes))


def _average_blocks(loops: tuple[For, ...], body: tuple[Stmt, ...], values: dict[str, int]) -> float:
    if not loops:
        return _count_flops(body, values)
    return _average_loop(loops[0], body, values, partial(_average_blocks, loops[1:], body))


def _count_flops(body: tuple[Stmt, ...], values: dict[str, int]) -> float:
    total = 0.0
    for stmt in body:
        match stmt:
            case For():
                steps = evaluate(stmt.stop, values) - evaluate(stmt.start, values)
                total += max(steps, 0) * _average_loop(stmt, stmt.body, values, partial(_count_flops, stmt.body))
            case Matmul():
                total += 2.0 * prod(stmt.acc.shape) * stmt.a.shape[-1]
            case Reduce():
                total += prod(stmt.shape) * (1 + _count_operations(stmt.value))
            case Pointwise():
                total += prod(stmt.dst.shape) * _count_operations(stmt.value)
            case _ if isinstance(stmt, Block):
                total += _count_flops(stmt.body, values)
    return total


def _average_loop(
    loop: For, body: tuple[Stmt, ...], values: dict[str, int], count: Callable[[dict[str, int]], float]
) -> float:
    """Return the mean of ``count`` over the values of the loop's variable, which extents in ``body`` may depend on."""
    first, last = evaluate(loop.start, values), evaluate(loop.stop, values) - 1
    if last < first:
        return 0.0
    extents = (n for inner in walk(body) if isinstance(inner, For) for n in (inner.start, inner.stop))
    if not any(loop.var in find_names(n) for n in extents):
        return count(values | {loop.var: first})
    # The middle of an even number of values lies between two.
    weights = (first, 1), ((first + last) // 2, 2), ((first + last + 1) // 2, 2), (last, 1)
    return sum(weight * count(values | {loop.var: at}) for at, weight in weights) / 6


def _count_operations(value: Value) -> int:
    return 1 + sum(map(_count_operations, value.args)) if isinstance(value, Apply) else 0

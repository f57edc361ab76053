"""Kernels of random shape for the tests of the pipeline pass, and ways to break a rewritten one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from interlace.core.dtypes import fp32
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.statements import Block, Copy, LoopKernel, ReduceOp, Stmt
from interlace.loops.ir.values import Box, Value
from interlace.loops.rewrite.circular import circular_buffer


@dataclass(frozen=True)
class Input:
    """How one input reaches the loop body; ``stages`` 0 leaves its load outside of any circular buffer."""

    by: Copy
    stages: int
    prefetch: int


@dataclass(frozen=True)
class Case:
    """A weighted sum of inputs, tile by tile, over one loop or two, with a sum per outer iteration.

    ``shared_out``: each thread writes four neighbours of the weighted sum at a time, instead of all together a tile.
    """

    inputs: tuple[Input, ...]
    tile: int
    nested: bool
    shared_out: bool

    def kernel(self) -> LoopKernel:
        """``y = 1 * x0 + 2 * x1 + ...`` and ``z[o]`` the sum of what iteration ``o`` of the outer loop read."""
        k = Builder("case", threads=128)
        n, inner = k.symbol("n"), k.symbol("inner")
        outer = k.symbol("outer") if self.nested else None
        xs = [k.input(f"x{i}", (n,), fp32) for i in range(len(self.inputs))]
        y, z = k.output("y", (n,), fp32), k.output("z", (8,), fp32)
        tiles = [k.shared(f"s{i}", (self.tile,), fp32) for i in range(len(self.inputs))]
        acc = k.register("acc", (1,), fp32)

        def sum_weighted(boxes: list[Box]) -> Value:
            total = boxes[0] * 1
            for weight, box in enumerate(boxes[1:], start=2):
                total = total + box * weight
            return total

        def row(o: object, step: object) -> None:
            k.assign(acc, 0)
            with k.serial("i", inner) as i:
                at = (step + i) * self.tile  # type: ignore[operator]
                for x, s, how in zip(xs, tiles, self.inputs, strict=True):
                    k.load(s, x.at(at), how.by)
                total = sum_weighted([s.to_box() for s in tiles])
                if self.shared_out:
                    with k.thread("t", self.tile // 4) as t:
                        k.assign(y.at(at + t * 4), sum_weighted([s.at(t * 4, shape=(4,)) for s in tiles]))
                else:
                    k.assign(y.at(at), total)
                k.reduce(acc, ReduceOp.SUM, total, axes=(0,), shape=(self.tile,))
            k.store(z.at(o), acc)  # type: ignore[arg-type]

        if outer is None:
            row(0, 0)
        else:
            with k.serial("o", outer) as o:
                row(o, o * inner)
        kernel = k.build_kernel()
        for i, how in enumerate(self.inputs):
            if how.stages:
                kernel = circular_buffer(kernel, f"s{i}", how.stages, how.prefetch)
        return kernel

    def sizes(self, n: int, inner: int, outer: int) -> dict[str, int]:
        return {"n": n, "inner": inner} | ({"outer": outer} if self.nested else {})

    def compute_expected(self, xs: dict[str, np.ndarray], inner: int, outer: int) -> tuple[np.ndarray, np.ndarray]:
        """``y`` and ``z`` by NumPy alone; NaN where nothing is written."""
        weighted = sum((i + 1) * xs[f"x{i}"] for i in range(len(self.inputs)))
        assert isinstance(weighted, np.ndarray)
        rows = outer if self.nested else 1
        y, z = np.full(len(weighted), np.nan, np.float32), np.full(8, np.nan, np.float32)
        reached = min(rows * inner * self.tile, len(y))
        y[:reached] = weighted[:reached]
        for o in range(rows):
            z[o] = weighted[o * inner * self.tile : (o + 1) * inner * self.tile].sum()
        return y, z


@st.composite
def cases(draw: st.DrawFn, *, nested: bool, all_rings: bool) -> Case:
    """One to three inputs, each its own copy, depth and distance; ``all_rings``: none without a ring."""
    inputs = []
    for _ in range(draw(st.integers(1, 3))):
        stages = draw(st.integers(1, 8)) if all_rings else draw(st.integers(0, 8))
        prefetch = draw(st.integers(0, stages - 1)) if stages else 0
        inputs.append(Input(draw(st.sampled_from(Copy)), stages, prefetch))
    return Case(tuple(inputs), draw(st.sampled_from((4, 8, 12))), nested, draw(st.booleans()))


def edit(kernel: LoopKernel, change: Callable[[Stmt], tuple[Stmt, ...] | None]) -> LoopKernel:
    """``kernel`` with statements replaced where ``change`` gives others; it sees inner statements first."""
    edited = replace(kernel, body=_edit(kernel.body, change))
    assert edited != kernel
    return edited


def _edit(body: tuple[Stmt, ...], change: Callable[[Stmt], tuple[Stmt, ...] | None]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for stmt in body:
        inner = replace(stmt, body=_edit(stmt.body, change)) if isinstance(stmt, Block) else stmt
        new = change(inner)
        out += (inner,) if new is None else new
    return tuple(out)

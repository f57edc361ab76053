"""Random programs: tiles that share bytes never hold data at the same time, by following a run step by step."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import combinations, count, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.devices import H200
from interlace.core.dtypes import fp32
from interlace.pipeline.build import Builder
from interlace.pipeline.circular import circular_buffer, lower
from interlace.pipeline.index import Const, Less, evaluate, holds
from interlace.pipeline.ir import (
    Box,
    ElectOne,
    For,
    If,
    InitBarrier,
    Invalidate,
    Kernel,
    Let,
    Memory,
    Role,
    Section,
    Stmt,
)
from interlace.pipeline.smem import lay_out
from interlace.pipeline.traverse import read, written


@st.composite
def programs(draw: st.DrawFn) -> Kernel:
    """Loops one after another in an outer loop; tiles of their own, and tiles that outlive a loop.

    What outlives a loop is loaded at every outer step, at the first ones alone, or in a loop of as many steps as drawn.
    """
    k = Builder("program")
    x = k.input("x", (4096,), fp32)
    outputs = (k.output(f"y{i}", (4096,), fp32) for i in count())
    rings, kept = [], []
    with k.serial("outer", draw(st.integers(1, 3))) as outer:
        for segment in range(draw(st.integers(1, 4))):
            if draw(st.booleans()):
                tile = k.shared(f"kept{segment}", (32 * draw(st.integers(1, 4)),), fp32)
                loaded = draw(st.sampled_from(("always", "first", "steps", "falling")))
                with ExitStack() as around:
                    if loaded == "first":
                        around.enter_context(k.when(Less(outer, Const(draw(st.integers(1, 2))))))
                    elif loaded != "always":
                        steps = draw(st.integers(0, 2))
                        around.enter_context(k.serial(f"k{segment}", steps - outer if loaded == "falling" else steps))
                    k.load(tile, x.at(0))
                kept.append(tile)
            own = k.shared(f"own{segment}", (32 * draw(st.integers(1, 4)),), fp32)
            with k.serial(f"i{segment}", draw(st.integers(0, 4))) as i:
                k.load(own, x.at(i * 64))
                k.store(next(outputs).at(i * 64), own)
                if kept and draw(st.booleans()):
                    k.store(next(outputs).at(0), draw(st.sampled_from(kept)))
            if draw(st.booleans()):
                rings.append((own.tensor.name, draw(st.integers(1, 4))))
        for tile in kept:
            if draw(st.booleans()):
                k.store(next(outputs).at(0), tile)
    kernel = k.kernel()
    for name, stages in rings:
        kernel = circular_buffer(kernel, name, stages)
    return kernel


def test_tiles_that_share_bytes_never_live_at_once() -> None:
    sharing = 0

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(programs(), st.booleans())
    def check(kernel: Kernel, warp_specialised: bool) -> None:
        nonlocal sharing
        rewritten = lower(kernel, warp_specialised=warp_specialised and bool(kernel.rings))
        layout = lay_out(rewritten, H200)
        run = Run(rewritten)
        run.follow(rewritten.body)
        for a, b in combinations(layout.placed, 2):
            if a.offset_bytes < b.offset_bytes + b.size_bytes and b.offset_bytes < a.offset_bytes + a.size_bytes:
                sharing += 1
                for (s, t), (u, v) in product(run.spans(a.name), run.spans(b.name)):
                    assert t < u or v < s, (a, b)

    check()
    assert sharing > 100


@pytest.mark.parametrize("how", ["condition", "loop"])
def test_a_tile_that_only_some_iterations_write_keeps_its_bytes_through_all(how: str) -> None:
    k = Builder("once")
    n = k.symbol("n")
    x, w = k.input("x", (n, 256), fp32), k.input("w", (256,), fp32)
    y, z = k.output("y", (n, 256), fp32), k.output("z", (n, 256), fp32)
    a, b = k.shared("a", (256,), fp32), k.shared("b", (1, 256), fp32)
    with k.serial("i", n) as i:
        with k.when(Less(i, Const(1))) if how == "condition" else k.serial("j", 1 - i):
            k.load(a, w.at(0))
        k.assign(y.at(i, 0), a * 1)
        k.load(b, x.at(i, 0))
        k.assign(z.at(i, 0), b * 1)
    layout = lay_out(lower(k.kernel()), H200)
    assert sorted(layout.of(name).offset_bytes for name in "ab") == [0, 1024]


class Run:
    """From which write to which last read each slot holds data, and each barrier from begin to end."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.shared = {t.name for t in kernel.tensors if t.memory is Memory.SHARED}
        self.env: dict[str, int] = {}
        self.lives: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.now = 0

    def spans(self, name: str) -> list[tuple[int, int]]:
        return [span for (other, _), spans in self.lives.items() if other == name for span in spans]

    def begin(self, name: str, slot: int) -> None:
        self.lives.setdefault((name, slot), []).append((self.now, self.now))

    def go_on(self, name: str, slot: int) -> None:
        spans = self.lives.get((name, slot))
        if spans:  # else nothing was written yet, and any bytes will do
            spans[-1] = (spans[-1][0], self.now)

    def follow(self, body: tuple[Stmt, ...]) -> None:
        began = self.now
        for stmt in body:
            self.now += 1
            for box in read(stmt):
                if box.tensor in self.shared:
                    self.go_on(box.tensor, self.slot(box))
            target = written(stmt)
            if target is not None and target.tensor in self.shared:
                self.begin(target.tensor, self.slot(target))
            match stmt:
                case InitBarrier():
                    self.begin(stmt.name, 0)
                case Invalidate():
                    self.go_on(stmt.name, 0)
                case Let():
                    self.env[stmt.var] = evaluate(stmt.value, self.env)
                case For():
                    for value in range(evaluate(stmt.start, self.env), evaluate(stmt.stop, self.env)):
                        self.env[stmt.var] = value
                        self.follow(stmt.body)
                case If():
                    if holds(stmt.condition, self.env):
                        self.follow(stmt.body)
                case ElectOne() | Role() | Section():
                    self.follow(stmt.body)
        if any(isinstance(stmt, Role) for stmt in body):
            # Roles run at the same time: what the loader fills is in use as long as both run.
            for name, slot in [key for key in self.lives if self._is_ring(key[0])]:
                self.lives[name, slot].append((began, self.now))

    def slot(self, box: Box) -> int:
        return 0 if box.slot is None else evaluate(box.slot, self.env)

    def _is_ring(self, name: str) -> bool:
        return name in self.shared and self.kernel.tensor(name).stages is not None

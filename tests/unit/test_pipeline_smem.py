"""Random programs: tiles that share bytes never hold data at the same time, by following a run step by step."""

from __future__ import annotations

from itertools import combinations, count, product

from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.devices import H200
from interlace.core.dtypes import fp32
from interlace.pipeline.build import Builder
from interlace.pipeline.circular import circular_buffer, lower
from interlace.pipeline.index import evaluate, holds
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
    """Loops one after another, some in an outer loop; tiles of their own, and tiles that outlive a loop."""
    k = Builder("program")
    x = k.input("x", (4096,), fp32)
    outputs = (k.output(f"y{i}", (4096,), fp32) for i in count())
    rings, kept = [], []
    with k.serial("outer", draw(st.integers(1, 3))):
        for segment in range(draw(st.integers(1, 4))):
            if draw(st.booleans()):
                tile = k.shared(f"kept{segment}", (32 * draw(st.integers(1, 4)),), fp32)
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
        spans = self.lives[name, slot]
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

"""Random programs, followed step by step: what shares bytes is separated by a sync of all threads, and by a fence
where ordinary writes are followed by bulk copies."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations, count, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.core.devices import H200
from interlace.core.dtypes import bf16, fp32
from interlace.loops.frontend.build import Builder, Handle
from interlace.loops.ir.index import Const, Index, Less, evaluate, is_true
from interlace.loops.ir.smem import SharedLayout, lay_out
from interlace.loops.ir.statements import (
    Copy,
    ElectOne,
    FenceProxy,
    For,
    If,
    InitBarrier,
    Invalidate,
    Let,
    Load,
    LoopKernel,
    Matmul,
    MemorySpace,
    Pointwise,
    Role,
    Section,
    Stmt,
    Store,
    SyncScope,
    WaitParity,
)
from interlace.loops.ir.traverse import find_read_boxes, find_written_box, walk
from interlace.loops.ir.values import Box
from interlace.loops.rewrite.circular import circular_buffer, lower
from interlace.loops.rewrite.peepholes import count_pending_stores, find_deferred_stores

from ..draws import EXAMPLES

#: Meetings of all threads so far; and statements, where one thread's order counts.
Moment = tuple[int, int]


@st.composite
def programs(draw: st.DrawFn) -> LoopKernel:
    """Loops and nests in an outer loop; tiles of their own, computed ones, and such as outlive a loop.

    What outlives a loop is loaded at every outer step, at the first ones alone, or in a loop of as many steps as drawn.
    """
    k = Builder("program")
    x = k.input("x", (4096,), fp32)
    outputs = (k.output(f"y{i}", (4096,), fp32) for i in count())
    names = (f"t{i}" for i in count())
    rings, kept = [], []
    copies, stores = st.sampled_from(Copy), st.sampled_from((Copy.PLAIN, Copy.TMA))

    def tile(name: str) -> Handle:
        return k.shared(name, (32 * draw(st.integers(1, 4)),), fp32)

    def work(own: Handle, at: Index) -> None:
        """Statements that read the loaded tile, or something else, or nothing."""
        for _ in range(draw(st.integers(0, 3))):
            match draw(st.sampled_from(("store", "scale", "constant", "kept"))):
                case "store":
                    k.store(next(outputs).at(at), own, draw(stores))
                case "scale" | "constant" as how:
                    u = k.shared(next(names), own.tensor.tile, fp32)
                    k.assign(u, own * 5 if how == "scale" else 5)
                    k.store(next(outputs).at(at), u, draw(stores))
                case "kept" if kept:
                    k.store(next(outputs).at(0), draw(st.sampled_from(kept)), draw(stores))

    with k.serial("outer", draw(st.integers(1, 3))) as outer:
        for segment in range(draw(st.integers(1, 4))):
            if draw(st.booleans()):
                keep = tile(f"kept{segment}")
                loaded = draw(st.sampled_from(("always", "first", "steps", "falling")))
                with ExitStack() as around:
                    if loaded == "first":
                        around.enter_context(k.when(Less(outer, Const(draw(st.integers(1, 2))))))
                    elif loaded != "always":
                        steps = draw(st.integers(0, 2))
                        around.enter_context(k.serial(f"k{segment}", steps - outer if loaded == "falling" else steps))
                    k.load(keep, x.at(0), draw(copies))
                kept.append(keep)
            own = tile(f"own{segment}")
            with ExitStack() as around:
                i = around.enter_context(k.serial(f"i{segment}", draw(st.integers(0, 4))))
                if draw(st.booleans()):
                    above = tile(f"above{segment}")
                    k.load(above, x.at(i * 128), draw(copies))
                    work(above, i * 128)
                    if draw(st.booleans()):
                        rings.append(above.tensor.name)
                    i = i * 4 + around.enter_context(k.serial(f"j{segment}", draw(st.integers(0, 3))))
                k.load(own, x.at(i * 64), draw(copies))
                work(own, i * 64)
            if draw(st.booleans()):
                rings.append(own.tensor.name)
        for keep in kept:
            if draw(st.booleans()):
                k.store(next(outputs).at(0), keep, draw(stores))
    kernel = k.build_kernel()
    for name in rings:
        stages = draw(st.integers(1, 4))
        kernel = circular_buffer(kernel, name, stages, draw(st.integers(0, stages - 1)))
    return kernel


def test_between_tiles_that_share_bytes_all_threads_synchronise() -> None:
    sharing = 0

    @settings(EXAMPLES, max_examples=160)
    @given(programs(), st.booleans())
    def check(kernel: LoopKernel, warp_specialised: bool) -> None:
        nonlocal sharing
        sharing += follow(lower(kernel, warp_specialised=warp_specialised and bool(kernel.rings)))

    check()
    assert sharing > 100


def nest_with_one_stage(*marked: str) -> LoopKernel:
    """A tile loaded and used before an inner loop that loads another, of one stage."""
    k = Builder("nest")
    n = k.symbol("n")
    x, y, z = k.input("x", (n,), fp32), k.output("y", (n,), fp32), k.output("z", (n,), fp32)
    v, s = k.shared("v", (256,), fp32), k.shared("s", (256,), fp32)
    with k.serial("r", n) as r:
        k.load(v, x.at(r * 256))
        k.assign(y.at(r * 256), 2 * v)
        with k.serial("c", 4) as c:
            k.load(s, x.at((r * 4 + c) * 256))
            k.assign(z.at((r * 4 + c) * 256), 3 * s)
    kernel = k.build_kernel()
    for name in marked:
        kernel = circular_buffer(kernel, name, 1)
    return kernel


def stored_late() -> LoopKernel:
    """A store by TMA out of a ring, which is awaited at the next load of its slot, before a tile is computed."""
    k = Builder("late")
    n = k.symbol("n")
    x = k.input("x", (n,), fp32)
    y, z = k.output("y", (n,), fp32), k.output("z", (n,), fp32)
    s, u = k.shared("s", (256,), fp32), k.shared("u", (256,), fp32)
    with k.serial("i", n) as i:
        k.load(s, x.at(i * 256))
        k.store(y.at(i * 256), s, Copy.TMA)
        k.assign(u, 5 * x.at(i * 256, shape=(256,)))
        k.assign(z.at(i * 256), u * 1)
    return circular_buffer(k.build_kernel(), "s", 1)


def unread() -> LoopKernel:
    """A ring that nothing reads, beside a tile that is computed and used while its copy is under way."""
    k = Builder("unread")
    n = k.symbol("n")
    x, y = k.input("x", (n,), fp32), k.output("y", (n,), fp32)
    u, s = k.shared("u", (256,), fp32), k.shared("s", (256,), fp32)
    with k.serial("i", n) as i:
        k.assign(u, x.at(i * 256, shape=(256,)) + 1)
        k.assign(y.at(i * 256), u * 2)
        k.load(s, x.at(i * 256))
    return circular_buffer(k.build_kernel(), "s", 1)


def plain_then_tma() -> LoopKernel:
    """Threads write a ring of one stage themselves; a bulk copy into another tile follows in the same step."""
    k = Builder("proxies")
    n = k.symbol("n")
    x = k.input("x", (n,), fp32)
    y, z = k.output("y", (n,), fp32), k.output("z", (n,), fp32)
    s, w = k.shared("s", (256,), fp32), k.shared("w", (256,), fp32)
    with k.serial("i", n) as i:
        k.load(s, x.at(i * 256), Copy.PLAIN)
        k.assign(y.at(i * 256), 2 * s)
        k.load(w, x.at(i * 256))
        k.assign(z.at(i * 256), 2 * w)
    return circular_buffer(k.build_kernel(), "s", 1)


def persistent_matmul() -> LoopKernel:
    """A block walks its tiles; each result passes through shared memory on its way out."""
    k = Builder("persistent")
    a, b = k.input("a", (256, 128), bf16), k.input("b", (128, 128), bf16)
    c = k.output("c", (256, 128), fp32)
    a_s, b_s = (k.shared(name, (rows, 64), bf16, swizzle_bytes=128) for name, rows in (("a_s", 64), ("b_s", 128)))
    acc, out = k.register("acc", (64, 128), fp32), k.shared("out", (64, 128), fp32)
    with k.serial("t", 4) as t:
        k.assign(acc, 0)
        with k.serial("d", 2) as d:
            k.load(a_s, a.at(t * 64, d * 64))
            k.load(b_s, b.at(0, d * 64))
            k.matmul(acc, a_s, b_s)
        k.assign(out, acc)
        k.store(c.at(t * 64, 0), out)
    return circular_buffer(circular_buffer(k.build_kernel(), "a_s", 1), "b_s", 1)


@pytest.mark.parametrize(
    "kernel",
    [
        nest_with_one_stage("s"),
        nest_with_one_stage("v", "s"),
        stored_late(),
        unread(),
        plain_then_tma(),
        persistent_matmul(),
    ],
    ids=["tile and ring", "ring and ring", "store", "unread", "proxies", "matmul"],
)
def test_rings_loaded_in_their_own_step_share_no_bytes_with_what_the_step_uses(kernel: LoopKernel) -> None:
    follow(lower(kernel), {"n": 3})


def test_a_ring_keeps_its_bytes_as_long_as_its_barriers() -> None:
    for kernel, specialised in ((nest_with_one_stage("s"), False), (nest_with_one_stage("v", "s"), True)):
        layout = lay_out(lower(kernel, warp_specialised=specialised), H200)
        for ring in kernel.rings:
            full, own = layout.find_placement(f"{ring.tensor}_full"), layout.find_placement(ring.tensor)
            released = layout.find_placement(f"{ring.tensor}_empty") if specialised else full
            assert (own.first, own.last) == (full.first, released.last)


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
    layout = lay_out(lower(k.build_kernel()), H200)
    assert sorted(layout.find_placement(name).offset_bytes for name in "ab") == [0, 1024]


def follow(kernel: LoopKernel, sizes: dict[str, int] | None = None) -> int:
    """Follows a run; returns how many pairs of tiles share bytes."""
    layout = lay_out(kernel, H200)
    run = Run(kernel, layout, dict(sizes or {}))
    run.follow(kernel.body)
    pairs = [
        (a, b)
        for a, b in combinations(layout.placements, 2)
        if a.offset_bytes < b.offset_bytes + b.size_bytes and b.offset_bytes < a.offset_bytes + a.size_bytes
    ]
    for a, b in pairs:
        for (s, t), (u, v) in product(run.spans(a.name), run.spans(b.name)):
            assert t < u or v < s, (a, b)
    return len(pairs)


@dataclass(frozen=True)
class Pending:
    """A store by TMA that nobody has awaited."""

    stmt: Store
    slot: int


class Run:
    """In which syncs each slot holds data, from its write to its last read, and each barrier from begin to end.

    A load by TMA goes on until it is waited for, a store by TMA until its thread waits for the read. Meetings count the
    time: what ends in one interval between two of them and what begins in the next are apart for all threads. Barriers
    are begun and ended by one thread, so there statements count too.
    """

    def __init__(self, kernel: LoopKernel, layout: SharedLayout, env: dict[str, int]) -> None:
        self.kernel = kernel
        self.layout = layout
        self.shared = {t.name for t in kernel.tensors if t.memory is MemorySpace.SHARED}
        self.env = env
        self.lives: dict[tuple[str, int], list[tuple[Moment, Moment]]] = {}
        self.syncs = self.statements = 0
        self.deferred = find_deferred_stores(kernel)
        self.loading: dict[tuple[str, int], tuple[str, int]] = {}
        self.storing: list[Pending] = []
        self.unfenced: list[tuple[int, int]] = []

    def spans(self, name: str) -> list[tuple[Moment, Moment]]:
        return [span for (other, _), spans in self.lives.items() if other == name for span in spans]

    def now(self, name: str) -> Moment:
        return (self.syncs, 0 if name in self.shared else self.statements)

    def begin(self, name: str, slot: int) -> None:
        self.lives.setdefault((name, slot), []).append((self.now(name), self.now(name)))

    def go_on(self, name: str, slot: int) -> None:
        spans = self.lives.get((name, slot))
        if spans:  # else nothing was written yet, and any bytes will do
            spans[-1] = (spans[-1][0], self.now(name))

    def follow(self, body: tuple[Stmt, ...]) -> None:
        began = self.syncs
        for stmt in body:
            self.statements += 1
            self._touch(stmt)
            match stmt:
                case Let():
                    self.env[stmt.var] = evaluate(stmt.value, self.env)
                case For():
                    for value in range(evaluate(stmt.start, self.env), evaluate(stmt.stop, self.env)):
                        self.env[stmt.var] = value
                        self.follow(stmt.body)
                case If():
                    if is_true(stmt.condition, self.env):
                        self.follow(stmt.body)
                case Section():
                    self.follow(stmt.body)
                    if any(s in self.deferred for s in walk(stmt.body)):
                        self._await_stores(0)
                case ElectOne() | Role():
                    self.follow(stmt.body)
        if any(isinstance(stmt, Role) for stmt in body):
            # Roles run at the same time: what the loader fills is in use as long as both run.
            for name, slot in [key for key in self.lives if self._is_ring(key[0])]:
                self.lives[name, slot].append(((began, 0), (self.syncs, 0)))

    def _touch(self, stmt: Stmt) -> None:
        for box in find_read_boxes(stmt):
            if box.tensor in self.shared:
                self.go_on(box.tensor, self.slot(box))
                if isinstance(stmt, Matmul):
                    self._asynchronous(box)
        target = find_written_box(stmt)
        if isinstance(stmt, Load) and stmt.by is Copy.TMA:
            pending = [count_pending_stores(self.kernel, stmt, store) for store in self.deferred]
            if pending and pending[0] is not None:
                self._await_stores(pending[0])
        if target is not None and target.tensor in self.shared:
            whole = target.shape == self.kernel.find_tensor(target.tensor).tile
            if whole or not self.lives.get((target.tensor, self.slot(target))):
                self.begin(target.tensor, self.slot(target))
            self.go_on(target.tensor, self.slot(target))
        match stmt:
            case Load(by=Copy.TMA) if stmt.barrier is not None:
                self._asynchronous(stmt.dst)
                self.loading[stmt.barrier.name, evaluate(stmt.barrier.slot, self.env)] = (
                    stmt.dst.tensor,
                    self.slot(stmt.dst),
                )
            case Load() | Pointwise() if target is not None and target.tensor in self.shared:
                self.unfenced.append(self._bytes(target))
            case Store(by=Copy.TMA):
                self._store(stmt)
            case WaitParity():
                landed = self.loading.pop((stmt.barrier.name, evaluate(stmt.barrier.slot, self.env)), None)
                if landed is not None:
                    self.go_on(*landed)
            case SyncScope():
                self.syncs += 1
            case FenceProxy():
                self.unfenced.clear()
            case InitBarrier():
                self.begin(stmt.name, 0)
            case Invalidate():
                self.go_on(stmt.name, 0)

    def _store(self, stmt: Store) -> None:
        if any(w is not None and w.tensor == stmt.src.tensor for w in map(find_written_box, self._by_threads())):
            self.unfenced.clear()  # the emitter's fence and sync
            self.syncs += 1
            self.go_on(stmt.src.tensor, self.slot(stmt.src))
        self._asynchronous(stmt.src)
        if stmt in self.deferred:
            self.storing.append(Pending(stmt, self.slot(stmt.src)))

    def _by_threads(self) -> list[Stmt]:
        return [s for s in walk(self.kernel.body) if not isinstance(s, Load) or s.by is not Copy.TMA]

    def _await_stores(self, pending: int) -> None:
        done = len(self.storing) - pending
        for store in self.storing[: max(done, 0)]:
            self.go_on(store.stmt.src.tensor, store.slot)
        self.storing = self.storing[max(done, 0) :]

    def _asynchronous(self, box: Box) -> None:
        """A bulk copy or a product touches these bytes: ordinary writes to them have been fenced."""
        first, end = self._bytes(box)
        assert not any(a < end and first < b for a, b in self.unfenced), box

    def _bytes(self, box: Box) -> tuple[int, int]:
        placed = self.layout.find_placement(box.tensor)
        first = placed.offset_bytes + self.slot(box) * placed.slot_bytes
        return first, first + placed.slot_bytes

    def slot(self, box: Box) -> int:
        return 0 if box.slot is None else evaluate(box.slot, self.env)

    def _is_ring(self, name: str) -> bool:
        return name in self.shared and self.kernel.find_tensor(name).stages is not None

"""Faults that the emulator must report: texts in which one thing was left out, moved or miscounted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest

from interlace.core.devices import H200
from interlace.core.dtypes import fp32
from interlace.loops import library
from interlace.loops.cuda.emit import EmittedKernel, emit_kernel
from interlace.loops.frontend.build import Builder
from interlace.loops.ir.index import Const
from interlace.loops.ir.statements import (
    Arrive,
    ArriveCopies,
    ArriveExpect,
    FenceBarrierInit,
    For,
    InitBarrier,
    Invalidate,
    Load,
    LoopKernel,
    Role,
    RoleKind,
    Section,
    Stmt,
    SyncScope,
    WaitParity,
)
from interlace.loops.ir.statements import Copy as By
from interlace.loops.rewrite.circular import circular_buffer, lower

from ..emulator.build import MISSING, Library, build
from ..emulator.compare import Trial, inputs_of, troubles
from ..emulator.launch import KINDS, Fault, launch
from ..emulator.translate import translate
from .loops import edit

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SEEDS = 4
Change = Callable[[Stmt], tuple[Stmt, ...] | None]


def _mark_rings(kernel: LoopKernel, **stages: int) -> LoopKernel:
    for tensor, depth in stages.items():
        kernel = circular_buffer(kernel, tensor, depth)
    return kernel


def _through_shared() -> LoopKernel:
    """Tile by tile ``y = 2 * x`` through a second tile, stored by TMA."""
    k = Builder("through_shared")
    n = k.symbol("n")
    x, y = k.input("x", (n,), fp32), k.output("y", (n,), fp32)
    s, t = k.shared("s", (64,), fp32), k.shared("t", (64,), fp32)
    with k.serial("i", (n + 63) // 64) as i:
        k.load(s, x.at(i * 64))
        k.assign(t, 2 * s)
        k.store(y.at(i * 64), t, By.TMA)
    return k.build_kernel()


def _alone() -> LoopKernel:
    """One tile loaded plainly and stored by TMA."""
    k = Builder("alone")
    n = k.symbol("n")
    x, y = k.input("x", (n,), fp32), k.output("y", (n,), fp32)
    s = k.shared("s", (64,), fp32)
    with k.serial("i", (n + 63) // 64) as i:
        k.load(s, x.at(i * 64), By.PLAIN)
        k.store(y.at(i * 64), s, By.TMA)
    return k.build_kernel()


def _build_transpose(by: By) -> LoopKernel:
    """``y = x.T``: no thread reads what it wrote itself."""
    k = Builder("turned")
    m = k.symbol("m")
    x, y = k.input("x", (m, 32), fp32), k.output("y", (32, m), fp32)
    s = k.shared("s", (8, 32), fp32)
    with k.serial("i", (m + 7) // 8) as i:
        k.load(s, x.at(i * 8, 0), by)
        with k.thread("t", 256) as t:
            k.store(y.at(t // 8, i * 8 + t % 8), s.at(t % 8, t // 8, shape=(1, 1)))
    return k.build_kernel()


_COPY = library.copy_1d(tile=64, walk=6)


def _nest(outer: int, inner: int) -> LoopKernel:
    """``y = 2 * x`` tile by tile, and four tiles of ``z = 3 * w`` in each step."""
    k = Builder("nest")
    n = k.symbol("n")
    x, y = k.input("x", (n,), fp32), k.output("y", (n,), fp32)
    w, z = k.input("w", (4 * n,), fp32), k.output("z", (4 * n,), fp32)
    v, s = k.shared("v", (64,), fp32), k.shared("s", (64,), fp32)
    with k.serial("i", (n + 63) // 64) as i:
        k.load(v, x.at(i * 64))
        k.assign(y.at(i * 64), 2 * v)
        with k.serial("j", 4) as j:
            k.load(s, w.at((i * 4 + j) * 64))
            k.assign(z.at((i * 4 + j) * 64), 3 * s)
    return _mark_rings(k.build_kernel(), **{tile: depth for tile, depth in (("v", outer), ("s", inner)) if depth})


def _beside(by: By, stages: int, use: str) -> LoopKernel:
    """A ring ``s`` that is stored by TMA, added to or not read, and then a tile ``u``, loaded by TMA or assigned."""
    k = Builder("beside")
    n = k.symbol("n")
    x, y = k.input("x", (n,), fp32), k.output("y", (n,), fp32)
    w, z = k.input("w", (n,), fp32), k.output("z", (n,), fp32)
    s, u = k.shared("s", (64,), fp32), k.shared("u", (64,), fp32)
    with k.serial("i", (n + 63) // 64) as i:
        k.load(s, x.at(i * 64), by)
        if use == "stored":
            k.store(y.at(i * 64), s, By.TMA)
            k.assign(u, 5 * w.at(i * 64, shape=(64,)))
        else:
            k.assign(y.at(i * 64, shape=(64,)), s * 2 if use == "read" else 1)
            k.load(u, w.at(i * 64))
        k.assign(z.at(i * 64), u)
    return circular_buffer(k.build_kernel(), "s", stages)


_LINE = {"n": 500}
_PLANE = {"m": 4, "n": 64 * 6}
_PRODUCT = {"rows": 64, "columns": 64, "depth": 320}
#: Sources with their form and extents.
SOURCES: dict[str, tuple[LoopKernel, bool, dict[str, int]]] = {
    "ring": (_mark_rings(_COPY, s=3), False, _LINE),
    "specialised": (_mark_rings(_COPY, s=3), True, _LINE),
    "no ring": (_COPY, False, _LINE),
    "async": (_mark_rings(_build_transpose(By.CP_ASYNC), s=3), False, {"m": 61}),
    "plain": (_mark_rings(_build_transpose(By.PLAIN), s=3), False, {"m": 61}),
    "specialised plain": (_mark_rings(_build_transpose(By.PLAIN), s=3), True, {"m": 61}),
    "bulk stores": (_mark_rings(library.copy_2d(tile=(4, 64), walk=6), s=3), False, _PLANE),
    "through shared": (_mark_rings(_through_shared(), s=2), False, _LINE),
    "alone": (_alone(), False, _LINE),
    "sums": (library.layer_norm(columns=512, chunk=64, walk=3), False, {"m": 3}),
    "columns": (_mark_rings(library.reduce_outer(tile=(8, 64)), s=2), False, {"m": 40, "n": 64}),
    "product": (_mark_rings(library.matmul(m=64, n=64, threads=128), a_s=2, b_s=2), False, _PRODUCT),
    "tile and inner ring": (_nest(0, 1), False, _LINE),
    "outer and inner ring": (_nest(1, 1), False, _LINE),
    "stored ring": (_beside(By.TMA, 1, "stored"), False, _LINE),
    "unread ring": (_beside(By.TMA, 2, "unread"), False, _LINE),
    "plain ring": (_beside(By.PLAIN, 1, "read"), False, _LINE),
    "lagging product": (_mark_rings(library.matmul(m=64, n=64, threads=128), a_s=3, b_s=3), True, _PRODUCT),
}


@dataclass(frozen=True)
class Plant:
    """A source of ``SOURCES`` with a fault in it.

    Attributes:
        change: of the statements; or of the text, a pattern and what to put there.
        faults: what must be reported with every seed: kind (or either of two), and a word of the message or the bytes.
    """

    source: str
    change: Callable[[LoopKernel], LoopKernel] | tuple[str, str]
    faults: tuple[tuple[str, str], ...]

    def emit(self) -> EmittedKernel:
        kernel, specialised, _ = SOURCES[self.source]
        lowered = lower(kernel, warp_specialised=specialised)
        if callable(self.change):
            return emit_kernel(self.change(lowered), H200)
        emitted = emit_kernel(lowered, H200)
        text, changes = re.subn(*self.change, emitted.cuda_source)
        assert changes, self.change
        return replace(emitted, cuda_source=text)


def without(kind: type[Stmt], name: str = "") -> Callable[[LoopKernel], LoopKernel]:
    """Drop all statements of a kind, or those on the barriers of ``name``."""

    def change(stmt: Stmt) -> tuple[Stmt, ...] | None:
        of = getattr(stmt, "name", "") or getattr(getattr(stmt, "barrier", None), "name", "")
        return () if isinstance(stmt, kind) and (not name or of == name) else None

    return lambda kernel: edit(kernel, change)


def replace_stmts(kind: type[Stmt], how: Callable[..., Stmt], name: str = "") -> Callable[[LoopKernel], LoopKernel]:
    """Replace statements of a kind, or those on the barriers of ``name``."""

    def change(stmt: Stmt) -> tuple[Stmt, ...] | None:
        of = getattr(stmt, "name", "") or getattr(getattr(stmt, "barrier", None), "name", "")
        return (how(stmt),) if isinstance(stmt, kind) and (not name or of == name) else None

    return lambda kernel: edit(kernel, change)


def within(section: str, change: Callable[[LoopKernel], LoopKernel]) -> Callable[[LoopKernel], LoopKernel]:
    """A change of what stands in one section alone."""

    def replace_section(stmt: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(stmt, Section) and stmt.name == section:
            return (replace(stmt, body=change(LoopKernel("part", (), (), stmt.body, 32)).body),)
        return None

    return lambda kernel: edit(kernel, replace_section)


def _into_the_first_slot(stmt: Load) -> Load:
    return replace(stmt, dst=replace(stmt.dst, slot=Const(0)))


def _released_first(kernel: LoopKernel) -> LoopKernel:
    """The release of a stage, which is the last statement of a consumer's loop, before its reads."""

    def change(stmt: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(stmt, Role) and stmt.kind is RoleKind.CONSUMER:
            (loop,) = (s for s in stmt.body if isinstance(s, For))
            wait, *uses, release = loop.body
            return (replace(stmt, body=(replace(loop, body=(wait, release, *uses)),)),)
        return None

    return edit(kernel, change)


#: All tiles begin at byte 0.
_TOGETHER = (r"(unsigned char\* const \w+ = shared) \+ \d+", r"\1 + 0")
_MEETING = r"__syncthreads\(\);"
PLANTS: dict[str, Plant] = {
    # The block form.
    "no sync at the end of a step": Plant("ring", within("main", without(SyncScope)), (("race", "s{"),)),
    "no wait for a stage": Plant("ring", without(WaitParity), (("race", "s{"),)),
    "a parity that never flips": Plant(
        "ring", replace_stmts(WaitParity, lambda s: replace(s, parity=Const(0))), (("race|deadlock", "s"),)
    ),
    "the parity of the phase before": Plant(
        "ring", replace_stmts(WaitParity, lambda s: replace(s, parity=Const(1) - s.parity)), (("race", "s{"),)
    ),
    "every load into the first slot": Plant("ring", replace_stmts(Load, _into_the_first_slot), (("race", "s{0}"),)),
    "no fence after initialisation": Plant("ring", without(FenceBarrierInit), (("proxy", "s_full"),)),
    "no sync after initialisation": Plant(
        "ring", within("barriers", without(SyncScope)), (("race|barrier", "s_full"),)
    ),
    "no initialisation": Plant("ring", without(InitBarrier), (("barrier", "does not exist"),)),
    "no invalidation": Plant("ring", without(Invalidate), (("pending", "s_full"),)),
    "no sync before invalidation": Plant("ring", within("end", without(SyncScope)), (("race", "s_full"),)),
    "invalidation before the wait": Plant(
        "ring",
        (r"mbarrier_wait\((\w+)", r"if (thread == 127) mbarrier_inval(\1);\n    mbarrier_wait(\1"),
        (("barrier", "s_full"),),
    ),
    "more bytes expected than copied": Plant(
        "ring", replace_stmts(ArriveExpect, lambda s: replace(s, bytes=s.bytes + 16)), (("deadlock", "s_full"),)
    ),
    "fewer bytes expected than copied": Plant(
        "ring", replace_stmts(ArriveExpect, lambda s: replace(s, bytes=s.bytes - 16)), (("barrier", "256 bytes"),)
    ),
    "more arrivals counted than come": Plant(
        "ring", replace_stmts(InitBarrier, lambda s: replace(s, count=2)), (("deadlock", "s_full"),)
    ),
    "more arrivals than counted": Plant(
        "ring",
        (r"mbarrier_arrive_expect_tx\((.*), \d+\);", r"\g<0> mbarrier_arrive(\1);"),
        (("barrier", "more arrivals"),),
    ),
    "a load that never comes": Plant("no ring", without(Load), (("deadlock", "s_full"),)),
    "a tile that nobody loads": Plant(
        "no ring", lambda k: without(ArriveExpect)(without(WaitParity)(without(Load)(k))), (("unwritten", "s{0}"),)
    ),
    # The specialised form.
    "a loader that waits for no release": Plant(
        "specialised", without(WaitParity, "s_empty"), (("race|barrier", "s"),)
    ),
    "consumers that release nothing": Plant("specialised", without(Arrive, "s_empty"), (("deadlock", "s_empty"),)),
    "a release before the reads": Plant("specialised", _released_first, (("race", "s{"),)),
    "a release for lanes that have not come": Plant("specialised", (r"      __syncwarp\(\);", ""), (("race", "s{"),)),
    "a release after a shuffle": Plant(
        "specialised", (r"      __syncwarp\(\);", "__shfl_xor_sync(0xffffffff, 0.0f, 1);"), (("race", "s{"),)
    ),
    # Rings that threads fill.
    "an arrival that does not await copies": Plant(
        "async", replace_stmts(ArriveCopies, lambda s: Arrive(s.barrier)), (("race", "s{"), ("pending", "cp.async"))
    ),
    "copies that no barrier hears of": Plant("async", without(ArriveCopies), (("deadlock", "s_full"),)),
    "a plain load without its arrival": Plant("plain", without(Arrive), (("deadlock", "s_full"),)),
    "a plain load that is not awaited": Plant("plain", without(WaitParity), (("race", "s{"),)),
    "a plain loader that waits for no release": Plant(
        "specialised plain", without(WaitParity, "s_empty"), (("race|deadlock", "s"),)
    ),
    # Stores by TMA.
    "a load before the store has been read": Plant(
        "bulk stores", (r"bulk_wait_read<0>\(\);\n +tma", "tma"), (("race", "s{"),)
    ),
    "stores that are not committed": Plant("bulk stores", (r"bulk_commit\(\);", ""), (("pending", "commits"),)),
    "stores that are not awaited": Plant(
        "bulk stores", (r"bulk_wait(_read)?<0>\(\);", ";"), (("race", "s{"), ("pending", "s{"))
    ),
    "a store before others have written": Plant(
        "through shared", (rf"(fence_proxy_async\(\);)\s*{_MEETING}", r"\1"), (("race", "t{0}"),)
    ),
    "a store without a proxy fence": Plant("alone", (r"fence_proxy_async\(\);", ""), (("proxy", "s{0}"),)),
    "a proxy fence by one thread before the others": Plant(
        "alone",
        (rf"fence_proxy_async\(\);\s*{_MEETING}\s*(fence_proxy_async\(\);)", r"if (thread == 127) \1"),
        (("proxy", "s{0}"),),
    ),
    "a proxy fence before the write": Plant(
        "alone",
        (
            rf"{_MEETING}(\s*\{{[^$]*)fence_proxy_async\(\);(\s*{_MEETING}\s*)fence_proxy_async\(\);",
            r"fence_proxy_async(); __syncthreads();\1\2",
        ),
        (("proxy", "s{0}"),),
    ),
    # Reductions.
    "scratch read before all have written": Plant(
        "sums", (rf"( = \w+_part_?\[k_?\];\s*){_MEETING}", r"\1"), (("race", "scratch"),)
    ),
    "scratch written before all have read": Plant(
        "sums", (rf"( \+ of_?\[i_?\];\s*}}\s*){_MEETING}", r"\1"), (("race", "scratch"),)
    ),
    "columns summed before all have written": Plant(
        "columns", (rf"( = \w+_part_?\[k_?\];\s*){_MEETING}", r"\1"), (("race", "scratch"),)
    ),
    # Products.
    "a product that is not awaited": Plant(
        "product", (r"wgmma_wait<0>\(\);", ""), (("race", "_s{"), ("pending", "products"))
    ),
    "a product without a fence": Plant("product", (r"wgmma_fence\(\);", ""), (("diverged", "wgmma.fence"),)),
    "products that are not committed": Plant("product", (r"wgmma_commit\(\);", ""), (("pending", "products"),)),
    "a stage released under a product": Plant(
        "lagging product", (r"wgmma_wait<1>\(\);", "wgmma_wait<2>();"), (("race", "_s{"),)
    ),
    # Tiles on the same bytes.
    "a tile on the bytes of an inner ring": Plant("tile and inner ring", _TOGETHER, (("race", ""),)),
    "an outer ring on the bytes of an inner one": Plant("outer and inner ring", _TOGETHER, (("race", ""),)),
    "a tile on bytes that a store still reads": Plant("stored ring", _TOGETHER, (("race", ""),)),
    "a tile on the bytes of a ring that nothing reads": Plant("unread ring", _TOGETHER, (("race", ""),)),
    "a bulk copy to bytes that threads have written": Plant("plain ring", _TOGETHER, (("proxy", ""),)),
    # Anything.
    "two tiles on the same bytes": Plant(
        "through shared", (r"(t_?) = shared \+ \d+", r"\1 = shared + 0"), (("race", "s{0}"),)
    ),
    "threads that synchronise in two places": Plant(
        "ring",
        (
            r"    mbarrier_wait\(",
            "    if (thread < 64) __syncthreads(); else named_barrier(0, 64);\n    mbarrier_wait(",
        ),
        (("diverged", "a barrier"),),
    ),
    "some threads do not synchronise": Plant(
        "ring",
        (r"    mbarrier_wait\(", "    if (thread < 64) __syncthreads();\n    mbarrier_wait("),
        (("deadlock", ""),),
    ),
    "a read past the end of a tensor": Plant(
        "alone", (r"(read_clipped.*), n_? - .*;", r"\1, 4);"), (("bounds", "reads"),)
    ),
    "a write past the end of a tensor": Plant(
        "ring", (r"(write_clipped.*), n_? - .*;", r"\1, 4);"), (("bounds", "writes"),)
    ),
    "a write to an input": Plant(
        "ring", (r"write_clipped<fp32, 4>\(y(_?)", r"write_clipped<fp32, 4>((fp32*)x\1"), (("bounds", "input"),)
    ),
    "a trap": Plant("ring", (r"  // main", '  asm volatile("trap;");'), (("trap", "thread"),)),
    "a tile outside of shared memory": Plant(
        "ring", (r"(s_?) = shared \+ 0", r"\1 = shared + 1048576"), (("bounds", ""),)
    ),
    "a tile that the copy engine does not take": Plant(
        "ring", (r"(s_?) = shared \+ 0", r"\1 = shared + 16"), (("setup", ""),)
    ),
}


@cache
def _library() -> Library:
    return build([plant.emit() for plant in PLANTS.values()])


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_reported_with_every_seed(name: str) -> None:
    plant = PLANTS[name]
    kernel, _, sizes = SOURCES[plant.source]
    number = list(PLANTS).index(name)
    for seed in range(SEEDS):
        run = launch(_library(), number, inputs_of(kernel, sizes), sizes, seed=seed)
        for kind, word in plant.faults:
            assert any(_has(fault, kind, word) for fault in run.faults), (seed, kind, *map(str, run.faults))


def _has(fault: Fault, kind: str, word: str) -> bool:
    return fault.kind in kind.split("|") and (word in fault.text or any(word in tile for tile in fault.tiles))


def test_every_kind_of_fault_is_planted() -> None:
    assert {kind for plant in PLANTS.values() for kind, _ in plant.faults} >= set(KINDS)


def test_the_sources_of_the_plants_are_silent() -> None:
    trials = [Trial(name, kernel, specialised, sizes) for name, (kernel, specialised, sizes) in SOURCES.items()]
    assert troubles(trials, seeds=SEEDS) == []


def test_a_fault_names_tile_bytes_and_lines() -> None:
    kernel, _, sizes = SOURCES["ring"]
    number = list(PLANTS).index("no sync at the end of a step")
    fault, *_ = launch(_library(), number, inputs_of(kernel, sizes), sizes, seed=1).faults
    assert re.fullmatch(r"s\{\d\} byte \d+", *fault.tiles)
    assert len(fault.lines) == 2
    assert any("tma_load_1d(shared_address(s" in line for line in fault.lines)
    assert any("read_tile<fp32, 4>(v0" in line for line in fault.lines)


def test_an_instruction_without_emulation_is_an_error_that_names_it() -> None:
    emitted = replace(PLANTS["a trap"].emit())
    text = emitted.cuda_source.replace("trap;", "membar.gl;")
    with pytest.raises(RuntimeError, match="membar_gl"):
        build([replace(emitted, cuda_source=text)])


@pytest.mark.parametrize(
    ("asm", "call"),
    [
        (
            'asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(a ? b : c) : "memory");',
            "ptx::bar_sync((name), (a ? b : c));",
        ),
        ('asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));', "ptx::cvt_f32_f16((y), (x.bits));"),
        ('asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));', "ptx::mov_u32_smid((sm));"),
        (
            'asm volatile("f.x {%0, %1}, %2, 1;" : "+f"(s[0]), "+f"(s[1]) : "l"(a));',
            "ptx::f_x({&(s[0]), &(s[1])}, (a), 1);",
        ),
        ('asm volatile("" : "+f"(v)::"memory");', "(void)0;"),
        (
            'asm volatile("{ .reg .pred p; wait p, [%1], %2; selp.u32 %0, 1, 0, p; }"\n : "=r"(d) : "r"(b), "r"(c));',
            "ptx::wait((b), (c), (d))\n;",
        ),
    ],
)
def test_inline_ptx_becomes_a_call(asm: str, call: str) -> None:
    assert translate(asm) == call

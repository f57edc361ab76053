"""Tiles without barriers, tiles that share bytes, proxies, stores by TMA: what only the order of accesses tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from interlace.core.dtypes import bf16, fp32
from interlace.core.errors import HazardError, OverwriteHazard, ProxyHazard
from interlace.loops import library
from interlace.loops.frontend.build import Builder, Handle
from interlace.loops.ir.index import ceil_div
from interlace.loops.ir.smem import SharedLayout, place
from interlace.loops.ir.statements import (
    Block,
    Copy,
    FenceBarrierInit,
    FenceProxy,
    Let,
    Load,
    LoopKernel,
    Stmt,
    Store,
    SyncScope,
)
from interlace.loops.proof import agents
from interlace.loops.proof.hazards import HazardChecker, check_hazards
from interlace.loops.proof.prove import prove
from interlace.loops.rewrite.circular import circular_buffer, lower

SIZES = {"m": 5}
Body = Callable[[Builder, dict[str, Handle], object], object]


def kernel(body: Body, stages: dict[str, int], *, prefetch: int | None = None) -> LoopKernel:
    """Rows ``r`` of four tensors, in a loop over ``m``, through three tiles of a row."""
    k = Builder("rows")
    m = k.symbol("m")
    tensors = {name: k.input(name, (m, 64), fp32) for name in "xw"}
    tensors |= {name: k.output(name, (m, 64), fp32) for name in "yz"}
    tensors |= {name: k.shared(name, (1, 64), fp32) for name in ("s", "u", "v")}
    with k.serial("r", m) as r:
        body(k, tensors, r)
    made = k.build_kernel()
    for tile, depth in stages.items():
        made = circular_buffer(made, tile, depth, prefetch)
    return made


def relay(k: Builder, t: dict[str, Handle], r: object) -> None:
    """Threads fill ``u`` from the ring ``s``, and read it."""
    k.load(t["s"], t["x"].at(r, 0))
    k.assign(t["u"], 2 * t["s"])
    k.assign(t["y"].at(r, 0), 3 * t["u"])


def stored_by_tma(k: Builder, t: dict[str, Handle], r: object) -> None:
    """A store by TMA out of ``s``, awaited late if that is a ring; then ``u`` passes through shared memory."""
    k.load(t["s"], t["x"].at(r, 0))
    k.store(t["y"].at(r, 0), t["s"], Copy.TMA)
    k.assign(t["u"], 5 * t["w"].at(r, 0, shape=(1, 64)))
    k.assign(t["z"].at(r, 0), t["u"])


def beside_a_nest(k: Builder, t: dict[str, Handle], r: object) -> None:
    """``v`` on its own, then a ring ``s`` whose nest goes through the loop around."""
    k.load(t["v"], t["x"].at(r, 0))
    k.assign(t["y"].at(r, 0), 2 * t["v"])
    with k.serial("c", 2):
        k.load(t["s"], t["w"].at(r, 0))
        k.assign(t["z"].at(r, 0), 3 * t["s"])


def unread(k: Builder, t: dict[str, Handle], r: object) -> None:
    """Nothing reads the ring ``s``, which is loaded while ``u`` is in use."""
    k.load(t["u"], t["w"].at(r, 0))
    k.load(t["s"], t["x"].at(r, 0))
    k.assign(t["z"].at(r, 0), t["u"])


def copied_by(by: Copy) -> Body:
    """``s`` by threads, then ``u`` by TMA."""

    def body(k: Builder, t: dict[str, Handle], r: object) -> None:
        k.load(t["s"], t["x"].at(r, 0), by)
        k.assign(t["y"].at(r, 0), 2 * t["s"])
        k.load(t["u"], t["w"].at(r, 0))
        k.assign(t["z"].at(r, 0), 3 * t["u"])

    return body


def upon(layout: SharedLayout, tile: str, other: str) -> SharedLayout:
    """``tile`` on the bytes of ``other``."""
    offset_bytes = layout.find_placement(other).offset_bytes
    placed = tuple(replace(p, offset_bytes=offset_bytes) if p.name == tile else p for p in layout.placements)
    return replace(layout, placements=placed)


def without(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, tuple[Stmt, ...]]]:
    """Each statement, with what remains if it is left out."""
    for i, stmt in enumerate(body):
        yield stmt, (*body[:i], *body[i + 1 :])
        if isinstance(stmt, Block):
            for dropped, rest in without(stmt.body):
                yield dropped, (*body[:i], replace(stmt, body=rest), *body[i + 1 :])


def errors_without(source: LoopKernel, kind: type[Stmt], *, warp_specialised: bool = False) -> list[str]:
    """Return what is reported of ``source`` without one statement of a kind, for each of them, in program order."""
    rewritten = lower(source, warp_specialised=warp_specialised)
    said = []
    for dropped, body in without(rewritten.body):
        if isinstance(dropped, kind):
            try:
                check_hazards(source, replace(rewritten, body=body), SIZES, layout=place(rewritten))
                said.append("nothing")
            except HazardError as error:
                said.append(f"{type(error).__name__}: {error}")
    return said


def test_syncs_around_what_threads_write_are_needed() -> None:
    """Syncs after ``u`` is written are needed. With the syncs after them, those before it and at the end of a step are
    one too many, as is the last one, after the steps.
    """
    said = errors_without(kernel(relay, {"s": 2}), SyncScope)
    early = "EarlyReadHazard: kernel 'rows', 'u': .* reads slot 0 for pointwise to 'u' at r = . before it is full"
    expected = ["LifetimeHazard", "nothing", early, "nothing", "nothing", early, "nothing"]
    assert len(said) == len(expected)
    for found, text in zip(said, expected, strict=True):
        assert re.match(text, found), (found, text)


def test_the_arrival_of_copies_releases_the_copies_alone() -> None:
    """The end of the last copies does not tell their reader that the loader is done with the barriers."""

    def body(k: Builder, t: dict[str, Handle], r: object) -> None:
        k.load(t["s"], t["x"].at(r, 0), Copy.CP_ASYNC)
        k.assign(t["y"].at(r, 0), 2 * t["s"])

    said = errors_without(kernel(body, {"s": 2}), SyncScope, warp_specialised=True)
    assert [text.partition(":")[0] for text in said] == ["LifetimeHazard", "LifetimeHazard"]
    advice = "may still use it; let all threads synchronise before"
    assert re.search(rf"s_\w+\{{0\}} begins or ends while .* {advice}", said[-1])


def test_a_sync_before_threads_write_again_is_needed() -> None:
    """Without a ring no step ends with a sync: only the one before the write keeps it from its readers."""

    def body(k: Builder, t: dict[str, Handle], r: object) -> None:
        k.assign(t["u"], 2 * t["w"].at(r, 0, shape=(1, 64)))
        k.assign(t["y"].at(r, 0), 3 * t["u"])

    before, after = errors_without(kernel(body, {}), SyncScope)
    text = "OverwriteHazard: kernel 'rows', 'u': slot 0 is overwritten while block, .* may still read pointwise to 'u'"
    assert re.match(text, before)
    assert re.match("EarlyReadHazard: kernel 'rows', 'u': .* reads slot 0 for pointwise to 'u' at r = 0", after)


@pytest.mark.parametrize("by", [Copy.PLAIN, Copy.CP_ASYNC])
def test_a_fence_between_what_threads_copied_and_a_bulk_copy_is_needed(by: Copy) -> None:
    """``s`` and ``u`` never live at once and share their bytes."""
    source = kernel(copied_by(by), {})
    layout = place(lower(source))
    assert layout.find_placement("s").offset_bytes == layout.find_placement("u").offset_bytes
    check_hazards(source, lower(source), SIZES)
    (said,) = errors_without(source, FenceProxy)
    assert said.startswith("ProxyHazard: kernel 'rows', 'u': a bulk copy or a product takes slot 0, which block, ")
    assert "wrote as s{0}, without a proxy fence in between; fence before the threads synchronise" in said


@pytest.mark.parametrize(
    ("body", "stages", "tiles", "error", "text"),
    [
        (beside_a_nest, {"s": 1}, ("v", "s"), OverwriteHazard, "may still read the other; let all threads synchronise"),
        (beside_a_nest, {"v": 1, "s": 1}, ("v", "s"), OverwriteHazard, "may still read the other"),
        (stored_by_tma, {"s": 1}, ("u", "s"), OverwriteHazard, r"'u': slot 0 has bytes of s\{0\}; one is written"),
        (unread, {"s": 2}, ("u", "s"), OverwriteHazard, "may still write the other"),
        (copied_by(Copy.PLAIN), {"s": 1}, ("u", "s"), ProxyHazard, r"wrote as s\{0\}, without a proxy fence"),
    ],
)
def test_tiles_that_share_bytes_while_both_are_in_use_are_named(
    body: Body, stages: dict[str, int], tiles: tuple[str, str], error: type[HazardError], text: str
) -> None:
    source = kernel(body, stages, prefetch=0)
    rewritten = lower(source)
    layout = place(rewritten)
    check_hazards(source, rewritten, SIZES, layout=layout)
    with pytest.raises(error, match=text) as caught:
        check_hazards(source, rewritten, SIZES, layout=upon(layout, *tiles))
    assert type(caught.value) is error


def test_a_store_that_is_awaited_one_too_late_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    source = kernel(stored_by_tma, {"s": 3}, prefetch=1)
    check_hazards(source, lower(source), {"m": 9})
    real = agents.count_pending_stores

    def count_one_more(kernel: LoopKernel, load: Load, store: Store) -> int | None:
        pending = real(kernel, load, store)
        return None if pending is None else pending + 1

    monkeypatch.setattr(agents, "count_pending_stores", count_one_more)
    text = "'s': slot 0 is overwritten while block, first thread may still read 'x' at"
    with pytest.raises(OverwriteHazard, match=text):
        check_hazards(source, lower(source), {"m": 9})


def test_a_store_of_what_threads_wrote_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(k: Builder, t: dict[str, Handle], r: object) -> None:
        k.load(t["s"], t["x"].at(r, 0), Copy.CP_ASYNC)
        k.store(t["y"].at(r, 0), t["s"], Copy.TMA)

    source = kernel(body, {"s": 2})
    check_hazards(source, lower(source), SIZES)
    monkeypatch.setattr(agents, "is_filled_by_tma", lambda kernel, tile: True)
    with pytest.raises(ProxyHazard, match=r"'s': a bulk copy or a product takes slot 0, which block, .* wrote"):
        check_hazards(source, lower(source), SIZES)


def test_a_product_that_lags_needs_a_release_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    source = circular_buffer(circular_buffer(library.matmul(), "a_s", 2), "b_s", 2)
    rewritten, sizes = lower(source, warp_specialised=True), {"rows": 1, "columns": 1, "depth": 64 * 9}
    assert check_hazards(source, rewritten, sizes).events > 100
    real = agents.find_lagging_releases
    # Of b_s alone it may come at once: the loader loads that behind a_s, which waits.
    monkeypatch.setattr(agents, "find_lagging_releases", lambda kernel, loop: real(kernel, loop)[:1])
    check_hazards(source, rewritten, sizes)
    monkeypatch.setattr(agents, "find_lagging_releases", lambda kernel, loop: real(kernel, loop)[1:])
    with pytest.raises(OverwriteHazard, match=r"'a_s': slot 0 is overwritten while consumer, .* may still read 'a'"):
        check_hazards(source, rewritten, sizes)


def through_shared(stages: int) -> LoopKernel:
    """A persistent matmul whose result passes through shared memory."""
    k = Builder("persistent", threads=128)
    tiles, depth = k.symbol("tiles"), k.symbol("depth")
    a, b = k.input("a", (tiles * 64, depth), bf16), k.input("b", (64, depth), bf16)
    c = k.output("c", (tiles * 64, 64), fp32)
    a_s, b_s = (k.shared(name, (64, 64), bf16, swizzle_bytes=128) for name in ("a_s", "b_s"))
    out, acc = k.shared("out", (64, 64), fp32), k.register("acc", (64, 64), fp32)
    with k.serial("g", tiles) as g:
        k.assign(acc, 0)
        with k.serial("s", ceil_div(depth, 64)) as s:
            k.load(a_s, a.at(g * 64, s * 64))
            k.load(b_s, b.at(0, s * 64))
            k.matmul(acc, a_s, b_s)
        k.assign(out, acc)
        k.store(c.at(g * 64, 0), out)
    return circular_buffer(circular_buffer(k.build_kernel(), "a_s", stages), "b_s", stages)


@pytest.mark.parametrize("warp_specialised", [False, True], ids=["block", "specialised"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_kernels_whose_tiles_shared_bytes_in_use_are_proved(stages: int, warp_specialised: bool) -> None:
    bodies = (relay, stored_by_tma, beside_a_nest, unread, copied_by(Copy.PLAIN), copied_by(Copy.CP_ASYNC))
    sources = [kernel(body, {"s": stages}) for body in bodies]
    for source in (*sources, kernel(beside_a_nest, {"v": stages, "s": stages}), through_shared(stages)):
        assert prove(source, warp_specialised=warp_specialised).events > 50


def build_mixed() -> LoopKernel:
    marked = circular_buffer(library.pointwise(tile=(4, 64), walk=64, plain=Copy.CP_ASYNC), "x_s", 2)
    return circular_buffer(marked, "z_s", 3)


EXAMPLES: dict[str, tuple[LoopKernel, set[type[Stmt]]]] = {
    "plain": (
        circular_buffer(library.copy_1d(tile=64, walk=64, by=Copy.PLAIN), "s", 2),
        {FenceBarrierInit, FenceProxy},
    ),
    "stored by TMA": (circular_buffer(library.copy_2d(tile=(4, 64), walk=64), "s", 3, 1), {SyncScope}),
    "through a nest": (circular_buffer(library.reduce_inner(tile=(4, 64)), "s", 2), {SyncScope, Let}),
    "mixed": (build_mixed(), {FenceProxy, SyncScope}),
}


@pytest.mark.parametrize("warp_specialised", [False, True], ids=["block", "specialised"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_whatever_is_left_out_is_named_or_not_needed(name: str, warp_specialised: bool) -> None:
    """Every statement is left out alone. Some are not needed: the first fence without bulk copies; the last of what
    threads copied where nothing comes after; the sync after a step that only the storing thread reads, or after which
    nothing is loaded; the sync at the end after steps that end with one; the number of steps where nobody asks for it.
    """
    source, spare = EXAMPLES[name]
    rewritten = lower(source, warp_specialised=warp_specialised)
    passed: list[Stmt] = []
    for dropped, body in without(rewritten.body):
        with suppress(HazardError):
            checker = HazardChecker(source, replace(rewritten, body=body), place(rewritten))
            for steps in (1, 2, 3, 4, 9):
                checker.check(dict.fromkeys(source.symbols, 1) | {source.symbols[-1]: 64 * steps})
            passed.append(dropped)
    assert {type(stmt) for stmt in passed} <= spare
    assert len(passed) <= 3

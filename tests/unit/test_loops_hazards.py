"""The hazard checker accepts what the rewrite makes and names each bug that is planted in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from interlace.core.errors import (
    BarrierError,
    CountHazard,
    EarlyReadHazard,
    HazardError,
    LifetimeHazard,
    OverwriteHazard,
    PipelineError,
    ProxyHazard,
    SharedBarrierHazard,
    StepHazard,
    StuckHazard,
    UnknownHazard,
)
from interlace.loops import library
from interlace.loops.ir.index import BinaryIndex, Const, Var
from interlace.loops.ir.statements import (
    Arrive,
    ArriveExpect,
    BarrierSlot,
    Block,
    Copy,
    ElectionScope,
    ElectOne,
    FenceBarrierInit,
    For,
    InitBarrier,
    Invalidate,
    Let,
    Load,
    LoopKernel,
    LoopKind,
    Pointwise,
    Section,
    Stmt,
    SyncScope,
    WaitParity,
)
from interlace.loops.ir.traverse import map_boxes
from interlace.loops.ir.values import Box
from interlace.loops.meaning.interpret import interpret
from interlace.loops.proof import agents
from interlace.loops.proof.hazards import check_hazards
from interlace.loops.rewrite.circular import circular_buffer, lower

from .loops import edit

TILE = (8, 16)
#: 2 x 10 tiles: two blocks of ten steps.
SIZES = {"m": 16, "n": 160}
Bug = Callable[[Stmt], tuple[Stmt, ...] | None]


def source(stages: int = 3, prefetch: int | None = None) -> LoopKernel:
    """Two tensors, each by TMA in its own ring, through a nest of two loops."""
    kernel = library.pointwise(tile=TILE, walk=64, plain=Copy.TMA)
    return circular_buffer(circular_buffer(kernel, "x_s", stages, prefetch), "z_s", stages, prefetch)


def one_loop() -> LoopKernel:
    """One tensor through one loop, so that there are a main loop and an epilogue."""
    return circular_buffer(library.copy_1d(tile=64, walk=64), "s", 3)


def expect_hazard(
    kernel: LoopKernel, rewritten: LoopKernel, sizes: dict[str, int], error: type[HazardError], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        check_hazards(kernel, rewritten, sizes)
    assert type(caught.value) is error


def phase_not_flipped(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, WaitParity) and stmt.barrier.name.endswith("_full"):
        return (replace(stmt, parity=Const(0)),)
    return None


def no_expect(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return (Arrive(stmt.barrier),) if isinstance(stmt, ArriveExpect) else None


def expect_dropped(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return () if isinstance(stmt, ArriveExpect) else None


def expect_of_another_size(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return (replace(stmt, bytes=stmt.bytes + 16),) if isinstance(stmt, ArriveExpect) else None


def shared_barrier(stmt: Stmt) -> tuple[Stmt, ...] | None:
    def rename_z_barrier(barrier: BarrierSlot) -> BarrierSlot:
        return replace(barrier, name="x_s_full") if barrier.name == "z_s_full" else barrier

    if isinstance(stmt, ArriveExpect | WaitParity):
        return (replace(stmt, barrier=rename_z_barrier(stmt.barrier)),)
    if isinstance(stmt, Load) and stmt.barrier is not None:
        return (replace(stmt, barrier=rename_z_barrier(stmt.barrier)),)
    return None


def expect_after_the_copy(stmt: Stmt) -> tuple[Stmt, ...] | None:
    """The copy of each ring stands before what expects its bytes."""
    if not isinstance(stmt, Block) or not any(isinstance(s, ArriveExpect) for s in stmt.body):
        return None
    body = list(stmt.body)
    for i in [i for i, s in enumerate(body) if isinstance(s, ArriveExpect)]:
        body[i], body[i + 1] = body[i + 1], body[i]
    return (replace(stmt, body=tuple(body)),)


def never_initialised(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return () if isinstance(stmt, InitBarrier) else None


def barriers_not_fenced(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return () if isinstance(stmt, FenceBarrierInit) else None


def parity_counted_on(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, WaitParity) and stmt.barrier.name == "x_s_full" and isinstance(stmt.parity, BinaryIndex):
        return (replace(stmt, parity=stmt.parity.left),)
    return None


def slots_past_the_end(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, ArriveExpect):
        return (replace(stmt, barrier=replace(stmt.barrier, slot=stmt.barrier.slot + 1)),)
    return None


def tile_past_the_end(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, Load) and stmt.dst.slot is not None:
        return (replace(stmt, dst=replace(stmt.dst, slot=stmt.dst.slot + 1)),)
    return None


def barrier_of_nobody(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, WaitParity):
        return (replace(stmt, barrier=replace(stmt.barrier, name="nobody")),)
    return None


def tile_of_nobody(stmt: Stmt) -> tuple[Stmt, ...] | None:
    def rename_box(box: Box) -> Box:
        return replace(box, tensor="nobody") if box.tensor == "x_s" else box

    return (map_boxes(stmt, rename_box),) if isinstance(stmt, Load) else None


def slot_of_another_step(stmt: Stmt) -> tuple[Stmt, ...] | None:
    def next_one(box: Box) -> Box:
        return box if box.slot is None else replace(box, slot=(Var("c") + 1) % 3)

    return (map_boxes(stmt, next_one),) if isinstance(stmt, Pointwise) else None


def another_place(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, Load) and stmt.dst.tensor == "x_s":
        return (replace(stmt, src=replace(stmt.src, origin=(stmt.src.origin[0], stmt.src.origin[1] + 4))),)
    return None


def work_of_one_thread(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return (ElectOne((stmt,)),) if isinstance(stmt, Pointwise) else None


def work_done_twice(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return (stmt, stmt) if isinstance(stmt, Pointwise) else None


def work_left_out(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return () if isinstance(stmt, Pointwise) else None


def fewer_blocks(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, For) and stmt.kind is LoopKind.BLOCK:
        return (replace(stmt, stop=stmt.stop - 1),)
    return None


def no_invalidation(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return () if isinstance(stmt, Invalidate) else None


def too_many_arrivals_awaited(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return (replace(stmt, count=stmt.count + 1),) if isinstance(stmt, InitBarrier) else None


def barriers_not_shown(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, Section) and stmt.name == "barriers":
        return (replace(stmt, body=tuple(s for s in stmt.body if not isinstance(s, SyncScope))),)
    return None


def released_before_read(stmt: Stmt) -> tuple[Stmt, ...] | None:
    """The sync of threads, or the arrival of each warp, moves before the statement that reads."""
    if not isinstance(stmt, For):
        return None
    releases = tuple(
        s for s in stmt.body if isinstance(s, SyncScope) or (isinstance(s, ElectOne) and s.per is ElectionScope.WARP)
    )
    rest = tuple(s for s in stmt.body if s not in releases)
    at = next((i for i, s in enumerate(rest) if isinstance(s, Pointwise)), None)
    return None if at is None or not releases else (replace(stmt, body=(*rest[:at], *releases, *rest[at:])),)


def never_released(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, For):
        kept = tuple(s for s in stmt.body if not isinstance(s, SyncScope))
        kept = tuple(s for s in kept if not (isinstance(s, ElectOne) and s.per is ElectionScope.WARP))
        return None if kept == stmt.body else (replace(stmt, body=kept),)
    return None


@pytest.mark.parametrize("stages", range(1, 9))
def test_every_depth_and_distance_is_accepted(stages: int) -> None:
    """Ten steps: the deepest ring comes round again. The loader of a specialised block ignores the distance."""
    for prefetch in range(stages):
        kernel = circular_buffer(library.copy_1d(tile=64, walk=64), "s", stages, prefetch)
        assert check_hazards(kernel, lower(kernel), {"n": 640}).events > 10 * 4 * 3
    assert check_hazards(kernel, lower(kernel, warp_specialised=True), {"n": 640}).events > 10 * (4 * 3 + 3)


@pytest.mark.parametrize("warp_specialised", [False, True], ids=["block", "specialised"])
def test_two_rings_through_a_nest_are_accepted(warp_specialised: bool) -> None:
    """Only one of two blocks that do the same is followed."""
    checked = check_hazards(source(), lower(source(), warp_specialised=warp_specialised), SIZES)
    alone = check_hazards(source(), lower(source(), warp_specialised=warp_specialised), SIZES | {"m": 8})
    assert (checked.blocks, alone.blocks) == (2, 1)
    assert checked.events == alone.events > 100


def test_events_grow_with_steps_and_agents_alone() -> None:
    """Nothing multiplies: twice the steps are twice the events, however deep the ring."""
    for stages in (1, 4, 8):
        kernel = circular_buffer(library.copy_1d(tile=64, walk=64), "s", stages)
        few, many = (
            check_hazards(kernel, lower(kernel, warp_specialised=True), {"n": 64 * steps}).events for steps in (20, 40)
        )
        assert few < many < 2 * few


@pytest.mark.parametrize("warp_specialised", [False, True], ids=["block", "specialised"])
@pytest.mark.parametrize(
    ("bug", "error", "text"),
    [
        (phase_not_flipped, EarlyReadHazard, "reads slot 0 for .* before it is full"),
        (no_expect, CountHazard, "expects .* bytes less than are copied"),
        (expect_dropped, CountHazard, "less than are copied; expect each copy's bytes once"),
        (expect_of_another_size, CountHazard, "bytes more than are copied"),
        (expect_after_the_copy, CountHazard, "before it expects them; expect them first"),
        (shared_barrier, SharedBarrierHazard, "x_s_full counts bytes of 'x_s' and 'z_s'"),
        (no_invalidation, LifetimeHazard, "is never invalidated"),
        (never_initialised, LifetimeHazard, "x_s_full is not initialised"),
        (barriers_not_shown, LifetimeHazard, "is not initialised"),
        (barriers_not_fenced, ProxyHazard, "whose initialisation is not shown to it; fence it"),
        (parity_counted_on, UnknownHazard, "waits for parity 2 of x_s_full"),
        (slots_past_the_end, UnknownHazard, "slot 3 of 'x_s_full' does not exist; use 0 to 2"),
        (tile_past_the_end, UnknownHazard, "slot 3 of 'x_s' does not exist; use 0 to 2"),
        (barrier_of_nobody, UnknownHazard, "nothing called 'nobody' lies in shared memory"),
        (tile_of_nobody, UnknownHazard, "there is no tensor 'nobody'; declare it"),
        (slot_of_another_step, StepHazard, "reads slot 1, which holds .*, never 'x' at .*; read the slot"),
        (another_place, StepHazard, "reads slot 0, which holds 'x' at .*, never 'x' at"),
        (work_of_one_thread, StepHazard, "first warp does nothing more where the loops say pointwise to 'y' at c = 0"),
        (work_done_twice, StepHazard, "first thread does pointwise to 'y' at c = 0 where the loops say .* c = 1, as"),
        (work_left_out, StepHazard, "first thread does nothing more where the loops say pointwise to 'y' at c = 0"),
        (fewer_blocks, StepHazard, "its blocks are not those of the loops"),
        (released_before_read, OverwriteHazard, "is overwritten while .* may still read"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_planted_bug_is_named(bug: Bug, error: type[HazardError], text: str, warp_specialised: bool) -> None:
    rewritten = edit(lower(source(), warp_specialised=warp_specialised), bug)
    expect_hazard(source(), rewritten, SIZES, error, text)


def test_a_stage_that_is_never_released_is_overwritten_or_blocks_the_loader() -> None:
    expect_hazard(source(), edit(lower(source()), never_released), SIZES, OverwriteHazard, "may still read")
    rewritten = edit(lower(source(), warp_specialised=True), never_released)
    expect_hazard(source(), rewritten, SIZES, StuckHazard, "loader, first thread stays at: wait x_s_empty")


def test_a_barrier_that_awaits_too_many_arrivals_blocks() -> None:
    expect_hazard(
        source(), edit(lower(source()), too_many_arrivals_awaited), SIZES, StuckHazard, "stays at: wait x_s_full"
    )


@pytest.mark.parametrize(
    ("start", "stop", "error"),
    [
        (1, 0, CountHazard),  # the first stage of the drain is never waited for
        (0, -1, CountHazard),  # nor is the last
        (0, 1, StuckHazard),  # one step more than was issued
    ],
)
def test_an_epilogue_off_by_one_is_named(start: int, stop: int, error: type[HazardError]) -> None:
    def off_by_one(stmt: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(stmt, Section) and stmt.name == "epilogue":
            (loop,) = stmt.body
            assert isinstance(loop, For)
            return (replace(stmt, body=(replace(loop, start=loop.start + start, stop=loop.stop + stop),)),)
        return None

    expect_hazard(one_loop(), edit(lower(one_loop()), off_by_one), {"n": 64 * 6}, error, "copy_1d")


def test_step_numbers_that_are_not_defined_are_named() -> None:
    kernel = circular_buffer(library.reduce_inner(tile=TILE), "s", 3)
    for name, warp_specialised in (("c_steps", False), ("c_step", False), ("c_step", True)):

        def drop_name(stmt: Stmt, name: str = name) -> tuple[Stmt, ...] | None:
            return () if isinstance(stmt, Let) and stmt.var == name else None

        damaged = edit(lower(kernel, warp_specialised=warp_specialised), drop_name)
        expect_hazard(kernel, damaged, SIZES, UnknownHazard, f"the variable '{name}' is used where nothing defines it")


def move_to_end(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body whose name stands at its end."""
    return (*body[1:], body[0]) if body and isinstance(body[0], Let) else body


def move_into_loop(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body whose name stands in a loop at its beginning, which leaves it behind."""
    if body and isinstance(body[0], Let):
        return (For("once", Const(0), Const(1), LoopKind.SERIAL, (body[0],)), *body[1:])
    return body


def again(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body whose name stands in it a second time."""
    return (*body, body[0]) if body and isinstance(body[0], Let) else body


@pytest.mark.parametrize("warp_specialised", [False, True])
@pytest.mark.parametrize("sizes", [SIZES, {**SIZES, "n": 0}], ids=["steps", "no steps"])
@pytest.mark.parametrize(
    ("move", "text"),
    [
        (move_to_end, "the variable 'c_step' is used where nothing defines it"),
        (move_into_loop, "the variable 'c_step' is used where nothing defines it"),
        (again, "the variable 'c_step' is defined where there is one already; rename it"),
    ],
)
def test_names_are_known_from_where_they_stand_to_the_end_of_their_body(
    move: Callable[[tuple[Stmt, ...]], tuple[Stmt, ...]], text: str, sizes: dict[str, int], warp_specialised: bool
) -> None:
    kernel = circular_buffer(library.reduce_inner(tile=TILE), "s", 3)

    def move_names(stmt: Stmt) -> tuple[Stmt, ...] | None:
        return (replace(stmt, body=move(stmt.body)),) if isinstance(stmt, For) and stmt.var == "c" else None

    damaged = edit(lower(kernel, warp_specialised=warp_specialised), move_names)
    expect_hazard(kernel, damaged, sizes, UnknownHazard, text)


def test_a_prologue_that_issues_one_step_too_many_is_named() -> None:
    def too_far(stmt: Stmt) -> tuple[Stmt, ...] | None:
        return (replace(stmt, stop=Const(3)),) if isinstance(stmt, For) and stmt.var == "i_first" else None

    expect_hazard(one_loop(), edit(lower(one_loop()), too_far), {"n": 64 * 6}, CountHazard, "more than its 1 arrivals")


def test_blocks_too_long_to_follow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "MAX_EVENTS", 100)
    with pytest.raises(PipelineError, match="'copy_1d', over 100 events in a block; use smaller extents"):
        check_hazards(one_loop(), lower(one_loop()), {"n": 64 * 40})


def test_the_message_tells_who_reads_what() -> None:
    rewritten = edit(lower(one_loop(), warp_specialised=True), phase_not_flipped)
    text = r"kernel 'copy_1d', 's': consumer, .* reads slot 0 for 'x' at \(192,\) before it is full"
    with pytest.raises(EarlyReadHazard, match=text):
        check_hazards(one_loop(), rewritten, {"n": 64 * 6})


def test_a_late_loader_warp_must_not_wait_for_what_it_does_not_copy() -> None:
    """All warps of the loader wait for a stage that the elected thread fills: one that is late misses a phase.

    Where they copy themselves afterwards, nobody gets two phases ahead of them.
    """

    def all_wait(stmt: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(stmt, ElectOne) and isinstance(stmt.body[0], WaitParity):
            return stmt.body[0], replace(stmt, body=stmt.body[1:])
        return None

    def swap_loads(stmt: Stmt) -> tuple[Stmt, ...] | None:
        """The two loads change places."""
        if isinstance(stmt, For) and isinstance(stmt.body[0], Load):
            return (replace(stmt, body=(stmt.body[1], stmt.body[0], *stmt.body[2:])),)
        return None

    copied_last = library.pointwise(tile=TILE, walk=64, plain=Copy.CP_ASYNC)
    copied_first = edit(copied_last, swap_loads)
    sizes = {"m": 8, "n": 64}
    for kernel in (copied_last, copied_first):
        marked = circular_buffer(circular_buffer(kernel, "x_s", 2), "z_s", 3)
        rewritten = lower(marked, warp_specialised=True)
        check_hazards(marked, rewritten, sizes)
        if kernel is copied_last:
            check_hazards(marked, edit(rewritten, all_wait), sizes)
        else:
            text = "loader, .* misses parity . of x_s_empty{.}: the phase after may complete before it waits"
            expect_hazard(marked, edit(rewritten, all_wait), sizes, StuckHazard, text)


@pytest.mark.parametrize("bug", [too_many_arrivals_awaited, expect_dropped, expect_of_another_size])
def test_the_interpreter_stops_at_a_wait_that_cannot_complete(bug: Bug) -> None:
    x = np.ones(64 * 6, np.float32)
    with pytest.raises(BarrierError, match=r"copy_1d.*s_full\{0\}, parity 0: nothing can complete it"):
        interpret(edit(lower(one_loop()), bug), {"x": x})


def test_the_interpreter_stops_where_copies_outlive_the_block() -> None:
    """Without their bytes expected, barriers complete at once and nobody waits for the copies."""
    x = np.ones(64 * 6, np.float32)
    with pytest.raises(BarrierError, match="a block ends while copies are under way"):
        interpret(edit(lower(one_loop()), no_expect), {"x": x})

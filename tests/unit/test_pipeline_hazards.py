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
    SharedBarrierHazard,
    StuckHazard,
)
from interlace.pipeline import explore, library
from interlace.pipeline.circular import circular_buffer, lower
from interlace.pipeline.hazards import check_hazards
from interlace.pipeline.index import Const
from interlace.pipeline.interpret import interpret
from interlace.pipeline.ir import (
    Arrive,
    ArriveExpect,
    BarrierSlot,
    Copy,
    ElectOne,
    For,
    InitBarrier,
    Invalidate,
    Kernel,
    Load,
    Per,
    Pointwise,
    Section,
    Stmt,
    Sync,
    WaitParity,
)

from .pipelines import edit

TILE = (8, 16)
#: 2 x 4 tiles: eight steps of one block.
SIZES = {"m": 16, "n": 64}
Bug = Callable[[Stmt], tuple[Stmt, ...] | None]


def source(stages: int = 3, prefetch: int | None = None) -> Kernel:
    """Two tensors, each by TMA in its own ring, through a nest of two loops."""
    kernel = library.pointwise(tile=TILE, walk=64, plain=Copy.TMA)
    return circular_buffer(circular_buffer(kernel, "x_s", stages, prefetch), "z_s", stages, prefetch)


def one_loop() -> Kernel:
    """One tensor through one loop, so that there are a main loop and an epilogue."""
    return circular_buffer(library.copy_1d(tile=64, walk=64), "s", 3)


def refused(kernel: Kernel, rewritten: Kernel, sizes: dict[str, int], error: type[HazardError], text: str) -> None:
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
    def first(barrier: BarrierSlot) -> BarrierSlot:
        return replace(barrier, name="x_s_full") if barrier.name == "z_s_full" else barrier

    if isinstance(stmt, ArriveExpect | WaitParity):
        return (replace(stmt, barrier=first(stmt.barrier)),)
    if isinstance(stmt, Load) and stmt.barrier is not None:
        return (replace(stmt, barrier=first(stmt.barrier)),)
    return None


def no_invalidation(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return () if isinstance(stmt, Invalidate) else None


def too_many_arrivals_awaited(stmt: Stmt) -> tuple[Stmt, ...] | None:
    return (replace(stmt, count=stmt.count + 1),) if isinstance(stmt, InitBarrier) else None


def barriers_not_shown(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, Section) and stmt.name == "barriers":
        return (replace(stmt, body=tuple(s for s in stmt.body if not isinstance(s, Sync))),)
    return None


def released_before_read(stmt: Stmt) -> tuple[Stmt, ...] | None:
    """The meeting of threads, or the arrival of each warp, moves before the statement that reads."""
    if not isinstance(stmt, For):
        return None
    releases = tuple(s for s in stmt.body if isinstance(s, Sync) or (isinstance(s, ElectOne) and s.per is Per.WARP))
    rest = tuple(s for s in stmt.body if s not in releases)
    at = next((i for i, s in enumerate(rest) if isinstance(s, Pointwise)), None)
    return None if at is None or not releases else (replace(stmt, body=(*rest[:at], *releases, *rest[at:])),)


def never_released(stmt: Stmt) -> tuple[Stmt, ...] | None:
    if isinstance(stmt, For):
        kept = tuple(s for s in stmt.body if not isinstance(s, Sync))
        kept = tuple(s for s in kept if not (isinstance(s, ElectOne) and s.per is Per.WARP))
        return None if kept == stmt.body else (replace(stmt, body=kept),)
    return None


@pytest.mark.parametrize("stages", range(1, 9))
def test_every_depth_and_distance_is_accepted(stages: int) -> None:
    """Ten steps: the deepest ring comes round again. The loader of a specialised block ignores the distance."""
    for prefetch in range(stages):
        kernel = circular_buffer(library.copy_1d(tile=64, walk=64), "s", stages, prefetch)
        assert check_hazards(kernel, lower(kernel), {"n": 640}).states > 40
    assert check_hazards(kernel, lower(kernel, warp_specialised=True), {"n": 640}).states > 70


@pytest.mark.parametrize("warp_specialised", [False, True], ids=["block", "specialised"])
def test_two_rings_through_a_nest_are_accepted(warp_specialised: bool) -> None:
    explored = check_hazards(source(), lower(source(), warp_specialised=warp_specialised), SIZES)
    assert explored.states > 100  # of two blocks that do the same, one


def test_more_interleavings_of_a_deeper_ring() -> None:
    states = []
    for stages in (1, 2, 4):
        kernel = circular_buffer(library.copy_1d(tile=64, walk=64), "s", stages)
        states.append(check_hazards(kernel, lower(kernel, warp_specialised=True), {"n": 640}).states)
    assert states == sorted(states)
    assert states[0] < states[1] < states[2]


@pytest.mark.parametrize("warp_specialised", [False, True], ids=["block", "specialised"])
@pytest.mark.parametrize(
    ("bug", "error", "text"),
    [
        (phase_not_flipped, EarlyReadHazard, "reads slot 0 for .* before it is full"),
        (no_expect, CountHazard, "expects .* bytes less than are copied"),
        (expect_dropped, CountHazard, "less than are copied; expect each copy's bytes once"),
        (expect_of_another_size, CountHazard, "bytes more than are copied"),
        (shared_barrier, SharedBarrierHazard, "x_s_full counts bytes of 'x_s' and 'z_s'"),
        (no_invalidation, LifetimeHazard, "is never invalidated"),
        (barriers_not_shown, LifetimeHazard, "is not initialised"),
        (released_before_read, OverwriteHazard, "is overwritten while .* may still read"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_planted_bug_is_named(bug: Bug, error: type[HazardError], text: str, warp_specialised: bool) -> None:
    rewritten = edit(lower(source(), warp_specialised=warp_specialised), bug)
    refused(source(), rewritten, SIZES, error, text)


def test_a_stage_that_is_never_released_is_overwritten_or_blocks_the_loader() -> None:
    refused(source(), edit(lower(source()), never_released), SIZES, OverwriteHazard, "may still read")
    rewritten = edit(lower(source(), warp_specialised=True), never_released)
    refused(source(), rewritten, SIZES, StuckHazard, "loader, first warp stays at: wait x_s_empty")


def test_a_barrier_that_awaits_too_many_arrivals_blocks() -> None:
    refused(source(), edit(lower(source()), too_many_arrivals_awaited), SIZES, StuckHazard, "stays at: wait x_s_full")


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

    refused(one_loop(), edit(lower(one_loop()), off_by_one), {"n": 64 * 6}, error, "copy_1d")


def test_a_prologue_that_issues_one_step_too_many_is_named() -> None:
    def too_far(stmt: Stmt) -> tuple[Stmt, ...] | None:
        return (replace(stmt, stop=Const(3)),) if isinstance(stmt, For) and stmt.var == "i_first" else None

    refused(one_loop(), edit(lower(one_loop()), too_far), {"n": 64 * 6}, CountHazard, "more than its 1 arrivals")


def test_extents_too_large_to_explore_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "MOST_STATES", 100)
    with pytest.raises(PipelineError, match="'s': over 100 states; use smaller extents"):
        check_hazards(one_loop(), lower(one_loop()), {"n": 64 * 40})


def test_the_message_tells_how_it_came_about() -> None:
    rewritten = edit(lower(one_loop(), warp_specialised=True), phase_not_flipped)
    with pytest.raises(EarlyReadHazard, match=r"after .*consumer, .* warps?: (wait|arrive) s_"):
        check_hazards(one_loop(), rewritten, {"n": 64 * 6})


def test_a_late_loader_warp_must_not_wait_for_what_it_does_not_copy() -> None:
    """All warps of the loader wait for a stage that the elected thread fills: one that is late misses a phase."""

    def all_wait(stmt: Stmt) -> tuple[Stmt, ...] | None:
        if isinstance(stmt, ElectOne) and isinstance(stmt.body[0], WaitParity):
            return stmt.body[0], replace(stmt, body=stmt.body[1:])
        return None

    kernel = library.pointwise(tile=TILE, walk=64, plain=Copy.CP_ASYNC)
    kernel = circular_buffer(circular_buffer(kernel, "x_s", 2), "z_s", 3)
    rewritten = lower(kernel, warp_specialised=True)
    sizes = {"m": 8, "n": 64}
    check_hazards(kernel, rewritten, sizes)
    refused(kernel, edit(rewritten, all_wait), sizes, StuckHazard, "loader, other warps misses parity . of x_s_empty")


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

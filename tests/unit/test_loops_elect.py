"""Elections: threads that execute a statement follow from what it does and from what barriers count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from interlace.loops import library
from interlace.loops.ir.statements import (
    Arrive,
    ArriveExpect,
    Block,
    Copy,
    ElectionScope,
    ElectOne,
    InitBarrier,
    Invalidate,
    Load,
    LoopKernel,
    Role,
    RoleKind,
    Stmt,
    WaitParity,
)
from interlace.loops.ir.traverse import walk
from interlace.loops.rewrite.circular import circular_buffer, lower
from interlace.loops.rewrite.elect import elect


def executed_by(kernel: LoopKernel) -> dict[type[Stmt], set[ElectionScope | None]]:
    """Return who executes statements of each kind; None for all threads."""
    found: dict[type[Stmt], set[ElectionScope | None]] = {}

    def visit(body: tuple[Stmt, ...], per: ElectionScope | None) -> None:
        for stmt in body:
            if isinstance(stmt, Block):
                visit(stmt.body, stmt.per if isinstance(stmt, ElectOne) else per)
            else:
                found.setdefault(type(stmt), set()).add(per)

    visit(kernel.body, None)
    return found


@pytest.mark.parametrize("specialised", [False, True])
@pytest.mark.parametrize("by", Copy)
def test_what_counts_once_is_done_by_one_thread(by: Copy, specialised: bool) -> None:
    rewritten = lower(circular_buffer(library.copy_1d(by=by), "s", 3), warp_specialised=specialised)
    who = executed_by(rewritten)
    assert who[InitBarrier] == who[Invalidate] == {ElectionScope.SCOPE}
    assert who[Load] == ({ElectionScope.SCOPE} if by is Copy.TMA else {None})
    assert who.get(ArriveExpect, {ElectionScope.SCOPE}) == {ElectionScope.SCOPE}
    if specialised:
        assert who[Arrive] == ({ElectionScope.WARP} if by is Copy.TMA else {None})


def test_who_arrives_follows_from_the_barrier() -> None:
    rewritten = lower(circular_buffer(library.copy_1d(), "s", 3), warp_specialised=True)

    def drop_elections(body: tuple[Stmt, ...], empty: int) -> tuple[Stmt, ...]:
        """Without predicates, and ``empty`` arrivals to release a stage."""
        out: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, ElectOne):
                out += drop_elections(stmt.body, empty)
            elif isinstance(stmt, Block):
                out.append(replace(stmt, body=drop_elections(stmt.body, empty)))
            else:
                counts = isinstance(stmt, InitBarrier) and stmt.name == "s_empty"
                out.append(replace(stmt, count=empty) if counts else stmt)
        return tuple(out)

    assert elect(replace(rewritten, body=drop_elections(rewritten.body, 4))) == rewritten
    each = elect(replace(rewritten, body=drop_elections(rewritten.body, 128)))
    assert executed_by(each)[Arrive] == {None}


def test_a_loader_that_copies_by_threads_waits_with_whom_it_guards() -> None:
    kernel = library.pointwise(plain=Copy.CP_ASYNC)
    rewritten = lower(circular_buffer(circular_buffer(kernel, "x_s", 2), "z_s", 3), warp_specialised=True)
    (loader,) = (s for s in walk(rewritten.body) if isinstance(s, Role) and s.kind is RoleKind.LOADER)
    elected = (s for one in walk(loader.body) if isinstance(one, ElectOne) for s in one.body)
    waits = {s.barrier.name for s in elected if isinstance(s, WaitParity)}
    assert waits == {"x_s_empty"}
    (alone,) = (
        s.body
        for s in walk(lower(circular_buffer(kernel, "x_s", 2), warp_specialised=True).body)
        if isinstance(s, Role) and s.kind is RoleKind.LOADER
    )
    assert len(alone) == 1
    assert isinstance(alone[0], ElectOne)

"""Thread predicates: the threads that execute each statement of a rewritten kernel, derived from its effects.

    one thread          initialises and invalidates barriers, expects bytes and issues bulk copies, each of which
                        counts once
    one of each warp    arrives on a barrier that counts as many arrivals as its scope has warps
    all                 everything else

A loader that only issues bulk copies is a single thread. Otherwise a loader's wait is executed by the threads that
execute the statement it guards. If all threads waited where one continues, the barrier could run two phases ahead of a
late warp, which would then wait for ever.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from interlace.loops.ir.statements import (
    WARP,
    Arrive,
    ArriveExpect,
    Block,
    Copy,
    ElectionScope,
    ElectOne,
    FenceBarrierInit,
    InitBarrier,
    Invalidate,
    Let,
    Load,
    LoopKernel,
    Role,
    RoleKind,
    Stmt,
    WaitParity,
)
from interlace.loops.ir.traverse import walk


def elect(kernel: LoopKernel) -> LoopKernel:
    """Add thread predicates to ``kernel``."""
    counts = {s.name: s.count for s in walk(kernel.body) if isinstance(s, InitBarrier)}
    return replace(kernel, body=_elect_body(kernel.body, kernel.block_threads, counts, loader=False))


def _elect_body(body: tuple[Stmt, ...], threads: int, counts: dict[str, int], *, loader: bool) -> tuple[Stmt, ...]:
    """Add predicates to a scope of ``threads`` threads; adjacent statements of the same threads are grouped."""
    who: list[ElectionScope | None] = []
    for stmt in reversed(body):
        guards = loader and isinstance(stmt, WaitParity) and bool(who) and who[-1] is ElectionScope.SCOPE
        who.append(ElectionScope.SCOPE if guards else _find_group(stmt, threads, counts))
    out: list[Stmt] = []
    for per, together in groupby(zip(body, reversed(who), strict=True), key=lambda pair: pair[1]):
        stmts = tuple(stmt for stmt, _ in together)
        if per is None:
            out += (_elect_inside(stmt, threads, counts, loader=loader) for stmt in stmts)
        else:
            out.append(ElectOne(stmts, per))
    return tuple(out)


def _find_group(stmt: Stmt, threads: int, counts: dict[str, int]) -> ElectionScope | None:
    match stmt:
        case InitBarrier() | FenceBarrierInit() | Invalidate() | ArriveExpect():
            return ElectionScope.SCOPE
        case Load() if stmt.by is Copy.TMA:
            return ElectionScope.SCOPE
        case Arrive() if counts[stmt.barrier.name] == threads // WARP:
            return ElectionScope.WARP
    return None


def _elect_inside(stmt: Stmt, threads: int, counts: dict[str, int], *, loader: bool) -> Stmt:
    if not isinstance(stmt, Block):
        return stmt
    if not isinstance(stmt, Role):
        return replace(stmt, body=_elect_body(stmt.body, threads, counts, loader=loader))
    loader = stmt.kind is RoleKind.LOADER
    leaves = [s for s in walk(stmt.body) if not isinstance(s, Block | Let | WaitParity)]
    if loader and all(_find_group(s, stmt.threads, counts) is ElectionScope.SCOPE for s in leaves):
        return replace(stmt, body=(ElectOne(stmt.body),))
    return replace(stmt, body=_elect_body(stmt.body, stmt.threads, counts, loader=loader))

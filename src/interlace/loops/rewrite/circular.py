"""The circular-buffer pass: a loop that loads a tile and uses it becomes a pipeline that loads ahead.

Worked example, 4 stages, prefetch 3, a loop of 10 steps. The prologue issues steps 0, 1, 2. Main step ``i`` (0 to 6)
issues ``i + 3``, waits for ``i``, runs the body; then all threads synchronise. The epilogue runs steps 7, 8, 9 without
issuing. At step 5, load 8 goes to slot ``8 % 4 = 0``, which held step 4: a sync came after it, so it is free.

A ring is carried through a loop nest as a whole: the main loop is the nest itself. A load is issued if its step is
below the number of steps, so the pipeline drains at the end of the nest instead of at the end of each inner loop.
"""

from __future__ import annotations

from dataclasses import replace

from interlace.core.errors import PipelineError
from interlace.loops.ir.index import Const, Index, Less, Var, as_integer, maximum, minimum
from interlace.loops.ir.statements import (
    AllocBarrier,
    Block,
    For,
    If,
    Let,
    Load,
    LoopKernel,
    LoopKind,
    Ring,
    Section,
    Stmt,
    SyncScope,
)
from interlace.loops.ir.traverse import walk
from interlace.loops.rewrite.body import Rings, close_barriers, define_before, define_inside, open_barriers
from interlace.loops.rewrite.elect import elect
from interlace.loops.rewrite.ring import CircularBuffer
from interlace.loops.rewrite.specialise import specialise
from interlace.loops.rules.check import check_kernel, check_ring, list_declared_names


def circular_buffer(kernel: LoopKernel, tensor: str, stages: int, prefetch: int | None = None) -> LoopKernel:
    """Mark a shared tensor as a ring of ``stages`` slots, loaded ``prefetch`` steps ahead (default ``stages - 1``).

    ``lower`` rewrites all marked tensors at once. A warp-specialised block ignores the prefetch distance: its loader
    runs ahead as far as slots are free.

    Raises:
        DepthError, SharedMemoryError, ScopeError, CarriedError: see ``check.check_ring``.
        PipelineError: the tensor is marked already, or the kernel is rewritten already, or a number is not an integer.
    """
    if kernel.find_ring(tensor) is not None:
        raise PipelineError(f"circular buffer {tensor!r}: marked twice; mark it once")
    _check_source(kernel)
    stages = as_integer(stages)
    ring = Ring(tensor, stages, stages - 1 if prefetch is None else as_integer(prefetch))
    check_ring(kernel, ring)
    return replace(kernel, rings=(*kernel.rings, ring))


def lower(kernel: LoopKernel, *, warp_specialised: bool = False) -> LoopKernel:
    """Make every asynchronous load of the kernel explicit: barriers, phases, elected threads.

    Marked tensors become pipelines; other loads into shared memory take the simple synchronous form.
    ``warp_specialised`` adds a warpgroup that only loads; the kernel's own threads then only compute.

    Raises:
        PipelineError: a rule is broken; see ``check`` and ``specialise``.
    """
    _check_source(kernel)
    check_kernel(kernel)
    by_tensor = {}
    for ring in kernel.rings:
        nest = check_ring(kernel, ring)
        load = next(s for s in walk(kernel.body) if isinstance(s, Load) and s.dst.tensor == ring.tensor)
        by_tensor[ring.tensor] = CircularBuffer(ring, load, nest, kernel.find_tensor(ring.tensor).tile_bytes)
    rings = Rings(kernel, by_tensor)
    stages = {ring.tensor: ring.stages for ring in kernel.rings}
    tensors = tuple(replace(t, stages=stages.get(t.name)) for t in kernel.tensors)
    if warp_specialised:
        rewritten = specialise(replace(kernel, tensors=tensors), rings)
    else:
        rewritten = replace(kernel, tensors=tensors, rings=(), body=_rewrite_body(rings, kernel.body))
    _check_new_names(kernel, rewritten)
    return elect(rewritten)


def _check_source(kernel: LoopKernel) -> None:
    if any(isinstance(s, Section) for s in walk(kernel.body)) or kernel.loader_threads:
        raise PipelineError(f"kernel {kernel.name!r} is rewritten already; start from its source")


def _check_new_names(source: LoopKernel, rewritten: LoopKernel) -> None:
    """Check that the kernel does not use names that the rewrite introduces."""
    taken = set(list_declared_names(source))
    for stmt in walk(rewritten.body):
        name = stmt.name if isinstance(stmt, AllocBarrier) else stmt.var if isinstance(stmt, Let) else None
        if isinstance(stmt, For) and stmt.var.endswith("_first"):
            name = stmt.var
        if name in taken:
            raise PipelineError(f"kernel {source.name!r}: the rewrite needs the name {name!r}; rename yours")


def _rewrite_body(rings: Rings, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return tuple(new for stmt in body for new in _rewrite_statement(rings, stmt))


def _rewrite_statement(rings: Rings, stmt: Stmt) -> tuple[Stmt, ...]:
    if not isinstance(stmt, Block) or (isinstance(stmt, For) and stmt.kind is LoopKind.THREAD):
        return rings.rewrite_statement(stmt)
    if not isinstance(stmt, For):
        return (replace(stmt, body=_rewrite_body(rings, stmt.body)),)
    inside = rings.find_within(stmt.body)
    rooted = tuple(b for b in inside if b.nest.root == stmt)
    if not rooted:
        return (_rewrite_step(rings, stmt),)
    # A body that contains other rings' loads is not duplicated.
    single = all(b.nest.loops == (stmt,) for b in inside)
    pipeline = _peel_loop(rings, stmt, rooted) if single else _rewrite_nest(rings, stmt)
    return (
        *define_before(rooted),
        Section("barriers", open_barriers(rooted, rings.kernel.threads)),
        Section("prologue", _build_prologue(rooted, stmt.var)),
        *pipeline,
        Section("end", close_barriers(rooted)),
    )


def _build_prologue(rooted: tuple[CircularBuffer, ...], var: str) -> tuple[Stmt, ...]:
    """Issue the first steps; rings of equal nest and prefetch distance share one loop."""
    groups: dict[tuple[Index, int], list[CircularBuffer]] = {}
    for b in rooted:
        groups.setdefault((b.nest.steps, b.ring.prefetch), []).append(b)
    return tuple(
        For(
            f"{var}_first",
            Const(0),
            minimum(prefetch, steps),
            LoopKind.SERIAL,
            tuple(stmt for b in group for stmt in b.issue(Var(f"{var}_first"))),
        )
        for (steps, prefetch), group in groups.items()
        if prefetch
    )


def _peel_loop(rings: Rings, loop: For, rooted: tuple[CircularBuffer, ...]) -> tuple[Stmt, ...]:
    """Rewrite one loop: a main part, where every ring issues, and an epilogue, where shorter distances still issue."""
    farthest = max(b.ring.prefetch for b in rooted)
    body = _rewrite_body(rings, loop.body)
    step = Var(loop.var)
    ahead = tuple(stmt for b in rooted for stmt in b.issue(step + b.ring.prefetch))
    main = replace(loop, stop=loop.stop - farthest, body=(*ahead, *body, SyncScope()))
    if not farthest:
        return (Section("main", (main,)),)
    late = tuple(_issue_ahead(b) for b in rooted if b.ring.prefetch < farthest)
    drain = (*(stmt for issue in late for stmt in issue), *body, *((SyncScope(),) if late else ()))
    epilogue = replace(loop, start=maximum(loop.stop - farthest, 0), body=drain)
    return Section("main", (main,)), Section("epilogue", (epilogue,))


def _rewrite_nest(rings: Rings, loop: For) -> tuple[Stmt, ...]:
    """Rewrite a nest: one copy of its loops; the last steps, which issue nothing, are its epilogue."""
    return (Section("main, epilogue in its last steps", (_rewrite_step(rings, loop),)),)


def _rewrite_step(rings: Rings, loop: For) -> For:
    """Rewrite ``loop`` so that each ring loaded directly in it issues ahead and threads synchronise after each step."""
    here = rings.find_directly_in(loop)
    issues = tuple(stmt for b in here for stmt in _issue_ahead(b))
    sync = (SyncScope(),) if here else ()
    return replace(loop, body=(*define_inside(here), *issues, *_rewrite_body(rings, loop.body), *sync))


def _issue_ahead(b: CircularBuffer) -> tuple[Stmt, ...]:
    """Issue the step ``prefetch`` after the current one, if there is one."""
    ahead = b.nest.flat + b.ring.prefetch
    return (If(Less(ahead, b.nest.steps), b.issue(ahead)),) if b.ring.prefetch else b.issue(ahead)

"""The form for the megakernel: tiles come through the ring of stages that all ops of a launch share.

    loads ahead                 loads behind                consumers
    for each step:              for each step:              for each step:
      next stage                  next stage                  next stage
      load what no op writes      load the rest               body
      stage done                  stage done                  stage done

A stage holds all tiles that TMA loads in one step of a loop. Marked depths are ignored: the ring is as deep as the
launch has room for. A stage is released after the last statement of the step that touches one of its tiles. Steps are
not numbered, so each role tracks its position in the ring only by advancing from stage to stage and item to item. This
is correct if all three roles take the same stages, in the same loops under the same conditions, which ``check_steps``
verifies. The proof of the warp-specialised form (``proof``), which splits the loops in the same way, covers the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from interlace.core.errors import PipelineError, StepHazard
from interlace.loops.ir.nest import split_block_loops
from interlace.loops.ir.statements import (
    WARP,
    Block,
    Copy,
    DoneStage,
    For,
    Load,
    LoopKernel,
    LoopKind,
    MemorySpace,
    NextStage,
    Section,
    Stmt,
)
from interlace.loops.ir.traverse import list_boxes, walk
from interlace.loops.rewrite.body import Rings
from interlace.loops.rewrite.circular import circular_buffer
from interlace.loops.rules.check import check_kernel, check_ring

_MIN_STAGES = 2  # minimum stages of a ring for one product to be in flight while the next one begins
#: Sections of the code of one block.
PRE_WAIT, POST_WAIT, CONSUMERS = "loads ahead of the waits", "loads after the waits", "consumers"


def mark_loads(kernel: LoopKernel) -> LoopKernel:
    """Mark all tiles that TMA loads, so that two steps may be in flight.

    Raises:
        PipelineError: a tile that no ring can hold; see ``circular.circular_buffer``.
    """
    for load in walk(kernel.body):
        if isinstance(load, Load) and load.by is Copy.TMA and kernel.find_ring(load.dst.tensor) is None:
            kernel = circular_buffer(kernel, load.dst.tensor, _MIN_STAGES)
    return kernel


def share_ring(kernel: LoopKernel, pre_wait: frozenset[str] | tuple[str, ...] = ()) -> LoopKernel:
    """Split a source kernel into the roles of the megakernel: three sections in its block loops.

    Args:
        pre_wait: global tensors that are loaded before the item's dependency wait.

    Raises:
        PipelineError: a rule is broken, see ``check``; or a tile that TMA loads is held while an inner loop takes
            further stages, or is loaded in no loop; or threads of a loader would have to fill a tile by ``cp.async``.
    """
    check_kernel(kernel)
    kernel = mark_loads(kernel)
    for ring in kernel.rings:
        check_ring(kernel, ring)
    tiles = {ring.tensor for ring in kernel.rings}
    for load in walk(kernel.body):
        if isinstance(load, Load) and kernel.find_tensor(load.dst.tensor).memory is MemorySpace.SHARED:
            _check_load(kernel, load, marked=load.dst.tensor in tiles)
    loops, body = split_block_loops(kernel)
    first = _extract_loads(body, tiles, frozenset(pre_wait), mine=True)
    second = _extract_loads(body, tiles, frozenset(pre_wait), mine=False)
    body = (
        Section(PRE_WAIT, first),
        Section(POST_WAIT, second),
        Section(CONSUMERS, _extract_uses(Rings(kernel, {}), body, tiles)),
    )
    check_steps(kernel.name, *(section.body for section in body))
    rewritten: tuple[Stmt, ...] = body
    for loop in reversed(loops):
        rewritten = (replace(loop, body=rewritten),)
    stages = {ring.tensor: ring.stages for ring in kernel.rings}
    tensors = tuple(replace(t, stages=stages.get(t.name)) for t in kernel.tensors)
    return replace(kernel, tensors=tensors, rings=(), loader_threads=2 * WARP, body=rewritten)


def check_steps(name: str, *roles: tuple[Stmt, ...]) -> None:
    """Check that roles take the same stages for all extents: their loops and conditions are the same.

    Raises:
        StepHazard: they are not.
    """
    first, *others = (tuple(_walk_stages(role)) for role in roles)
    if any(other != first for other in others):
        raise StepHazard(f"kernel {name!r}: loaders and consumers count different stages, so a launch of it would hang")


def _walk_stages(body: tuple[Stmt, ...]) -> Iterator[object]:
    """Yield stage statements and their enclosing statements."""
    for stmt in body:
        if isinstance(stmt, NextStage | DoneStage):
            yield stmt
        elif isinstance(stmt, Block):
            inside = tuple(_walk_stages(stmt.body))
            if inside:
                yield replace(stmt, body=()), inside


def _check_load(kernel: LoopKernel, load: Load, *, marked: bool) -> None:
    if load.by is Copy.CP_ASYNC or (marked and load.by is Copy.PLAIN):
        raise PipelineError(
            f"tile {load.dst.tensor!r} of kernel {kernel.name!r} is {'loaded ahead' if marked else 'loaded'} by "
            f"{load.by.value}: the warps that load in the megakernel only begin bulk copies; load it by TMA, or by "
            "Copy.PLAIN without a mark"
        )


def _find_step_loads(body: tuple[Stmt, ...], tiles: set[str]) -> tuple[Load, ...]:
    """Return the loads of marked tiles directly in the body of a loop: those of one stage."""
    return tuple(s for s in body if isinstance(s, Load) and s.dst.tensor in tiles)


def _find_held_range(body: tuple[Stmt, ...], tiles: set[str]) -> tuple[int, int]:
    """Return the first and last statement of a body between which its stage is held; (-1, -1) without one."""
    here = {load.dst.tensor for load in _find_step_loads(body, tiles)}
    touched = [n for n, stmt in enumerate(body) if here & {box.tensor for s in walk((stmt,)) for box in list_boxes(s)}]
    if not touched:
        return -1, -1
    for stmt in body[touched[0] : touched[-1] + 1]:
        if isinstance(stmt, Block) and _find_step_loads(tuple(walk(stmt.body)), tiles):
            raise PipelineError(
                f"circular buffer {sorted(here)[0]!r}: its stage is held while an inner loop takes further ones of the "
                "ring of the megakernel, which may be full of them; keep what that loop needs in a register tile, or "
                "load it by Copy.PLAIN, without a mark"
            )
    return touched[0], touched[-1]


def _extract_loads(body: tuple[Stmt, ...], tiles: set[str], ahead: frozenset[str], *, mine: bool) -> tuple[Stmt, ...]:
    """Return a loader's part: with ``mine``, the loads of tensors in ``ahead``, else all others."""
    out: list[Stmt] = []
    here, (first, _) = _find_step_loads(body, tiles), _find_held_range(body, tiles)
    for n, stmt in enumerate(body):
        if n == first:
            loads = (load for load in here if (load.src.tensor in ahead) == mine)
            out += (NextStage(_list_names(here)), *loads, DoneStage())
        elif isinstance(stmt, Block) and _find_step_loads(tuple(walk(stmt.body)), tiles):
            out.append(replace(stmt, body=_extract_loads(stmt.body, tiles, ahead, mine=mine)))
    return tuple(out)


def _extract_uses(plain: Rings, body: tuple[Stmt, ...], tiles: set[str]) -> tuple[Stmt, ...]:
    """Return the consumers' part: all but these loads, the first of which becomes a wait for their stage."""
    out: list[Stmt] = []
    here, (first, last) = _find_step_loads(body, tiles), _find_held_range(body, tiles)
    for n, stmt in enumerate(body):
        if n == first:
            out.append(NextStage(_list_names(here)))
        elif isinstance(stmt, Block) and not (isinstance(stmt, For) and stmt.kind is LoopKind.THREAD):
            out.append(replace(stmt, body=_extract_uses(plain, stmt.body, tiles)))
        elif stmt not in here:
            out += plain.rewrite_statement(stmt)
        if n == last:
            out.append(DoneStage())
    return tuple(out)


def _list_names(loads: tuple[Load, ...]) -> tuple[str, ...]:
    return tuple(load.dst.tensor for load in loads)

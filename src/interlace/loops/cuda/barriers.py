"""Barrier statements as CUDA C++, one line each; a barrier array is the 32-bit address of its first one."""

from __future__ import annotations

from interlace.core.errors import PipelineError
from interlace.loops.cuda.indices import emit_index
from interlace.loops.cuda.lines import Scope
from interlace.loops.cuda.names import own
from interlace.loops.ir.smem import BARRIER_BYTES, SharedLayout
from interlace.loops.ir.statements import (
    Arrive,
    ArriveCopies,
    ArriveExpect,
    BarrierSlot,
    FenceBarrierInit,
    FenceProxy,
    InitBarrier,
    Invalidate,
    Stmt,
    Sync,
    WaitParity,
)


def barrier_slot(barrier: BarrierSlot) -> str:
    """The address of one barrier."""
    slot = emit_index(barrier.slot, 2)
    first = own(barrier.name)
    return first if slot == "0" else f"{first} + {slot} * {BARRIER_BYTES}"


def emit_barrier(stmt: Stmt, scope: Scope, layout: SharedLayout) -> str:
    """The line of a statement on barriers, fences or syncs.

    Raises:
        PipelineError: it is none of these.
    """
    match stmt:
        case InitBarrier():
            return _every_slot(layout, stmt.name, f"mbarrier_init({{}}, {stmt.count});")
        case Invalidate():
            return _every_slot(layout, stmt.name, "mbarrier_inval({});")
        case FenceBarrierInit():
            return "fence_mbarrier_init();"
        case FenceProxy():
            return "fence_proxy_async();"
        case ArriveExpect():
            return f"mbarrier_arrive_expect_tx({barrier_slot(stmt.barrier)}, {stmt.bytes});"
        case Arrive():
            return f"mbarrier_arrive({barrier_slot(stmt.barrier)});"
        case ArriveCopies():
            return f"copy_async_arrive({barrier_slot(stmt.barrier)});"
        case WaitParity():
            return f"mbarrier_wait({barrier_slot(stmt.barrier)}, {emit_index(stmt.parity)});"
        case Sync():
            return scope.sync
    raise PipelineError(f"no CUDA for {type(stmt).__name__}")


def _every_slot(layout: SharedLayout, name: str, call: str) -> str:
    slots, first = layout.of(name).slots, own(name)
    if slots == 1:
        return call.format(first)
    return f"for (int s = 0; s < {slots}; ++s) {call.format(f'{first} + s * {BARRIER_BYTES}')}"

"""Barrier statements as CUDA C++, one line each. The 32-bit address of its first barrier represents an array."""

from __future__ import annotations

from interlace.core.errors import PipelineError
from interlace.loops.cuda.indices import emit_index, mangle
from interlace.loops.cuda.lines import ThreadScope
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
    SyncScope,
    WaitParity,
)


def emit_barrier_slot(barrier: BarrierSlot) -> str:
    """Return the address of one barrier."""
    slot = emit_index(barrier.slot, 2)
    first = mangle(barrier.name)
    return first if slot == "0" else f"{first} + {slot} * {BARRIER_BYTES}"


def emit_barrier(stmt: Stmt, scope: ThreadScope, layout: SharedLayout) -> str:
    """Return the line of a statement on barriers, fences or syncs.

    Raises:
        PipelineError: the statement is none of these.
    """
    match stmt:
        case InitBarrier():
            return _emit_for_slots(layout, stmt.name, f"mbarrier_init({{}}, {stmt.count});")
        case Invalidate():
            return _emit_for_slots(layout, stmt.name, "mbarrier_inval({});")
        case FenceBarrierInit():
            return "fence_mbarrier_init();"
        case FenceProxy():
            return "fence_proxy_async();"
        case ArriveExpect():
            return f"mbarrier_arrive_expect_tx({emit_barrier_slot(stmt.barrier)}, {stmt.bytes});"
        case Arrive():
            return f"mbarrier_arrive({emit_barrier_slot(stmt.barrier)});"
        case ArriveCopies():
            return f"copy_async_arrive({emit_barrier_slot(stmt.barrier)});"
        case WaitParity():
            return f"mbarrier_wait({emit_barrier_slot(stmt.barrier)}, {emit_index(stmt.parity)});"
        case SyncScope():
            return scope.sync
    raise PipelineError(f"no CUDA for {type(stmt).__name__}")


def _emit_for_slots(layout: SharedLayout, name: str, call: str) -> str:
    slots, first = layout.find_placement(name).slots, mangle(name)
    if slots == 1:
        return call.format(first)
    return f"for (int s = 0; s < {slots}; ++s) {call.format(f'{first} + s * {BARRIER_BYTES}')}"

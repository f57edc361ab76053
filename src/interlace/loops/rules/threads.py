"""The rules of a loop over threads, whose iterations run in parallel and do not wait for each other.

Worked example, 32 columns of 64 elements over 256 threads. Thread 70 takes t = 70, 326, 582, ...: element 6 of column
1, then of 5, then of 9. Each thread has eight iterations, and no two write the same element of ``y``:

    with k.thread("t", 64 * 32) as t:
        k.store(y.at(t // 64, t % 64), s.at(t % 64, t // 64, shape=(1, 1)))

The body may contain assignments, plain stores from shared memory, serial and unrolled loops, and conditions. The loop
does not read what it writes, so no iteration depends on another. The rewrite puts syncs around a loop that writes
shared memory. ``check_outputs`` verifies that no other statement writes an output that the loop writes.

The loop's variable determines where a destination begins. The author of the kernel must ensure that no two iterations
write the same element: these rules cannot check it, but the interpreter does.
"""

from __future__ import annotations

from interlace.core.errors import PipelineError
from interlace.loops.ir.index import find_names
from interlace.loops.ir.statements import Copy, For, If, LoopKernel, LoopKind, MemorySpace, Pointwise, Stmt, Store
from interlace.loops.ir.traverse import find_read_boxes, find_written_box, list_boxes, walk


def check_thread_loop(kernel: LoopKernel, loop: For) -> None:
    """Check one loop over threads of a source kernel.

    Raises:
        PipelineError: a broken rule; the message names the loop and the tensor, or the inner loop.
    """
    inside = tuple(walk(loop.body))
    for stmt in inside:
        _check_kind(loop, stmt)
        for used in list_boxes(stmt):
            if kernel.find_tensor(used.tensor).memory is MemorySpace.REGISTER:
                raise _build_error(loop, f"{used.tensor!r} lies in registers of all threads; keep it in shared memory")
        target = find_written_box(stmt)
        if target is not None and not any(loop.var in find_names(o) for o in target.origin):
            what = f"every iteration writes the same box of {target.tensor!r}"
            raise _build_error(loop, f"{what}; let its origin depend on {loop.var!r}")
    wrote = {box.tensor for stmt in inside if (box := find_written_box(stmt)) is not None}
    for box in (b for stmt in inside for b in find_read_boxes(stmt)):
        if box.tensor in wrote:
            raise _build_error(loop, f"it reads {box.tensor!r}, which its other iterations write; use another tensor")


def _check_kind(loop: For, stmt: Stmt) -> None:
    match stmt:
        case If() | Pointwise() | Store(by=Copy.PLAIN):
            return
        case For():
            if stmt.kind is LoopKind.THREAD:
                raise _build_error(loop, f"another of them, {stmt.var!r}, stands in it; make that one serial")
        case _:
            (target, *_) = list_boxes(stmt)
            what = f"a {type(stmt).__name__.lower()} to {target.tensor!r} takes all threads together"
            raise _build_error(loop, f"{what}; move it out")


def _build_error(loop: For, why: str) -> PipelineError:
    return PipelineError(f"loop {loop.var!r} over threads: {why}")

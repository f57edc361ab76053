"""The rules of an output, a global tensor that a kernel writes: nothing reads it, and one place writes it.

Threads never synchronise over global memory. What one has written there another may not see, and of two that write an
element either may be the last. Worked example over 128 threads, ``s`` of 256 elements, ``r`` of 64 x 1:

    k.store(y.at(0), s)     four neighbours to a thread: y[4] is written by thread 1
    k.store(y.at(0), r)     one row to a thread: y[4] is written by thread 4, before or after

A place is one statement, however often it runs, or one loop over threads, in which an iteration is one thread's and
runs in order. That no place writes an element twice through different threads, blocks or bulk copies is the writer's
promise; the interpreter holds the iterations of a loop over threads to it.
"""

from __future__ import annotations

from collections.abc import Hashable

from interlace.core.errors import PipelineError
from interlace.loops.ir.nest import Site, sites
from interlace.loops.ir.statements import For, LoopKernel, LoopKind
from interlace.loops.ir.traverse import read, written


def check_outputs(kernel: LoopKernel) -> None:
    """Checks what a source kernel does with its outputs.

    Raises:
        PipelineError: an output is read, or written in two places; the message names it.
    """
    places: dict[str, Hashable] = {}
    for site in sites(kernel.body):
        for box in read(site.stmt):
            if kernel.tensor(box.tensor).written:
                raise PipelineError(
                    f"kernel {kernel.name!r} reads its output {box.tensor!r}, over which threads do not synchronise; "
                    "keep what it needs in a tile, or read an input"
                )
        target = written(site.stmt)
        if target is None or not kernel.tensor(target.tensor).written:
            continue
        if places.setdefault(target.tensor, _place(site)) != _place(site):
            raise PipelineError(
                f"kernel {kernel.name!r} writes its output {target.tensor!r} in two places, between which threads do "
                "not synchronise; write it by one statement, or in one loop over threads"
            )


def _place(site: Site) -> Hashable:
    """The loop over threads around a statement, else where the statement stands."""
    loops = (s.var for s in site.around if isinstance(s, For) and s.kind is LoopKind.THREAD)
    return next(loops, site.place)

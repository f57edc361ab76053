"""The rules of an output, a global tensor that a kernel writes: nothing reads it, and one statement or loop writes it.

Threads never synchronise over global memory. A thread may not see another thread's writes there, and if two threads
write an element, either may be last. Worked example over 128 threads, ``s`` of 256 elements, ``r`` of 64 x 1:

    k.store(y.at(0), s)     four adjacent elements per thread: thread 1 writes y[4]
    k.store(y.at(0), r)     one row per thread: thread 4 writes y[4], before or after

A writing location is one statement, however often it runs, or one loop over threads, where one thread executes each
iteration in order. The author of the kernel must ensure that no location writes an element twice from different
threads, blocks or bulk copies. The interpreter checks this for the iterations of a loop over threads.
"""

from __future__ import annotations

from collections.abc import Hashable

from interlace.core.errors import PipelineError
from interlace.loops.ir.nest import Site, walk_sites
from interlace.loops.ir.statements import For, LoopKernel, LoopKind
from interlace.loops.ir.traverse import find_read_boxes, find_written_box


def check_outputs(kernel: LoopKernel) -> None:
    """Check the uses of outputs in a source kernel.

    Raises:
        PipelineError: an output is read, or written in two locations; the message names it.
    """
    places: dict[str, Hashable] = {}
    for site in walk_sites(kernel.body):
        for box in find_read_boxes(site.stmt):
            if kernel.find_tensor(box.tensor).is_written:
                raise PipelineError(
                    f"kernel {kernel.name!r} reads its output {box.tensor!r}, over which threads do not synchronise; "
                    "keep what it needs in a tile, or read an input"
                )
        target = find_written_box(site.stmt)
        if target is None or not kernel.find_tensor(target.tensor).is_written:
            continue
        if places.setdefault(target.tensor, _find_position(site)) != _find_position(site):
            raise PipelineError(
                f"kernel {kernel.name!r} writes its output {target.tensor!r} in two places, between which threads do "
                "not synchronise; write it by one statement, or in one loop over threads"
            )


def _find_position(site: Site) -> Hashable:
    """Return the loop over threads around a statement, or else the statement's position."""
    loops = (s.var for s in site.enclosing if isinstance(s, For) and s.kind is LoopKind.THREAD)
    return next(loops, site.position)

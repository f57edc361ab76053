"""The launches that wrap tile bodies: a grid of items, a persistent loop over items, a gate.

``bodies`` is a compile-time tuple with an entry per op: (prefetch, accumulate, finish, whether it accumulates, digest
of their source, whether finish takes ``sync``), with ``do_nothing`` for functions that a kernel lacks. ``arguments``
also has an entry per op: a tuple of arguments for each of the three functions.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from interlace.kernels.primitives.columns import (
    TRACE_ARRIVED_NS,
    TRACE_COLUMNS,
    TRACE_END_NS,
    TRACE_PLACE,
    TRACE_START_NS,
)
from interlace.kernels.primitives.partial_sums import sum_partials
from interlace.kernels.primitives.semaphore import (
    back_off,
    claim_ticket,
    fix_up,
    is_blocked,
    load_op,
    load_tile,
    load_tile_at,
    post,
    read_clock_ns,
    read_ticket,
    start_run,
    wait,
    wait_started,
)


@triton.jit
def do_nothing(tile):
    """Do nothing: the placeholder for a missing prefetch or accumulate."""


@triton.jit
def _run_item(tile, sync, worker, body: tl.constexpr, arguments, ticket, DRAW: tl.constexpr):
    """Wait, run one item's body, post.

    Returns the next ticket: under DRAW one that is claimed while the tile is finished, else ``ticket``.
    """
    if sync.TRACE:
        arrived_ns = read_clock_ns(sync.INTERPRET)
    if is_blocked(tile, sync):
        body[0](tile, *arguments[0])  # memory would be idle during the wait
        wait(tile, sync)
    if sync.TRACE:
        start_ns = read_clock_ns(sync.INTERPRET)
    if body[3]:
        acc = body[1](tile, sync, *arguments[1])
        tl.static_assert(len(acc) <= 2, "accumulate returns one block or two")
    if DRAW:
        ticket = claim_ticket(sync)
    if body[3]:
        if sync.SPLIT > 1:
            if fix_up(tile, sync, acc, sync.SPLIT):
                if len(acc) == 1:
                    body[2](tile, (sum_partials(tile, sync, acc, 0, sync.SPLIT),), *arguments[2])
                else:
                    first = sum_partials(tile, sync, acc, 0, sync.SPLIT)
                    sums = (first, sum_partials(tile, sync, acc, 1, sync.SPLIT))
                    body[2](tile, sums, *arguments[2])
                post(tile, sync)
        else:
            # Always true. After a branch, ptxas excludes the epilogue from the wgmma pipeline; without one, it
            # serialises the 128 x 256 tile.
            if tile.part < tile.parts:
                body[2](tile, acc, *arguments[2])
                post(tile, sync)
    else:
        if body[5]:
            body[2](tile, sync, *arguments[2])
        else:
            body[2](tile, *arguments[2])
        post(tile, sync)
    if sync.TRACE:
        tl.debug_barrier()
        entry = sync.trace + tile.item.to(tl.int64) * TRACE_COLUMNS
        tl.store(entry + TRACE_ARRIVED_NS, arrived_ns)
        tl.store(entry + TRACE_START_NS, start_ns)
        tl.store(entry + TRACE_END_NS, read_clock_ns(sync.INTERPRET))
        if sync.INTERPRET:
            sm = worker
        else:
            sm = cuda.smid()
        tl.store(entry + TRACE_PLACE, worker.to(tl.int64) * 4294967296 + sm)
    return ticket


@triton.jit
def grid_kernel(sync, body: tl.constexpr, arguments, PDL: tl.constexpr):
    """Run one item of one op per program."""
    if PDL:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    _run_item(load_tile(sync), sync, tl.program_id(0), body, arguments, 0, False)


@triton.jit
def gate_kernel(sync, runs, producer):
    """Wait until every program of a producer's launch of this run has started.

    A consumer launched after the gate only takes SMs that no producer needs any more, so the two cannot deadlock,
    whatever order the hardware dispatches blocks in. One program; ``sync`` belongs to the producer, ``runs`` counts
    the runs of the gate.
    """
    run = tl.load(runs)
    wait_started(sync, run, producer)
    tl.store(runs, run + 1)


@triton.jit
def _prefetch_item(sync, position, bodies: tl.constexpr, arguments):
    """Prefetch into the L2 the prefetchable inputs of an item (weights)."""
    op = load_op(sync, position)
    tile = load_tile_at(sync, position, 0)
    for o in tl.static_range(len(bodies)):
        if op == o:
            bodies[o][0](tile, *arguments[o][0])


@triton.jit
def _dispatch_item(sync, position, run, bodies: tl.constexpr, arguments, ticket, DRAW: tl.constexpr):
    op = load_op(sync, position)
    own = load_tile_at(sync, position, run)
    for o in tl.static_range(len(bodies)):
        if op == o:
            ticket = _run_item(own, sync, tl.program_id(0), bodies[o], arguments[o], ticket, DRAW)
    tl.debug_barrier()  # the next item of this worker may read the output of this one
    return ticket


@triton.jit
def persistent_static_kernel(sync, lists, bodies: tl.constexpr, arguments):
    """Run each worker's static queue: rows ``lists[w]`` to ``lists[w + 1]`` of the item table."""
    worker = tl.program_id(0)
    run = start_run(sync)
    for position in range(tl.load(lists + worker), tl.load(lists + worker + 1)):
        _dispatch_item(sync, position, run, bodies, arguments, run, False)


@triton.jit
def persistent_ticket_kernel(sync, n, free, bodies: tl.constexpr, arguments, PDL: tl.constexpr):
    """Let workers claim items from one ticket counter.

    A run takes ``sync.programs`` = n + workers tickets: each worker claims one beyond the last item.

    A worker holds its next ticket while it finishes a tile. The holder of the smallest unfinished ticket never waits
    for another of its own, so progress is as if it had claimed the ticket later.

    The first ``free`` items wait for nothing. If they are fewer than the workers, the other workers claim a moment
    later: the hardware spreads the first blocks of a launch over the chip, and those items should run there.

    Under dependent launch each worker first prefetches for the item of its own index. The worker that claims the item
    finds its data in the L2, so a wrong guess only costs time. The counter is accessed only after the previous launch
    has ended.
    """
    if PDL:
        if tl.program_id(0) < n:
            _prefetch_item(sync, tl.program_id(0), bodies, arguments)
        cuda.gdc_wait()
    if tl.program_id(0) >= free:
        back_off(sync, 1000)
    ticket = claim_ticket(sync)
    number = read_ticket(ticket)
    run = number // sync.programs
    position = (number - run * sync.programs).to(tl.int32)
    while position < n:
        if PDL:
            if position >= n - tl.num_programs(0):  # the last wave; earlier prefetches would be evicted again
                cuda.gdc_launch_dependents()
        ticket = _dispatch_item(sync, position, run, bodies, arguments, ticket, True)
        position = (read_ticket(ticket) - run * sync.programs).to(tl.int32)

"""Kernels that time the primitives themselves, with the GPU's clock."""

from __future__ import annotations

import triton
import triton.language as tl

from interlace.kernels.primitives.semaphore import (
    Tile,
    claim_ticket,
    is_blocked,
    post,
    read_clock_ns,
    read_ticket,
    wait,
)


@triton.jit
def _make_item(row, semaphore, run):
    """Make an item that waits for one row of the wait table and posts one semaphore."""
    zero = row * 0
    return Tile(zero, zero, zero, zero, zero, row, row + 1, row + 1, semaphore, zero, zero + 1, zero, zero, zero, run)


@triton.jit
def time_chain(sync, ns, rounds):
    """Time posts, satisfied waits of 1 and 112 semaphores, and tickets; sums in nanoseconds go to ``ns``. One block."""
    zero = tl.program_id(0)
    begin = read_clock_ns(sync.INTERPRET)
    for r in range(rounds):
        post(_make_item(zero, zero, tl.cast(r, tl.int64)), sync)
    tl.debug_barrier()
    tl.store(ns, read_clock_ns(sync.INTERPRET) - begin)
    begin = read_clock_ns(sync.INTERPRET)
    missing = 0
    for _ in range(rounds):
        missing += is_blocked(_make_item(zero, zero, tl.cast(0, tl.int64) + zero), sync).to(tl.int32)
    tl.store(ns + 1, read_clock_ns(sync.INTERPRET) - begin)
    begin = read_clock_ns(sync.INTERPRET)
    for _ in range(rounds):
        missing += is_blocked(_make_item(zero + 2, zero, tl.cast(0, tl.int64) + zero), sync).to(tl.int32)
    tl.store(ns + 2, read_clock_ns(sync.INTERPRET) - begin)
    begin = read_clock_ns(sync.INTERPRET)
    last = tl.cast(0, tl.int64) + missing
    for _ in range(rounds):
        last += read_ticket(claim_ticket(sync))
    tl.store(ns + 3, read_clock_ns(sync.INTERPRET) - begin)
    tl.store(sync.trace, last)


@triton.jit
def time_ping_pong(sync, ns, rounds):
    """Let two blocks post and wait in turn, for ``rounds`` round trips."""
    me = tl.program_id(0)
    begin = read_clock_ns(sync.INTERPRET)
    for r in range(rounds):
        own = _make_item(1 - me, me, tl.cast(r, tl.int64))
        if me == 0:
            post(own, sync)
            wait(own, sync)
        else:
            wait(own, sync)
            post(own, sync)
    if me == 0:
        tl.store(ns, read_clock_ns(sync.INTERPRET) - begin)

"""Semaphores in global memory: the only module that handles memory order between tiles.

Post (a tile is complete):
    all threads' stores, CTA barrier, one thread's ``red.release.gpu`` add.
Wait (before a tile reads what others wrote):
    acquire polls of a whole range of semaphores at once, one per thread, CTA barrier.
Gate (a launch may use the SMs that others free):
    relaxed polls of the counter that the other launches' programs increment when they start.
Fix-up (reduction of a split tile):
    all threads' stores of the partial, CTA barrier, one thread's ``atom.acq_rel.gpu`` add, CTA barrier;
    the last part to arrive reads all partials in part order, so the result does not depend on the order
    of arrival.

Counters are 32 bits wide, only grow, and are never cleared: run ``r`` (from 0) waits until a semaphore has reached
``(r + 1) * threshold`` posts, compared by wrapping difference. The run index comes from 64-bit counters that the run
itself advances, so a replayed CUDA graph continues to count.

Every wait is bounded: after ``TIMEOUT_NS`` on the GPU's clock, or as soon as any other wait has failed, it records
itself and returns. The run completes with undefined contents and the host raises HangError.

A Triton kernel of your own only needs ``own = load_tile(sync)``, ``wait(own, sync)`` and ``post(own, sync)``; see
``examples/04_place_your_own_waits.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from triton.language.extra import cuda

from interlace.kernels.primitives.columns import (
    ITEM_COLUMNS,
    ITEM_I,
    ITEM_J,
    ITEM_K_HI,
    ITEM_K_LO,
    ITEM_L,
    ITEM_NUMBER,
    ITEM_OP,
    ITEM_PART,
    ITEM_PARTS,
    ITEM_POST,
    ITEM_SLOT,
    ITEM_SPLIT,
    ITEM_WAIT_HI,
    ITEM_WAIT_LO,
    ITEM_WAIT_MID,
    RECORD_EXPECTED,
    RECORD_FAILED,
    RECORD_ITEM,
    RECORD_SEEN,
    RECORD_SEMAPHORE,
    WAIT_COLUMNS,
    WAIT_COUNT,
    WAIT_FIRST,
    WAIT_K,
    WAIT_STRIDE,
    WAIT_THRESHOLD,
)
from interlace.kernels.primitives.partial_sums import store_partial


class Sync(NamedTuple):
    """State that an item needs to synchronise: device tables, counters, and compile-time switches.

    Attributes:
        items: int32, rows of ``abi.ITEM``.
        waits: int32, rows of ``abi.WAIT``.
        semaphores: int32 counters.
        arrivals: int64 counters, one per split tile.
        workspace: float32 split-K partials.
        done: int32 per item: 1 + index of the last run in which it posted.
        fault: int32 flag, nonzero once a wait has failed.
        record: int32 in host memory, a row of ``abi.RECORD``.
        trace: int64, a row of ``abi.TRACE`` per item.
        starts: int64 counter of started programs (in a persistent launch, of claimed tickets), over all runs.
        first, programs: the launch's first row of ``items``, and the number of programs that start per run.
        WAITS: True if waits and posts are active (otherwise the launch order enforces all dependencies).
        CHUNKED: True if some waits are inside reductions.
        SPLIT: upper bound of the parts of a tile, 1 if none is split.
        SLOT: float32 elements of one partial.
        TRACE: True to write ``trace``.
        JITTER_NS: upper bound of random delays around waits and posts, 0 for none (for tests).
        TIMEOUT_NS: watchdog timeout.
        INTERPRET: True under the Triton interpreter, which has no inline assembly.
    """

    items: tl.tensor
    waits: tl.tensor
    semaphores: tl.tensor
    arrivals: tl.tensor
    workspace: tl.tensor
    done: tl.tensor
    fault: tl.tensor
    record: tl.tensor
    trace: tl.tensor
    starts: tl.tensor
    first: tl.tensor
    programs: tl.tensor
    WAITS: tl.constexpr
    CHUNKED: tl.constexpr
    SPLIT: tl.constexpr
    SLOT: tl.constexpr
    TRACE: tl.constexpr
    JITTER_NS: tl.constexpr
    TIMEOUT_NS: tl.constexpr
    INTERPRET: tl.constexpr


class Tile(NamedTuple):
    """One item: its tile coordinates, its k-range, its waits and its post.

    Attributes:
        i, j, l: tile coordinates, 0 for axes that the grid does not have.
        k_lo, k_hi: its range of the reduction.
        wait_lo, wait_mid, wait_hi: rows of ``Sync.waits``; those before ``wait_mid`` are waited for at its start.
        post: index of its semaphore, -1 for none.
        part, parts, slot, split: its part and the number of parts, its first workspace slot, its arrival counter.
        item: index in the plan's sequence.
        run: index of the run, from 0.
    """

    i: tl.tensor
    j: tl.tensor
    l: tl.tensor
    k_lo: tl.tensor
    k_hi: tl.tensor
    wait_lo: tl.tensor
    wait_mid: tl.tensor
    wait_hi: tl.tensor
    post: tl.tensor
    part: tl.tensor
    parts: tl.tensor
    slot: tl.tensor
    split: tl.tensor
    item: tl.tensor
    run: tl.tensor


@triton.jit
def start_run(sync):
    """Count this program's start and return the index of the run."""
    if sync.WAITS:
        run = tl.atomic_add(sync.starts, 1, sem="relaxed", scope="gpu") // sync.programs
    else:
        run = tl.full((), 0, tl.int64)
    return run


@triton.jit
def load_tile(sync):
    """Load the item of this program, in a launch of one program per item."""
    run = start_run(sync)
    return load_tile_at(sync, sync.first + tl.program_id(0), run)


@triton.jit
def load_tile_at(sync, position, run):
    """Load the item at a row of the item table, for the given run."""
    row = sync.items + position * ITEM_COLUMNS
    return Tile(
        tl.load(row + ITEM_I),
        tl.load(row + ITEM_J),
        tl.load(row + ITEM_L),
        tl.load(row + ITEM_K_LO),
        tl.load(row + ITEM_K_HI),
        tl.load(row + ITEM_WAIT_LO),
        tl.load(row + ITEM_WAIT_MID),
        tl.load(row + ITEM_WAIT_HI),
        tl.load(row + ITEM_POST),
        tl.load(row + ITEM_PART),
        tl.load(row + ITEM_PARTS),
        tl.load(row + ITEM_SLOT),
        tl.load(row + ITEM_SPLIT),
        tl.load(row + ITEM_NUMBER),
        run,
    )


@triton.jit
def load_op(sync, position):
    """Load the op index of the item at a row of the item table."""
    return tl.load(sync.items + position * ITEM_COLUMNS + ITEM_OP)


@triton.jit
def read_clock_ns(INTERPRET: tl.constexpr):
    """Read the GPU's global clock in nanoseconds (32 ns steps on an H200); 0 under the interpreter."""
    if INTERPRET:
        time = tl.full((), 0, tl.int64)
    else:
        time = cuda.globaltimer()
    return time


@triton.jit
def _read_clock(lane, INTERPRET: tl.constexpr):
    """Read the global clock in each thread."""
    if INTERPRET:
        time = lane.to(tl.int64) * 0
    else:
        time = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer; // $1", "=l,r", [lane], dtype=tl.int64, is_pure=False, pack=1
        )
    return time


@triton.jit
def _load_acquire(pointer, INTERPRET: tl.constexpr):
    if INTERPRET:
        value = tl.load(pointer)
    else:
        value = tl.inline_asm_elementwise(
            "ld.acquire.gpu.global.b32 $0, [$1];", "=r,l", [pointer], dtype=tl.int32, is_pure=False, pack=1
        )
    return value


@triton.jit
def _load_relaxed(pointer, INTERPRET: tl.constexpr):
    if INTERPRET:
        value = tl.load(pointer)
    else:
        value = tl.inline_asm_elementwise(
            "ld.relaxed.gpu.global.b32 $0, [$1];", "=r,l", [pointer], dtype=tl.int32, is_pure=False, pack=1
        )
    return value


@triton.jit
def back_off(sync, NS: tl.constexpr):
    """Sleep for up to NS nanoseconds, to free the memory pipes for others."""
    if not sync.INTERPRET:
        tl.inline_asm_elementwise(
            "nanosleep.u32 $1; mov.u32 $0, 0;",
            "=r,r",
            [tl.core.to_tensor(NS)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _delay_randomly(tile, sync, salt: tl.constexpr):
    """Delay randomly, differently for each item, run and call site."""
    if sync.JITTER_NS > 0 and not sync.INTERPRET:
        mixed = (tile.item.to(tl.int64) * 2 + salt + 1) * 1640531527 + (tile.run + 1) * 2246822519
        mixed = (mixed ^ (mixed >> 15)) * 739982445
        delay = ((mixed ^ (mixed >> 13)) & 0x7FFFFFFF) % sync.JITTER_NS
        begin = read_clock_ns(sync.INTERPRET)
        while read_clock_ns(sync.INTERPRET) - begin < delay:
            pass


@triton.jit
def _record_fault(sync, item, semaphore, expected, seen):
    """Record the first failed wait; later ones do not change the record."""
    if tl.atomic_cas(sync.fault, 0, 1, sem="relaxed", scope="gpu") == 0:
        tl.store(sync.record + RECORD_ITEM, item)
        tl.store(sync.record + RECORD_SEMAPHORE, semaphore)
        tl.store(sync.record + RECORD_EXPECTED, expected)
        tl.store(sync.record + RECORD_SEEN, seen)
        tl.store(sync.record + RECORD_FAILED, 1)


@triton.jit
def _make_lanes(sync):
    """Return an index per thread of the block.

    Polls use exactly one element per thread: a reduction over them crosses all warps, so its result is the same in
    every thread. With fewer elements, each warp would load them for itself, and warps that saw different values would
    diverge before a barrier.
    """
    if sync.INTERPRET:
        lane = tl.arange(0, 32)
    else:
        lane = tl.arange(0, cuda.num_threads())
    return lane


@triton.jit
def _load_wait(tile, sync, row):
    """Load one wait of an item: (first, count, stride, threshold, count that its semaphores reach in this run)."""
    base = sync.waits + row * WAIT_COLUMNS
    first = tl.load(base + WAIT_FIRST)
    count = tl.load(base + WAIT_COUNT)
    stride = tl.load(base + WAIT_STRIDE)
    threshold = tl.load(base + WAIT_THRESHOLD)
    return first, count, stride, threshold, ((tile.run + 1) * threshold).to(tl.int32)


@triton.jit
def _poll_lag(tile, sync, row):
    """Poll every semaphore of one wait once; return the largest number of missing posts, -1 if there are none."""
    first, count, stride, _, target = _load_wait(tile, sync, row)
    lane = _make_lanes(sync)
    lag = lane * 0 - 1
    for begin in range(0, count, lane.shape[0]):
        index = first + tl.minimum(begin + lane, count - 1) * stride
        lag = tl.maximum(lag, target - _load_acquire(sync.semaphores + index, sync.INTERPRET))
    most = tl.max(lag, 0)
    tl.debug_barrier()
    return most


@triton.jit
def _wait_row(tile, sync, row):
    """Wait until every semaphore of one wait has received all its posts of this run."""
    first, count, stride, threshold, target = _load_wait(tile, sync, row)
    lane = _make_lanes(sync)
    for begin in range(0, count, lane.shape[0]):
        index = first + tl.minimum(begin + lane, count - 1) * stride
        pointer = sync.semaphores + index
        lag = target - _load_acquire(pointer, sync.INTERPRET)
        behind = tl.max(lag, 0)
        since = _read_clock(lane, sync.INTERPRET)
        while behind > 0:
            back_off(sync, 64)
            lag = target - _load_acquire(pointer, sync.INTERPRET)
            behind = tl.max(lag, 0)
            failed = _load_relaxed(sync.fault + lane * 0, sync.INTERPRET)
            late = (_read_clock(lane, sync.INTERPRET) - since > sync.TIMEOUT_NS) | (failed != 0) | sync.INTERPRET
            if behind > 0 and tl.max(late.to(tl.int32), 0) > 0:
                semaphore = tl.max(tl.where(lag == behind, index, 0), 0)
                _record_fault(sync, tile.item, semaphore, threshold, threshold - behind)
                behind = behind * 0
    tl.debug_barrier()


@triton.jit
def is_blocked(tile, sync):
    """Poll the start waits of an item once; return True if some of its input is still missing.

    If not, all threads may read the input. The barrier is needed even if nothing is polled: it keeps ptxas from
    pulling preceding code into a wgmma pipeline, which it would then serialise.
    """
    missing = False
    if sync.WAITS:
        _delay_randomly(tile, sync, 0)
        for row in range(tile.wait_lo, tile.wait_mid):
            missing = missing | (_poll_lag(tile, sync, row) > 0)
    tl.debug_barrier()
    return missing


@triton.jit
def wait(tile, sync):
    """Wait before an item starts; afterwards all data that its start needs is visible to all threads."""
    if sync.WAITS:
        _delay_randomly(tile, sync, 2)
        for row in range(tile.wait_lo, tile.wait_mid):
            _wait_row(tile, sync, row)


@triton.jit
def wait_started(sync, run, producer):
    """Wait until every program of a launch has started in this run; ``sync`` and ``producer`` describe that launch.

    Its polls are relaxed, because it orders no data: the data that those programs write is still waited for tile by
    tile.
    """
    target = (run + 1) * sync.programs
    behind = target - tl.atomic_add(sync.starts, 0, sem="relaxed", scope="gpu")
    since = read_clock_ns(sync.INTERPRET)
    while behind > 0:
        behind = target - tl.atomic_add(sync.starts, 0, sem="relaxed", scope="gpu")
        if behind > 0:
            if sync.INTERPRET or read_clock_ns(sync.INTERPRET) - since > sync.TIMEOUT_NS:
                _record_fault(sync, -1 - producer, -1, sync.programs, (sync.programs - behind).to(tl.int32))
                behind = behind * 0


@triton.jit
def count_chunks(tile, sync):
    """Return the number of chunks of the item's k-range that become readable one after another."""
    if sync.WAITS and sync.CHUNKED:
        n = tile.wait_hi - tile.wait_mid + 1
    else:
        n: tl.constexpr = 1
    return n


@triton.jit
def wait_chunk(tile, sync, chunk):
    """Wait for one chunk; return the k-range [lo, hi) that may be read now (possibly empty)."""
    if sync.WAITS and sync.CHUNKED:
        row = tile.wait_mid + chunk - 1
        lo = tile.k_lo
        if chunk > 0:
            _wait_row(tile, sync, row)
            lo = tl.load(sync.waits + row * WAIT_COLUMNS + WAIT_K)
        hi = tile.k_hi
        if row + 1 < tile.wait_hi:
            hi = tl.load(sync.waits + (row + 1) * WAIT_COLUMNS + WAIT_K)
    else:
        lo = tile.k_lo
        hi = tile.k_hi
    return lo, hi


@triton.jit
def post(tile, sync):
    """Post after a tile's last store: make its data visible and count it."""
    if sync.WAITS:
        if tile.post >= 0:
            _delay_randomly(tile, sync, 1)
            tl.store(sync.done + tile.item, (tile.run + 1).to(tl.int32))
            tl.debug_barrier()
            tl.atomic_add(sync.semaphores + tile.post, 1, sem="release", scope="gpu")


@triton.jit
def fix_up(tile, sync, acc, PARTS: tl.constexpr):
    """Run the fix-up of a split tile up to its arrival; return True if this part is the last.

    ``acc`` holds the tile's sums, a tuple of float32 blocks of equal shape. PARTS is the upper bound of a tile's parts.
    """
    last = tile.parts == 1
    if PARTS > 1 and not last:
        store_partial(tile, sync, acc)
        tl.debug_barrier()
        arrived = tl.atomic_add(sync.arrivals + tile.split, 1, sem="acq_rel", scope="gpu")
        tl.debug_barrier()
        last = arrived % tile.parts == tile.parts - 1
    return last


@triton.jit
def claim_ticket(sync):
    """Claim the next ticket; ``read_ticket`` turns it into a number.

    Only the block's first thread holds the ticket until then, so work in between hides the latency.
    """
    if sync.INTERPRET:
        ticket = tl.atomic_add(sync.starts, 1, sem="relaxed", scope="gpu") + tl.zeros((1,), tl.int64)
    else:
        lane = _make_lanes(sync)
        ticket = tl.inline_asm_elementwise(
            "{ .reg .pred first; setp.eq.s32 first, $2, 0; mov.u64 $0, 0; "
            "@first atom.global.relaxed.gpu.add.u64 $0, [$1], 1; }",
            "=l,l,r",
            [sync.starts + lane * 0, lane],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )
    return ticket


@triton.jit
def read_ticket(ticket):
    """Return the number of a ticket, in all threads."""
    return tl.max(ticket, 0)

"""A ring of shared-memory stages between two loading warps and the warpgroups that multiply.

This is the semaphore of the block level: bulk loads post a stage by the bytes that they bring (``independent_full``
for operands that depend on nothing, ``dependent_full`` for those that earlier items produced), and every
warpgroup that has read it hands it back (``empty``). Stage ``n`` of the sequence lies in slot ``n mod stages``;
its phase is the parity of ``n div stages``, so nothing is ever reset.

Waits here carry no watchdog of their own: they end when loads arrive or partitions of the same block go on, and the
one partition that waits for other blocks does so on semaphores, whose waits are bounded.

A stage is a stack of panels, each some rows by 64 elements of k (128 bytes: one swizzled line of the tensor
core); every op cuts the same bytes into panels of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from interlace.kernels import bodies
from interlace.kernels.gluon.names import barrier

PANEL = gl.constexpr(bodies.PANEL)


class Ring(NamedTuple):
    """Stages and their barriers.

    Attributes:
        independent, dependent: shared memory (stages, rows, 64) of the two operands.
        independent_full, dependent_full: one mbarrier per stage, completed by the arrival of its bytes.
        empty: one mbarrier per stage, completed when all readers are done with it.
    """

    independent: gl.shared_memory_descriptor
    dependent: gl.shared_memory_descriptor
    independent_full: gl.shared_memory_descriptor
    dependent_full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


class Mailbox(NamedTuple):
    """A ring of messages of two 32-bit words from one warp to all other partitions."""

    words: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor


@gluon.jit
def make_barriers(STAGES: gl.constexpr, ARRIVALS: gl.constexpr):
    """For each of ARRIVALS an array of STAGES mbarriers that complete with so many arrivals.

    Initialised stage by stage: between two of the same array the compiler puts a block barrier, and a launch waits
    for all of them before its first load.
    """
    arrays = ()
    for _ in gl.static_range(len(ARRIVALS)):
        arrays += (gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout()),)  # type: ignore[assignment]
    for s in gl.static_range(STAGES):
        for a in gl.static_range(len(ARRIVALS)):
            mbarrier.init(arrays[a].index(s), count=ARRIVALS[a])
    return arrays


@gluon.jit
def await_empty_slot(ring, n, full, BYTES: gl.constexpr, MOST: gl.constexpr = 1, times=1):
    """Wait until the n-th stage's slot is empty, announce BYTES to ``full``, 0 to MOST times, and return the slot."""
    STAGES: gl.constexpr = ring.empty.shape[0]
    mbarrier.wait(ring.empty.index(n % STAGES), ((n // STAGES) & 1) ^ 1)
    if MOST == 1:
        mbarrier.expect(full.index(n % STAGES), BYTES)
    else:
        for count in gl.static_range(MOST + 1):
            mbarrier.expect(full.index(n % STAGES), count * BYTES, pred=times == count)
    return n % STAGES


@gluon.jit
def limit_in_flight(ring, n, IN_FLIGHT: gl.constexpr):
    """Wait until fewer than IN_FLIGHT independent loads are under way before the n-th.

    A deeper queue makes every other access of the chip slower and brings no more bandwidth. The rest of the
    ring is room to run ahead while the readers are held up.
    """
    STAGES: gl.constexpr = ring.empty.shape[0]
    if IN_FLIGHT < STAGES:
        earlier = gl.maximum(n - IN_FLIGHT, 0)
        mbarrier.wait(ring.independent_full.index(earlier % STAGES), (earlier // STAGES) & 1, pred=n >= IN_FLIGHT)


@gluon.jit
def await_stage(ring, n):
    """Wait for both operands of the n-th stage; returns its slot."""
    STAGES: gl.constexpr = ring.empty.shape[0]
    phase = (n // STAGES) & 1
    mbarrier.wait(ring.dependent_full.index(n % STAGES), phase)
    mbarrier.wait(ring.independent_full.index(n % STAGES), phase)
    return n % STAGES


@gluon.jit
def release(ring, n, pred=True):
    """One reader is done with the n-th stage."""
    mbarrier.arrive(ring.empty.index(n % ring.empty.shape[0]), count=1, pred=pred)


@gluon.jit
def send(mailbox, n, first, second):
    """Send the n-th message; from a partition of one warp."""
    PAIR: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    SLOTS: gl.constexpr = mailbox.full.shape[0]
    mbarrier.wait(mailbox.empty.index(n % SLOTS), ((n // SLOTS) & 1) ^ 1)
    mailbox.words.index(n % SLOTS).store(gl.where(gl.arange(0, 2, layout=PAIR) == 0, first, second))
    barrier()
    mbarrier.arrive(mailbox.full.index(n % SLOTS), count=1)


@gluon.jit
def receive(mailbox, n):
    """The n-th message."""
    PAIR: gl.constexpr = gl.BlockedLayout([2], [32], [gl.num_warps()], [0])
    SLOTS: gl.constexpr = mailbox.full.shape[0]
    mbarrier.wait(mailbox.full.index(n % SLOTS), (n // SLOTS) & 1)
    words = mailbox.words.index(n % SLOTS).load(PAIR)
    which = gl.arange(0, 2, layout=PAIR)
    first = gl.sum(gl.where(which == 0, words, 0), 0)
    second = gl.sum(gl.where(which == 1, words, 0), 0)
    barrier()
    mbarrier.arrive(mailbox.empty.index(n % SLOTS), count=1)
    return first, second

"""The persistent warp-specialised launch: one block per SM walks the plan's items by ticket.

    partition      warps   does
    first math     4       wgmma and epilogue of its rows of a tile
    second math    4       the same, where two warpgroups share a tile
    independent    1       draws tickets; loads what depends on nothing, as far ahead as the ring is deep
    dependent      1       waits on semaphores; loads what earlier items produced

An op plugs in as three functions; the last two return the ring position after the item:

    load_independent(tile, ring, n, k, operands, arguments)     loads the stage at k; ``arguments.STEP`` is its extent
    load_dependent(tile, sync, ring, n, operands, arguments)
    compute(tile, sync, ring, n, arguments, warpgroup)

``operands`` are the op's tensor descriptors, ``arguments`` a named tuple of its own.

Progress: an item waits only on smaller tickets, a block runs its tickets in order, and every ticket drawn is
held by a running block; so the holder of the smallest unfinished ticket never waits, for any number of blocks.
Nobody but the independent loader runs ahead of the tickets' order, and it waits for ring slots alone.

Under dependent launch the next launch's blocks start when every block of this one has drawn its last ticket,
so the counter of tickets never mixes two runs; independent loads then precede ``griddepcontrol.wait``, everything
else follows it. What independent loads read must not be written by the launch before.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.language.extra import cuda

from interlace.kernels.gluon.ring import PANEL, Mailbox, Ring, make_barriers, receive, send
from interlace.kernels.primitives.columns import TRACE_COLUMNS, TRACE_END_NS, TRACE_PLACE
from interlace.kernels.primitives.semaphore import draw, drawn, now_ns, op_of, tickets_drawn, tile_at

_TICKETS = gl.constexpr(4)


@gluon.jit
def _draw(sync, run):
    """Position of the next ticket of a run."""
    return (drawn(draw(sync)) - run * sync.programs).to(gl.int32)


@gluon.jit
def _independent_loads(sync, items, tickets, bodies: gl.constexpr, operands, arguments, ring, DEPENDENT: gl.constexpr):
    number = drawn(draw(sync))
    run = number // sync.programs
    position = (number - run * sync.programs).to(gl.int32)
    taken = position * 0
    n = position * 0
    while position < items:
        send(tickets, taken, position, run.to(gl.int32))
        taken += 1
        op = op_of(sync, position)
        own = tile_at(sync, position, run)
        # A ticket drawn late balances the load. But once others have drawn all items, this block's next ticket is
        # none whenever it is drawn, and the sooner all blocks know, the sooner the next launch may begin.
        following = position * 0 - 1
        in_sight = run * 0
        for o in gl.static_range(len(bodies)):
            if op == o:
                for k in range(own.k_lo, own.k_hi, arguments[o].STEP):
                    if DEPENDENT and following < 0:
                        if in_sight - run * sync.programs >= items:
                            following = _draw(sync, run)
                            cuda.gdc_launch_dependents()
                        in_sight = tickets_drawn(sync)
                    bodies[o][0](own, ring, n, k, operands[o], arguments[o])
                    n += 1
        if following < 0:
            following = _draw(sync, run)
        position = following
    send(tickets, taken, position, run.to(gl.int32))
    if DEPENDENT:
        cuda.gdc_launch_dependents()


@gluon.jit
def _dependent_loads(sync, items, tickets, bodies: gl.constexpr, operands, arguments, ring, DEPENDENT: gl.constexpr):
    if DEPENDENT:
        cuda.gdc_wait()
    taken = items * 0
    n = items * 0
    position, run = receive(tickets, taken)
    while position < items:
        taken += 1
        op = op_of(sync, position)
        own = tile_at(sync, position, run.to(gl.int64))
        for o in gl.static_range(len(bodies)):
            if op == o:
                n = bodies[o][1](own, sync, ring, n, operands[o], arguments[o])
        position, run = receive(tickets, taken)


@gluon.jit
def _math(sync, items, tickets, bodies: gl.constexpr, arguments, ring, warpgroup: gl.constexpr):
    taken = items * 0
    n = items * 0
    position, run = receive(tickets, taken)
    while position < items:
        taken += 1
        op = op_of(sync, position)
        own = tile_at(sync, position, run.to(gl.int64))
        for o in gl.static_range(len(bodies)):
            if op == o:
                n = bodies[o][2](own, sync, ring, n, arguments[o], warpgroup)
        if sync.TRACE and warpgroup == 0:
            entry = sync.trace + own.item.to(gl.int64) * TRACE_COLUMNS
            gl.store(entry + TRACE_END_NS, now_ns(sync.INTERPRET))
            gl.store(entry + TRACE_PLACE, gl.program_id(0).to(gl.int64) * 4294967296 + cuda.smid())
        position, run = receive(tickets, taken)


@gluon.jit
def _first_math(sync, items, tickets, bodies: gl.constexpr, arguments, ring):
    _math(sync, items, tickets, bodies, arguments, ring, 0)


@gluon.jit
def _second_math(sync, items, tickets, bodies: gl.constexpr, arguments, ring):
    _math(sync, items, tickets, bodies, arguments, ring, 1)


@gluon.jit
def hopper_kernel(
    sync,
    items,
    bodies: gl.constexpr,
    arguments,
    x0, w0, g0, x1, w1, g1, x2, w2, g2, x3, w3, g3,
    STAGES: gl.constexpr,
    INDEPENDENT_ROWS: gl.constexpr,
    DEPENDENT_ROWS: gl.constexpr,
    DEPENDENT: gl.constexpr,
    MATH_REGISTERS: gl.constexpr,
    LOAD_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Walk ``items`` items of a plan; see the module. ``x``: each op's dependent operand; ``w``, ``g``: independent."""
    operands = ((x0, w0, g0), (x1, w1, g1), (x2, w2, g2), (x3, w3, g3))
    independent = gl.allocate_shared_memory(w0.dtype, [STAGES, INDEPENDENT_ROWS, PANEL], w0.layout)
    dependent = gl.allocate_shared_memory(x0.dtype, [STAGES, DEPENDENT_ROWS, PANEL], x0.layout)
    words = gl.allocate_shared_memory(gl.int32, [_TICKETS, 2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    independent_full, dependent_full, empty = make_barriers(STAGES, (1, 1, sync.SHARES))
    sent, received = make_barriers(_TICKETS, (1, sync.SHARES + 1))
    ring = Ring(independent, dependent, independent_full, dependent_full, empty)
    tickets = Mailbox(words, sent, received)
    fence_async_shared()
    BODIES: gl.constexpr = bodies
    if sync.SHARES == 1:
        gl.warp_specialize(
            [
                (_first_math, (sync, items, tickets, BODIES, arguments, ring)),
                (_independent_loads, (sync, items, tickets, BODIES, operands, arguments, ring, DEPENDENT)),
                (_dependent_loads, (sync, items, tickets, BODIES, operands, arguments, ring, DEPENDENT)),
            ],
            [1, 1],
            [LOAD_REGISTERS, LOAD_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (_first_math, (sync, items, tickets, BODIES, arguments, ring)),
                (_second_math, (sync, items, tickets, BODIES, arguments, ring)),
                (_independent_loads, (sync, items, tickets, BODIES, operands, arguments, ring, DEPENDENT)),
                (_dependent_loads, (sync, items, tickets, BODIES, operands, arguments, ring, DEPENDENT)),
            ],
            [4, 1, 1],
            [MATH_REGISTERS, LOAD_REGISTERS, LOAD_REGISTERS],
        )

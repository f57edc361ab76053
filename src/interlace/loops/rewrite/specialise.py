"""The warp-specialised form: one warpgroup loads, the others compute, and each stage has two barriers.

    loader                                   consumer
    for each step:                           for each step:
      wait empty{slot}, parity of the          wait full{slot}, parity of this round
        round before (passes in round 0)       body
      expect bytes on full{slot}, load         arrive empty{slot}: one thread of each warp

Both execute the same loops and number the steps alike, so that slots and parities agree. Registers move from the loader
to the consumers (setmaxnreg): each thread of a 384-thread block begins with 168. With two consumer warpgroups and 40
registers per loading thread, 232 remain per consumer thread.
"""

from __future__ import annotations

from dataclasses import replace

from interlace.core.errors import PipelineError, ScopeError
from interlace.kernels.cuda.ptx import count_entry_registers
from interlace.loops.ir.statements import (
    ROLE_REGISTERS,
    WARPGROUP,
    Block,
    For,
    Load,
    LoopKernel,
    LoopKind,
    Role,
    RoleKind,
    Section,
    Stmt,
)
from interlace.loops.rewrite.body import Rings, close_barriers, define_before, define_inside, open_barriers


def specialise(kernel: LoopKernel, rings: Rings) -> LoopKernel:
    """Split ``kernel`` into loader and consumer roles.

    Raises:
        PipelineError: no circular buffer, or threads that are not whole warpgroups or leave none for the loader.
        ScopeError: a circular buffer whose steps cannot be numbered from the start of the block.
    """
    groups = kernel.threads // WARPGROUP
    if kernel.threads % WARPGROUP or groups > 7:
        raise PipelineError(
            f"kernel {kernel.name!r} has {kernel.threads} threads; warp specialisation takes a multiple of "
            f"{WARPGROUP} up to {7 * WARPGROUP}"
        )
    if not rings.by_tensor:
        raise PipelineError(f"kernel {kernel.name!r} has no circular buffer, so nothing for a loader to do; mark one")
    return replace(
        kernel, rings=(), loader_threads=WARPGROUP, body=_specialise_body(kernel, rings, kernel.body, groups)
    )


def _specialise_body(kernel: LoopKernel, rings: Rings, body: tuple[Stmt, ...], groups: int) -> tuple[Stmt, ...]:
    if len(body) == 1 and isinstance(body[0], For) and body[0].kind is LoopKind.BLOCK:
        return (replace(body[0], body=_specialise_body(kernel, rings, body[0].body, groups)),)
    every = rings.find_within(body)
    for b in every:
        if b.nest.root not in body:
            raise ScopeError(
                f"circular buffer {b.ring.tensor!r}: loop {b.nest.root.var!r} stands under a condition or in a loop "
                "on which its extent depends, so the loader cannot number its steps; leave warp_specialised out"
            )
    loader_registers = 40 if groups <= 2 else 24
    at_entry = count_entry_registers((groups + 1) * WARPGROUP) * (groups + 1)
    per_group = (at_entry - loader_registers) // groups
    consumer_registers = min(ROLE_REGISTERS, per_group // 8 * 8)
    return (
        *define_before(every),
        Section("barriers", open_barriers(every, WARPGROUP, kernel.threads)),
        Role(
            RoleKind.LOADER,
            kernel.threads,
            WARPGROUP,
            loader_registers,
            _extract_loads(rings, body),
        ),
        Role(RoleKind.CONSUMER, 0, kernel.threads, consumer_registers, _extract_uses(rings, body)),
        Section("end", close_barriers(every, empty=True)),
    )


def _extract_loads(rings: Rings, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Return the loader's part: circular loads and the loops around them."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For) and rings.find_within(stmt.body):
            names = define_inside(rings.find_directly_in(stmt))
            out.append(replace(stmt, body=(*names, *_extract_loads(rings, stmt.body))))
        elif isinstance(stmt, Load) and stmt.dst.tensor in rings.by_tensor:
            b = rings.by_tensor[stmt.dst.tensor]
            flat = b.nest.flat
            out += (b.wait_empty(flat), *b.issue(flat))
    return tuple(out)


def _extract_uses(rings: Rings, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Return the consumers' part: circular loads become waits, with a release at the end of a step; the rest stays."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For) and stmt.kind is LoopKind.THREAD:
            out += rings.rewrite_statement(stmt)
        elif isinstance(stmt, For):
            here = rings.find_directly_in(stmt)
            release = tuple(b.release(b.nest.flat) for b in here)
            out.append(replace(stmt, body=(*define_inside(here), *_extract_uses(rings, stmt.body), *release)))
        elif isinstance(stmt, Block):
            out.append(replace(stmt, body=_extract_uses(rings, stmt.body)))
        else:
            out += rings.rewrite_statement(stmt)
    return tuple(out)

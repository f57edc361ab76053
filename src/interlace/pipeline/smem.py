"""Shared memory: who lives when, and where each tile and barrier lies in the one dynamic allocation.

A tile lives from its first write to its last read; a barrier from its initialisation to its invalidation. What lives
across the start of a loop lives to its end. What is written part by part, under a condition, or in a loop that may
have no steps, goes on from what was there, so it lives through all loops around. Tiles that do not live together may
share their bytes: the rewrite puts a barrier of all threads before the first write of each. Loader and consumers run
at once, so what both touch lives as long as both do.

Worked example, two rings of 4 and 2 stages of 16 KiB, one loop after the other, and 48 bytes of barriers:

    a_s   bytes 0 .. 65535        first loop
    b_s   bytes 0 .. 32767        second loop, when a_s is dead
    barriers from byte 65536

Offsets are multiples of 128 bytes (TMA), of eight rows where rows are swizzled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from interlace.core.devices import DeviceSpec
from interlace.core.errors import SharedMemoryError
from interlace.pipeline.index import Const
from interlace.pipeline.ir import (
    AllocBarrier,
    Block,
    ElectOne,
    For,
    InitBarrier,
    Invalidate,
    Kernel,
    LoopKind,
    Memory,
    Role,
    RoleKind,
    Section,
    Stmt,
    Tensor,
)
from interlace.pipeline.nest import Site, sites
from interlace.pipeline.traverse import read, walk, written

#: Alignment of tiles, and bytes of an mbarrier.
TILE_ALIGN_BYTES = 128
BARRIER_BYTES = 8


@dataclass(frozen=True)
class Placed:
    """A tile or an array of barriers: bytes ``offset_bytes .. offset_bytes + size_bytes - 1``.

    Attributes:
        slots, slot_bytes: how many equal parts it has, and the distance between them.
        first, last: the statements, numbered in program order, between which it lives.
    """

    name: str
    offset_bytes: int
    slots: int
    slot_bytes: int
    first: int
    last: int

    @property
    def size_bytes(self) -> int:
        """All slots."""
        return self.slots * self.slot_bytes

    def __str__(self) -> str:
        return f"{self.name} {self.slots} x {self.slot_bytes} = {self.size_bytes} bytes"


@dataclass(frozen=True)
class SharedLayout:
    """The one allocation of a block: ``total_bytes``, its base a multiple of ``align_bytes``."""

    placed: tuple[Placed, ...]
    total_bytes: int
    align_bytes: int

    def of(self, name: str) -> Placed:
        """Where the tile or barrier array called ``name`` lies."""
        return next(p for p in self.placed if p.name == name)

    def __str__(self) -> str:
        lines = [
            f"{p.offset_bytes:>7} .. {p.offset_bytes + p.size_bytes - 1:<7} {p}, lives {p.first} .. {p.last}"
            for p in sorted(self.placed, key=lambda p: (p.offset_bytes, p.first))
        ]
        return "\n".join([*lines, f"{self.total_bytes} bytes, base aligned to {self.align_bytes}"]) + "\n"


def lay_out(kernel: Kernel, device: DeviceSpec, *, scratch_bytes: int = 0) -> SharedLayout:
    """Places the tiles and barriers of a rewritten kernel, and ``scratch_bytes`` that always live, called ``scratch``.

    Raises:
        SharedMemoryError: more than a block of ``device`` may use; lists all bytes and the depth that would fit.
    """
    layout = _place(kernel, scratch_bytes)
    if layout.total_bytes <= device.smem_bytes:
        return layout
    depth = max((t.stages or 1 for t in kernel.tensors), default=1)
    sizes = ((d, _place(_capped(kernel, d), scratch_bytes).total_bytes) for d in range(depth - 1, 0, -1))
    fits = next((d for d, total_bytes in sizes if total_bytes <= device.smem_bytes), None)
    advice = f"{fits} stages would fit" if fits else "not even one stage would fit; make the tiles smaller"
    raise SharedMemoryError(
        f"kernel {kernel.name!r} needs {layout.total_bytes} bytes of shared memory, a block on {device.name} has "
        f"{device.smem_bytes}: {', '.join(map(str, layout.placed))}; {advice}"
    )


def _capped(kernel: Kernel, depth: int) -> Kernel:
    """``kernel`` with no ring deeper than ``depth``; only its sizes mean anything."""
    tensors = (replace(t, stages=None if t.stages is None else min(t.stages, depth)) for t in kernel.tensors)
    return replace(kernel, tensors=tuple(tensors))


def _place(kernel: Kernel, scratch_bytes: int) -> SharedLayout:
    lives = _lifetimes(kernel)
    tiles = [t for t in kernel.tensors if t.memory is Memory.SHARED and t.name in lives]
    align_bytes = max((_align(t) for t in tiles), default=TILE_ALIGN_BYTES)
    placed: list[Placed] = []
    # Large ones first; every size is a multiple of its alignment, so gaps stay usable.
    for tile in sorted(tiles, key=lambda t: (-(t.stages or 1) * t.tile_bytes, t.name)):
        slot_bytes = -(-tile.tile_bytes // _align(tile)) * _align(tile)
        placed.append(_fit(Placed(tile.name, 0, tile.stages or 1, slot_bytes, *lives[tile.name]), placed, _align(tile)))
    barriers: list[Placed] = []
    base = max((p.offset_bytes + p.size_bytes for p in placed), default=0)
    for stmt in dict.fromkeys(s for s in walk(kernel.body) if isinstance(s, AllocBarrier)):
        stages = kernel.tensor(stmt.tensor).stages or 1
        array = Placed(stmt.name, base, stages, BARRIER_BYTES, *lives[stmt.name])
        barriers.append(_fit(array, barriers, BARRIER_BYTES))
    end = max((p.offset_bytes + p.size_bytes for p in barriers), default=base)
    if scratch_bytes:
        end = -(-end // TILE_ALIGN_BYTES) * TILE_ALIGN_BYTES
        placed.append(Placed("scratch", end, 1, scratch_bytes, 0, sum(1 for _ in walk(kernel.body))))
        end += scratch_bytes
    return SharedLayout((*placed, *barriers), end, align_bytes)


def _align(tile: Tensor) -> int:
    return max(TILE_ALIGN_BYTES, 8 * tile.swizzle_bytes)


def _fit(new: Placed, placed: list[Placed], align_bytes: int) -> Placed:
    """``new`` at the lowest offset, from its own up, where nothing lies that lives with it."""
    living = [p for p in placed if p.first <= new.last and new.first <= p.last]
    ends = (p.offset_bytes + p.size_bytes for p in living)
    starts = sorted({new.offset_bytes, *(-(-end // align_bytes) * align_bytes for end in ends)})
    for offset in starts:
        free = all(
            offset >= p.offset_bytes + p.size_bytes or offset + new.size_bytes <= p.offset_bytes for p in living
        )
        if free:
            return replace(new, offset_bytes=offset)
    raise AssertionError("the end of everything is free")


@dataclass(frozen=True)
class _Touch:
    """A statement that reads or writes a tile, or begins or ends a barrier.

    Attributes:
        whole: it writes all of the tile.
        fresh: a barrier, or of a ring, whose steps are loaded before they are read wherever the loads stand.
    """

    site: Site
    whole: bool
    fresh: bool

    def begins_in(self, loop: For) -> bool:
        """Whether nothing that an iteration of ``loop``, which is around, left there matters in the next."""
        inside = self.site.around[self.site.around.index(loop) + 1 :]
        return self.fresh or (self.whole and all(map(_surely_runs, inside)))


def _surely_runs(block: Stmt) -> bool:
    if isinstance(block, For):
        start, stop = block.start, block.stop
        return isinstance(start, Const) and isinstance(stop, Const) and start.value < stop.value
    return isinstance(block, ElectOne | Role | Section)


def _lifetimes(kernel: Kernel) -> dict[str, tuple[int, int]]:
    shared = {t.name: t for t in kernel.tensors if t.memory is Memory.SHARED}
    touches: dict[str, list[_Touch]] = {}
    ends: dict[int, int] = {}
    every = tuple(sites(kernel.body))
    for site in every:
        ends[site.place] = site.place + (sum(1 for _ in walk(site.stmt.body)) if isinstance(site.stmt, Block) else 0)
        stmt, target = site.stmt, written(site.stmt)
        if isinstance(stmt, InitBarrier | Invalidate):
            touches.setdefault(stmt.name, []).append(_Touch(site, whole=True, fresh=True))
        for box in read(stmt):
            if box.tensor in shared:
                touches.setdefault(box.tensor, []).append(_Touch(site, whole=False, fresh=False))
        if target is not None and target.tensor in shared:
            tile = shared[target.tensor]
            touch = _Touch(site, whole=target.shape == tile.tile, fresh=tile.stages is not None)
            touches.setdefault(target.tensor, []).append(touch)
    roles = [site for site in every if isinstance(site.stmt, Role)]
    loops = [site for site in every if isinstance(site.stmt, For) and site.stmt.kind is not LoopKind.BLOCK]
    return {name: _life(where, loops, roles, ends) for name, where in touches.items()}


def _life(
    touches: list[_Touch], loops: list[Site], roles: list[Site], ends: dict[int, int]
) -> tuple[int, int]:
    first, last = touches[0].site.place, touches[-1].site.place
    loading = [r for r in roles if isinstance(r.stmt, Role) and r.stmt.kind is RoleKind.LOADER]
    if any(r.place < touch.site.place <= ends[r.place] for r in loading for touch in touches):
        first, last = min(first, roles[0].place), max(last, ends[roles[-1].place])
    for loop in reversed(loops):  # inner before outer
        holds_first, holds_last = (loop.place < place <= ends[loop.place] for place in (first, last))
        if holds_last and not holds_first:
            last = ends[loop.place]
        elif holds_first and isinstance(loop.stmt, For) and not touches[0].begins_in(loop.stmt):
            first, last = loop.place, max(last, ends[loop.place])
    return first, last

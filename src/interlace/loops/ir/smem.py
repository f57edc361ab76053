"""Shared-memory allocation: lifetimes of tiles and barriers, and their offsets in the one dynamic allocation.

Tiles and barriers whose lifetimes do not overlap may share bytes. Between the last use of bytes by one tile and the
first use by another, three things happen: all threads synchronise, copies land and are read, and ordinary writes are
fenced from bulk copies (proxy fence). The lifetimes that ensure this:

- A barrier lives from its initialisation to its invalidation.
- A ring lives as long as its barriers, whatever its prefetch distance. Its steps are issued where no thread waits for
  another, while a step still works on other tiles. The rewrite opens and closes its barriers with a sync. The first
  issue comes after the opening sync; the last wait, read and deferred TMA store come before the closing sync.
- Any other tile lives from its first write to its last read; the rewrite puts a sync before each of its writes. A
  tile that is live across the start of a loop lives to the loop's end. A tile that is written part by part, under a
  condition, or in a loop that may have no steps keeps earlier contents, so it lives through all enclosing loops.

A ring of one stage could lend its bytes to other tiles of its loop between uses, but only with a sync at every step.
A tile that is not marked as a ring does so.

Worked example, two rings of 4 and 2 stages of 16 KiB, one loop after the other, and 48 bytes of barriers:

    a_s   bytes 0 .. 65535        first loop
    b_s   bytes 0 .. 32767        second loop, when a_s is dead
    barriers from byte 65536

Offsets are multiples of 128 bytes (TMA), or of eight rows where rows are swizzled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from interlace.core.devices import DEFAULT_GPU, DeviceSpec
from interlace.core.errors import SharedMemoryError
from interlace.loops.ir.index import Const
from interlace.loops.ir.nest import Site, walk_sites
from interlace.loops.ir.statements import (
    AllocBarrier,
    ElectOne,
    For,
    InitBarrier,
    Invalidate,
    LoopKernel,
    LoopKind,
    LoopTensor,
    MemorySpace,
    Role,
    Section,
    Stmt,
)
from interlace.loops.ir.traverse import find_read_boxes, find_written_box, walk

#: Alignment of tiles, and bytes of an mbarrier.
TILE_ALIGN_BYTES = 128
BARRIER_BYTES = 8
#: Shared memory of a block, in bytes, on the GPU that kernels target by default.
BLOCK_BYTES = DEFAULT_GPU.smem_bytes
#: Name of the bytes through which threads of a block exchange data that no tile holds; no tile has this name.
SCRATCH = "(scratch)"


@dataclass(frozen=True)
class Placement:
    """A tile or an array of barriers: bytes ``offset_bytes .. offset_bytes + size_bytes - 1``.

    Attributes:
        slots, slot_bytes: number of equal parts, and the distance between them in bytes.
        first, last: first and last statement of the lifetime, numbered in program order.
    """

    name: str
    offset_bytes: int
    slots: int
    slot_bytes: int
    first: int
    last: int

    @property
    def size_bytes(self) -> int:
        """Size of all slots in bytes."""
        return self.slots * self.slot_bytes

    def __str__(self) -> str:
        return f"{self.name} {self.slots} x {self.slot_bytes} = {self.size_bytes} bytes"


@dataclass(frozen=True)
class SharedLayout:
    """The one shared-memory allocation of a block: ``total_bytes``, its base a multiple of ``align_bytes``."""

    placements: tuple[Placement, ...]
    total_bytes: int
    align_bytes: int

    def find_placement(self, name: str) -> Placement:
        """Return the placement of the tile or barrier array called ``name``."""
        return next(p for p in self.placements if p.name == name)

    def __str__(self) -> str:
        lines = [
            f"{p.offset_bytes:>7} .. {p.offset_bytes + p.size_bytes - 1:<7} {p}, lives {p.first} .. {p.last}"
            for p in sorted(self.placements, key=lambda p: (p.offset_bytes, p.first))
        ]
        return "\n".join([*lines, f"{self.total_bytes} bytes, base aligned to {self.align_bytes}"]) + "\n"


def lay_out(kernel: LoopKernel, device: DeviceSpec, *, scratch_bytes: int = 0) -> SharedLayout:
    """Place the tiles and barriers of a rewritten kernel, and ``scratch_bytes`` that are always live (``SCRATCH``).

    Raises:
        SharedMemoryError: more than a block of ``device`` may use; lists all bytes and the depth that would fit.
    """
    lives = _find_lifetimes(kernel)
    layout = _place(kernel, lives, scratch_bytes)
    if layout.total_bytes <= device.smem_bytes:
        return layout
    depth = max((t.stages or 1 for t in kernel.tensors), default=1)
    sizes = ((d, _place(_cap_rings(kernel, d), lives, scratch_bytes).total_bytes) for d in range(depth - 1, 0, -1))
    fits = next((d for d, total_bytes in sizes if total_bytes <= device.smem_bytes), None)
    advice = f"{fits} stages would fit" if fits else "not even one stage would fit; make the tiles smaller"
    raise SharedMemoryError(
        f"kernel {kernel.name!r} needs {layout.total_bytes} bytes of shared memory, a block on {device.name} has "
        f"{device.smem_bytes}: {', '.join(map(str, layout.placements))}; {advice}"
    )


def place(kernel: LoopKernel) -> SharedLayout:
    """Place the tiles and barriers of a rewritten kernel, even if a block may not use so many bytes."""
    return _place(kernel, _find_lifetimes(kernel), 0)


def _cap_rings(kernel: LoopKernel, depth: int) -> LoopKernel:
    """Return ``kernel`` with no ring deeper than ``depth``; only the sizes of the result are meaningful."""
    tensors = (replace(t, stages=None if t.stages is None else min(t.stages, depth)) for t in kernel.tensors)
    return replace(kernel, tensors=tuple(tensors))


def find_max_stages(tile: LoopTensor) -> int:
    """Return the stages of the deepest ring of ``tile`` that fits in a block with one barrier each and nothing else."""
    return BLOCK_BYTES // (compute_slot_bytes(tile) + BARRIER_BYTES)


def _place(kernel: LoopKernel, lives: Mapping[str, tuple[int, int]], scratch_bytes: int) -> SharedLayout:
    tiles = [t for t in kernel.tensors if t.memory is MemorySpace.SHARED and t.name in lives]
    align_bytes = max((find_tile_align_bytes(t) for t in tiles), default=TILE_ALIGN_BYTES)
    placed: list[Placement] = []
    # Largest first; every size is a multiple of its alignment, so gaps stay usable.
    for tile in sorted(tiles, key=lambda t: (-(t.stages or 1) * t.tile_bytes, t.name)):
        new = Placement(tile.name, 0, tile.stages or 1, compute_slot_bytes(tile), *lives[tile.name])
        placed.append(_fit(new, placed, find_tile_align_bytes(tile)))
    barriers: list[Placement] = []
    base = max((p.offset_bytes + p.size_bytes for p in placed), default=0)
    for stmt in dict.fromkeys(s for s in walk(kernel.body) if isinstance(s, AllocBarrier)):
        stages = kernel.find_tensor(stmt.tensor).stages or 1
        array = Placement(stmt.name, base, stages, BARRIER_BYTES, *lives[stmt.name])
        barriers.append(_fit(array, barriers, BARRIER_BYTES))
    end = max((p.offset_bytes + p.size_bytes for p in barriers), default=base)
    if scratch_bytes:
        end = -(-end // TILE_ALIGN_BYTES) * TILE_ALIGN_BYTES
        placed.append(Placement(SCRATCH, end, 1, scratch_bytes, 0, sum(1 for _ in walk(kernel.body))))
        end += scratch_bytes
    return SharedLayout((*placed, *barriers), end, align_bytes)


def find_tile_align_bytes(tile: LoopTensor) -> int:
    """Return the alignment of a tile's offset in shared memory, in bytes."""
    return max(TILE_ALIGN_BYTES, 8 * tile.swizzle_bytes)


def compute_slot_bytes(tile: LoopTensor) -> int:
    """Return the distance from one slot of a tile to the next, in bytes."""
    return -(-tile.tile_bytes // find_tile_align_bytes(tile)) * find_tile_align_bytes(tile)


def _fit(new: Placement, placed: list[Placement], align_bytes: int) -> Placement:
    """Place ``new`` at the lowest offset, not below its own, where it overlaps nothing with an overlapping lifetime."""
    living = [p for p in placed if p.first <= new.last and new.first <= p.last]
    ends = (p.offset_bytes + p.size_bytes for p in living)
    starts = sorted({new.offset_bytes, *(-(-end // align_bytes) * align_bytes for end in ends)})
    for offset in starts:
        free = all(offset >= p.offset_bytes + p.size_bytes or offset + new.size_bytes <= p.offset_bytes for p in living)
        if free:
            return replace(new, offset_bytes=offset)
    raise AssertionError("the end of everything is free")


@dataclass(frozen=True)
class _Touch:
    """A statement that reads a tile, or writes it either completely (``is_whole``) or in part."""

    site: Site
    is_whole: bool

    def is_fresh_in(self, loop: For) -> bool:
        """Return True if an iteration of the enclosing ``loop`` uses no tile contents from an earlier iteration."""
        inside = self.site.enclosing[self.site.enclosing.index(loop) + 1 :]
        return self.is_whole and all(map(_is_always_run, inside))


def _is_always_run(block: Stmt) -> bool:
    if isinstance(block, For):
        start, stop = block.start, block.stop
        return isinstance(start, Const) and isinstance(stop, Const) and start.value < stop.value
    return isinstance(block, ElectOne | Role | Section)


def _find_lifetimes(kernel: LoopKernel) -> dict[str, tuple[int, int]]:
    every = tuple(walk_sites(kernel.body))
    lives: dict[str, tuple[int, int]] = {}
    for site in every:
        if isinstance(site.stmt, InitBarrier | Invalidate):
            first, _ = lives.get(site.stmt.name, (site.position, site.position))
            lives[site.stmt.name] = first, site.position
    tiles = {t.name: t for t in kernel.tensors if t.memory is MemorySpace.SHARED}
    for site in every:
        if isinstance(site.stmt, AllocBarrier) and tiles[site.stmt.tensor].stages is not None:
            first, last = lives[site.stmt.name]
            others_first, others_last = lives.get(site.stmt.tensor, (first, last))
            lives[site.stmt.tensor] = min(first, others_first), max(last, others_last)
    touches: dict[str, list[_Touch]] = {name: [] for name in tiles if name not in lives}
    for site in every:
        target = find_written_box(site.stmt)
        if target is not None and target.tensor in touches:
            touches[target.tensor].append(_Touch(site, is_whole=target.shape == tiles[target.tensor].tile))
        for box in find_read_boxes(site.stmt):
            if box.tensor in touches:
                touches[box.tensor].append(_Touch(site, is_whole=False))
    loops = [
        (site.stmt, site.position, site.position + sum(1 for _ in walk(site.stmt.body)))
        for site in every
        if isinstance(site.stmt, For) and site.stmt.kind is not LoopKind.BLOCK
    ]
    return lives | {name: _find_life(where, loops) for name, where in touches.items() if where}


def _find_life(touches: list[_Touch], loops: list[tuple[For, int, int]]) -> tuple[int, int]:
    first, last = touches[0].site.position, touches[-1].site.position
    for loop, start, end in reversed(loops):  # inner before outer
        holds_first, holds_last = (start < place <= end for place in (first, last))
        if holds_last and not holds_first:
            last = end
        elif holds_first and not touches[0].is_fresh_in(loop):
            first, last = start, max(last, end)
    return first, last

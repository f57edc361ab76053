"""How the elements of a tile are spread over threads.

Pointwise tiles are seen as rows x columns (all dimensions but the last, and the last). A thread holds ``vector``
neighbours of a row at a time. ``threads_per_row`` threads stand beside each other along a row, ``thread_rows`` groups
of them below each other. Worked example, 8 x 256 fp32 over 128 threads: 4 neighbours, 32 across, 4 down. Thread 37
stands at place 5 of group 1 and holds, of rows 1 and 5, columns 20 .. 23 and 148 .. 151: 16 elements, ``rows_per_thread
= 2`` by ``vectors_per_thread = 2`` vectors. What a reduction of the tile along its rows leaves, 8 x 1, each thread
keeps for its own two rows.

Sums of a matrix product lie as wgmma leaves them: a warpgroup has 64 rows, a warp 16 of these, and a thread two
neighbours in every 8 columns of two rows that lie 8 apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from interlace.core.errors import PipelineError
from interlace.loops.ir.statements import (
    WARP,
    WARPGROUP,
    Load,
    LoopKernel,
    Matmul,
    MemorySpace,
    Pointwise,
    Reduce,
    Stmt,
    Store,
)
from interlace.loops.ir.traverse import find_read_boxes, list_value_boxes, walk


@dataclass(frozen=True)
class BlockedLayout:
    """Rows and columns of a tile over ``threads`` threads.

    Attributes:
        shape: of the whole tile, whose projections (extent 1 in place of all rows or of the columns) lie alike.
        vector: neighbours that a thread holds together.
    """

    shape: tuple[int, ...]
    threads: int
    vector: int

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def vectors_per_row(self) -> int:
        """Of one row."""
        return self.columns // self.vector

    @property
    def threads_per_row(self) -> int:
        """Threads along a row: a warp at most while there are rows for all, so that rows are reduced by shuffles."""
        most = self.threads & -self.threads
        across = 1
        while across < min(most, self.vectors_per_row) and (across < WARP or self.threads // across > self.rows):
            across *= 2
        return across

    @property
    def thread_rows(self) -> int:
        """Groups of threads below each other."""
        return self.threads // self.threads_per_row

    @property
    def rows_per_thread(self) -> int:
        """Rows that one thread holds."""
        return -(-self.rows // self.thread_rows)

    @property
    def vectors_per_thread(self) -> int:
        """Vectors of a row that one thread holds."""
        return -(-self.vectors_per_row // self.threads_per_row)

    def has_axes(self, shape: tuple[int, ...]) -> tuple[bool, bool]:
        """Whether a tile of ``shape`` has the rows of this one (else one row), and its columns (else one).

        Raises:
            PipelineError: it has some dimensions of the rows and not others.
        """
        padded = (1,) * (len(self.shape) - len(shape)) + shape
        lead, whole = padded[:-1], self.shape[:-1]
        if lead != whole and prod(lead) != 1:
            raise PipelineError(
                f"a tile of {shape} beside one of {self.shape}: registers keep all dimensions before the last, or none"
            )
        return lead == whole and self.rows > 1, padded[-1] == self.columns and self.columns > 1

    def count_registers(self, shape: tuple[int, ...]) -> int:
        """Registers of each thread for a tile of ``shape``."""
        rows, columns = self.has_axes(shape)
        return (self.rows_per_thread if rows else 1) * (self.vectors_per_thread * self.vector if columns else 1)


@dataclass(frozen=True)
class Fragment:
    """The sums of a matrix product, ``shape[0]`` rows over the warpgroups of ``threads``."""

    shape: tuple[int, ...]
    threads: int

    @property
    def blocks(self) -> int:
        """Blocks of 64 rows of each warpgroup."""
        return self.shape[0] // (64 * (self.threads // WARPGROUP))

    def count_registers(self, shape: tuple[int, ...]) -> int:
        """Registers of each thread for all of them, of ``shape``."""
        return self.blocks * shape[1] // 2


def select_vector(columns: int, itemsize: int) -> int:
    """Neighbours that fill 16 bytes, or fewer where rows are no multiple of that."""
    vector = 16 // itemsize
    while columns % vector:
        vector //= 2
    return vector


def lay_out_registers(kernel: LoopKernel, itemsize: int) -> dict[str, BlockedLayout | Fragment]:
    """How each register tile lies: those that meet in a statement lie alike.

    Raises:
        PipelineError: tiles meet in shapes that no spread has both, or a matmul's rows do not fit its warpgroups.
    """
    registers = {t.name: t for t in kernel.tensors if t.memory is MemorySpace.REGISTER}
    shapes = {name: t.tile for name, t in registers.items()}
    groups = {name: {name} for name in registers}
    sums = {s.acc.tensor for s in walk(kernel.body) if isinstance(s, Matmul)}
    for stmt in walk(kernel.body):
        used = [n for n in dict.fromkeys(_list_tiles(stmt)) if n in registers]
        if not used:
            continue
        first = groups[used[0]]
        for name in used[1:]:
            if groups[name] is not first:
                first |= groups[name]
                for other in groups[name]:
                    groups[other] = first
        joined = _join_shapes((_find_shape(stmt), *(shapes[n] for n in first)), used[0])
        shapes |= dict.fromkeys(first, joined)
    out: dict[str, BlockedLayout | Fragment] = {}
    for name, tensor in registers.items():
        if not groups[name] & sums:
            shape = shapes[name]
            out[name] = BlockedLayout(shape, kernel.threads, select_vector(shape[-1], itemsize))
            continue
        if tensor.tile != shapes[name]:
            raise PipelineError(f"register tile {name!r} of {tensor.tile} meets sums of a matmul; give it their shape")
        if kernel.threads % WARPGROUP or tensor.tile[0] % (64 * (kernel.threads // WARPGROUP)):
            raise PipelineError(
                f"matmul into {name!r}: {tensor.tile[0]} rows over {kernel.threads} threads; "
                f"use 64 rows, or a multiple, for each {WARPGROUP} threads"
            )
        out[name] = Fragment(tensor.tile, kernel.threads)
    return out


def _list_tiles(stmt: Stmt) -> Iterable[str]:
    match stmt:
        case Pointwise():
            return (stmt.dst.tensor, *(b.tensor for b in list_value_boxes(stmt.value)))
        case Reduce():
            return (stmt.dst.tensor, *(b.tensor for b in list_value_boxes(stmt.value)))
        case Load():
            return (stmt.dst.tensor,)
        case Store():
            return (stmt.src.tensor,)
        case Matmul():
            return (stmt.acc.tensor,)
    return tuple(b.tensor for b in find_read_boxes(stmt))


def _find_shape(stmt: Stmt) -> tuple[int, ...]:
    """The tile that a statement runs over."""
    match stmt:
        case Reduce():
            return stmt.shape
        case Store():
            return stmt.src.shape
        case Matmul():
            return stmt.acc.shape
        case Pointwise() | Load():
            return stmt.dst.shape
    return ()


def _join_shapes(shapes: tuple[tuple[int, ...], ...], name: str) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    joined = tuple(map(max, zip(*padded, strict=True)))
    if any(n not in (1, most) for s in padded for n, most in zip(s, joined, strict=True)):
        raise PipelineError(f"register tile {name!r} meets tiles of {', '.join(map(str, shapes))}; they do not line up")
    return joined

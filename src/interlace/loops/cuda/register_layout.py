"""Register layouts: how the elements of a tile are distributed over threads.

A blocked layout (Triton's term) views a pointwise tile as rows x columns: all dimensions but the last, and the last.
A thread holds vectors of ``vector`` adjacent elements of a row. ``threads_per_row`` threads cover a row, and
``thread_rows`` such groups of threads cover the rows.

Worked example, 8 x 256 fp32 over 128 threads: vectors of 4 elements, 32 threads across, 4 groups down. Thread 37 is
thread 5 of group 1. It holds columns 20 .. 23 and 148 .. 151 of rows 1 and 5: 16 elements, ``rows_per_thread = 2`` by
``vectors_per_thread = 2`` vectors. A reduction of the tile along its rows produces 8 x 1 values; each thread holds
those of its own two rows.

Accumulators of a matrix product have the fragment layout of wgmma: a warpgroup has 64 rows, each of its warps has 16,
and a thread has two adjacent elements in every 8 columns of two rows that are 8 apart.
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
    """Rows and columns of a tile, distributed over ``threads`` threads.

    Attributes:
        shape: shape of the whole tile. Its projections (extent 1 in place of all rows or the columns) use this layout.
        vector: number of adjacent elements that a thread holds together.
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
        """Number of vectors in a row."""
        return self.columns // self.vector

    @property
    def threads_per_row(self) -> int:
        """Number of threads along a row.

        At most a warp while the rows suffice for all threads, so that shuffles can reduce a row.
        """
        most = self.threads & -self.threads
        across = 1
        while across < min(most, self.vectors_per_row) and (across < WARP or self.threads // across > self.rows):
            across *= 2
        return across

    @property
    def thread_rows(self) -> int:
        """Number of groups of threads, one group per row at a time."""
        return self.threads // self.threads_per_row

    @property
    def rows_per_thread(self) -> int:
        """Number of rows that a thread holds."""
        return -(-self.rows // self.thread_rows)

    @property
    def vectors_per_thread(self) -> int:
        """Number of vectors that a thread holds in each of its rows."""
        return -(-self.vectors_per_row // self.threads_per_row)

    def has_axes(self, shape: tuple[int, ...]) -> tuple[bool, bool]:
        """Return whether a tile of ``shape`` has all rows of this layout (else one), and all columns (else one).

        Raises:
            PipelineError: the tile has some dimensions of the rows but not others.
        """
        padded = (1,) * (len(self.shape) - len(shape)) + shape
        lead, whole = padded[:-1], self.shape[:-1]
        if lead != whole and prod(lead) != 1:
            raise PipelineError(
                f"a tile of {shape} beside one of {self.shape}: registers keep all dimensions before the last, or none"
            )
        return lead == whole and self.rows > 1, padded[-1] == self.columns and self.columns > 1

    def count_registers(self, shape: tuple[int, ...]) -> int:
        """Return the number of registers of each thread for a tile of ``shape``."""
        rows, columns = self.has_axes(shape)
        return (self.rows_per_thread if rows else 1) * (self.vectors_per_thread * self.vector if columns else 1)


@dataclass(frozen=True)
class Fragment:
    """Accumulators of a matrix product: ``shape[0]`` rows, distributed over the warpgroups of ``threads`` threads."""

    shape: tuple[int, ...]
    threads: int

    @property
    def blocks(self) -> int:
        """Number of blocks of 64 rows in each warpgroup."""
        return self.shape[0] // (64 * (self.threads // WARPGROUP))

    def count_registers(self, shape: tuple[int, ...]) -> int:
        """Return the number of registers of each thread for all accumulators of ``shape``."""
        return self.blocks * shape[1] // 2


def select_vector(columns: int, itemsize: int) -> int:
    """Return how many elements fill 16 bytes, halved until rows are a multiple of it."""
    vector = 16 // itemsize
    while columns % vector:
        vector //= 2
    return vector


def lay_out_registers(kernel: LoopKernel, itemsize: int) -> dict[str, BlockedLayout | Fragment]:
    """Choose the layout of each register tile; tiles of one statement share a layout.

    Raises:
        PipelineError: no layout has the shapes of all tiles of a statement, or a matmul's rows do not fit its
            warpgroups.
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
    """Return the shape of the tile that a statement iterates over."""
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

"""Tile statements as CUDA C++: loops over the vectors that a thread holds, clipped at the bounds of tensors.

``y[r : +8, c : +256] = x_s * 2`` over 128 threads becomes, at 4 neighbours to a vector:

    #pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int c0 = u * 4 + down;             row within the tile
    #pragma unroll
      for (int w = 0; w < 2; ++w) {
        const int c1 = (w * 32 + across) * 4;  first of 4 columns
        float v0[4], out[4];
        read_tile<fp32, 4>(v0, ...);           x_s
    #pragma unroll
        for (int j = 0; j < 4; ++j) out[j] = v0[j] * 2.0f;
        write_clipped<fp32, 4>(y_ + ..., out, n_ - column);
      }
    }
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from interlace.core.dtypes import fp32
from interlace.core.errors import PipelineError
from interlace.loops.cuda.combine import NEUTRAL, Partial, combine_groups, combine_neighbours, emit_combine
from interlace.loops.cuda.indices import emit_address, emit_index, emit_row_major, mangle
from interlace.loops.cuda.lines import UNROLL, Lines, ThreadScope
from interlace.loops.cuda.register_layout import BlockedLayout, Fragment, select_vector
from interlace.loops.cuda.values import emit_value
from interlace.loops.ir.index import Const, find_divisor, is_never_negative
from interlace.loops.ir.statements import (
    Copy,
    Load,
    LoopKernel,
    LoopTensor,
    MemorySpace,
    Pointwise,
    Reduce,
    ReduceOp,
    Store,
)
from interlace.loops.ir.traverse import list_value_boxes
from interlace.loops.ir.values import Box, ReadBox, Value


class TileEmitter:
    """Emitter of the tile statements of one kernel, which appends to ``out``."""

    def __init__(
        self,
        kernel: LoopKernel,
        out: Lines,
        registers: Mapping[str, BlockedLayout | Fragment],
        itemsize: int,
        slots: Mapping[str, int],
    ) -> None:
        self.kernel = kernel
        self.out = out
        self.registers = registers
        self.itemsize = itemsize
        self.slot_bytes = slots
        self.scratch_bytes = 0

    def declare(self, tensor: LoopTensor) -> None:
        """Declare the registers of a tile."""
        layout = self.registers[tensor.name]
        if isinstance(layout, Fragment):
            self.out.add_line(f"float {mangle(tensor.name)}[{layout.blocks}][{layout.shape[1] // 2}];")
        else:
            self.out.add_line(f"float {mangle(tensor.name)}[{layout.count_registers(tensor.tile)}];")

    def emit_load(self, stmt: Load, scope: ThreadScope) -> None:
        """Emit a load by plain loads or cp.async, in which every thread of the scope loads its elements."""
        if stmt.by is Copy.CP_ASYNC:
            self._copy_async(stmt, scope)
            return
        self._emit_elementwise(stmt.dst, ReadBox(stmt.src), stmt.dst.shape, scope)

    def emit_store(self, stmt: Store, scope: ThreadScope) -> None:
        """Emit a store by plain stores, which drop elements out of bounds."""
        self._emit_elementwise(stmt.dst, ReadBox(stmt.src), stmt.src.shape, scope)

    def emit_pointwise(self, stmt: Pointwise, scope: ThreadScope) -> None:
        self._emit_elementwise(stmt.dst, stmt.value, stmt.dst.shape, scope)

    def begin(self, partial: Partial) -> None:
        """Start a reduction: initialise the partial of each thread."""
        layout = self._find_reduce_layout(partial.reduce)
        count = layout.count_registers(partial.reduce.dst.shape)
        self.out.add_line(f"float {partial.name}[{count}];")
        self.out.add_line(UNROLL)
        self.out.add_line(f"for (int k = 0; k < {count}; ++k) {partial.name}[k] = {NEUTRAL[partial.reduce.op]};")

    def accumulate(self, partial: Partial, stmt: Reduce, scope: ThreadScope) -> None:
        """Combine the elements of one tile that a thread holds into its partial."""
        layout = self._find_reduce_layout(stmt)
        name = f"{partial.name}[{self._emit_register(layout, stmt.dst.shape)}]"
        combined = f"{name} + {{}}" if stmt.op is ReduceOp.SUM else f"larger({name}, {{}})"
        self._open_loops(layout, stmt.shape, scope, every_thread=False)
        values = self._read_all(stmt.value, stmt.shape, layout)
        self.out.add_line(UNROLL)
        expression = emit_value(stmt.value, stmt.shape, values)
        loop = f"for (int j = 0; j < {self._find_vector(layout, stmt.shape)}; ++j)"
        self.out.add_line(f"{loop} {name} = {combined.format(expression)};")
        self._end_loops()

    def finish(self, partial: Partial, scope: ThreadScope) -> None:
        """Combine the partials of threads into the destination; every thread that holds it gets the result."""
        stmt = partial.reduce
        layout = self._find_reduce_layout(stmt)
        count = layout.count_registers(stmt.dst.shape)
        rows, columns = layout.has_axes(stmt.dst.shape)
        self.out.open()
        if rows or not columns:
            width = layout.threads_per_row if rows else layout.threads
            scratch_bytes = combine_neighbours(self.out, partial, count, width, scope)
            self.scratch_bytes = max(self.scratch_bytes, scratch_bytes)
        elif layout.thread_rows > 1:
            self.scratch_bytes = max(self.scratch_bytes, combine_groups(self.out, partial, count, layout, scope))
        self.out.add_line(UNROLL)
        self.out.open(f"for (int k = 0; k < {count}; ++k)")
        whole = f"{mangle(stmt.dst.tensor)}[k]"
        self.out.add_line(f"{whole} = {emit_combine(stmt.op, whole, f'{partial.name}[k]')};")
        self.out.close()
        self.out.close()

    def _emit_elementwise(self, dst: Box, value: Value, shape: tuple[int, ...], scope: ThreadScope) -> None:
        target = self.kernel.find_tensor(dst.tensor)
        in_registers = target.memory is MemorySpace.REGISTER
        layout = self._find_layout(shape, (dst, *list_value_boxes(value)), scope)
        self._open_loops(layout, shape, scope, every_thread=in_registers)
        values = self._read_all(value, shape, layout)
        expression = emit_value(value, shape, values)
        vector = self._find_vector(layout, shape)
        loop = f"for (int j = 0; j < {vector}; ++j)"
        if in_registers:
            self._check_whole(dst)
            if target.dtype != fp32:
                expression = f"widened(rounded<{target.dtype}>({expression}))"
            self.out.add_line(UNROLL)
            self.out.add_line(f"{loop} {self._emit_element(dst, layout)} = {expression};")
        else:
            self.out.add_line(f"float out[{vector}];")
            self.out.add_line(UNROLL)
            self.out.add_line(f"{loop} out[j] = {expression};")
            if target.memory is MemorySpace.GLOBAL:
                self._emit_access("write_clipped", dst, shape, vector, "out")
            else:
                self._emit_shared_access("write_tile", dst, shape, vector, "out")
        self._end_loops()

    def _find_layout(
        self, shape: tuple[int, ...], boxes: tuple[Box, ...], scope: ThreadScope
    ) -> BlockedLayout | Fragment:
        """Return the layout of a statement's tile: that of its register tiles, else one derived from its shape."""
        for box in boxes:
            if box.tensor in self.registers:
                return self.registers[box.tensor]
        vector = select_vector(shape[-1], self.itemsize)
        for box in boxes:
            tensor = self.kernel.find_tensor(box.tensor)
            if tensor.memory is MemorySpace.SHARED and box.shape[-1] > 1:  # shorter vectors where these are unaligned
                vector = gcd(vector, tensor.tile[-1], find_divisor(box.origin[-1]))
        return BlockedLayout(shape, scope.threads, vector)

    def _find_reduce_layout(self, stmt: Reduce) -> BlockedLayout:
        layout = self.registers[stmt.dst.tensor]
        if isinstance(layout, Fragment):
            raise PipelineError(f"reduction to {stmt.dst.tensor!r} of sums of a matmul; store them first")
        self._check_whole(stmt.dst)
        return layout

    def _check_whole(self, box: Box) -> None:
        if box.shape != self.kernel.find_tensor(box.tensor).tile:
            raise PipelineError(f"register tile {box.tensor!r}: threads hold parts of it; use the whole tile")

    def _find_vector(self, layout: BlockedLayout | Fragment, shape: tuple[int, ...]) -> int:
        if isinstance(layout, Fragment):
            return 2
        return layout.vector if layout.has_axes(shape)[1] else 1

    def _open_loops(
        self, layout: BlockedLayout | Fragment, shape: tuple[int, ...], scope: ThreadScope, *, every_thread: bool
    ) -> None:
        """Open the loops over a thread's vectors.

        Within them, c0, c1, ... are the coordinates of a vector's first element; the last one is its column.

        Args:
            every_thread: True if all threads that hold the same elements run, as registers require.
        """
        out, rank = self.out, len(shape)
        self._opened = out.depth
        out.open()
        if isinstance(layout, Fragment):
            groups = scope.threads // 128
            out.add_line(UNROLL)
            out.open(f"for (int b = 0; b < {layout.blocks}; ++b)")
            out.add_line(UNROLL)
            out.open("for (int h = 0; h < 2; ++h)")
            t = scope.thread
            out.add_line(f"const int c0 = (b * {groups} + {t} / 128) * 64 + {t} / 32 % 4 * 16 + h * 8 + {t} % 32 / 4;")
            out.add_line(UNROLL)
            out.open(f"for (int p = 0; p < {layout.shape[1] // 8}; ++p)")
            out.add_line(f"const int c1 = p * 8 + {t} % 4 * 2;")
            return
        rows, columns = layout.has_axes(shape)
        conditions = []
        alone = scope.threads == 1
        across, down = f"{scope.thread} % {layout.threads_per_row}", f"{scope.thread} / {layout.threads_per_row}"
        row = "0"
        if rows:
            out.add_line(UNROLL)
            out.open(f"for (int u = 0; u < {layout.rows_per_thread}; ++u)")
            row = "u" if alone else f"u * {layout.thread_rows} + {down}" if layout.rows_per_thread > 1 else down
            if layout.rows % layout.thread_rows:
                conditions.append(f"row < {layout.rows}")
        elif layout.thread_rows > 1 and not every_thread:
            conditions.append(f"{down} == 0")
        if columns:
            out.add_line(UNROLL)
            out.open(f"for (int w = 0; w < {layout.vectors_per_thread}; ++w)")
            column = (
                "w"
                if alone
                else f"(w * {layout.threads_per_row} + {across})"
                if layout.vectors_per_thread > 1
                else f"({across})"
            )
            out.add_line(f"const int c{rank - 1} = {column} * {layout.vector};")
            if layout.vectors_per_row % layout.threads_per_row:
                conditions.append(f"c{rank - 1} < {layout.columns}")
        else:
            out.add_line(f"const int c{rank - 1} = 0;")
            if layout.threads_per_row > 1 and not every_thread:
                conditions.append(f"{across} == 0")
        if rank > 1:
            out.add_line(f"const int row = {row};")
        for axis in range(rank - 1):
            below = prod(shape[axis + 1 : -1])
            part = f"row / {below}" if below > 1 else "row"
            if axis:
                part += f" % {shape[axis]}"
            out.add_line(f"const int c{axis} = {part if shape[axis] > 1 else 0};")
        if conditions:
            out.open(f"if ({' && '.join(conditions)})")

    def _end_loops(self) -> None:
        while self.out.depth > self._opened:
            self.out.close()

    def _emit_register(self, layout: BlockedLayout, shape: tuple[int, ...]) -> str:
        """Return the register of element ``j`` of the current vector in a tile of ``shape``."""
        rows, columns = layout.has_axes(shape)
        terms = []
        if rows and layout.rows_per_thread > 1:
            terms.append(f"u * {layout.vectors_per_thread * layout.vector}" if columns else "u")
        if columns:
            terms += [f"w * {layout.vector}"] * (layout.vectors_per_thread > 1) + ["j"]
        return " + ".join(terms) or "0"

    def _emit_element(self, box: Box, layout: BlockedLayout | Fragment) -> str:
        """Return element ``j`` of the current vector of a register tile."""
        if isinstance(layout, Fragment):
            return f"{mangle(box.tensor)}[b][p * 4 + h * 2 + j]"
        return f"{mangle(box.tensor)}[{self._emit_register(layout, box.shape)}]"

    def _read_all(self, value: Value, shape: tuple[int, ...], layout: BlockedLayout | Fragment) -> dict[Box, str]:
        """Read each distinct operand's current vector into a variable."""
        names: dict[Box, str] = {}
        vector = self._find_vector(layout, shape)
        for box in dict.fromkeys(list_value_boxes(value)):
            tensor = self.kernel.find_tensor(box.tensor)
            if tensor.memory is MemorySpace.REGISTER:
                self._check_whole(box)
                names[box] = self._emit_element(box, layout)
                continue
            name = f"v{len(names)}"
            width = vector if box.shape[-1] > 1 else 1
            self.out.add_line(f"float {name}[{width}];")
            if tensor.memory is MemorySpace.GLOBAL:
                self._emit_access("read_clipped", box, shape, width, name)
            else:
                self._emit_shared_access("read_tile", box, shape, width, name)
            names[box] = f"{name}[j]" if width > 1 else f"{name}[0]"
        return names

    def _emit_coordinates(self, box: Box, shape: tuple[int, ...]) -> list[str]:
        """Return the coordinates of the current vector's first element in the tensor."""
        out = []
        for origin, axis in zip(box.origin, match_axes(box, shape), strict=True):
            own = "" if axis is None else f"c{axis}"
            start = emit_index(origin, 1)
            out.append(" + ".join(t for t in (start if start != "0" else "", own) if t) or "0")
        return out

    def _emit_access(self, how: str, box: Box, shape: tuple[int, ...], vector: int, name: str) -> None:
        """Emit a clipped read or write of the current vector in global memory."""
        tensor = self.kernel.find_tensor(box.tensor)
        coordinates = self._emit_coordinates(box, shape)
        outside = []
        offset = emit_row_major(coordinates, [emit_index(n, 2) for n in tensor.shape], wide=True)
        for place, extent, origin in list(zip(coordinates, tensor.shape, box.origin, strict=True))[:-1]:
            outside.append(f"{place} < {emit_index(extent, 1)}")
            if not is_never_negative(origin):
                outside.append(f"{place} >= 0")
        inside = f"{emit_index(tensor.shape[-1], 1)} - ({coordinates[-1]})"
        count = f"{' && '.join(outside)} ? {inside} : 0" if outside else inside
        skip = "" if is_never_negative(box.origin[-1]) else f", -({coordinates[-1]})"
        pointer = emit_address(tensor, offset)
        if how == "read_clipped" and _is_inside(tensor, box, vector):
            self.out.add_line(f"read_tile<{tensor.dtype}, {vector}>({name}, {pointer});")
            return
        first = f"{pointer}, {name}" if how == "write_clipped" else f"{name}, {pointer}"
        self.out.add_line(f"{how}<{tensor.dtype}, {vector}>({first}, {count}{skip});")

    def _emit_shared_access(self, how: str, box: Box, shape: tuple[int, ...], vector: int, name: str) -> None:
        """Emit a read or write of the current vector in shared memory."""
        tensor = self.kernel.find_tensor(box.tensor)
        if tensor.tile[-1] % vector or find_divisor(box.origin[-1]) % vector:
            raise PipelineError(
                f"box of {box.tensor!r} begins at no multiple of {vector} elements of its rows; move or widen it"
            )
        coordinates = self._emit_coordinates(box, shape)
        where = self._emit_slot_offset(tensor, coordinates)
        pointer = f"reinterpret_cast<{tensor.dtype}*>({self.emit_slot(box)} + {where})"
        arguments = f"{pointer}, {name}" if how == "write_tile" else f"{name}, {pointer}"
        self.out.add_line(f"{how}<{tensor.dtype}, {vector}>({arguments});")

    def _emit_slot_offset(self, tensor: LoopTensor, coordinates: list[str]) -> str:
        """Return the byte offset of an element within the slot of a shared tile."""
        where = f"({emit_row_major(coordinates, [str(n) for n in tensor.tile])}) * {tensor.dtype.itemsize}"
        return f"swizzled({where})" if tensor.swizzle_bytes else where

    def emit_slot(self, box: Box) -> str:
        """Return the address of the box's slot in shared memory."""
        if box.slot is None or box.slot == Const(0):
            return mangle(box.tensor)
        return f"{mangle(box.tensor)} + {emit_index(box.slot, 2)} * {self.slot_bytes[box.tensor]}"

    def _copy_async(self, stmt: Load, scope: ThreadScope) -> None:
        source, tile = self.kernel.find_tensor(stmt.src.tensor), self.kernel.find_tensor(stmt.dst.tensor)
        vector = 16 // source.dtype.itemsize
        shape, src = stmt.dst.shape, stmt.src
        self._open_loops(BlockedLayout(shape, scope.threads, vector), shape, scope, every_thread=False)
        coordinates = self._emit_coordinates(src, shape)
        offset = emit_row_major(coordinates, [emit_index(n, 2) for n in source.shape], wide=True)
        inside = []
        for place, extent, origin in zip(coordinates, source.shape, src.origin, strict=True):
            inside.append(f"{place} < {emit_index(extent, 1)}")
            if not is_never_negative(origin):
                inside.append(f"{place} >= 0")
        self.out.add_line(f"const bool inside = {' && '.join(inside)};")
        left = f"min({vector}, {emit_index(source.shape[-1], 1)} - ({coordinates[-1]}))"
        where = self._emit_slot_offset(tile, [f"c{axis}" for axis in range(len(shape))])
        self.out.add_line(
            f"copy_async_16(shared_address({self.emit_slot(stmt.dst)} + {where}), "
            f"{emit_address(source, offset)}, {mangle(source.name)}, inside ? {left} * {source.dtype.itemsize} : 0);"
        )
        self._end_loops()


def _is_inside(tensor: LoopTensor, box: Box, vector: int) -> bool:
    """Return whether no vector of ``box`` needs clipping: its origin and the extents are aligned constants."""
    for origin, extent, n in zip(box.origin, tensor.shape, box.shape, strict=True):
        if not (isinstance(origin, Const) and isinstance(extent, Const) and 0 <= origin.value <= extent.value - n):
            return False
    row = tensor.shape[-1], box.origin[-1]
    whole = all(isinstance(i, Const) and i.value % vector == 0 for i in row)
    return whole and tensor.align_bytes % (vector * tensor.dtype.itemsize) == 0


def match_axes(box: Box, shape: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return the axis of the statement's tile for each dimension of ``box``; None where the extent is 1.

    Operands align at the last dimension. Copies align after extents of 1 are dropped: a tile of 8 x 1 is stored to 8
    elements along its axis 0.

    Raises:
        PipelineError: adjacent elements of the tile are not adjacent in the tensor.
    """
    first = len(shape) - len(box.shape)
    if first >= 0 and all(n in (1, shape[first + d]) for d, n in enumerate(box.shape)):
        return tuple(first + d if n > 1 else None for d, n in enumerate(box.shape))
    long = iter([axis for axis, n in enumerate(shape) if n > 1])
    axes = tuple(next(long) if n > 1 else None for n in box.shape)
    last = len(shape) - 1
    if last in axes and axes[-1] != last:
        raise PipelineError(
            f"box of {box.tensor!r} {box.shape} beside a tile of {shape}: their last dimensions differ; "
            "give the tile the box's shape"
        )
    return axes

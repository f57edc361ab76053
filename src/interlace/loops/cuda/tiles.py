"""Tile statements as CUDA C++: loops over the vectors that a thread holds, clipped where tensors end.

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
from interlace.loops.cuda.combine import NEUTRAL, Partial, combine, combine_groups, combine_neighbours
from interlace.loops.cuda.indices import emit_index
from interlace.loops.cuda.lines import UNROLL, Lines, Scope
from interlace.loops.cuda.names import own
from interlace.loops.cuda.spread import Fragment, Spread, vector_of
from interlace.loops.cuda.values import emit_value
from interlace.loops.ir.index import Const, divisor, never_negative
from interlace.loops.ir.statements import Copy, Load, LoopKernel, Memory, Pointwise, Reduce, ReduceOp, Store, Tensor
from interlace.loops.ir.traverse import value_boxes
from interlace.loops.ir.values import Box, Read, Value


class Tiles:
    """Emits the tile statements of one kernel to ``out``."""

    def __init__(
        self,
        kernel: LoopKernel,
        out: Lines,
        registers: Mapping[str, Spread | Fragment],
        itemsize: int,
        slots: Mapping[str, int],
    ) -> None:
        self.kernel = kernel
        self.out = out
        self.registers = registers
        self.itemsize = itemsize
        self.slot_bytes = slots
        self.scratch_bytes = 0

    def declare(self, tensor: Tensor) -> None:
        """The registers of a tile."""
        layout = self.registers[tensor.name]
        if isinstance(layout, Fragment):
            self.out.add(f"float {own(tensor.name)}[{layout.blocks}][{layout.shape[1] // 2}];")
        else:
            self.out.add(f"float {own(tensor.name)}[{layout.registers(tensor.tile)}];")

    def load(self, stmt: Load, scope: Scope) -> None:
        """By plain loads or cp.async, every thread of the scope its part."""
        if stmt.by is Copy.CP_ASYNC:
            self._copy_async(stmt, scope)
            return
        self._elementwise(stmt.dst, Read(stmt.src), stmt.dst.shape, scope)

    def store(self, stmt: Store, scope: Scope) -> None:
        """By plain stores; what lies past the bounds is dropped."""
        self._elementwise(stmt.dst, Read(stmt.src), stmt.src.shape, scope)

    def pointwise(self, stmt: Pointwise, scope: Scope) -> None:
        self._elementwise(stmt.dst, stmt.value, stmt.dst.shape, scope)

    def begin(self, partial: Partial) -> None:
        """Start a reduction: nothing combined yet."""
        layout = self._layout_of(partial.reduce)
        count = layout.registers(partial.reduce.dst.shape)
        self.out.add(f"float {partial.name}[{count}];")
        self.out.add(UNROLL)
        self.out.add(f"for (int k = 0; k < {count}; ++k) {partial.name}[k] = {NEUTRAL[partial.reduce.op]};")

    def accumulate(self, partial: Partial, stmt: Reduce, scope: Scope) -> None:
        """Combine what a thread holds of one tile."""
        layout = self._layout_of(stmt)
        name = f"{partial.name}[{self._register(layout, stmt.dst.shape)}]"
        combined = f"{name} + {{}}" if stmt.op is ReduceOp.SUM else f"larger({name}, {{}})"
        self._loops(layout, stmt.shape, scope, every_thread=False)
        values = self._read_all(stmt.value, stmt.shape, layout)
        self.out.add(UNROLL)
        expression = emit_value(stmt.value, stmt.shape, values)
        loop = f"for (int j = 0; j < {self._vector(layout, stmt.shape)}; ++j)"
        self.out.add(f"{loop} {name} = {combined.format(expression)};")
        self._end_loops()

    def finish(self, partial: Partial, scope: Scope) -> None:
        """Combine over threads and into the destination, which all threads that hold it then know."""
        stmt = partial.reduce
        layout = self._layout_of(stmt)
        count = layout.registers(stmt.dst.shape)
        rows, columns = layout.keeps(stmt.dst.shape)
        self.out.open()
        if rows or not columns:
            width = layout.across if rows else layout.threads
            scratch_bytes = combine_neighbours(self.out, partial, count, width, scope)
            self.scratch_bytes = max(self.scratch_bytes, scratch_bytes)
        elif layout.down > 1:
            self.scratch_bytes = max(self.scratch_bytes, combine_groups(self.out, partial, count, layout, scope))
        self.out.add(UNROLL)
        self.out.open(f"for (int k = 0; k < {count}; ++k)")
        whole = f"{own(stmt.dst.tensor)}[k]"
        self.out.add(f"{whole} = {combine(stmt.op, whole, f'{partial.name}[k]')};")
        self.out.close()
        self.out.close()

    def _elementwise(self, dst: Box, value: Value, shape: tuple[int, ...], scope: Scope) -> None:
        target = self.kernel.tensor(dst.tensor)
        in_registers = target.memory is Memory.REGISTER
        layout = self._layout(shape, (dst, *value_boxes(value)), scope)
        self._loops(layout, shape, scope, every_thread=in_registers)
        values = self._read_all(value, shape, layout)
        expression = emit_value(value, shape, values)
        vector = self._vector(layout, shape)
        loop = f"for (int j = 0; j < {vector}; ++j)"
        if in_registers:
            self._whole(dst)
            if target.dtype != fp32:
                expression = f"widened(rounded<{target.dtype}>({expression}))"
            self.out.add(UNROLL)
            self.out.add(f"{loop} {self._element(dst, layout)} = {expression};")
        else:
            self.out.add(f"float out[{vector}];")
            self.out.add(UNROLL)
            self.out.add(f"{loop} out[j] = {expression};")
            if target.memory is Memory.GLOBAL:
                self._access("write_clipped", dst, shape, vector, "out")
            else:
                self._shared("write_tile", dst, shape, vector, "out")
        self._end_loops()

    def _layout(self, shape: tuple[int, ...], boxes: tuple[Box, ...], scope: Scope) -> Spread | Fragment:
        """How the tile of a statement lies: as its register tiles do, else as its shape alone says."""
        for box in boxes:
            if box.tensor in self.registers:
                return self.registers[box.tensor]
        vector = vector_of(shape[-1], self.itemsize)
        for box in boxes:
            tensor = self.kernel.tensor(box.tensor)
            if tensor.memory is Memory.SHARED and box.shape[-1] > 1:  # where its vectors are not aligned, shorter ones
                vector = gcd(vector, tensor.tile[-1], divisor(box.origin[-1]))
        return Spread(shape, scope.threads, vector)

    def _layout_of(self, stmt: Reduce) -> Spread:
        layout = self.registers[stmt.dst.tensor]
        if isinstance(layout, Fragment):
            raise PipelineError(f"reduction to {stmt.dst.tensor!r} of sums of a matmul; store them first")
        self._whole(stmt.dst)
        return layout

    def _whole(self, box: Box) -> None:
        if box.shape != self.kernel.tensor(box.tensor).tile:
            raise PipelineError(f"register tile {box.tensor!r}: threads hold parts of it; use the whole tile")

    def _vector(self, layout: Spread | Fragment, shape: tuple[int, ...]) -> int:
        if isinstance(layout, Fragment):
            return 2
        return layout.vector if layout.keeps(shape)[1] else 1

    def _loops(self, layout: Spread | Fragment, shape: tuple[int, ...], scope: Scope, *, every_thread: bool) -> None:
        """Open the loops over a thread's vectors; coordinates are then c0, c1, ... and the first column's last.

        ``every_thread``: threads that hold the same elements all run, as they must for registers.
        """
        out, rank = self.out, len(shape)
        self._opened = out.depth
        out.open()
        if isinstance(layout, Fragment):
            groups = scope.threads // 128
            out.add(UNROLL)
            out.open(f"for (int b = 0; b < {layout.blocks}; ++b)")
            out.add(UNROLL)
            out.open("for (int h = 0; h < 2; ++h)")
            t = scope.thread
            out.add(f"const int c0 = (b * {groups} + {t} / 128) * 64 + {t} / 32 % 4 * 16 + h * 8 + {t} % 32 / 4;")
            out.add(UNROLL)
            out.open(f"for (int p = 0; p < {layout.shape[1] // 8}; ++p)")
            out.add(f"const int c1 = p * 8 + {t} % 4 * 2;")
            return
        rows, columns = layout.keeps(shape)
        conditions = []
        alone = scope.threads == 1
        across, down = f"{scope.thread} % {layout.across}", f"{scope.thread} / {layout.across}"
        row = "0"
        if rows:
            out.add(UNROLL)
            out.open(f"for (int u = 0; u < {layout.up}; ++u)")
            row = "u" if alone else f"u * {layout.down} + {down}" if layout.up > 1 else down
            if layout.rows % layout.down:
                conditions.append(f"row < {layout.rows}")
        elif layout.down > 1 and not every_thread:
            conditions.append(f"{down} == 0")
        if columns:
            out.add(UNROLL)
            out.open(f"for (int w = 0; w < {layout.along}; ++w)")
            column = "w" if alone else f"(w * {layout.across} + {across})" if layout.along > 1 else f"({across})"
            out.add(f"const int c{rank - 1} = {column} * {layout.vector};")
            if layout.vectors % layout.across:
                conditions.append(f"c{rank - 1} < {layout.columns}")
        else:
            out.add(f"const int c{rank - 1} = 0;")
            if layout.across > 1 and not every_thread:
                conditions.append(f"{across} == 0")
        if rank > 1:
            out.add(f"const int row = {row};")
        for axis in range(rank - 1):
            below = prod(shape[axis + 1 : -1])
            part = f"row / {below}" if below > 1 else "row"
            if axis:
                part += f" % {shape[axis]}"
            out.add(f"const int c{axis} = {part if shape[axis] > 1 else 0};")
        if conditions:
            out.open(f"if ({' && '.join(conditions)})")

    def _end_loops(self) -> None:
        while self.out.depth > self._opened:
            self.out.close()

    def _register(self, layout: Spread, shape: tuple[int, ...]) -> str:
        """Which register of a tile of ``shape`` the current vector's element ``j`` is."""
        rows, columns = layout.keeps(shape)
        terms = []
        if rows and layout.up > 1:
            terms.append(f"u * {layout.along * layout.vector}" if columns else "u")
        if columns:
            terms += [f"w * {layout.vector}"] * (layout.along > 1) + ["j"]
        return " + ".join(terms) or "0"

    def _element(self, box: Box, layout: Spread | Fragment) -> str:
        """Element ``j`` of the current vector of a register tile."""
        if isinstance(layout, Fragment):
            return f"{own(box.tensor)}[b][p * 4 + h * 2 + j]"
        return f"{own(box.tensor)}[{self._register(layout, box.shape)}]"

    def _read_all(self, value: Value, shape: tuple[int, ...], layout: Spread | Fragment) -> dict[Box, str]:
        """Read each operand's current vector, once, into a variable."""
        names: dict[Box, str] = {}
        vector = self._vector(layout, shape)
        for box in dict.fromkeys(value_boxes(value)):
            tensor = self.kernel.tensor(box.tensor)
            if tensor.memory is Memory.REGISTER:
                self._whole(box)
                names[box] = self._element(box, layout)
                continue
            name = f"v{len(names)}"
            width = vector if box.shape[-1] > 1 else 1
            self.out.add(f"float {name}[{width}];")
            if tensor.memory is Memory.GLOBAL:
                self._access("read_clipped", box, shape, width, name)
            else:
                self._shared("read_tile", box, shape, width, name)
            names[box] = f"{name}[j]" if width > 1 else f"{name}[0]"
        return names

    def _coordinates(self, box: Box, shape: tuple[int, ...]) -> list[str]:
        """Coordinates in the tensor of the current vector's first element."""
        out = []
        for origin, axis in zip(box.origin, axes_of(box, shape), strict=True):
            own = "" if axis is None else f"c{axis}"
            start = emit_index(origin, 1)
            out.append(" + ".join(t for t in (start if start != "0" else "", own) if t) or "0")
        return out

    def _access(self, how: str, box: Box, shape: tuple[int, ...], vector: int, name: str) -> None:
        """Read or write the current vector in global memory, clipped."""
        tensor = self.kernel.tensor(box.tensor)
        coordinates = self._coordinates(box, shape)
        outside = []
        offset = _row_major(coordinates, [emit_index(n, 2) for n in tensor.shape], wide=True)
        for place, extent, origin in list(zip(coordinates, tensor.shape, box.origin, strict=True))[:-1]:
            outside.append(f"{place} < {emit_index(extent, 1)}")
            if not never_negative(origin):
                outside.append(f"{place} >= 0")
        inside = f"{emit_index(tensor.shape[-1], 1)} - ({coordinates[-1]})"
        count = f"{' && '.join(outside)} ? {inside} : 0" if outside else inside
        skip = "" if never_negative(box.origin[-1]) else f", -({coordinates[-1]})"
        pointer = address(tensor, offset)
        if how == "read_clipped" and _inside(tensor, box, vector):
            self.out.add(f"read_tile<{tensor.dtype}, {vector}>({name}, {pointer});")
            return
        first = f"{pointer}, {name}" if how == "write_clipped" else f"{name}, {pointer}"
        self.out.add(f"{how}<{tensor.dtype}, {vector}>({first}, {count}{skip});")

    def _shared(self, how: str, box: Box, shape: tuple[int, ...], vector: int, name: str) -> None:
        """Read or write the current vector in shared memory."""
        tensor = self.kernel.tensor(box.tensor)
        if tensor.tile[-1] % vector or divisor(box.origin[-1]) % vector:
            raise PipelineError(
                f"box of {box.tensor!r} begins at no multiple of {vector} elements of its rows; move or widen it"
            )
        coordinates = self._coordinates(box, shape)
        where = self._inside(tensor, coordinates)
        pointer = f"reinterpret_cast<{tensor.dtype}*>({self.slot(box)} + {where})"
        arguments = f"{pointer}, {name}" if how == "write_tile" else f"{name}, {pointer}"
        self.out.add(f"{how}<{tensor.dtype}, {vector}>({arguments});")

    def _inside(self, tensor: Tensor, coordinates: list[str]) -> str:
        """Byte within a slot of a shared tile."""
        where = f"({_row_major(coordinates, [str(n) for n in tensor.tile])}) * {tensor.dtype.itemsize}"
        return f"swizzled({where})" if tensor.swizzle_bytes else where

    def slot(self, box: Box) -> str:
        """Where the box's slot begins in shared memory."""
        if box.slot is None or box.slot == Const(0):
            return own(box.tensor)
        return f"{own(box.tensor)} + {emit_index(box.slot, 2)} * {self.slot_bytes[box.tensor]}"

    def _copy_async(self, stmt: Load, scope: Scope) -> None:
        source, tile = self.kernel.tensor(stmt.src.tensor), self.kernel.tensor(stmt.dst.tensor)
        vector = 16 // source.dtype.itemsize
        shape, src = stmt.dst.shape, stmt.src
        self._loops(Spread(shape, scope.threads, vector), shape, scope, every_thread=False)
        coordinates = self._coordinates(src, shape)
        offset = _row_major(coordinates, [emit_index(n, 2) for n in source.shape], wide=True)
        inside = []
        for place, extent, origin in zip(coordinates, source.shape, src.origin, strict=True):
            inside.append(f"{place} < {emit_index(extent, 1)}")
            if not never_negative(origin):
                inside.append(f"{place} >= 0")
        self.out.add(f"const bool inside = {' && '.join(inside)};")
        left = f"min({vector}, {emit_index(source.shape[-1], 1)} - ({coordinates[-1]}))"
        where = self._inside(tile, [f"c{axis}" for axis in range(len(shape))])
        self.out.add(
            f"copy_async_16(shared_address({self.slot(stmt.dst)} + {where}), "
            f"{address(source, offset)}, {own(source.name)}, inside ? {left} * {source.dtype.itemsize} : 0);"
        )
        self._end_loops()


def _inside(tensor: Tensor, box: Box, vector: int) -> bool:
    """Whether no vector of ``box`` needs clipping, whatever the run-time extents: all numbers, aligned."""
    for origin, extent, n in zip(box.origin, tensor.shape, box.shape, strict=True):
        if not (isinstance(origin, Const) and isinstance(extent, Const) and 0 <= origin.value <= extent.value - n):
            return False
    row = tensor.shape[-1], box.origin[-1]
    whole = all(isinstance(i, Const) and i.value % vector == 0 for i in row)
    return whole and tensor.align_bytes % (vector * tensor.dtype.itemsize) == 0


def address(tensor: Tensor, offset: str) -> str:
    """The element at ``offset`` of a global tensor."""
    return f"{own(tensor.name)} + ({offset})"


def _row_major(coordinates: list[str], extents: list[str], *, wide: bool = False) -> str:
    """The number of an element, of 64 bits if ``wide``."""
    offset = ""
    for place, extent in zip(coordinates, extents, strict=True):
        if not offset:
            offset = f"(long long)({place})" if wide else place
        elif offset == "0":
            offset = place
        else:
            offset = f"({offset}) * {extent} + {place}"
    return offset


def axes_of(box: Box, shape: tuple[int, ...]) -> tuple[int | None, ...]:
    """For each dimension of ``box`` the axis of the statement's tile that runs along it; None where the extent is 1.

    Operands line up at the last dimension, copies once extents of 1 are dropped: a tile of 8 x 1 is stored to 8
    elements along its axis 0.

    Raises:
        PipelineError: neighbours in the tile are no neighbours in the tensor.
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

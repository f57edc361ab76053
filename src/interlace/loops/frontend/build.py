"""Builder of kernels as plain loops.

    k = Builder("scale", threads=128)
    n = k.symbol("n")
    x, y = k.input("x", (n,), fp32), k.output("y", (n,), fp32)
    tile = k.shared("tile", (256,), fp32)
    with k.block("b", 8) as b, k.serial("i", ceil_div(n, 8 * 256)) as i:
        at = (i * 8 + b) * 256
        k.load(tile, x.at(at))
        k.assign(y.at(at), 2 * tile)
    kernel = circular_buffer(k.kernel(), "tile", stages=4)

The kernel contains no barriers: the rewrite inserts everything that an asynchronous load needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import SupportsIndex

from interlace.core.dtypes import DType
from interlace.core.errors import PipelineError
from interlace.loops.ir.index import Const, Index, IndexLike, Less, Var, as_index, as_integer
from interlace.loops.ir.statements import (
    Copy,
    For,
    If,
    Load,
    LoopKernel,
    LoopKind,
    LoopTensor,
    Matmul,
    MemorySpace,
    Pointwise,
    Reduce,
    ReduceOp,
    Stmt,
    Store,
)
from interlace.loops.ir.traverse import list_value_boxes
from interlace.loops.ir.values import Arithmetic, Box, ReadBox, Value, ValueLike, as_value
from interlace.loops.rules.check import check_kernel


class Handle(Arithmetic):
    """A tensor under construction; in an expression it represents all of its elements."""

    def __init__(self, tensor: LoopTensor) -> None:
        self.tensor = tensor

    def to_value(self) -> Value:
        return ReadBox(self.to_box())

    def to_box(self) -> Box:
        """Return the box of the whole tile of a shared or register tensor."""
        if self.tensor.memory is MemorySpace.GLOBAL:
            raise PipelineError(f"tensor {self.tensor.name!r} is global; say which box of it: .at(origin, shape=...)")
        return Box(self.tensor.name, (Const(0),) * len(self.tensor.shape), self.tensor.tile)

    def at(self, *origin: IndexLike, shape: tuple[int, ...] = ()) -> Box:
        """Return the box that begins at ``origin``; without a shape it takes that of the other side of its copy."""
        if len(origin) != len(self.tensor.shape):
            raise PipelineError(
                f"tensor {self.tensor.name!r} has {len(self.tensor.shape)} dimensions, "
                f"but its box begins at {len(origin)} coordinates; give one for each"
            )
        return Box(self.tensor.name, tuple(as_index(o) for o in origin), _as_integers(shape))


Operand = Handle | Box


class Builder:
    """Collector of the statements of one kernel. ``threads`` is a multiple of 32."""

    def __init__(self, name: str, *, threads: int = 128) -> None:
        self._name = name
        self._threads = as_integer(threads)
        self._symbols: list[str] = []
        self._tensors: list[LoopTensor] = []
        self._stack: list[list[Stmt]] = [[]]

    def symbol(self, name: str) -> Var:
        """Declare a run-time extent, an integer parameter of the kernel."""
        self._symbols.append(name)
        return Var(name)

    def input(self, name: str, shape: tuple[IndexLike, ...], dtype: DType, *, align_bytes: int = 16) -> Handle:
        """Declare a global tensor that the kernel reads."""
        return self._add_tensor(LoopTensor(name, _as_shape(shape), dtype, MemorySpace.GLOBAL, align_bytes=align_bytes))

    def output(self, name: str, shape: tuple[IndexLike, ...], dtype: DType, *, align_bytes: int = 16) -> Handle:
        """Declare a global tensor that the kernel writes."""
        return self._add_tensor(
            LoopTensor(name, _as_shape(shape), dtype, MemorySpace.GLOBAL, is_written=True, align_bytes=align_bytes)
        )

    def shared(self, name: str, shape: tuple[int, ...], dtype: DType, *, swizzle_bytes: int = 0) -> Handle:
        """Declare a tile in shared memory."""
        return self._add_tensor(
            LoopTensor(name, _as_shape(shape), dtype, MemorySpace.SHARED, swizzle_bytes=swizzle_bytes)
        )

    def register(self, name: str, shape: tuple[int, ...], dtype: DType) -> Handle:
        """Declare a tile spread over the registers of the block's threads."""
        return self._add_tensor(LoopTensor(name, _as_shape(shape), dtype, MemorySpace.REGISTER))

    def block(self, var: str, extent: IndexLike) -> _Loop:
        """Open a loop with one thread block per iteration."""
        return self._make_loop(var, extent, LoopKind.BLOCK)

    def serial(self, var: str, extent: IndexLike) -> _Loop:
        """Open a serial loop."""
        return self._make_loop(var, extent, LoopKind.SERIAL)

    def unrolled(self, var: str, extent: int) -> _Loop:
        """Open an unrolled loop: serial iterations, each with its own code."""
        return self._make_loop(var, extent, LoopKind.UNROLLED)

    def thread(self, var: str, extent: IndexLike) -> _Loop:
        """Open a loop with one thread per iteration, in turns, on small boxes; ``check_threads`` has the rules."""
        return self._make_loop(var, extent, LoopKind.THREAD)

    @contextmanager
    def when(self, condition: Less) -> Iterator[None]:
        """Open a scope of statements that run where ``condition`` holds."""
        body = self._open()
        yield
        self._close(If(condition, tuple(body)))

    def load(self, dst: Operand, src: Box, by: Copy = Copy.TMA) -> None:
        """Copy a global box to shared memory, or plainly to registers."""
        box = _as_box(dst)
        self._stack[-1].append(Load(box, _fit_shape(src, box.shape), by))

    def store(self, dst: Box, src: Operand, by: Copy = Copy.PLAIN) -> None:
        """Copy a tile to global memory; elements past the bounds are dropped."""
        box = _as_box(src)
        self._stack[-1].append(Store(_fit_shape(dst, box.shape), box, by))

    def assign(self, dst: Operand, value: ValueLike) -> None:
        """Assign ``dst = value``, element by element. A box without a shape takes that of the largest operand."""
        expression, box = as_value(value), _as_box(dst)
        if not box.shape:
            shapes = [b.shape for b in list_value_boxes(expression)]
            box = _fit_shape(box, max(shapes, key=lambda s: (len(s), s), default=()))
        self._stack[-1].append(Pointwise(box, expression))

    def reduce(
        self, dst: Operand, op: ReduceOp, value: ValueLike, axes: tuple[int, ...], shape: tuple[int, ...]
    ) -> None:
        """Reduce: ``dst = op(dst, value reduced along axes)``, with the value evaluated over a tile of ``shape``."""
        self._stack[-1].append(Reduce(_as_box(dst), op, _as_integers(axes), as_value(value), _as_integers(shape)))

    def matmul(self, acc: Operand, a: Operand, b: Operand) -> None:
        """Multiply and accumulate: ``acc[m, n] += a[m, k] @ b[n, k].T``."""
        self._stack[-1].append(Matmul(_as_box(acc), _as_box(a), _as_box(b)))

    def build_kernel(self) -> LoopKernel:
        """Check the kernel and return it.

        Raises:
            PipelineError: a rule of ``check`` is broken.
        """
        (body,) = self._stack
        kernel = LoopKernel(self._name, tuple(self._symbols), tuple(self._tensors), tuple(body), self._threads)
        check_kernel(kernel)
        return kernel

    def _add_tensor(self, tensor: LoopTensor) -> Handle:
        self._tensors.append(tensor)
        return Handle(tensor)

    def _make_loop(self, var: str, extent: IndexLike, kind: LoopKind) -> _Loop:
        return _Loop(self, var, as_index(extent), kind)

    def _open(self) -> list[Stmt]:
        self._stack.append([])
        return self._stack[-1]

    def _close(self, stmt: Stmt) -> None:
        self._stack.pop()
        self._stack[-1].append(stmt)


class _Loop:
    """Context manager around the statements of a loop; it returns the loop's variable."""

    def __init__(self, builder: Builder, var: str, extent: Index, kind: LoopKind) -> None:
        self._builder = builder
        self._loop = For(var, Const(0), extent, kind, ())
        self._body: list[Stmt] = []

    def __enter__(self) -> Var:
        self._body = self._builder._open()
        return Var(self._loop.var)

    def __exit__(self, *error: object) -> None:
        self._builder._close(replace(self._loop, body=tuple(self._body)))


def _as_shape(shape: tuple[IndexLike, ...]) -> tuple[Index, ...]:
    return tuple(as_index(n) for n in shape)


def _as_integers(numbers: tuple[SupportsIndex, ...]) -> tuple[int, ...]:
    return tuple(map(as_integer, numbers))


def _as_box(place: Operand) -> Box:
    return place if isinstance(place, Box) else place.to_box()


def _fit_shape(box: Box, shape: tuple[int, ...]) -> Box:
    """Give ``box`` the other side's shape if it has none, with leading 1s added or extents of 1 dropped to fit."""
    if box.shape:
        return box
    rank = len(box.origin)
    while len(shape) > rank and 1 in shape:
        one = shape.index(1)
        shape = shape[:one] + shape[one + 1 :]
    return Box(box.tensor, box.origin, (1,) * (rank - len(shape)) + shape)

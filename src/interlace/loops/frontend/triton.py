"""Convert a plain Triton function to a kernel of loops: elementwise arithmetic, and reductions over rows.

    tensors, params = {"x": x, "gain": gain, "y": y}, {"M": 256, "N": 1024, "BM": 16, "BN": 128}
    op = as_op("scale", convert_triton(scale_tile, (16, 8), tensors, params), tensors)

The function is traced: Python runs it once on stand-ins for tensors and for ``triton.language``. Its branches and loops
are those of that run, so loops are unrolled. Integers stay linear in program ids and ``tl.arange``
(``triton_address``); tiles become values of loops. Arithmetic is that of loops: fp32, and a maximum of NaN is NaN.
"""

from __future__ import annotations

import inspect
import operator
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from interlace.core.dtypes import DTYPES, DType, fp32
from interlace.core.errors import TritonSourceError
from interlace.graph.tensor import Tensor
from interlace.loops.frontend.build import Builder, Handle
from interlace.loops.frontend.triton_address import (
    Integers,
    Mask,
    Traced,
    Unsupported,
    broadcast_shapes,
    find_box,
    find_new_axis,
)
from interlace.loops.ir import values
from interlace.loops.ir.statements import Copy, LoopKernel, ReduceOp
from interlace.loops.ir.values import Scalar, Value

_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "abs": lambda x: values.select_larger(x, -x),
    "exp": values.exp,
    "maximum": values.select_larger,
    "minimum": values.select_smaller,
    "rsqrt": values.rsqrt,
    "sigmoid": lambda x: Scalar(1.0) / (values.exp(-x) + 1),
    "sqrt": values.sqrt,
}
_MOST_TERMS = 16  # of a value; longer ones, and those of functions, are held in registers


def convert_triton(
    function: Any,
    grid: tuple[int, ...],
    tensors: Mapping[str, Tensor],
    params: Mapping[str, float | None],
    *,
    threads: int = 128,
) -> LoopKernel:
    """Convert a ``@triton.jit`` function to a kernel for ``as_op``, for these tensors and numbers.

    Args:
        function: takes ``tl.program_id``, or the ``tile`` of this package's bodies.
        grid: number of programs along one to three axes.
        tensors: tensor for each pointer parameter, row-major.
        params: value of each other parameter without a default.
        threads: threads per block, where the op is a launch of its own.

    Raises:
        TritonSourceError: a construct without a meaning in loops; the message names its line.
        PipelineError: a rule of loops is broken.
    """
    function = getattr(function, "fn", function)  # of @triton.jit, interpreted or not
    probe = _Trace(function.__name__, grid, tensors, frozenset(), threads)
    probe.run(function, params)  # finds the outputs
    trace = _Trace(function.__name__, grid, tensors, frozenset(probe.stored), threads)
    trace.run(function, params)
    return trace.builder.build_kernel()


class _Pointer(Traced):
    """Addresses of elements of a tensor."""

    def __init__(self, name: str, tensor: Tensor, offset: Integers) -> None:
        self.name, self.tensor, self.offset = name, tensor, offset
        self.dtype = SimpleNamespace(element_ty=tensor.dtype)

    def __add__(self, other: Integers | int) -> _Pointer:
        return _Pointer(self.name, self.tensor, self.offset + other)

    __radd__ = __add__


def _make_operators(function: Callable[..., Value]) -> tuple[Callable[..., _Tile], Callable[..., _Tile]]:
    """Return an operator of tiles, and the one with swapped operands."""
    return lambda x, y: x.trace.apply(function, x, y), lambda x, y: x.trace.apply(function, y, x)


class _Tile(Traced):
    """A tile of numbers.

    Attributes:
        shape: shape in loops, which keep the dimension that Triton drops of a reduced tile, with extent 1.
        dropped: that dimension; 0 for a number of shape (1,) that all elements share.
        dtype: None for truth values.
    """

    def __init__(
        self,
        trace: _Trace,
        value: Value,
        shape: tuple[int, ...],
        dropped: int | None = None,
        dtype: DType | None = fp32,
        terms: int = 1,
    ) -> None:
        self.trace, self.value, self.shape, self.dropped, self.dtype = trace, value, shape, dropped, dtype
        self.terms = terms

    @property
    def is_number(self) -> bool:
        return self.shape == (1,) and self.dropped == 0

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """Shape in Triton."""
        return tuple(n for axis, n in enumerate(self.shape) if axis != self.dropped)

    __add__, __radd__ = _make_operators(operator.add)
    __sub__, __rsub__ = _make_operators(operator.sub)
    __mul__, __rmul__ = _make_operators(operator.mul)
    __truediv__, __rtruediv__ = _make_operators(operator.truediv)

    def __neg__(self) -> _Tile:
        return self * -1.0

    def __lt__(self, other: Any) -> _Tile:
        return self.trace.apply(values.compare_less, self, other).change(dtype=None)

    def __gt__(self, other: Any) -> _Tile:
        return self.trace.apply(values.compare_less, other, self).change(dtype=None)

    def __getitem__(self, index: object) -> _Tile:
        axis = find_new_axis(index, self.logical_shape)
        if self.dropped == axis:
            return self.change(dropped=None)
        if self.dropped is None and axis == 0:
            return self.change(shape=(1, *self.shape))
        raise Unsupported("a loaded vector keeps its axis; index the integers of its pointer by [:, None]")

    def to(self, dtype: object) -> _Tile:
        """Convert to a floating-point type, with rounding."""
        if not isinstance(dtype, DType) or self.dtype is None:
            raise Unsupported("tiles are converted to float32, float16 and bfloat16 only")
        if dtype in (self.dtype, fp32):
            return self.change(dtype=dtype)
        return self.trace.hold(self.trace.as_tile(self), self.shape, dtype)

    def change(self, **attributes: Any) -> _Tile:
        """Return a copy with other attributes."""
        return _Tile(**(vars(self) | attributes))


class _Trace:
    """One run of a function, which adds its statements to ``builder``."""

    def __init__(
        self, name: str, grid: tuple[int, ...], tensors: Mapping[str, Tensor], written: frozenset[str], threads: int
    ) -> None:
        self.name, self.tensors, self.written = name, tensors, written
        self.builder, self.stored, self.registers = Builder(name, threads=threads), set[str](), 0
        self.programs = {f"pid_{axis}": count for axis, count in enumerate(grid)}
        self.handles: dict[str, Handle] = {}
        for arg, tensor in tensors.items():
            declare = self.builder.output if arg in written else self.builder.input
            self.handles[arg] = declare(arg, tensor.shape, tensor.dtype)

    def run(self, function: FunctionType, params: Mapping[str, float | None]) -> None:
        language = _Language(self)
        pointers = {name: _Pointer(name, tensor, Integers(0)) for name, tensor in self.tensors.items()}
        known = {"tile": language.tile, **params, **pointers}
        parameters = inspect.signature(function).parameters
        missing = [name for name, p in parameters.items() if name not in known and p.default is p.empty]
        if missing:
            raise TritonSourceError(f"Triton function {self.name!r} takes {missing}; pass them in tensors or params")
        traced = _replace_triton(function, language)
        with ExitStack() as loops:
            for name, count in self.programs.items():
                loops.enter_context(self.builder.block(name, count))
            try:
                traced(**{name: known[name] for name in parameters if name in known})
            except Exception as error:  # whatever the function raises on a stand-in is not converted
                frames = traceback.extract_tb(error.__traceback__)
                *_, at = (f for f in frames if f.filename == function.__code__.co_filename)
                raise TritonSourceError(
                    f"Triton function {self.name!r}, line {at.lineno}: `{at.line}`: {error}"
                ) from error

    def hold(self, tile: _Tile, shape: tuple[int, ...], dtype: DType = fp32) -> _Tile:
        """Return the tile in new registers."""
        handle = self.make_register(shape, dtype)
        self.builder.assign(handle, tile.value)
        return tile.change(value=handle.to_value(), shape=shape, dtype=dtype, terms=1)

    def make_register(self, shape: tuple[int, ...], dtype: DType = fp32) -> Handle:
        """Declare a register tile."""
        self.registers += 1
        return self.builder.register(f"held_{self.registers}", shape, dtype)

    def as_tile(self, value: Any) -> _Tile:
        """Convert a number, and check that a tile is fp32."""
        if isinstance(value, int | float):
            return _Tile(self, Scalar(float(value)), (1,), dropped=0)
        if not isinstance(value, _Tile) or value.dtype is None:
            raise Unsupported("an operand is no tile of floating-point numbers")
        if value.dtype != fp32:
            raise Unsupported(f"Triton rounds each operation on {value.dtype}; convert by .to(tl.float32) first")
        return value

    def apply(self, function: Callable[..., Value], *operands: Any) -> _Tile:
        """Return an operation on tiles and numbers, element by element."""
        tiles = [self.as_tile(operand) for operand in operands]
        wide = [tile for tile in tiles if not tile.is_number] or tiles[:1]
        if len({tile.dropped for tile in wide}) > 1:
            raise Unsupported("one tile lacks the dimension that was reduced; write [:, None] after the reduction")
        shape, terms = broadcast_shapes(*(tile.shape for tile in wide)), sum(tile.terms for tile in tiles)
        out = _Tile(self, function(*(tile.value for tile in tiles)), shape, wide[0].dropped, terms=terms)
        return self.hold(out, shape) if terms > _MOST_TERMS else out


class _Language:
    """Stand-in for ``triton.language``."""

    int32 = int64 = int

    def __init__(self, trace: _Trace) -> None:
        self._trace = trace
        self.math = self
        for known in DTYPES:
            if known.is_floating_point:
                setattr(self, known.torch, known)  # tl.bfloat16 and others have PyTorch's names
        self.tile = SimpleNamespace(**{name: self.program_id(axis) for axis, name in enumerate("ijl")})

    def __getattr__(self, name: str) -> Callable[..., _Tile]:
        if name not in _FUNCTIONS:
            raise Unsupported(f"loops have no tl.{name}")
        return partial(self._call, _FUNCTIONS[name])

    def _call(self, function: Callable[..., Value], *operands: Any) -> _Tile:
        out = self._trace.apply(function, *operands)
        return self._trace.hold(out, out.shape)

    def program_id(self, axis: int) -> Integers:
        name = f"pid_{axis}"
        return Integers(0, {name: 1} if name in self._trace.programs else {})

    def arange(self, start: int, end: int) -> Integers:
        return Integers(start, {-1: 1}, (end - start,))

    def cdiv(self, x: int, div: int) -> int:
        return -(-x // div)

    range = static_range = staticmethod(range)

    def zeros(self, shape: tuple[int, ...], dtype: object) -> _Tile:
        return self._trace.hold(_Tile(self._trace, Scalar(0.0), tuple(shape)), tuple(shape)).to(dtype)

    def load(self, pointer: Any, mask: Any = None, other: float | None = None, **hints: str) -> _Tile:
        trace, (origin, box, inside) = self._trace, self._find_box(pointer, mask, hints)
        shape = pointer.offset.shape or (1,)
        if pointer.name in trace.written:
            raise Unsupported(f"{pointer.name!r} is also stored to, and loops read no output; store to another tensor")
        handle = trace.make_register(shape)
        trace.builder.load(handle, trace.handles[pointer.name].at(*origin, shape=box), Copy.PLAIN)
        tile = _Tile(trace, handle.to_value(), shape, None if pointer.offset.shape else 0, pointer.tensor.dtype)
        if not other or inside is None:  # loops read 0 outside of a tensor
            return tile
        value = inside.select(tile.value, trace.as_tile(other).value, shape, trace.programs)
        return trace.hold(tile.change(value=value), shape, pointer.tensor.dtype)

    def store(self, pointer: Any, value: Any, mask: Any = None, **hints: str) -> None:
        trace, (origin, box, _) = self._trace, self._find_box(pointer, mask, hints)
        tile = value if getattr(value, "dtype", None) == pointer.tensor.dtype else trace.as_tile(value)
        shape = pointer.offset.shape
        same, may_widen = tile.logical_shape == shape, tile.dropped is None or tile.is_number
        if not same and not (may_widen and broadcast_shapes(tile.shape, shape or (1,)) == shape):
            raise Unsupported(f"a tile of {tile.logical_shape} is stored to pointers of {shape}")
        handle = trace.make_register(tile.shape if same else shape)
        trace.builder.assign(handle, tile.value)
        trace.builder.store(trace.handles[pointer.name].at(*origin, shape=box), handle)
        trace.stored.add(pointer.name)

    def where(self, condition: Any, x: Any, y: Any) -> _Tile:
        trace = self._trace
        if isinstance(condition, _Tile) and condition.dtype is None:
            return trace.apply(values.where, condition.change(dtype=fp32), x, y)
        both = trace.apply(values.where, 1, x, y)
        if not isinstance(condition, Mask) or not (both.is_number or both.dropped is None):
            raise Unsupported("the condition is no mask of these tiles; write [:, None] after a reduction")
        shape = broadcast_shapes(condition.shape, both.shape)
        value = condition.select(trace.as_tile(x).value, trace.as_tile(y).value, shape, trace.programs)
        return trace.hold(both.change(value=value, dropped=None if condition.shape else both.dropped), shape)

    def sum(self, input: Any, axis: int | None = None, keep_dims: bool = False) -> _Tile:
        return self._reduce(ReduceOp.SUM, 0.0, input, axis, keep_dims)

    def max(self, input: Any, axis: int | None = None, keep_dims: bool = False) -> _Tile:
        return self._reduce(ReduceOp.MAX, float("-inf"), input, axis, keep_dims)

    def _reduce(self, op: ReduceOp, start: float, value: Any, axis: int | None, keep_dims: bool) -> _Tile:
        tile = self._trace.as_tile(value)
        rank = len(tile.shape)
        if tile.dropped is not None or (axis not in range(-rank, rank) and (axis, rank) != (None, 1)):
            raise Unsupported(f"tiles of {tile.logical_shape} have no axis {axis} to reduce; name one")
        at = (axis or 0) % rank
        shape = (*tile.shape[:at], 1, *tile.shape[at + 1 :])
        handle = self._trace.make_register(shape)
        self._trace.builder.assign(handle, start)
        self._trace.builder.reduce(handle, op, tile.value, axes=(at,), shape=tile.shape)
        return _Tile(self._trace, handle.to_value(), shape, None if keep_dims else at)

    def _find_box(self, pointer: Any, mask: Any, hints: Mapping[str, str]) -> Any:
        if not isinstance(pointer, _Pointer) or not isinstance(mask, Mask | None):
            raise Unsupported("it takes a pointer into a tensor, and a mask made of comparisons of integers")
        if hints.keys() - {"cache_modifier", "eviction_policy"}:
            raise Unsupported(f"loops take no {sorted(hints)}")
        return find_box(pointer.tensor.shape, pointer.offset, mask, self._trace.programs)


def _replace_triton(function: FunctionType, language: _Language) -> FunctionType:
    """Return the function with the stand-in for ``triton.language``, in the functions that it calls too."""

    def replace_one(value: Any) -> Any:
        if isinstance(value, ModuleType) and value.__name__.startswith("triton"):
            return language
        if type(value).__name__ == "constexpr":
            return value.value
        inner = getattr(value, "fn", None)  # of @triton.jit
        return _replace_triton(inner, language) if isinstance(inner, FunctionType) else value

    names = {
        name: replace_one(function.__globals__[name])
        for name in function.__globals__.keys() & {*function.__code__.co_names}
    }
    traced = FunctionType(function.__code__, names, closure=function.__closure__)
    traced.__defaults__, traced.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return traced

"""A kernel: one tile body, its NumPy meaning, and how they find their arguments.

A kernel without a reduction has one body. A kernel with one has two halves, so that an executor can split
its reduction: ``accumulate`` sums over a k-range, ``finish`` turns the sum into the output tile. Reference
and Triton halves correspond one to one.

Parameters of a Triton body are found by name: ``tile``, ``sync`` and ``acc`` come from the executor, every
other name is a tensor argument of the op (None if the op has no such argument) or one of its params.

A body takes its sizes from the params, dependencies follow from the access maps, and a plan file has both. So a
kernel that says how it is applied (``make``) is applied anew to the tensors and params of every op that claims to be
its own, wherever that comes from, and nothing but the same op is taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from interlace.core.arguments import check_type, series
from interlace.core.dtypes import DType
from interlace.core.errors import DTypeError, GraphError, ParamError, ShapeError
from interlace.graph.access import Access, Span
from interlace.graph.op import Op, Param, Reduction
from interlace.graph.tensor import Tensor

Array = NDArray[np.float64]
Regions = Mapping[str, Array]
Params = Mapping[str, Param]

#: Parameters of a Triton body that the executor gives.
PROVIDED = ("tile", "sync", "acc")
_WARPS = (1, 2, 4, 8, 16, 32)
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Reference:
    """What one tile computes, on float64 regions clipped to their tensors.

    Attributes:
        finish: (accumulator or None, regions read that do not move with k, params) -> regions written.
        accumulate: (regions read over a k-range, params) -> partial sum; None for kernels without one.
        located: ``finish`` takes the tile's coordinates as a fourth argument.
    """

    finish: Callable[..., Mapping[str, Array]]
    accumulate: Callable[[Regions, Params], Array] | None = None
    located: bool = False

    def complete(self, op: Op, tile: int, acc: Array | None, regions: Regions) -> Mapping[str, Array]:
        """The written regions of a tile of ``op``."""
        where = (tuple(op.coords(np.array([tile]))[0].tolist()),) if self.located else ()
        return self.finish(acc, regions, op.parameters, *where)


@dataclass(frozen=True)
class TritonBody:
    """The Triton side of a kernel; each entry is a ``@triton.jit`` function.

    Attributes:
        finish: ``(tile, acc, ...)`` with a reduction, else ``(tile, ...)``: stores the output tile.
        accumulate: ``(tile, sync, ...)`` returning a tuple of float32 blocks, or None.
        prefetch: ``(tile, ...)``: asks the L2 for data that depends on nothing (weights), or None.
        partial: float32 elements of one partial sum of an op (all blocks of ``accumulate`` together); without
            it the kernel's reductions cannot be split.
        chunked: ``accumulate`` asks ``ready`` for each stretch of its k-range; without it all waits of an item
            stand at its start.
    """

    finish: Any
    accumulate: Any = None
    prefetch: Any = None
    partial: Callable[[Op], int] | None = None
    chunked: bool = False


@dataclass(frozen=True)
class Pipeline:
    """How a Hopper launch moves data into shared memory.

    Attributes:
        stages: depth of the ring.
        free_rows, bound_rows: rows of 64 elements in a stage, of free operands (weights) and of bound ones.
        in_flight: most stages of free operands under way at once in one block.
        shares: warpgroups that share a tile, 1 or 2.
    """

    stages: int
    free_rows: int
    bound_rows: int
    in_flight: int
    shares: int


@dataclass(frozen=True)
class HopperBody:
    """The Hopper side of a kernel: what the template of ``kernels/hopper`` plugs in.

    Attributes:
        load_free, load_bound, compute: ``@gluon.jit`` functions, see ``kernels/hopper/template``.
        free: names of the arguments that are loaded before any wait; no op of the graph may write them.
        check: op, shares -> raises ShapeError unless the op's tile suits so many warpgroups.
        operands: op, tensors -> (bound, free, second free or None) tensor descriptors.
        arguments: op, tensors, pipeline, most parts of a tile -> the named tuple that all functions take.
        rows: op -> (free, bound) rows of 64 elements that a stage of it takes.
        scratch: op -> bytes of shared memory that it needs beside the ring.
        partial: float32 elements of one partial sum of an op.
    """

    load_free: Any
    load_bound: Any
    compute: Any
    free: tuple[str, ...]
    check: Callable[[Op, int], None]
    operands: Callable[[Op, Mapping[str, Any]], tuple[Any, Any, Any]]
    arguments: Callable[[Op, Mapping[str, Any], Pipeline, int], Any]
    rows: Callable[[Op], tuple[int, int]]
    scratch: Callable[[Op], int]
    partial: Callable[[Op], int]

    @property
    def functions(self) -> tuple[Any, ...]:
        """In the template's order."""
        return self.load_free, self.load_bound, self.compute


class CudaLaunch(Protocol):
    """One launch of CUDA C++ as a value."""

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream, given its handle."""

    def compile(self) -> Any:
        """Compile, which needs no device."""

    def load(self) -> None:
        """Compile and load for the current device, so that a call only launches, as a capture demands."""


#: Makes the launch of some items of an op, from the op, its tensors by argument, a ``Sync`` and how many items.
CudaBody = Callable[[Op, Mapping[str, Any], Any, int], CudaLaunch]


@dataclass(frozen=True)
class Kernel:
    """A tiled kernel, ready to be applied to tensors.

    Attributes:
        name: what a plan's JSON refers to.
        reference: its meaning, or None if it can only run on a device.
        triton: returns its Triton body; called only when a device executor needs it.
        hopper: returns its Hopper body, for the warp-specialised executor.
        cuda: a body in CUDA C++, for executors that launch each op on its own, with a thread block per item.
        dtypes: names of the dtypes that it takes; empty for any.
        make: (name, tensors by argument, params) -> the op, as the kernel's own function makes it. Whatever op of
            this kernel enters a graph must be the same; without it, params are not held against grid and access maps.
    """

    name: str
    reference: Reference | None = None
    triton: Callable[[], TritonBody] | None = None
    hopper: Callable[[], HopperBody] | None = None
    cuda: CudaBody | None = None
    dtypes: tuple[str, ...] = ()
    make: Callable[[str, Mapping[str, Tensor], Params], Op] | None = None

    def op(
        self,
        name: str,
        grid: Sequence[int],
        reads: Mapping[str, tuple[Tensor, Sequence[Span]]],
        writes: Mapping[str, tuple[Tensor, Sequence[Span]]],
        *,
        params: Mapping[str, Param] | None = None,
        reduction: Reduction | None = None,
        flops: float = 0.0,
    ) -> Op:
        """This kernel applied to tensors; ``reads`` and ``writes`` map argument names to (tensor, spans).

        Raises:
            ArgumentError: something else than a tensor and its spans for an argument.
            DTypeError: a tensor has a dtype that the kernel does not take.
            ParamError: ``num_warps`` is none that a launch takes.
            ShapeError: a grid or an access map is malformed.
        """
        for arg, pair in (*reads.items(), *writes.items()):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                check_type(pair, type(None), f"op {name!r}", arg, "(tensor, spans)")
            check_type(pair[0], Tensor, f"op {name!r}", arg)

        def accesses(of: Mapping[str, tuple[Tensor, Sequence[Span]]]) -> tuple[Access, ...]:
            return tuple(
                Access(arg, tensor.name, series(spans, Span, f"op {name!r}", f"spans of {arg!r}"))
                for arg, (tensor, spans) in of.items()
            )

        op = Op(
            name,
            self.name,
            series(grid, object, f"op {name!r}", "grid"),
            accesses(reads),
            accesses(writes),
            reduction,
            tuple((params or {}).items()),
            flops,
            self,
        )
        self._check_launch(op, {arg: tensor for arg, (tensor, _) in (*reads.items(), *writes.items())})
        return op

    def check(self, op: Op, tensors: Mapping[str, Tensor]) -> None:
        """Raise unless ``op``, applied to these tensors by argument, is an op of this kernel.

        Raises:
            ParamError: it is not what ``make`` makes of its tensors and params, or no op of this kernel.
            DTypeError, ShapeError: tensors that the kernel does not take.
        """
        if op.kernel != self.name:
            raise ParamError(f"op {op.name!r} is one of kernel {op.kernel!r}, not of {self.name!r}; pass that one")
        self._check_launch(op, tensors)
        if self.make is None:
            return
        try:
            made = self.make(op.name, tensors, op.parameters)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            what = f"no param {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
            raise ParamError(
                f"op {op.name!r}: kernel {self.name!r} takes no params {op.parameters} on arguments {[*tensors]} "
                f"({what}); make the op with the kernel's own function"
            ) from error
        found, expected = _told(op), _told(made)
        for what in found | expected:
            if found.get(what, "none") != expected.get(what, "none"):
                raise ParamError(
                    f"op {op.name!r} has {what} {found.get(what, 'none')}, but of its tensors and params kernel "
                    f"{self.name!r} makes an op with {expected.get(what, 'none')}; "
                    "make it with the kernel's own function"
                )

    def _check_launch(self, op: Op, tensors: Mapping[str, Tensor]) -> None:
        for arg, tensor in tensors.items():
            if self.dtypes and tensor.dtype.name not in self.dtypes:
                raise DTypeError(
                    f"op {op.name!r}: kernel {self.name!r} takes {', '.join(self.dtypes)} for argument {arg!r}, "
                    f"but tensor {tensor.name!r} is {tensor.dtype}; convert it first"
                )
        warps = op.parameters.get("num_warps", _WARPS[0])
        if type(warps) is not int or warps not in _WARPS:
            raise ParamError(f"op {op.name!r} has num_warps {warps!r}; use one of {', '.join(map(str, _WARPS))}")


def _told(op: Op) -> dict[str, Any]:
    """All that an op says beside its name. Params as text, which tells their type too: 1 == 1.0 == True."""
    return {
        "kernel": op.kernel,
        **{f"param {name}": repr(value) for name, value in op.params},
        "grid": op.grid,
        "reduction": op.reduction,
        **{f"read {a.arg!r}": a for a in op.reads},
        **{f"write {a.arg!r}": a for a in op.writes},
        "flops": op.flops,
    }


def kernel_of(op: Op) -> Kernel:
    """The kernel of an op. Raises GraphError if it has none, as after reading a plan without it."""
    if not isinstance(op.body, Kernel):
        raise GraphError(
            f"op {op.name!r} has no body for kernel {op.kernel!r}; pass it when the plan is read: "
            "interlace.read_plan(text, [kernel])"
        )
    return op.body


def is_text(op: Op) -> bool:
    """Whether an op runs as a launch of CUDA C++ of its own."""
    kernel = kernel_of(op)
    return kernel.triton is None and kernel.cuda is not None


def triton_body(op: Op) -> TritonBody:
    """The Triton body of an op.

    Raises:
        GraphError: its kernel has none.
        ParamError: the op lacks a param that is fixed at compile time.
    """
    kernel = kernel_of(op)
    if kernel.triton is None:
        raise no_body(op, "Triton")
    body = kernel.triton()
    functions = [f for f in (body.prefetch, body.accumulate, body.finish) if f is not None]
    taken = [p for f in functions for p in inspect.signature(f.fn).parameters.values()]
    given = {a.arg for a in op.accesses} | op.parameters.keys()
    missing = sorted({p.name for p in taken if "constexpr" in str(p.annotation)} - given - {*PROVIDED})
    if missing:
        raise ParamError(
            f"op {op.name!r} lacks params {missing}, which the body of kernel {op.kernel!r} takes at compile time; "
            "pass them in params="
        )
    return body


def no_body(op: Op, kind: str) -> GraphError:
    """The error for a kernel without a body of a kind, which says what runs it."""
    advice = "give it one to run on a device"
    if is_text(op):
        advice = "it is CUDA C++ with a launch of its own, so run it with serial, cuda_graph, pdl or semaphore_streams"
    elif kernel_of(op).triton is not None:
        advice = "use the persistent executor"
    return GraphError(f"op {op.name!r}: kernel {op.kernel!r} has no {kind} body; {advice}")


def require(condition: bool, message: str) -> None:
    """Raise ShapeError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ShapeError(message)


def check_block(what: str, *extents: int) -> None:
    """Raise ShapeError unless a block of these extents is some elements, and no more than Triton takes."""
    require(
        all(type(n) is int and n > 0 for n in extents) and prod(extents) <= _BLOCK,
        f"{what} has blocks of {' x '.join(map(str, extents))}; use positive ints, and at most 2^20 elements",
    )


def check_extents(what: str, extents: Sequence[int], tile: Sequence[int]) -> None:
    """Raise ShapeError unless tiles that cover these extents end before 2^31: a body counts rows in 32 bits."""
    require(
        all(n + t <= 1 << 31 for n, t in zip(extents, tile, strict=True)),
        f"{what} covers {' x '.join(map(str, extents))} by tiles of {' x '.join(map(str, tile))}, which reach beyond "
        "2^31; use smaller tensors",
    )


def same_dtype(name: str, *tensors: Tensor) -> DType:
    """The common dtype of tensors, for kernels that do not convert."""
    dtypes = {t.dtype.name for t in tensors}
    if len(dtypes) > 1:
        raise DTypeError(f"op {name!r} mixes dtypes {sorted(dtypes)}; convert its tensors to one")
    return tensors[0].dtype

"""A kernel: bodies by kind that mean the same, and how it is applied to tensors.

A body takes its sizes from the params, dependencies follow from the access maps, and a plan file has both. So a
kernel that says how it is applied (``make``) is applied anew to the tensors and params of every op that claims to be
its own, wherever that comes from, and nothing but the same op is taken.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from interlace.core.arguments import check_sequence, check_type, format_value
from interlace.core.dtypes import DType
from interlace.core.errors import ArgumentError, DTypeError, GraphError, ParamError, ShapeError
from interlace.graph.access import Access, Span
from interlace.graph.graph import Graph
from interlace.graph.op import Op, Param, Reduction
from interlace.graph.tensor import Tensor
from interlace.kernels.bodies import (
    PROVIDED_PARAMETERS,
    BodyKind,
    CudaLauncher,
    MegakernelBody,
    MegakernelBodyFactory,
    Params,
    Reference,
    TritonBody,
)
from interlace.kernels.text import CudaBody
from interlace.kernels.tuning import Tuning

_WARPS = (1, 2, 4, 8, 12, 16, 32)
_MAX_BLOCK = 1 << 20
_FLOAT32_LIMIT = 2.0**127  # float32 has all below this
_LAYER = re.compile(r"\.(\d+)\.")  # of a name such as layers.7.q_heads


@dataclass(frozen=True)
class Kernel:
    """A tiled kernel, ready to be applied to tensors. Executors choose among its bodies.

    Attributes:
        name: what a plan's JSON refers to.
        reference: its meaning, or None if it can only run on a device.
        triton: returns its Triton body; called only when a device executor needs it.
        cuda: a body in CUDA C++, a launch of its own with a thread block per item.
        megakernel: its part in the one launch of CUDA C++, or plain text of a tile.
        dtypes: names of the dtypes that it takes; empty for any.
        make: (name, tensors by argument, params) -> the op, as the kernel's own function makes it. Whatever op of
            this kernel enters a graph must be the same; without it, params are not held against grid and access maps.
        tiling: names of the params that tell how an op is tiled; ``make`` takes others in their place.
        tunings: by the kind of body, how its ops may be tiled.
        expected_accesses: op -> spans by argument that a tile usually touches, where the op declares more; for
            predictions alone.
    """

    name: str
    reference: Reference | None = None
    triton: Callable[[], TritonBody] | None = None
    cuda: CudaLauncher | None = None
    megakernel: MegakernelBody | MegakernelBodyFactory | None = None
    dtypes: tuple[str, ...] = ()
    make: Callable[[str, Mapping[str, Tensor], Params], Op] | None = None
    tiling: tuple[str, ...] = ()
    tunings: Mapping[BodyKind, Tuning] = field(default_factory=dict)
    expected_accesses: Callable[[Op], Mapping[str, tuple[Span, ...]]] | None = None

    @property
    def bodies(self) -> Mapping[BodyKind, object]:
        """Those that it has, by kind."""
        bodies = (self.reference, self.triton, self.cuda, self.megakernel)
        return {kind: body for kind, body in zip(BodyKind, bodies, strict=True) if body is not None}

    @property
    def is_proved(self) -> bool:
        """False if it has a text that nothing holds to the access maps of its ops."""
        return not isinstance(self.megakernel, CudaBody) or self.megakernel.is_proved

    @property
    def has_op_factory(self) -> bool:
        """True if ``check`` makes an op anew and compares; else its access maps are taken as they are."""
        return self.make is not None

    def make_op(
        self,
        name: str,
        grid: Sequence[int],
        reads: Mapping[str, tuple[Tensor, Sequence[Span]]],
        writes: Mapping[str, tuple[Tensor, Sequence[Span]]],
        *,
        params: Mapping[str, Param] | None = None,
        reduction: Reduction | None = None,
        flops: float = 0.0,
        when: str = "",
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
                Access(arg, tensor.name, check_sequence(spans, Span, f"op {name!r}", f"spans of {arg!r}"))
                for arg, (tensor, spans) in of.items()
            )

        op = Op(
            name,
            self.name,
            check_sequence(grid, object, f"op {name!r}", "grid"),
            accesses(reads),
            accesses(writes),
            reduction,
            tuple((params or {}).items()),
            flops,
            when,
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
        found, expected = _describe_op(op), _describe_op(self.remake_op(op, tensors, op.parameters))
        for what in found | expected:
            if found.get(what, "none") != expected.get(what, "none"):
                raise ParamError(
                    f"op {op.name!r} has {what} {found.get(what, 'none')}, but of its tensors and params kernel "
                    f"{self.name!r} makes an op with {expected.get(what, 'none')}; "
                    "make it with the kernel's own function"
                )

    def remake_op(self, op: Op, tensors: Mapping[str, Tensor], params: Params) -> Op:
        """``op`` made anew by ``make``, with these params on these tensors by argument.

        Raises:
            ParamError: params that the kernel does not take.
            DTypeError, ShapeError: tensors or tiles that it does not take.
        """
        assert self.make is not None
        try:
            return self.make(op.name, tensors, params)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            what = f"no param {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
            raise ParamError(
                f"op {op.name!r}: kernel {self.name!r} takes no params {dict(params)} on arguments {[*tensors]} "
                f"({what}); make the op with the kernel's own function"
            ) from error

    def _check_launch(self, op: Op, tensors: Mapping[str, Tensor]) -> None:
        for arg, tensor in tensors.items():
            if self.dtypes and tensor.dtype.name not in self.dtypes:
                raise DTypeError(
                    f"op {op.name!r}: kernel {self.name!r} takes {', '.join(self.dtypes)} for argument {arg!r}, "
                    f"but tensor {tensor.name!r} is {tensor.dtype}; convert it first"
                )
        warps = op.parameters.get("num_warps", _WARPS[0])
        if type(warps) is not int or warps not in _WARPS:
            raise ParamError(
                f"op {op.name!r} has num_warps {format_value(warps)}; use one of {', '.join(map(str, _WARPS))}"
            )


def _describe_op(op: Op) -> dict[str, Any]:
    """All that an op says beside its name. Params as text, which tells their type too: 1 == 1.0 == True."""
    return {
        "kernel": op.kernel,
        **{f"param {name}": repr(value) for name, value in op.params},
        "grid": op.grid,
        "reduction": op.reduction,
        **{f"read {a.arg!r}": a for a in op.reads},
        **{f"write {a.arg!r}": a for a in op.writes},
        "flops": op.flops,
        "when": repr(op.when),
    }


def get_kernel(op: Op) -> Kernel:
    """The kernel of an op. Raises GraphError if it has none, as after reading a plan without it."""
    if not isinstance(op.body, Kernel):
        raise GraphError(
            f"op {op.name!r} has no body for kernel {op.kernel!r}; pass it when the plan is read: "
            "interlace.read_plan(text, [kernel])"
        )
    return op.body


def build_triton_body(op: Op) -> TritonBody:
    """The Triton body of an op.

    Raises:
        GraphError: its kernel has none.
        ParamError: the op lacks a param that is fixed at compile time, or has warps that Triton does not take.
        ShapeError: a tile that the body does not take.
    """
    kernel = get_kernel(op)
    if kernel.triton is None:
        raise make_no_body_error(op, BodyKind.TRITON)
    body = kernel.triton()
    functions = [f for f in (body.prefetch, body.accumulate, body.finish) if f is not None]
    taken = [p for f in functions for p in inspect.signature(f.fn).parameters.values()]
    given = {a.arg for a in op.accesses} | op.parameters.keys()
    needed = {p.name for p in taken if "constexpr" in str(p.annotation) and p.default is inspect.Parameter.empty}
    missing = sorted(needed - given - {*PROVIDED_PARAMETERS})
    if missing:
        raise ParamError(
            f"op {op.name!r} lacks params {missing}, which the body of kernel {op.kernel!r} takes at compile time; "
            "pass them in params="
        )
    if body.check is not None:
        body.check(op)
    warps = int(op.parameters.get("num_warps", 1))
    if warps != next_power_of_2(warps):
        raise ParamError(f"op {op.name!r} has num_warps {warps}, and Triton takes powers of two; give it fewer")
    return body


def build_megakernel_body(op: Op, tensors: Mapping[str, Tensor], read_only: frozenset[str]) -> MegakernelBody:
    """The part of an op in the one launch, given the graph's tensors by argument, and which no op before it writes.

    Raises:
        GraphError: its kernel has none.
        ParamError: names or params that are none of CUDA C++.
        PlanError: it cannot stand in a launch with others.
    """
    body = get_kernel(op).megakernel
    if body is None:
        raise make_no_body_error(op, BodyKind.MEGAKERNEL)
    return body if isinstance(body, MegakernelBody) else body.build_megakernel_body(op, tensors, read_only)


def make_no_body_error(op: Op, *kinds: BodyKind) -> GraphError:
    """The error for a kernel without a body of some kinds, which says what runs it."""
    bodies = get_kernel(op).bodies
    advice = "give it one to run on a device"
    if BodyKind.TRITON in bodies:
        advice = "use the persistent executor"
    elif BodyKind.CUDA in bodies:
        advice = "it is CUDA C++ with a launch of its own, so run it with serial, cuda_graph, pdl or semaphore_streams"
    elif BodyKind.REFERENCE in kinds:
        advice = "give it one to run it here"
    what = " or ".join(kind.value for kind in kinds)
    return GraphError(f"op {op.name!r}: kernel {op.kernel!r} has no {what} body; {advice}")


def require(condition: bool, message: str) -> None:
    """Raise ShapeError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ShapeError(message)


def check_eps(name: str, eps: object) -> None:
    """Raise ArgumentError unless ``eps``, added to a mean of squares, is a float in float32's range, not negative."""
    check_type(eps, float, f"op {name!r}", "eps", "1e-5")
    if not 0 <= float(eps) < _FLOAT32_LIMIT:  # type: ignore[arg-type]
        raise ArgumentError(f"op {name!r}: eps is {eps!r}; use a small number that is not negative, such as 1e-5")


def check_block(what: str, *extents: int) -> None:
    """Raise ShapeError unless a block of these extents is some elements, and no more than Triton takes."""
    require(
        all(type(n) is int and n > 0 for n in extents) and prod(extents) <= _MAX_BLOCK,
        f"{what} has blocks of {' x '.join(map(str, extents))}; use positive ints, and at most 2^20 elements",
    )


def check_extents(what: str, extents: Sequence[int], tile: Sequence[int]) -> None:
    """Raise ShapeError unless tiles that cover these extents end before 2^31: a body counts rows in 32 bits."""
    require(
        all(n + t <= 1 << 31 for n, t in zip(extents, tile, strict=True)),
        f"{what} covers {' x '.join(map(str, extents))} by tiles of {' x '.join(map(str, tile))}, which reach beyond "
        "2^31; use smaller tensors",
    )


def check_argument(op: str, arg: str, tensor: object, shape: Sequence[int], dtype: DType | None = None) -> None:
    """Raise unless an argument of an op is a tensor of this shape, and of this dtype if one is given.

    Raises:
        ArgumentError, ShapeError, DTypeError: what it is instead.
    """
    check_type(tensor, Tensor, f"op {op!r}", arg)
    assert isinstance(tensor, Tensor)
    require(tensor.shape == tuple(shape), f"op {op!r}: {arg} {tensor} must have shape {tuple(shape)}")
    if dtype is not None and tensor.dtype is not dtype:
        raise DTypeError(f"op {op!r}: {arg} {tensor} must be {dtype}; convert it")


def next_power_of_2(n: int) -> int:
    """The smallest power of two of at least n."""
    return 1 << (n - 1).bit_length()


def check_same_dtype(name: str, *tensors: Tensor) -> DType:
    """The common dtype of tensors, for kernels that do not convert."""
    dtypes = {t.dtype.name for t in tensors}
    if len(dtypes) > 1:
        raise DTypeError(f"op {name!r} mixes dtypes {sorted(dtypes)}; convert its tensors to one")
    return tensors[0].dtype


def format_tiling(graph: Graph) -> str:
    """The tiles of a graph's ops, as ``up 128x128x64, down 128x256x64``; grids where a kernel has no such extents.

    Layers that are tiled alike are told once, as ``layers.*.q_heads 16x64x128``.
    """

    def one(op: Op) -> str:
        extents = [op.parameters.get(name) for name in ("BM", "BN", "BK")]
        return "x".join(map(str, extents if None not in extents else op.grid))

    return format_ops(f"{op.name} {one(op)}" for op in graph.ops)


def mask_layer_index(name: str) -> str:
    """The name of an op or a tensor, the same for all layers: ``layers.*.q`` of ``layers.7.q``."""
    return _LAYER.sub(".*.", name)


def parse_layer_index(name: str) -> int | None:
    """The number of the layer of an op or a tensor: 7 of ``layers.7.q``; None if it is of no layer."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def sum_over_layers(counts: Mapping[str, int]) -> dict[str, int]:
    """Sums over all layers, of counts by the name of an op or a tensor."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        found[mask_layer_index(name)] = found.get(mask_layer_index(name), 0) + count
    return found


def format_ops(ops: Iterable[str]) -> str:
    """What is said of ops, each behind its name, with commas; what is said of several layers alike once."""
    return ", ".join(dict.fromkeys(map(mask_layer_index, ops)))

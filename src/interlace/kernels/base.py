"""Kernels: equivalent bodies of several kinds, and the function that applies a kernel to tensors.

A body takes its sizes from the params, dependencies follow from the access maps, and a plan file contains both. A
kernel with an op factory (``make``) is therefore applied again to the tensors and params of every op that names it,
from any origin. Only an op that equals the result is accepted.
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
    Params,
    Reference,
    TritonBody,
)
from interlace.kernels.megakernel_body import MegakernelBody, MegakernelBodyFactory
from interlace.kernels.tuning import Tuning

_WARPS = (1, 2, 4, 8, 12, 16, 32)
_MAX_BLOCK = 1 << 20
_FLOAT32_LIMIT = 2.0**127  # all smaller numbers are in float32's range
_LAYER = re.compile(r"\.(\d+)\.")  # layer index in a name such as layers.7.q_heads


@dataclass(frozen=True)
class Kernel:
    """A tiled kernel, ready to be applied to tensors. Executors choose among its bodies.

    Attributes:
        name: name in a plan's JSON.
        reference: NumPy reference that defines the result, or None if the kernel can only run on a device.
        triton: function that returns the Triton body; called only when a device executor needs it.
        cuda: CUDA C++ body with its own launch, one thread block per item.
        megakernel: CUDA C++ body for the megakernel, or the CUDA source of a tile.
        dtypes: names of the supported dtypes; empty for any.
        make: (name, tensors by argument, params) -> the op, as the kernel's own function makes it. Every op of this
            kernel that enters a graph must equal it; without it, params are not checked against grid and access maps.
        tiling: names of the params that define an op's tiling; ``make`` accepts other values for them.
        tunings: tuning rules of its ops, by kind of body.
        expected_accesses: op -> spans by argument that a tile is expected to access, if the op declares more; used
            for predictions only.
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
    rate_share: float = 1.0

    def __post_init__(self) -> None:
        share = self.rate_share
        if not (isinstance(share, int | float) and 0 < share <= 1):
            raise ParamError(f"kernel {self.name!r} has rate_share {format_value(share)}; use one above 0, up to 1")

    @property
    def bodies(self) -> Mapping[BodyKind, object]:
        """The available bodies, by kind."""
        bodies = (self.reference, self.triton, self.cuda, self.megakernel)
        return {kind: body for kind, body in zip(BodyKind, bodies, strict=True) if body is not None}

    @property
    def is_proved(self) -> bool:
        """False if it has a CUDA source that nothing checks against the access maps of its ops."""
        return self.megakernel is None or self.megakernel.is_proved

    @property
    def has_op_factory(self) -> bool:
        """True if ``check`` makes an op again and compares; otherwise the op's access maps are trusted."""
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
        """Apply this kernel to tensors; ``reads`` and ``writes`` map argument names to (tensor, spans).

        Raises:
            ArgumentError: an argument that is not a tensor with spans.
            DTypeError: a tensor of a dtype that the kernel does not support.
            ParamError: ``num_warps`` that no launch supports.
            ShapeError: a malformed grid or access map.
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
            ParamError: an op of another kernel, or one that differs from what ``make`` makes of its tensors and params.
            DTypeError, ShapeError: tensors that the kernel does not support.
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
        """Make ``op`` again with ``make``, with these params on these tensors by argument.

        Raises:
            ParamError: params that the kernel does not support.
            DTypeError, ShapeError: tensors or tiles that it does not support.
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
    """Return all properties of an op except its name. Params are formatted with repr, because 1 == 1.0 == True."""
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
    """Return the kernel of an op. Raises GraphError if it has none, as after a plan was read without the kernel."""
    if not isinstance(op.body, Kernel):
        raise GraphError(
            f"op {op.name!r} has no body for kernel {op.kernel!r}; pass it when the plan is read: "
            "interlace.read_plan(text, [kernel])"
        )
    return op.body


def build_triton_body(op: Op) -> TritonBody:
    """Return the Triton body of an op.

    Raises:
        GraphError: a kernel without a Triton body.
        ParamError: a missing compile-time param, or a number of warps that Triton does not support.
        ShapeError: a tile that the body does not support.
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
    """Return an op's body for the megakernel.

    Args:
        tensors: tensors of the graph, by argument.
        read_only: arguments that no earlier op writes.

    Raises:
        GraphError: a kernel without a megakernel body.
        ParamError: names or params that are invalid in CUDA C++.
        PlanError: an op that cannot share a launch with others.
    """
    body = get_kernel(op).megakernel
    if body is None:
        raise make_no_body_error(op, BodyKind.MEGAKERNEL)
    return body if isinstance(body, MegakernelBody) else body.build_megakernel_body(op, tensors, read_only)


def make_no_body_error(op: Op, *kinds: BodyKind) -> GraphError:
    """Return the error for a kernel without bodies of some kinds; it names an executor that can run the kernel."""
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
    """Raise ArgumentError unless ``eps``, added to a mean of squares, is a nonnegative float in float32's range."""
    check_type(eps, float, f"op {name!r}", "eps", "1e-5")
    if not 0 <= float(eps) < _FLOAT32_LIMIT:  # type: ignore[arg-type]
        raise ArgumentError(f"op {name!r}: eps is {eps!r}; use a small number that is not negative, such as 1e-5")


def check_block(what: str, *extents: int) -> None:
    """Raise ShapeError unless a block of these extents is nonempty and within Triton's limit."""
    require(
        all(type(n) is int and n > 0 for n in extents) and prod(extents) <= _MAX_BLOCK,
        f"{what} has blocks of {' x '.join(map(str, extents))}; use positive ints, and at most 2^20 elements",
    )


def check_extents(what: str, extents: Sequence[int], tile: Sequence[int]) -> None:
    """Raise ShapeError unless tiles that cover these extents end before 2^31: bodies index rows with 32 bits."""
    require(
        all(n + t <= 1 << 31 for n, t in zip(extents, tile, strict=True)),
        f"{what} covers {' x '.join(map(str, extents))} by tiles of {' x '.join(map(str, tile))}, which reach beyond "
        "2^31; use smaller tensors",
    )


def check_argument(op: str, arg: str, tensor: object, shape: Sequence[int], dtype: DType | None = None) -> None:
    """Raise unless an argument of an op is a tensor of this shape, and of this dtype if one is given.

    Raises:
        ArgumentError, ShapeError, DTypeError: an argument of another type, shape or dtype.
    """
    check_type(tensor, Tensor, f"op {op!r}", arg)
    assert isinstance(tensor, Tensor)
    require(tensor.shape == tuple(shape), f"op {op!r}: {arg} {tensor} must have shape {tuple(shape)}")
    if dtype is not None and tensor.dtype is not dtype:
        raise DTypeError(f"op {op!r}: {arg} {tensor} must be {dtype}; convert it")


def check_rows(op: str, arg: str, tensor: object, shape: tuple[int, int], dtype: DType | None = None) -> None:
    """Raise unless an argument of an op is a matrix of this shape, or of more rows; see ``check_argument``."""
    check_type(tensor, Tensor, f"op {op!r}", arg)
    assert isinstance(tensor, Tensor)
    rows = max(tensor.shape[0], shape[0]) if len(tensor.shape) == 2 else shape[0]
    check_argument(op, arg, tensor, (rows, shape[1]), dtype)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def check_same_dtype(name: str, *tensors: Tensor) -> DType:
    """Return the common dtype of tensors, for kernels that do not convert."""
    dtypes = {t.dtype.name for t in tensors}
    if len(dtypes) > 1:
        raise DTypeError(f"op {name!r} mixes dtypes {sorted(dtypes)}; convert its tensors to one")
    return tensors[0].dtype


def format_tiling(graph: Graph) -> str:
    """Format the tiles of a graph's ops, as ``up 128x128x64, down 128x256x64``; grids for kernels without such extents.

    Layers with equal tiles are listed once, as ``layers.*.q_heads 16x64x128``.
    """

    def one(op: Op) -> str:
        extents = [op.parameters.get(name) for name in ("BM", "BN", "BK")]
        return "x".join(map(str, extents if None not in extents else op.grid))

    return format_ops(f"{op.name} {one(op)}" for op in graph.ops)


def mask_layer_index(name: str) -> str:
    """Return the name of an op or a tensor with its layer index masked: ``layers.*.q`` for ``layers.7.q``."""
    return _LAYER.sub(".*.", name)


def parse_layer_index(name: str) -> int | None:
    """Return the layer index of an op or a tensor: 7 for ``layers.7.q``; None if it belongs to no layer."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def sum_over_layers(counts: Mapping[str, int]) -> dict[str, int]:
    """Sum counts, given by name of an op or a tensor, over all layers."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        found[mask_layer_index(name)] = found.get(mask_layer_index(name), 0) + count
    return found


def format_ops(ops: Iterable[str]) -> str:
    """Join descriptions that begin with an op's name by commas; list equal ones of several layers once."""
    return ", ".join(dict.fromkeys(map(mask_layer_index, ops)))

"""Ops: tiled kernels as data, bound to the tensors of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Protocol, runtime_checkable

import numpy as np

from interlace.core.arguments import MAX_PRINTED_BITS, check_sequence, check_type, format_value
from interlace.core.errors import ArgumentError, ParamError, ShapeError
from interlace.graph.access import Access, Ints, Span
from interlace.graph.tensor import Tensor

Param = int | float | str | bool

_INT32 = 1 << 31  # tiles and k are 32-bit numbers on a device
_INT64 = 1 << 63
_INT62 = 1 << 62  # limit for bounds that move, so that sums and differences of two stay within 64 bits


@dataclass(frozen=True)
class Reduction:
    """Reduction loop of a tile: ``extent`` elements, in chunks of ``block``.

    Items may split it. Splits, and waits inside it, lie at multiples of ``block``.

    Raises:
        ShapeError: an extent or block that is not a positive 32-bit integer.
    """

    extent: int
    block: int

    def __post_init__(self) -> None:
        if any(type(n) is not int or not 0 < n < _INT32 for n in (self.extent, self.block)):
            raise ShapeError(
                f"reduction of {self.extent} in chunks of {self.block}; both must be positive ints below 2^31"
            )

    @property
    def chunks(self) -> int:
        """Number of chunks, the last possibly short."""
        return -(-self.extent // self.block)


@runtime_checkable
class Body(Protocol):
    """Interface of a kernel for a graph: checks that an op is one of the kernel's own and does what it declares."""

    @property
    def is_proved(self) -> bool:
        """False if a body is CUDA source that is not checked against the access maps of its ops."""

    @property
    def has_op_factory(self) -> bool:
        """True if ``check`` makes the op anew, so that its access maps are the kernel's own."""

    @property
    def rate_share(self) -> float:
        """Fraction of a device's FLOP/s in an op's dtype that the bodies reach at most, for predictions."""

    @property
    def expected_accesses(self) -> Callable[[Op], Mapping[str, tuple[Span, ...]]] | None:
        """Function that returns the expected accesses of an op's tiles, by argument, where the op declares more.

        The mapping is empty if the declared accesses are the expected ones.
        """

    def check(self, op: Op, tensors: Mapping[str, Tensor]) -> None:
        """Check that the kernel can run ``op`` on these tensors, given by argument.

        Raises:
            GraphError: it cannot.
        """


def _check_param(where: str, name: object, value: object) -> Param:
    """Validate a param; NumPy scalars become Python numbers."""
    check_type(name, str, where, "the name of a param")
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, (int, float, str)):
        raise ParamError(f"{where}: param {name} is {value!r}; give a number, a bool or a text")
    if isinstance(value, int) and value.bit_length() > MAX_PRINTED_BITS:
        raise ParamError(
            f"{where}: param {name} is {format_value(value)}; give one of {MAX_PRINTED_BITS:,} bits at most"
        )
    return value


def make_placement_key(tensors: Mapping[str, Tensor]) -> object:
    """Return a key that is equal for tensors by argument that differ only in their names.

    Arguments that share a tensor must share one in both.
    """
    first: dict[str, str] = {}
    return tuple((arg, first.setdefault(t.name, arg), t.shape, t.dtype.name) for arg, t in tensors.items())


@dataclass(frozen=True)
class Op:
    """A tiled kernel applied to tensors.

    Attributes:
        name: name of the op, unique in its graph.
        kernel: name of the kernel, by which a plan read from JSON finds its body.
        grid: number of tiles along each tile coordinate (1 to 3 of them).
        reads, writes: accesses of each tile.
        reduction: loop that a tile runs, or None for an op without one.
        params: the kernel's parameters (tile sizes, activation, ...), all serialisable.
        flops: floating-point operations of one whole tile.
        when: name of an int32 argument of which each tile reads one element, or "". A tile whose element is 0 does not
            compute: all that it writes becomes 0. The item that writes the element decides whether to *spawn* the tile.
        body: the kernel itself; excluded from equality, and None if it was not available when a plan was read.
        is_unproved: True if nothing checks the kernel's accesses against the access maps: its body is unchecked CUDA
            source, or the maps come from a file and the kernel cannot make them anew. Excluded from equality, too.

    Raises:
        ArgumentError: an attribute of another type.
        ShapeError: an invalid grid, an access map that has no meaning for this grid and reduction, an argument name
            used twice, or a ``when`` that names no argument that is read.
        ParamError: a param that is neither a number nor a string, or two of one name.
    """

    name: str
    kernel: str
    grid: tuple[int, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    reduction: Reduction | None = None
    params: tuple[tuple[str, Param], ...] = ()
    flops: float = 0.0
    when: str = ""
    body: Body | None = field(default=None, compare=False, repr=False)
    is_unproved: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_type(self.name, str, "Op", "name")
        where = f"op {self.name!r}"
        check_type(self.kernel, str, where, "kernel")
        check_type(self.reduction, (Reduction, type(None)), where, "reduction", "il.Reduction(extent, block)")
        check_type(self.flops, (int, float), where, "flops", "2.0 * m * n * k")
        check_type(self.is_unproved, bool, where, "is_unproved")
        if self.body is not None and not isinstance(self.body, Body):
            raise ArgumentError(f"{where}: body is {format_value(self.body)}; pass the kernel, such as body=kernel")
        if self.body is not None and not self.body.is_proved:
            object.__setattr__(self, "is_unproved", True)
        object.__setattr__(self, "grid", check_sequence(self.grid, object, where, "grid"))
        object.__setattr__(self, "reads", check_sequence(self.reads, Access, where, "reads"))
        object.__setattr__(self, "writes", check_sequence(self.writes, Access, where, "writes"))
        params = check_sequence(self.params, tuple, where, "params")
        if any(len(pair) != 2 for pair in params):
            raise ParamError(f"{where}: params is {format_value(self.params)}; give pairs, such as (('N', 64),)")
        object.__setattr__(self, "params", tuple((name, _check_param(where, name, value)) for name, value in params))
        if not 1 <= len(self.grid) <= 3 or any(type(n) is not int or n < 1 for n in self.grid):
            raise ShapeError(f"op {self.name!r} has grid {self.grid}; use 1 to 3 positive extents, all ints")
        if self.tiles >= _INT32:
            raise ShapeError(
                f"op {self.name!r} has grid {self.grid}, {self.tiles} tiles; use larger ones, fewer than 2^31"
            )
        if any(a.uses_k for a in self.writes):
            raise ShapeError(f"op {self.name!r} writes a region that depends on the k-range; only reads may")
        if self.reduction is None and any(a.uses_k for a in self.reads):
            raise ShapeError(f"op {self.name!r} reads a k-range but declares no reduction; pass reduction=")
        for several in (self.reads, self.writes):
            if len({a.arg for a in several}) < len(several):
                names = [a.arg for a in several]
                raise ShapeError(f"op {self.name!r} has arguments {names}; give each access one of its own")
        if len({name for name, _ in self.params}) < len(self.params):
            raise ParamError(f"{where}: params {[name for name, _ in self.params]} repeat a name; give each one value")
        check_type(self.when, str, where, "when")
        if self.when and self.when not in {a.arg for a in self.reads if not a.uses_k}:
            raise ShapeError(f"op {self.name!r} has when={self.when!r}, which it does not read; name what it reads")
        for access in self.accesses:
            self._check_spans(access)

    def _check_spans(self, access: Access) -> None:
        using_k = [span for span in access.spans if span.uses_k]
        if using_k and not all(span.is_monotonic_in_k for span in using_k):
            raise ShapeError(
                f"op {self.name!r}: with a part of the reduction, {access} may leave what the whole tile "
                "reads, from which dependencies follow; use k.lo (or -k.hi) in the lower bound and k.hi "
                "(or -k.lo) in the upper one"
            )
        if len(using_k) > 1:
            raise ShapeError(
                f"op {self.name!r}: {access} moves with the k-range in more than one dimension; "
                "let it move in one, and span the others by ALL or a block"
            )
        grid, k_extent = self.grid, self.k_extent
        for bound in [bound for span in access.spans for bound in (span.lo, span.hi)]:
            moves = bound.tile or bound.k_lo or bound.k_hi
            if bound.bound_magnitude(grid, k_extent) >= (_INT62 if moves else _INT64):
                raise ShapeError(
                    f"op {self.name!r}: {access} has a bound beyond 64 bits on grid {self.grid} "
                    f"with a reduction of {self.k_extent}; use smaller factors"
                )

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return prod(self.grid)

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The reads, followed by the writes."""
        return self.reads + self.writes

    def substitute_expected(self, accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        """Replace reads or writes by the expected accesses, for predictions; dependencies use the declared ones."""
        if self.body is None or self.body.expected_accesses is None:
            return accesses
        spans = self.body.expected_accesses(self)
        if not spans:
            return accesses
        return tuple(Access(a.arg, a.tensor, spans.get(a.arg, a.spans)) for a in accesses)

    @property
    def k_extent(self) -> int:
        """Length of the reduction; 1 for an op without one (its only k-range is [0, 1))."""
        return self.reduction.extent if self.reduction else 1

    def param(self, name: str) -> Param:
        """Return one of the kernel's parameters."""
        return self.parameters[name]

    @property
    def parameters(self) -> Mapping[str, Param]:
        """The kernel's parameters by name."""
        return dict(self.params)

    def make_structure_key(self, tensors: Mapping[str, Tensor]) -> object:
        """Return a key that is equal for ops that differ only in their names and in the names of their tensors.

        Params are compared as text, which distinguishes types (1 == 1.0 == True).

        Args:
            tensors: the op's tensors by argument.
        """
        spans = tuple((a.arg, a.spans) for a in self.reads), tuple((a.arg, a.spans) for a in self.writes)
        params = repr(self.params), repr(self.flops)
        return (
            id(self.body),
            self.kernel,
            self.grid,
            self.reduction,
            self.when,
            params,
            spans,
            make_placement_key(tensors),
        )

    def compute_coords(self, tiles: Ints | None = None) -> Ints:
        """Return the coordinates, shape (n, len(grid)), of linear (row-major) tile numbers; by default of all tiles."""
        tiles = np.arange(self.tiles, dtype=np.int64) if tiles is None else np.asarray(tiles, np.int64)
        return np.stack(np.unravel_index(tiles, self.grid), axis=1).astype(np.int64)

    def format_tile(self, tile: int) -> str:
        """Format a tile for messages: ``op 'down', tile (3, 0)``; ``..., tile number 99`` if it is outside the grid."""
        if not 0 <= tile < self.tiles:
            return f"op {self.name!r}, tile number {tile}"
        where = ", ".join(str(int(c)) for c in np.unravel_index(int(tile), self.grid))
        return f"op {self.name!r}, tile ({where})"

"""Lower bounds on DRAM traffic, printed next to every traffic figure: no schedule moves less.

S is the on-chip capacity in elements. Each bound has one of three labels:

- *safe*: proved, with S = L2, L1, shared memory and registers of all SMs. A figure below it is wrong.
- *leading order*: the leading term alone, with S = L2. A good schedule comes close to it; figures may fall below it.
- *best tiling*: the least of all tilings and loop orders of one buffer, with S = L2 (``planner/mappings``). Schedules
  that change their tiling on the way, or keep sums in registers, may fall below it.

Smith and van de Geijn prove that C := AB + C takes at least 2mnk/sqrt(S) - 2S loads. A matmul that initialises C
to zero saves the mn loads of C and stores C. Hence

    loads             >= 2mnk/sqrt(S) - 2S - mn, and at least the operands, mk + kn
    loads and stores  >= 2mnk/sqrt(S) - 2S,      and at least operands and result

The - mn in the first line is necessary. With k <= sqrt(S), row blocks of A can stay on chip while B streams past
them. That schedule loads mk + mnk/sqrt(S), about half of the bound without - mn. Example, m = n = k = 8192 in bf16 on
an H200:

    S = (60 MiB + 132 * 512 KiB) / 2 bytes = 66,060,288; 2mnk/sqrt(S) = 135,278,754; 2S = 132,120,576
    minus mn = 67,108,864 the result is negative, so the safe bound on loads is the compulsory 268 MB
    leading order, S = 60 MiB / 2 bytes = 31,457,280: 196,037,539 elements, 392 MB

Kwasniewski et al. (COSMA) count loads and stores of the schedule that keeps a square of C: 2mnk/sqrt(S) + mn. For the
same reason as above it is a leading term, and none where k, m or n is below sqrt(S).

A convolution is bounded like a matmul whose input, once loaded, serves R = (taps / stride)^2 taps: a block of u pixels
by z channels of the result, u z = S, loads u / R inputs and z weights for each tap and channel of the input, which is
least at u = R z. Together 2 * products / sqrt(R S), and the stores.

The bounds hold for any number of workers: workers share S, and any parallel execution serialises to one sequence of
loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from math import floor, sqrt

from interlace.core.devices import DeviceSpec
from interlace.core.errors import ModelError

COMPULSORY = "each input is loaded once and each output stored once"
SMITH = "Smith, Lowery, Langou and van de Geijn, A tight I/O lower bound for matrix multiplication, 2017"
FUSION = f"{SMITH}; per matmul, less the store and the load of what is passed on"
COSMA = "Kwasniewski et al., Red-blue pebbling revisited (COSMA), 2019"
CONVOLUTION = (
    "Chen, Han and Wang, Communication lower bound in convolution accelerators, 2020; constant of their dataflow"
)
SAHA = "Saha and Ye, The I/O complexity of attention, or how optimal is FlashAttention?, 2024; constant 1 assumed"


class Label(Enum):
    """How a bound is to be read."""

    SAFE = "safe"
    LEADING = "leading order"
    MAPPINGS = "best tiling"


class BoundedQuantity(Enum):
    """Quantity that a bound limits."""

    LOADS = "loads"
    LOADS_AND_STORES = "loads and stores"


@dataclass(frozen=True)
class TrafficBound:
    """Lower bound on the traffic between DRAM and the chip.

    Attributes:
        name: name of the computation that is bounded.
        bytes: lower bound in bytes, never negative.
        label: safe or leading order.
        counts: loads alone, or loads and stores.
        source: publication or argument that proves the bound.
    """

    name: str
    bytes: int
    label: Label
    counts: BoundedQuantity
    source: str


@dataclass(frozen=True)
class Gemm:
    """Sizes of C = AB: A is m x k, B is k x n.

    Raises:
        ModelError: a size below one.
    """

    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        _check_positive(m=self.m, n=self.n, k=self.k)

    def compute_leading_term(self, capacity: float) -> float:
        """Return the leading term 2mnk/sqrt(S), in elements."""
        return 2 * self.m * self.n * self.k / sqrt(capacity)


@dataclass(frozen=True)
class Convolution:
    """Sizes of a convolution; the output has ``rows`` / ``stride`` rows, rounded up, and columns likewise.

    Attributes:
        images, rows, columns, channels: extents of the input.
        out_channels: channels of the output.
        taps: rows and columns of a filter, an odd number.
        stride: step of the filter in both directions, at most ``taps``.

    Raises:
        ModelError: a size below one, even taps, or a stride above them.
    """

    images: int
    rows: int
    columns: int
    channels: int
    out_channels: int
    taps: int = 3
    stride: int = 1

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size < 1:
                raise ModelError(f"{name} is {size}; use at least 1")
        if self.taps % 2 == 0 or self.stride > self.taps:
            raise ModelError(
                f"{self.taps} taps with a stride of {self.stride}; use odd taps and a stride of at most that"
            )

    @property
    def out_rows(self) -> int:
        """Rows of the output."""
        return -(-self.rows // self.stride)

    @property
    def out_columns(self) -> int:
        """Columns of the output."""
        return -(-self.columns // self.stride)

    @property
    def inputs(self) -> int:
        """Elements of the input."""
        return self.images * self.rows * self.columns * self.channels

    @property
    def outputs(self) -> int:
        """Elements of the output."""
        return self.images * self.out_rows * self.out_columns * self.out_channels

    @property
    def weights(self) -> int:
        """Elements of all filters."""
        return self.taps**2 * self.channels * self.out_channels

    @property
    def macs(self) -> int:
        """Products of an element of the input, or of its padding, and a weight."""
        return self.outputs * self.channels * self.taps**2


def bound_compulsory(name: str, read_bytes: int, written_bytes: int) -> tuple[TrafficBound, TrafficBound]:
    """Return the compulsory bounds that hold for any schedule: on loads, and on loads and stores."""
    return (
        TrafficBound(name, read_bytes, Label.SAFE, BoundedQuantity.LOADS, COMPULSORY),
        TrafficBound(name, read_bytes + written_bytes, Label.SAFE, BoundedQuantity.LOADS_AND_STORES, COMPULSORY),
    )


def bound_matmul(gemm: Gemm, element_bytes: int, device: DeviceSpec) -> tuple[TrafficBound, TrafficBound, TrafficBound]:
    """Return the bounds of one matmul: safe for loads, safe for loads and stores, and leading order for loads.

    Each bound is at least the compulsory one. If the operands differ in dtype, ``element_bytes`` is the size of the
    smallest element.

    Raises:
        ModelError: a size is below one.
    """
    return bound_chain((gemm,), element_bytes, device)


def bound_chain(
    gemms: Sequence[Gemm], element_bytes: int, device: DeviceSpec
) -> tuple[TrafficBound, TrafficBound, TrafficBound]:
    """Return the bounds of a chain of matmuls, each of which takes the previous result as its A, under any fusion.

    Fusion saves at most the store and the load of each intermediate result. An elementwise step between two matmuls
    may combine columns, as in a gated FFN, where n is twice the next k. The bounds do not cover schedules that
    recompute results to save traffic.

    Raises:
        ModelError: the chain is empty, a size is below one, or a result does not fit the next operand.
    """
    _check_positive(element_bytes=element_bytes)
    if not gemms:
        raise ModelError("a chain of no matmuls moves nothing; name at least one")
    for gemm, following in pairwise(gemms):
        if gemm.m != following.m or gemm.n % following.k:
            raise ModelError(
                f"{following} cannot take the {gemm.m} x {gemm.n} result of {gemm}; "
                f"use m = {gemm.m} and a k that divides {gemm.n}"
            )
    first, last = gemms[0], gemms[-1]
    read = first.m * first.k + sum(gemm.k * gemm.n for gemm in gemms)
    written = last.m * last.n
    unstored = sum(gemm.m * gemm.n for gemm in gemms[:-1])
    unloaded = sum(gemm.m * gemm.k for gemm in gemms[1:])
    on_chip = device.on_chip_bytes / element_bytes
    total = sum(gemm.compute_leading_term(on_chip) - 2 * on_chip for gemm in gemms) - unstored - unloaded
    leading = sum(gemm.compute_leading_term(device.l2_bytes / element_bytes) for gemm in gemms) - unloaded
    name, source = ("matmul", SMITH) if len(gemms) == 1 else (f"{len(gemms)} chained matmuls", FUSION)
    return (
        _make_bound(name, max(read, total - written), element_bytes, Label.SAFE, BoundedQuantity.LOADS, source),
        _make_bound(
            name, max(read + written, total), element_bytes, Label.SAFE, BoundedQuantity.LOADS_AND_STORES, source
        ),
        _make_bound(name, max(read, leading), element_bytes, Label.LEADING, BoundedQuantity.LOADS, source),
    )


def bound_pebbling(gemms: Sequence[Gemm], element_bytes: int, device: DeviceSpec) -> TrafficBound | None:
    """Return the red-blue pebble bound of a chain of matmuls on loads and stores, with S = L2; see ``bound_chain``.

    None where an extent of a matmul is below sqrt(S), so that the leading term is not what counts.

    Raises:
        ModelError: as for ``bound_chain``.
    """
    _, total, leading = bound_chain(gemms, element_bytes, device)
    if any(min(gemm.m, gemm.n, gemm.k) ** 2 < device.l2_bytes / element_bytes for gemm in gemms):
        return None
    moved = leading.bytes + gemms[-1].m * gemms[-1].n * element_bytes
    return TrafficBound(total.name, moved, Label.LEADING, BoundedQuantity.LOADS_AND_STORES, COSMA)


def bound_convolutions(
    convs: Sequence[Convolution], element_bytes: int, device: DeviceSpec
) -> tuple[TrafficBound, ...]:
    """Return the bounds of convolutions, each of which reads the output of the one before, under any fusion.

    They are compulsory for loads, for loads and stores, and leading order for both, with S = L2. Fusion saves at most
    the store and the load of each intermediate image.

    Raises:
        ModelError: there are none, or one cannot read the output of the one before.
    """
    _check_positive(element_bytes=element_bytes)
    if not convs:
        raise ModelError("a chain of no convolutions moves nothing; name at least one")
    for conv, following in pairwise(convs):
        made = conv.images, conv.out_rows, conv.out_columns, conv.out_channels
        if made != (following.images, following.rows, following.columns, following.channels):
            raise ModelError(f"{following} cannot read the output of {conv}, {' x '.join(map(str, made))}")
    read, written = convs[0].inputs + sum(conv.weights for conv in convs), convs[-1].outputs
    cache = device.l2_bytes / element_bytes
    leading = sum(2 * conv.macs * conv.stride / (conv.taps * sqrt(cache)) for conv in convs)
    leading += written - sum(conv.inputs for conv in convs[1:])
    name = "convolution" if len(convs) == 1 else f"{len(convs)} chained convolutions"
    both = BoundedQuantity.LOADS_AND_STORES
    return (
        *bound_compulsory(name, read * element_bytes, written * element_bytes),
        _make_bound(name, max(read + written, leading), element_bytes, Label.LEADING, both, CONVOLUTION),
    )


def bound_attention(
    queries: int, keys: int, width: int, heads: int, element_bytes: int, device: DeviceSpec, *, key_heads: int
) -> tuple[TrafficBound, TrafficBound, TrafficBound]:
    """Return the bounds of softmax(Q K^T) V: compulsory for loads, for loads and stores; leading order for both.

    The leading term is N^2 d^2 / S for each head, or N^2 d / sqrt(S) where that is less, that is, where the cache is
    smaller than d^2. It is known only up to a constant, which is taken as 1. A causal mask removes about half of the
    N^2 pairs.

    Args:
        queries, keys: rows of Q, and of K and V, per head.
        width: head dimension d.
        heads, key_heads: number of heads of Q, and of K and V.
        element_bytes: element size in bytes of all tensors.
        device: device whose L2 capacity is S.

    Raises:
        ModelError: a size is below one, or the heads do not share the key heads evenly.
    """
    _check_positive(
        queries=queries, keys=keys, width=width, heads=heads, element_bytes=element_bytes, key_heads=key_heads
    )
    if heads % key_heads:
        raise ModelError(f"{heads} heads cannot share {key_heads} key heads evenly; use a divisor of {heads}")
    q, kv = queries * width * heads, 2 * keys * width * key_heads
    cache = device.l2_bytes / element_bytes
    pairs = queries * keys * heads
    leading = min(pairs * width**2 / cache, pairs * width / sqrt(cache))
    both = BoundedQuantity.LOADS_AND_STORES
    return (
        *bound_compulsory("attention", (q + kv) * element_bytes, q * element_bytes),
        _make_bound("attention", max(2 * q + kv, leading), element_bytes, Label.LEADING, both, SAHA),
    )


def _make_bound(
    name: str, elements: float, element_bytes: int, label: Label, counts: BoundedQuantity, source: str
) -> TrafficBound:
    return TrafficBound(name, floor(elements) * element_bytes, label, counts, source)


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ModelError(f"{name} is {size}; use at least 1")

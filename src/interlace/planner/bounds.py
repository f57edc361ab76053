"""Lower bounds on DRAM traffic, to print beside every figure: no schedule moves less.

S is what the chip can hold, in elements. Two labels say how a bound may be read:

- *safe*: proved, with S = L2, L1, shared memory and registers of all SMs. A figure below it is wrong.
- *leading order*: the leading term alone, with S = L2. What a good schedule gets near; figures may pass it.

Smith and van de Geijn prove that C := AB + C takes at least 2mnk/sqrt(S) - 2S loads. A matmul that starts C
from nothing saves the mn loads of C, and stores C, so that

    loads             >= 2mnk/sqrt(S) - 2S - mn, and at least the operands, mk + kn
    loads and stores  >= 2mnk/sqrt(S) - 2S,      and at least operands and result

Without the - mn the first line would be false: with k <= sqrt(S), row blocks of A that stay on chip while B
streams past them load mk + mnk/sqrt(S), about half of it. Example, m = n = k = 8192 in bf16 on an H200:

    S = (60 MiB + 132 * 512 KiB) / 2 bytes = 66,060,288; 2mnk/sqrt(S) = 135,278,754; 2S = 132,120,576
    less mn = 67,108,864 that is negative, so the safe bound on loads is the compulsory 268 MB
    leading order, S = 60 MiB / 2 bytes = 31,457,280: 196,037,539 elements, 392 MB

Several workers share S, and whatever they do at once is some one sequence of loads, so these bounds hold for
any number of them.
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
SAHA = "Saha and Ye, The I/O complexity of attention, or how optimal is FlashAttention?, 2024; constant 1 assumed"


class Label(Enum):
    """How a bound may be read."""

    SAFE = "safe"
    LEADING = "leading order"


class Counts(Enum):
    """What a bound counts."""

    LOADS = "loads"
    LOADS_AND_STORES = "loads and stores"


@dataclass(frozen=True)
class Bound:
    """A bound on traffic between DRAM and the chip.

    Attributes:
        name: of what is bounded.
        bytes: never negative.
        label: safe or leading order.
        counts: loads alone, or loads and stores.
        source: where it is proved.
    """

    name: str
    bytes: int
    label: Label
    counts: Counts
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
        _positive(m=self.m, n=self.n, k=self.k)

    def leading(self, capacity: float) -> float:
        """2mnk/sqrt(S), in elements."""
        return 2 * self.m * self.n * self.k / sqrt(capacity)


def compulsory(name: str, read_bytes: int, written_bytes: int) -> tuple[Bound, Bound]:
    """The bounds that any schedule meets, of loads and of loads and stores."""
    return (
        Bound(name, read_bytes, Label.SAFE, Counts.LOADS, COMPULSORY),
        Bound(name, read_bytes + written_bytes, Label.SAFE, Counts.LOADS_AND_STORES, COMPULSORY),
    )


def matmul(gemm: Gemm, element_bytes: int, device: DeviceSpec) -> tuple[Bound, Bound, Bound]:
    """Bounds of one matmul: safe for loads, safe for loads and stores, and leading order for loads.

    Each is at least compulsory. ``element_bytes`` is that of the smallest element if the operands differ.

    Raises:
        ModelError: a size below one.
    """
    return chain((gemm,), element_bytes, device)


def chain(gemms: Sequence[Gemm], element_bytes: int, device: DeviceSpec) -> tuple[Bound, Bound, Bound]:
    """Bounds of matmuls each of which reads the result of the one before as its A, in any fusion.

    Fusion saves at most what is passed on: its store and its load. An elementwise step between two matmuls
    may fold columns together, as in a gated FFN, where n is twice the next k. Results that are computed twice
    to save traffic are not covered.

    Raises:
        ModelError: no matmul, a size below one, or a result that is not the next operand.
    """
    _positive(element_bytes=element_bytes)
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
    total = sum(gemm.leading(on_chip) - 2 * on_chip for gemm in gemms) - unstored - unloaded
    leading = sum(gemm.leading(device.l2_bytes / element_bytes) for gemm in gemms) - unloaded
    name, source = ("matmul", SMITH) if len(gemms) == 1 else (f"{len(gemms)} chained matmuls", FUSION)
    return (
        _bound(name, max(read, total - written), element_bytes, Label.SAFE, Counts.LOADS, source),
        _bound(name, max(read + written, total), element_bytes, Label.SAFE, Counts.LOADS_AND_STORES, source),
        _bound(name, max(read, leading), element_bytes, Label.LEADING, Counts.LOADS, source),
    )


def attention(
    queries: int, keys: int, width: int, heads: int, element_bytes: int, device: DeviceSpec, *, key_heads: int
) -> tuple[Bound, Bound, Bound]:
    """Bounds of softmax(Q K^T) V: compulsory for loads, for loads and stores, and leading order for both.

    The leading term is N^2 d^2 / S for each head, or N^2 d / sqrt(S) where that is less, which is where a
    cache is smaller than d^2. It is known up to a constant only, here taken as 1; a causal mask leaves about
    half of the N^2.

    Args:
        queries, keys: rows of Q, and of K and V, of one head.
        width: d, of a head.
        heads, key_heads: of Q, and of K and V.
        element_bytes: of all.
        device: its L2 is S.

    Raises:
        ModelError: a size below one, or heads that do not share key heads evenly.
    """
    _positive(
        queries=queries, keys=keys, width=width, heads=heads, element_bytes=element_bytes, key_heads=key_heads
    )
    if heads % key_heads:
        raise ModelError(f"{heads} heads cannot share {key_heads} key heads evenly; use a divisor of {heads}")
    q, kv = queries * width * heads, 2 * keys * width * key_heads
    cache = device.l2_bytes / element_bytes
    pairs = queries * keys * heads
    leading = min(pairs * width**2 / cache, pairs * width / sqrt(cache))
    both = Counts.LOADS_AND_STORES
    return (
        *compulsory("attention", (q + kv) * element_bytes, q * element_bytes),
        _bound("attention", max(2 * q + kv, leading), element_bytes, Label.LEADING, both, SAHA),
    )


def _bound(name: str, elements: float, element_bytes: int, label: Label, counts: Counts, source: str) -> Bound:
    return Bound(name, floor(elements) * element_bytes, label, counts, source)


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ModelError(f"{name} is {size}; use at least 1")

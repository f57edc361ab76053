"""Least traffic of tilings against the size of one buffer: Orojenesis' curve for a matmul, and for a pair of them.

Huang, Tsai, Emer and Parashar (Mind the Gap: attainable data movement and operational intensity bounds for tensor
algorithms, ISCA 2024) map an einsum to one buffer of S elements in every way: a tile of each loop, and an order of the
loops over tiles. Tiles of all tensors must fit into the buffer together. A mapping moves a tile whenever the loops over
tiles step to another one, and stores and loads partial sums of a result whose reduction is not complete. The least
accesses of all mappings that fit S, drawn against S, are the curve ("ski slope"). No tiling of one buffer moves less;
schedules that change their tiling on the way, or keep part of a tile elsewhere, may. The curve is therefore a figure
to reach, not a safe bound (``planner/bounds`` has those).

A matmul has tensors A (m, k), B (k, n), C (m, n): each lacks one loop. Only the innermost loop of more than one step
matters: the tensor that lacks it is moved once, and each other tensor once for every step of the loop that it lacks.

    innermost    A               B           C                    buffer
    k            mk * N steps    kn * M      mn                   tm tn + tm + tn    (tk = 1)
    n            mk              kn * M      mn * (2 K - 1)       tm tk + tm + tk    (tn = 1)
    m            mk * N          kn          mn * (2 K - 1)       tn tk + tn + tk    (tm = 1)

Example, m = n = k = 4: a buffer of 8 elements holds a 2 x 2 tile of C, 2 elements of A and 2 of B. It loads
16 * 2 + 16 * 2 and stores 16, which is 80. With 24 elements, all of C and a column of A and a row of B, 48 are moved.

All tile sizes count, not divisors alone: a last tile may be smaller. Of the sizes that give the same number of steps,
only the least is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from interlace.core.errors import ModelError
from interlace.planner.bounds import Gemm

OROJENESIS = "Huang, Tsai, Emer and Parashar, Mind the gap (Orojenesis), 2024; least of all tilings of one buffer"

Elements = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TrafficCurve:
    """Least accesses of all mappings that fit a buffer, as steps.

    Attributes:
        buffer: sizes in elements at which the curve falls, ascending.
        accesses: elements loaded and stored from each of these sizes on, descending.
    """

    buffer: Elements
    accesses: Elements

    @staticmethod
    def from_mappings(mappings: Iterable[tuple[Elements, Elements]]) -> TrafficCurve:
        """Return the curve of mappings, given as arrays of buffer sizes and of accesses."""
        listed = list(mappings)
        buffer = np.concatenate([np.ravel(sizes) for sizes, _ in listed])
        accesses = np.concatenate([np.ravel(moved) for _, moved in listed])
        order = np.lexsort((accesses, buffer))
        buffer, least = buffer[order], np.minimum.accumulate(accesses[order])
        falls = np.r_[True, least[1:] < least[:-1]]
        return TrafficCurve(buffer[falls], least[falls])

    def evaluate(self, capacity: float) -> int | None:
        """Return the least accesses with a buffer of so many elements; None if no mapping fits."""
        at = int(np.searchsorted(self.buffer, capacity, "right")) - 1
        return int(self.accesses[at]) if at >= 0 else None

    def scale(self, times: int) -> TrafficCurve:
        """Return the curve of so many equal problems, one after another in the same buffer."""
        return TrafficCurve(self.buffer, self.accesses * times)

    def __add__(self, other: TrafficCurve) -> TrafficCurve:
        """Return the curve of two problems, one after another in the same buffer."""
        sizes = np.unique(np.r_[self.buffer, other.buffer])
        sizes = sizes[sizes >= max(self.buffer[0], other.buffer[0])]
        moved = [curve.accesses[np.searchsorted(curve.buffer, sizes, "right") - 1] for curve in (self, other)]
        return TrafficCurve.from_mappings([(sizes, moved[0] + moved[1])])


def map_gemm(gemm: Gemm) -> TrafficCurve:
    """Return the least accesses of a matmul against the size of the buffer, over all tiles and loop orders."""
    m, n, k = gemm.m, gemm.n, gemm.k
    (tm, steps_m), (tn, steps_n), (tk, steps_k) = map(list_tiles, (m, n, k))

    def place(first: Elements, second: Elements) -> Elements:
        return first[:, None] * second + first[:, None] + second

    return TrafficCurve.from_mappings(
        (
            (place(tm, tn), m * k * steps_n + k * n * steps_m[:, None] + m * n),
            (place(tm, tk), m * k + k * n * steps_m[:, None] + m * n * (2 * steps_k - 1)),
            (place(tn, tk), m * k * steps_n[:, None] + k * n + m * n * (2 * steps_k - 1)),
        )
    )


def map_chain(first: Gemm, second: Gemm) -> TrafficCurve:
    """Return the least accesses of two matmuls, the second of which takes the result of the first as its A.

    Mappings are those of each matmul alone, with the intermediate stored and loaded, and fused ones as in Orojenesis:
    a tile of the intermediate (tm x tj) is computed, used and dropped. Any of X (m, k), W (k, j), V (j, n) and Y (m, n)
    may stay in the buffer, as a tile or whole; what does not stay is moved again:

        loops       X stays       W stays      V stays      Y stays
        m, then j   tm k          k j          j n          tm n
        j, then m   m k           k tj         tj n         m n

    A gated first matmul, whose n is twice the second's k, takes both halves of W for a tile. The values that a softmax
    between the two keeps for each row are not counted. Nothing is computed twice.

    Raises:
        ModelError: the second matmul cannot take the first one's result.
    """
    if first.m != second.m or first.n % second.k:
        raise ModelError(
            f"{second} cannot take the {first.m} x {first.n} result of {first}; use m = {first.m} and a k that divides "
            f"{first.n}"
        )
    apart = map_gemm(first) + map_gemm(second)
    fused = [(mapping.buffer, mapping.accesses) for mapping in list_fused_mappings(first, second)]
    return TrafficCurve.from_mappings([(apart.buffer, apart.accesses), *fused])


class FusedMapping(NamedTuple):
    """Mappings of a fused chain that keep the same operands, over all tiles of the intermediate.

    Attributes:
        rows_first: True if the loop over rows is outside that over columns of the intermediate.
        stays: whether X, W, V and Y stay in the buffer.
        buffer, accesses: elements, by steps over rows and over columns (``list_tiles``).
    """

    rows_first: bool
    stays: tuple[bool, bool, bool, bool]
    buffer: Elements
    accesses: Elements


def list_fused_mappings(first: Gemm, second: Gemm) -> Iterator[FusedMapping]:
    """Yield the fused mappings of a chain; see ``map_chain``."""
    m, k, j, n, halves = first.m, first.k, second.k, second.n, first.n // second.k
    (tm, steps_m), (tj, steps_j) = list_tiles(m), list_tiles(j)
    tm, steps_m = tm[:, None], steps_m[:, None]
    x, w, v, y = m * k, halves * k * j, j * n, m * n
    for rows_first, x_stays, w_stays, v_stays, y_stays in product((True, False), repeat=5):
        kept = halves * tm * tj
        if rows_first:
            kept = kept + x_stays * tm * k + w_stays * w + v_stays * v + y_stays * tm * n
        else:
            kept = kept + x_stays * x + w_stays * halves * k * tj + v_stays * tj * n + y_stays * y
        # Besides, a step of the first matmul needs a column of X and a row of W where these do not stay, and a step of
        # the second one a column of V and one of Y.
        up = tm * (not x_stays) + halves * tj * (not w_stays)
        down = tj * (not v_stays) + tm * (not y_stays)
        accesses = (
            x * (1 if x_stays else steps_j)
            + w * (1 if w_stays else steps_m)
            + v * (1 if v_stays else steps_m)
            + y * (1 if y_stays else 2 * steps_j - 1)
        )
        sizes, moved = np.broadcast_arrays(kept + np.maximum(up, down), accesses)
        yield FusedMapping(rows_first, (x_stays, w_stays, v_stays, y_stays), sizes, moved)


def list_tiles(extent: int) -> tuple[Elements, Elements]:
    """Return the least tile size for each possible number of steps, and these numbers: 5 gives 1 2 3 5 and 5 3 2 1."""
    sizes = np.arange(1, extent + 1, dtype=np.int64)
    steps = -(-extent // sizes)
    first = np.unique(steps, return_index=True)[1][::-1]
    return sizes[first], steps[first]

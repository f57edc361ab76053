"""The hit rate of a cyclic read stream, in closed form, and the line cache that fits a measured one.

A stream reads the same n lines again and again. They fall into the sets of a hashed cache at random, so the
number of *others* in a line's set is Poisson distributed with mean n / sets (the binomial distribution,
for the thousands of sets of an L2). Each line hits always or never in a set that evicts the least recently
used one: always if it shares its set with fewer others than there are ways. With random eviction it hits
sometimes. Worked example, 2 ways and as many lines as the cache holds, so 2 lines per set on average:

    others   share of lines   LRU   random
    0        0.135            1     1
    1        0.271            1     1
    2        0.271            0     0.29
    3        0.180            0     0.12
    4        0.090            0     0.05
    ...
    all      1                0.41  0.51
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interlace.core.errors import CurveError
from interlace.sim.lines import LineCache

Floats = NDArray[np.float64]

# Ways tried by the fit. The curve depends on their square root, so the steps grow.
WAYS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 112, 128)
CAPACITIES = 240


def cyclic_hit_rate(cache: LineCache, footprint_bytes: ArrayLike) -> Floats:
    """Hit rate of a cyclic read stream over ``footprint_bytes``, after its first round; same shape.

    In the mean over hashes it is exact for LRU sets, and for random sets within 0.012 of the simulation from
    4 ways on, 0.004 from 16 on. One hash of s sets differs by about 0.5 / sqrt(s) where the curve is steep.

    Raises:
        CurveError: a footprint below one line.
    """
    footprint = np.asarray(footprint_bytes, np.float64)
    if footprint.min(initial=cache.line_bytes) < cache.line_bytes:
        raise CurveError(f"footprint is {footprint.min():g} bytes, below one line of {cache.line_bytes}")
    lru, random = _hit_rates(cache.ways, footprint / cache.line_bytes / cache.sets)
    return (1 - cache.random_share) * lru + cache.random_share * random


def fit(footprint_bytes: ArrayLike, hit_rates: ArrayLike, line_bytes: int = 128) -> LineCache:
    """The cache whose cyclic hit rates are nearest to those measured, by least squares.

    Capacity and ways are searched on a grid. The hit rate is linear in the share of random sets, so the best
    share for each is known. Between equals the fewer ways win.

    Args:
        footprint_bytes: of each stream, at least three; the useful ones lie around the capacity.
        hit_rates: measured, between 0 and 1.

    Raises:
        CurveError: too few points, or some that are no footprints or no rates.
    """
    footprint = np.asarray(footprint_bytes, np.float64)
    measured = np.asarray(hit_rates, np.float64)
    if footprint.ndim != 1 or footprint.shape != measured.shape or len(footprint) < 3:
        raise CurveError(
            f"curve has {footprint.shape} footprints and {measured.shape} rates; give at least 3 of each, 1-D"
        )
    if not (footprint >= line_bytes).all() or not ((measured >= 0) & (measured <= 1)).all():
        raise CurveError(f"curve has footprints below {line_bytes} bytes or rates outside 0..1; correct them")
    fits = []
    for ways in WAYS:
        coarse = np.geomspace(footprint.min() / 2, footprint.max() * 2, CAPACITIES)
        at = int(_fit_shares(footprint, measured, ways, coarse)[0].argmin())
        fine = np.geomspace(coarse[max(at - 1, 0)], coarse[min(at + 1, CAPACITIES - 1)], CAPACITIES)
        errors, shares = _fit_shares(footprint, measured, ways, fine)
        at = int(errors.argmin())
        fits.append((float(errors[at]), ways, float(fine[at]), float(shares[at])))
    _, ways, capacity, share = min(fits)
    return LineCache(max(round(capacity), ways * line_bytes), ways, round(share, 4), line_bytes)


def _fit_shares(footprint: Floats, measured: Floats, ways: int, capacities: Floats) -> tuple[Floats, Floats]:
    """For each capacity the least sum of squared errors, and the share of random sets that gives it."""
    lru, random = _hit_rates(ways, footprint * ways / capacities[:, None])
    gain, missing = random - lru, measured - lru
    share = np.clip((gain * missing).sum(-1) / np.maximum((gain * gain).sum(-1), 1e-12), 0, 1)
    return ((share[:, None] * gain - missing) ** 2).sum(-1), share


def _hit_rates(ways: int, load: Floats) -> tuple[Floats, Floats]:
    """Hit rates of LRU sets and of random sets whose mean number of lines is ``load``."""
    others = np.arange(int(load.max(initial=0) + 10 * np.sqrt(load.max(initial=0)) + ways + 20))
    log_factorial = np.concatenate([np.zeros(1), np.cumsum(np.log(others[1:]))])
    share = np.exp(others * np.log(load)[..., None] - load[..., None] - log_factorial)
    return share[..., :ways].sum(-1), share @ _random_hit_rate(ways, (others + 1).astype(np.float64))


def _random_hit_rate(ways: int, lines: Floats) -> Floats:
    """Hit rate of cyclic reads of so many lines in one set that evicts a random way.

    A line survives a miss of another with probability 1 - 1/ways. Between two of its uses there are
    (lines - 1) x m such misses, m being the miss rate, and so m = 1 - (1 - 1/ways)^((lines - 1) m). Misses
    come in clusters, and half a line more accounts for that; simulation agrees (see the tests).
    """
    if ways == 1:
        return (lines <= 1).astype(np.float64)
    decay = -(lines - 0.5) * np.log1p(-1 / ways)
    miss = np.ones_like(lines)
    for _ in range(30):  # Newton from above: the function is convex, so it never passes the root
        step = np.exp(-decay * miss)
        miss -= (miss - 1 + step) / np.where(lines > ways, 1 - decay * step, 1)
    return np.where(lines > ways, 1 - miss, 1.0)

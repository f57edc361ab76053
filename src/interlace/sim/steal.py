"""From whose list a worker takes, as ``launch/dispatch`` picks it."""

from __future__ import annotations

from interlace.core.jit import cached_njit
from interlace.graph.access import Ints

_WORD = 0xFFFFFFFF


@cached_njit
def scrambled(worker: int, tries: int, n: int) -> int:
    """32 bits that seem random, of the n-th list after a worker's own at so many tries before.

    The mixing is lowbias32 (Wellons, "Prospecting for hash functions", 2018).
    """
    x = (n + 0x9E3779B9 * tries + 0x85EBCA6B * worker) & _WORD
    x = ((x ^ x >> 16) * 0x7FEB352D) & _WORD
    x = ((x ^ x >> 15) * 0x846CA68B) & _WORD
    return x ^ x >> 16


@cached_njit
def victim(following: Ints, ends: Ints, worker: int, random: bool, tries: int) -> int:
    """A list that is not empty: the next one, or any. The worker's own if all are empty.

    Args:
        following, ends: of each list, its next item and where it ends.
        tries: of this worker before.
    """
    found, least = worker, -1
    for n in range(1, len(following)):
        at = (worker + n) % len(following)
        if following[at] < ends[at]:
            if not random:
                return at
            rank = (scrambled(worker, tries, n) & 0xFFFF0000) | n
            if least < 0 or rank < least:
                found, least = at, rank
    return found

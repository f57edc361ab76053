"""Choice of the queue that a worker steals from, as in ``csrc/dispatch``."""

from __future__ import annotations

from interlace.core.jit import inner_njit
from interlace.graph.access import Ints

_WORD = 0xFFFFFFFF


@inner_njit
def hash_queue(worker: int, tries: int, n: int) -> int:
    """Return 32 pseudo-random bits for the n-th queue after a worker's own, after ``tries`` earlier attempts.

    The mixing is lowbias32 (Wellons, "Prospecting for hash functions", 2018).
    """
    x = (n + 0x9E3779B9 * tries + 0x85EBCA6B * worker) & _WORD
    x = ((x ^ x >> 16) * 0x7FEB352D) & _WORD
    x = ((x ^ x >> 15) * 0x846CA68B) & _WORD
    return x ^ x >> 16


@inner_njit
def choose_victim(following: Ints, ends: Ints, worker: int, random: bool, tries: int) -> int:
    """Return a queue that is not empty, either the next one or a random one; the worker's own if all are empty.

    Args:
        following, ends: next position and end of each queue.
        tries: number of earlier attempts of this worker.
    """
    found, least = worker, -1
    for n in range(1, len(following)):
        at = (worker + n) % len(following)
        if following[at] < ends[at]:
            if not random:
                return at
            rank = (hash_queue(worker, tries, n) & 0xFFFF0000) | n
            if least < 0 or rank < least:
                found, least = at, rank
    return found

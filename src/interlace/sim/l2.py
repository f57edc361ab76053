"""L2 of a GPU with several sides, each near an equal share of the SMs, simulated over whole units.

Each byte has a home on one side. An SM reads through its own side; if the home is the other side, its own side keeps a
copy in addition. Data read by one SM therefore occupy one place, and data read by all SMs occupy two, so that the cache
seems half as large. An H200 keeps 51 MiB of a stream in which each line is read once per pass, and 31 MiB of one that
all SMs read (benchmarks/results/l2-h200.json). Each side replaces the least recently used; a write goes to the home.

A unit is many lines, spread over the homes by their addresses, so each unit has an equal part on each side. A part that
is larger than a side evicts everything there, including itself: a later access finds none of its lines.

Worked example, two sides of 4 bytes, units a and b of 4 bytes; worker 0 is near side 0, worker 1 near side 1:

    worker 0 reads a    2 bytes from home 0, 2 through home 1    side 0: a0 a1    side 1: a1       4 bytes missed
    worker 1 reads a    a1 is cached, a0 comes from side 0       side 0: a1 a0    side 1: a0 a1    0
    worker 0 reads b    both sides are full                      side 0: b1 b0    side 1: b1 a0    4
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from interlace.core.devices import L2
from interlace.core.jit import cached_njit, inner_njit
from interlace.graph.access import Ints
from interlace.sim.lockstep import AccessStream


def simulate_missed_bytes(stream: AccessStream, nbytes: Ints, l2: L2, draw: int = 0) -> Ints:
    """Return the bytes of each access that no side held.

    For a read, these bytes come from memory. For a write, they are new to the cache and are written back eventually.

    Args:
        stream: accesses, in order.
        nbytes: size of each unit.
        l2: the cache.
        draw: number of the draw that assigns workers to sides, an equal share to each.
    """
    part = -(-nbytes // l2.sides)
    near = np.random.default_rng(2 * draw + 1).permutation(int(stream.worker.max(initial=-1)) + 1) % l2.sides
    missed = np.zeros(len(stream), np.int64)
    places = len(part) * l2.sides
    links = np.full((l2.sides, places + 1, 2), -1, np.int32)
    links[:, places, :] = places
    held = np.zeros(l2.sides, np.int64)
    columns = stream.unit, stream.is_write, stream.worker
    _simulate_misses(*columns, near, part, nbytes, l2.sides, l2.side_bytes, links, held, missed)
    return missed


@inner_njit
def _touch(links: NDArray[np.int32], held: Ints, part: Ints, side: int, place: int, most: int) -> bool:
    """Access a part of a unit on one side, move it to the front, evict others if it was absent; True if it was present.

    ``links[side, p]`` are the places before and after place p in order of use (a doubly linked list); the first of them
    is -1 if place p is absent. The last place is the list's head.
    """
    mine = links[side]
    head = len(mine) - 1
    before, behind = mine[place, 0], mine[place, 1]
    there = bool(before >= 0)
    if there:
        if before == head:
            return True
        mine[before, 1] = behind
        mine[behind, 0] = before
    else:
        size = part[place // len(links)]
        room = most - size
        while held[side] > max(room, 0):
            last = mine[head, 0]
            previous = mine[last, 0]
            mine[previous, 1] = head
            mine[head, 0] = previous
            mine[last, 0] = -1
            held[side] -= part[last // len(links)]
        if room < 0:
            return False
        held[side] += size
    first = mine[head, 1]
    mine[head, 1] = place
    mine[place, 0] = head
    mine[place, 1] = first
    mine[first, 0] = place
    return there


@cached_njit(allocates=False)
def _simulate_misses(
    unit: NDArray[np.int32],
    is_write: NDArray[np.bool_],
    worker: NDArray[np.int32],
    near: Ints,
    part: Ints,
    nbytes: Ints,
    sides: int,
    most: int,
    links: NDArray[np.int32],
    held: Ints,
    missed: Ints,
) -> None:
    for at in range(len(unit)):
        u, side = unit[at], near[worker[at]]
        absent = 0
        for home in range(sides):
            place = u * sides + home
            there = False
            if not is_write[at] and home != side:
                there = _touch(links, held, part, side, place, most)
            if not there:
                there = _touch(links, held, part, home, place, most)
            absent += not there
        missed[at] = min(absent * part[u], nbytes[u])

"""L2 of a GPU with several sides, each near an equal share of the SMs, simulated over whole units.

Each byte has a home on one side. An SM reads through its own side; if the home is the other side, its own side keeps a
copy in addition. Data read by one SM therefore occupy one place, and data read by all SMs occupy two, so that the cache
seems half as large. An H200 keeps 51 MiB of a stream in which each line is read once per pass, and 31 MiB of one that
all SMs read (benchmarks/results/l2-h200.json). Each side replaces the least recently used; a write goes to the home.

Data that were last loaded with the policy ``evict_first`` go before all others, but not at once. An eviction falls on
one set of lines, and which set that is depends on addresses alone. So a full side keeps ``evict_first_bytes`` of such
data, and each byte that comes on top evicts an equal share of all of them, not the oldest: of a unit, a share
exp(-brought / evict_first_bytes) is still there after ``brought`` bytes of them came.

A unit is many lines, spread over the homes by their addresses, so each unit has an equal part on each side. A part that
is larger than a side evicts everything there, including itself: a later access finds none of its lines.

Worked example, two sides of 4 bytes, units a and b of 4 bytes; worker 0 is near side 0, worker 1 near side 1:

    worker 0 reads a    2 bytes from home 0, 2 through home 1    side 0: a0 a1    side 1: a1       4 bytes missed
    worker 1 reads a    a1 is cached, a0 comes from side 0       side 0: a1 a0    side 1: a0 a1    0
    worker 0 reads b    both sides are full                      side 0: b1 b0    side 1: b1 a0    4
"""

from __future__ import annotations

from math import exp, log

import numpy as np
from numpy.typing import NDArray

from interlace.core.devices import L2
from interlace.core.jit import cached_njit, inner_njit
from interlace.graph.access import Ints
from interlace.sim.lockstep import AccessStream
from interlace.sim.memory import Floats


def simulate_missed_bytes(stream: AccessStream, nbytes: Ints, l2: L2, draw: int = 0) -> Ints:
    """Return the bytes of each access that no side held.

    For a read, these bytes come from memory. For a write, they are new to the cache and are written back eventually.

    Args:
        stream: accesses, in order.
        nbytes: size of each unit.
        l2: the cache.
        draw: number of the draw that assigns workers to sides, an equal share to each; neighbours share one.
    """
    part = -(-nbytes // l2.sides)
    groups = -(-(int(stream.worker.max(initial=-1)) + 1) // stream.neighbours)
    near = np.repeat(np.random.default_rng(2 * draw + 1).permutation(groups) % l2.sides, stream.neighbours)
    is_first = stream.is_evict_first & (l2.evict_first_bytes < l2.side_bytes)
    missed = np.zeros(len(stream), np.int64)
    places = len(part) * l2.sides
    links = np.full((l2.sides, places + 1, 2), -1, np.int32)
    links[:, places, :] = places
    stays = np.full((l2.sides, places if is_first.any() else 0), -np.inf)
    held = np.zeros((l2.sides, 3))
    columns = stream.unit, stream.is_write, is_first, stream.worker
    sizes = l2.side_bytes, min(max(l2.evict_first_bytes, 1), l2.side_bytes)
    _simulate_misses(*columns, near, part, nbytes, l2.sides, *sizes, links, stays, held, missed)
    return missed


@inner_njit
def _make_room(
    links: NDArray[np.int32], held: Floats, part: Ints, side: int, most: int, first: int, size: float
) -> None:
    """Evict until ``size`` bytes fit: data to evict first beyond ``first`` bytes, then the least recently used."""
    mine = links[side]
    head = len(mine) - 1
    gone = min(held[side, 0] + held[side, 1] + size - most, held[side, 1] - first)
    if gone > 0.0:
        held[side, 2] -= log(1.0 - gone / held[side, 1])
        held[side, 1] -= gone
    while held[side, 0] > 0.0 and held[side, 0] + held[side, 1] + size > most:
        last = mine[head, 0]
        previous = mine[last, 0]
        mine[previous, 1] = head
        mine[head, 0] = previous
        mine[last, 0] = -1
        held[side, 0] -= part[last // len(links)]


@inner_njit
def _touch(
    links: NDArray[np.int32],
    stays: Floats,
    held: Floats,
    part: Ints,
    side: int,
    place: int,
    most: int,
    first: int,
    is_first: bool,
    wanted: float,
) -> float:
    """Access a share of a part of a unit on one side and bring what was absent; return the share that was present.

    ``links[side, p]`` are the places before and after place p in order of use (a doubly linked list); the first of them
    is -1 if place p is not in the list, which has no data to evict first. The last place is the list's head. ``held``
    are the bytes of a side in the list, its bytes to evict first, and their age: a share exp(-age) of what had come at
    age 0 is still there. Of a place to evict first, the share exp(stays - age) is.
    """
    mine = links[side]
    head = len(mine) - 1
    size = part[place // len(links)]
    before, behind = mine[place, 0], mine[place, 1]
    share = 0.0
    if before >= 0:
        if before == head and not is_first:
            return 1.0
        mine[before, 1] = behind
        mine[behind, 0] = before
        mine[place, 0] = -1
        held[side, 0] -= size
        share = 1.0
    elif held[side, 1] > 0.0:
        share = exp(stays[side, place] - held[side, 2])
        held[side, 1] = max(held[side, 1] - share * size, 0.0)
        stays[side, place] = -np.inf
    present = share + wanted * (1.0 - share) if is_first else 1.0
    _make_room(links, held, part, side, most, first, present * size)
    if present * size > most:
        return share
    if is_first:
        stays[side, place] = held[side, 2] + log(present)
        held[side, 1] += present * size
        return share
    held[side, 0] += size
    after = mine[head, 1]
    mine[head, 1] = place
    mine[place, 0] = head
    mine[place, 1] = after
    mine[after, 0] = place
    return share


@cached_njit(allocates=False)
def _simulate_misses(
    unit: NDArray[np.int32],
    is_write: NDArray[np.bool_],
    is_first: NDArray[np.bool_],
    worker: NDArray[np.int32],
    near: Ints,
    part: Ints,
    nbytes: Ints,
    sides: int,
    most: int,
    first: int,
    links: NDArray[np.int32],
    stays: Floats,
    held: Floats,
    missed: Ints,
) -> None:
    """Write the missed bytes of each access. ``links``, ``stays`` and ``held`` are the initial state; see ``_touch``.

    Args:
        is_first: True for an access that says to evict the unit first.
        near: side of each worker.
        part: bytes of each unit on one side.
        most, first: capacity of a side, and bytes to evict first that it keeps.
    """
    for at in range(len(unit)):
        u, side = unit[at], near[worker[at]]
        absent = 0.0
        for home in range(sides):
            place, wanted = u * sides + home, 1.0
            if not is_write[at] and home != side:
                wanted -= _touch(links, stays, held, part, side, place, most, first, is_first[at], wanted)
            if wanted > 0.0:
                share = _touch(links, stays, held, part, home, place, most, first, is_first[at], wanted)
                absent += wanted * (1.0 - share)
        missed[at] = min(round(absent * part[u]), nbytes[u])

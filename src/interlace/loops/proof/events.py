"""Events of agents in one block, on cells of shared memory: ``agents`` lists them, ``order`` follows them.

An *agent* is a group of threads that may run ahead of the others. Every effect of its statements on shared memory, on
barriers and on ordering is one of these events; arithmetic on registers is not an event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from interlace.loops.ir.statements import ElectionScope
from interlace.loops.meaning.steps import Loads

#: Reads through the async proxy, in groups that are awaited in order: TMA stores and matrix products.
BULK, PRODUCTS = "bulk", "products"


class SyncThreads(NamedTuple):
    """Synchronisation of the agents in ``scope``."""

    scope: tuple[int, ...]


class Init(NamedTuple):
    """Start of a barrier's lifetime."""

    cell: int
    arrivals: int


class End(NamedTuple):
    """End of a barrier's lifetime."""

    cell: int


class Arrival(NamedTuple):
    """Arrivals on a barrier, and additional bytes that it expects."""

    cell: int
    arrivals: int
    bytes: int


class Wait(NamedTuple):
    """Wait until the phase with this parity is complete."""

    cell: int
    parity: int


class Fence(NamedTuple):
    """Proxy fence for the agent's writes to the async proxy: all of them, or only initialised barriers."""

    everything: bool


class Read(NamedTuple):
    """Read of a content (None: any) from a cell; ``queue`` if through the async proxy, lasting until it is awaited."""

    cell: int
    instance: int
    content: int | None
    queue: str | None


class Write(NamedTuple):
    """Write of a cell by threads, in whole or in part."""

    cell: int
    instance: int
    content: int
    whole: bool


class Begin(NamedTuple):
    """Start of a copy into a cell, by TMA (with barrier and bytes) or cp.async (without)."""

    cell: int
    instance: int
    content: int
    barrier: int | None
    bytes: int


class Commit(NamedTuple):
    """``arrivals`` arrivals, triggered when the agent's earlier cp.async copies have landed."""

    cell: int
    arrivals: int


class Await(NamedTuple):
    """Wait until all of the agent's groups of reads are complete except the newest ``pending``."""

    queue: str
    pending: int


Event = SyncThreads | Init | End | Arrival | Wait | Fence | Read | Write | Begin | Commit | Await


@dataclass
class Agent:
    """One agent: its threads, the number of first lanes of warps in it, its events, and its work in order."""

    name: str
    threads: int
    warps: int
    events: list[Event] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    loads: dict[Loads, list[int]] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)

    def count_arrivals(self, per: ElectionScope | None) -> int:
        """Return the number of its threads that execute a statement: all, one of each warp, or only one."""
        return self.threads if per is None else 1 if per is ElectionScope.SCOPE else self.warps

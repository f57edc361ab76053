"""What agents do in one block, as events on cells of shared memory: ``agents`` lists them, ``order`` follows them.

An *agent* is a group of threads that may run ahead of the others. Everything that its statements do to shared memory,
to barriers and to the order of things is one of the events here; arithmetic on registers is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from interlace.loops.ir.statements import Per
from interlace.loops.meaning.steps import Loads

#: Reads through the async proxy, in groups that are awaited in order: stores by TMA, products.
BULK, PRODUCTS = "bulk", "products"


class SyncThreads(NamedTuple):
    """These agents synchronise."""

    scope: tuple[int, ...]


class Init(NamedTuple):
    """A barrier begins to live."""

    cell: int
    arrivals: int


class End(NamedTuple):
    """A barrier ends."""

    cell: int


class Arrival(NamedTuple):
    """Arrivals on a barrier, and bytes that it shall expect."""

    cell: int
    arrivals: int
    bytes: int


class Wait(NamedTuple):
    """The phase of a parity must be complete."""

    cell: int
    parity: int


class Fence(NamedTuple):
    """What the agent has written is shown to the async proxy: everything, or initialised barriers alone."""

    everything: bool


class Read(NamedTuple):
    """A cell must hold a content (None: any); ``queue`` if it is read through the async proxy until that is awaited."""

    cell: int
    instance: int
    content: int | None
    queue: str | None


class Write(NamedTuple):
    """Threads write a cell, all of it or a part."""

    cell: int
    instance: int
    content: int
    whole: bool


class Begin(NamedTuple):
    """A copy into a cell begins, by TMA (with barrier and bytes) or cp.async (without)."""

    cell: int
    instance: int
    content: int
    barrier: int | None
    bytes: int


class Commit(NamedTuple):
    """``arrivals`` arrive when the agent's cp.async copies so far have landed."""

    cell: int
    arrivals: int


class Await(NamedTuple):
    """Of the agent's groups of reads all but the newest ``pending`` are complete."""

    queue: str
    pending: int


Event = SyncThreads | Init | End | Arrival | Wait | Fence | Read | Write | Begin | Commit | Await


@dataclass
class Agent:
    """One agent: its threads, how many first lanes of warps are among them, its events, and its work in order."""

    name: str
    threads: int
    warps: int
    events: list[Event] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    loads: dict[Loads, list[int]] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)

    def arrivals(self, per: Per | None) -> int:
        """How many of its threads execute a statement: all, or one of each warp, or one alone."""
        return self.threads if per is None else 1 if per is Per.SCOPE else self.warps

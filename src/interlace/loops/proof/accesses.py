"""Accesses to shared memory, and the detection of unordered ones.

Two accesses that have bytes in common, one of them a write, must be ordered: the second begins when the first is known
to have ended. The *clock* of an agent is its knowledge: the last known event of every agent, and the last known phase
of every barrier. An access ends at an event of its agent; a copy ends with a phase of its barrier. Parts of one
statement that several agents execute do not race, because each element belongs to one thread.

The generic proxy (ordinary loads and stores) and the async proxy (bulk copies and tensor cores) see each other's
writes only in part. Between an ordinary write, including one by cp.async, and a bulk copy of the same bytes, a proxy
fence is needed. An agent that knows of the write must execute it and pass the ordering on to the copy (PTX ISA 8.6,
"Proxy-preserved base causality order"). In the other direction the barrier of the copy acts as the fence, and after
reads order alone is enough (CUTLASS pipelines rely on this). So a clock has four parts: the events that have happened,
those known (ordered in memory), those fenced, and the barrier initialisations fenced, for which a lighter fence is
enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from interlace.core.errors import (
    EarlyReadHazard,
    HazardError,
    LifetimeHazard,
    OverwriteHazard,
    ProxyHazard,
    StepHazard,
)
from interlace.loops.meaning.steps import ValueNumbering
from interlace.loops.proof.cells import Cells

#: One row per part, with the last known event of each agent and the last known phase of each barrier.
Clock = npt.NDArray[np.int64]
CAME, KNOWN, FENCED, BEGUN = range(4)
PARTS = 4


@dataclass(slots=True, eq=False)
class SharedAccess:
    """One access of an agent.

    Attributes:
        instance: statement that it belongs to; equal for all agents that execute it together.
        content: content that it writes, or should read (None: any).
        end: index into clocks, and the value there that shows that it has ended; None while nothing will show it.
        is_cp_async: True if it is a copy by cp.async, or the arrival of such copies.
    """

    agent: int
    instance: int
    write: bool
    asynchronous: bool
    content: int | None
    end: tuple[int, int] | None
    is_cp_async: bool = False

    def has_ended(self, clock: Clock, part: int = KNOWN) -> bool:
        """Return True if the owner of this clock knows that the access has ended (in later parts: is fenced)."""
        return self.end is not None and bool(clock[part, self.end[0]] >= self.end[1])


@dataclass(slots=True)
class _Cell:
    """Accesses since the last write, including the write itself; ``before``: the accesses that precede that write."""

    instance: int = 0
    now: list[SharedAccess] = field(default_factory=list)
    before: list[SharedAccess] = field(default_factory=list)
    content: int = 0
    content_before: int = 0


class AccessTracker:
    """Contents of every cell, and the accesses to it.

    Args:
        coming: contents that are ever written to a cell, to distinguish too early from too late.
        agents: names of the agents.
    """

    def __init__(self, cells: Cells, numbers: ValueNumbering, coming: dict[int, set[int]], agents: list[str]) -> None:
        self.cells = cells
        self.numbers = numbers
        self.future_contents = coming
        self.agents = agents
        self.past_contents: dict[int, set[int]] = {}
        self._cells = [_Cell() for _ in range(cells.count)]

    def touch(self, cell: int, access: SharedAccess, clock: Clock, *, whole: bool = True) -> None:
        """Begin an access; ``clock`` is its agent's.

        Raises:
            OverwriteHazard, EarlyReadHazard: it is not ordered with another, or the cell holds something else.
            LifetimeHazard: the cell is a barrier, and the other access its initialisation or its end.
            ProxyHazard: a proxy fence is missing.
            StepHazard: the cell never holds the content to read.
        """
        at = self._cells[cell]
        together = access.instance == at.instance
        earlier = (*at.before, *at.now) if together else at.now
        self._compare(cell, access, cell, (y for y in earlier if y.instance != access.instance), clock)
        for other in self.cells.shared[cell]:
            self._compare(cell, access, other, self._cells[other].now, clock)
        if not access.write:
            if access.content is not None:
                self._check_content(cell, access, at.content_before if together else at.content)
            _add_read(at.now, access)
            return
        if together:
            at.now.append(access)
            return
        at.before, at.now, at.instance = at.now, [access], access.instance
        assert access.content is not None
        at.content_before, at.content = at.content, self.numbers.number_update(at.content, access.content, whole=whole)
        self.past_contents.setdefault(cell, set()).add(access.content)
        for other in self.cells.shared[cell]:
            self._cells[other].content = self._cells[other].content_before = 0

    def _compare(self, cell: int, x: SharedAccess, other: int, accesses: Iterable[SharedAccess], clock: Clock) -> None:
        for y in accesses:
            if x.write or y.write:
                if not y.has_ended(clock):
                    raise self._build_race_error(cell, x, other, y)
                part = BEGUN if self.cells.is_barrier(cell) else FENCED
                if x.asynchronous and y.write and not y.asynchronous and not y.has_ended(clock, part):
                    raise self._build_proxy_error(cell, x, other, y)

    def _check_content(self, cell: int, x: SharedAccess, found: int) -> None:
        if found != x.content:
            raise self._build_misread_error(cell, x, self.numbers.describe(found))

    def _build_misread_error(self, cell: int, x: SharedAccess, found: str) -> HazardError:
        """Return the error for a read whose expected content comes later, is gone, or is never present."""
        name, slot = self.cells.find_name(cell)
        expected = None if x.content is None else self.numbers.find_latest(x.content)
        if expected is None or expected in self.past_contents.get(cell, ()):
            return OverwriteHazard(self._describe_overwrite(cell, x))
        if expected in self.future_contents.get(cell, ()):
            return EarlyReadHazard(self._describe_early_read(cell, x))
        if not self.future_contents.get(cell):
            return EarlyReadHazard(f"{name!r}: {self._name_agent(x)} reads slot {slot}, which is never written")
        return StepHazard(
            f"{name!r}: {self._name_agent(x)} reads slot {slot}, which holds {found}, never "
            f"{self._describe_content(x)}; read the slot of its own step"
        )

    def _build_race_error(self, cell: int, x: SharedAccess, other: int, y: SharedAccess) -> HazardError:
        """Return the error for ``x`` not being ordered after ``y``, which came first in this run."""
        name, slot = self.cells.find_name(cell)
        if self.cells.is_barrier(cell) or self.cells.is_barrier(other):
            return LifetimeHazard(self._describe_barrier_race(cell, x, other, y))
        if cell != other:
            reads = self._name_agent(y if x.write else x)
            what = f"{reads} may still read" if not (x.write and y.write) else f"{self._name_agent(y)} may still write"
            return OverwriteHazard(
                f"{name!r}: slot {slot} has bytes of {self.cells.label(other)}; one is written while {what} the other; "
                "let all threads synchronise in between"
            )
        if not x.write:
            if x.content is not None and y.content == self.numbers.find_latest(x.content):
                return EarlyReadHazard(self._describe_early_read(cell, x))
            return self._build_misread_error(cell, x, "what is being written")
        if not y.write:
            if y.content is not None and x.content == self.numbers.find_latest(y.content):
                return EarlyReadHazard(self._describe_early_read(cell, y))
            return OverwriteHazard(self._describe_overwrite(cell, y))
        by = "a copy into it is" if y.asynchronous or y.is_cp_async else f"writes of {self._name_agent(y)} are"
        return OverwriteHazard(f"{name!r}: slot {slot} is written while {by} under way; wait for that first")

    def _describe_barrier_race(self, cell: int, x: SharedAccess, other: int, y: SharedAccess) -> str:
        name = self.cells.label(cell)
        if cell != other:
            return (
                f"{name} is used where {self.cells.label(other)} may still use its bytes; "
                "let all threads synchronise in between"
            )
        if x.write:
            agent = self._name_agent(y)
            return f"{name} begins or ends while {agent} may still use it; let all threads synchronise before"
        return (
            f"{self._name_agent(x)} uses {name}, which is not initialised there; let all threads synchronise in between"
        )

    def _build_proxy_error(self, cell: int, x: SharedAccess, other: int, y: SharedAccess) -> HazardError:
        name, slot = self.cells.find_name(cell)
        if self.cells.is_barrier(cell):
            return ProxyHazard(
                f"a copy completes {self.cells.label(cell)}, whose initialisation is not shown to it; fence it"
            )
        wrote = "wrote" if cell == other else f"wrote as {self.cells.label(other)}"
        return ProxyHazard(
            f"{name!r}: a bulk copy or a product takes slot {slot}, which {self._name_agent(y)} {wrote}, without a "
            "proxy fence in between; fence before the threads synchronise"
        )

    def _describe_early_read(self, cell: int, x: SharedAccess) -> str:
        name, slot = self.cells.find_name(cell)
        return f"{name!r}: {self._name_agent(x)} reads slot {slot} for {self._describe_content(x)} before it is full"

    def _describe_overwrite(self, cell: int, reader: SharedAccess) -> str:
        name, slot = self.cells.find_name(cell)
        agent, content = self._name_agent(reader), self._describe_content(reader)
        return f"{name!r}: slot {slot} is overwritten while {agent} may still read {content}"

    def _name_agent(self, access: SharedAccess) -> str:
        return self.agents[access.agent]

    def _describe_content(self, access: SharedAccess) -> str:
        return "it" if access.content is None else self.numbers.describe(access.content)


def _add_read(now: list[SharedAccess], access: SharedAccess) -> None:
    """Add a read to the earlier ones, and drop those that it makes redundant.

    Of one agent's ordinary reads, the last two, of two different statements, imply all others; of the copies that use
    one barrier, the last does.
    """
    if access.asynchronous or access.is_cp_async:
        if access.end is not None:
            now[:] = [y for y in now if not (_is_by_copy(y) and y.end is not None and y.end[0] == access.end[0])]
    else:
        mine = [y for y in now if y.agent == access.agent and not (y.write or _is_by_copy(y))]
        if mine and mine[-1].instance == access.instance:
            return
        if len(mine) > 1:
            now.remove(mine[0])
    now.append(access)


def _is_by_copy(access: SharedAccess) -> bool:
    return access.asynchronous or access.is_cp_async

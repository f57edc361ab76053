"""Mailboxes of overlapping runs: a dispatcher sends items while the previous run drains (``dispatcher.cuh``).

A run has a dispatcher and a worker of two: one takes items and one runs them. A launch begins when the worker of the
previous launch was sent the stop word. Its items, and the counts of its dispatcher, wait for the end of that launch.
Runs use sets of mailboxes in turn.

With one set, items 0 and 1 of a run, and items 2 and 3 of the next:

    taken 0, 1; done 0; stopped by mailbox 0            the next dispatcher stores 2 to mailbox 0, and 3 to mailbox 1
    done 1: mailbox 1 is empty                          3 is lost

With two sets, the run after the next uses the same set again. It must not begin before this run has ended, so the
worker of the next run lets it begin after it has observed that end. Stores of an ended launch are performed, so a
launch that begins later is ordered after them: beginning acquires.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from .check import Model
from .operations import (
    ACQUIRE,
    BLOCK,
    RELEASE,
    Add,
    Await,
    Done,
    Operation,
    Process,
    Store,
    Until,
    Value,
    Write,
    at_least,
    other_than,
)

#: Number of mailboxes of a worker in a set.
BOXES = 2
_STOP, _EMPTIED = -1, -2
_ROLES = 3
_NONE = -1

Steps = Generator[Operation, Any, tuple[Any, ...] | None]


@dataclass(frozen=True)
class Overlapping:
    """Runs of items that are ready from the start.

    Attributes:
        runs: number of consecutive runs.
        items: number of items of a run, at most that of mailboxes; if equal, the stop word must wait for a mailbox.
        sets: number of sets of mailboxes.
        settles: True if a stopped worker lets the next launch begin only after the launch before its own has ended.
    """

    runs: int = 3
    items: int = BOXES
    sets: int = 2
    settles: bool = True

    def model(self) -> Model:
        runs = range(self.runs)
        boxes = [f"mailbox {n} of set {s}" for s in range(self.sets) for n in range(BOXES)]
        words: dict[str, Value] = dict.fromkeys(boxes, (-1, 0, _EMPTIED))
        words |= {f"message {n} of {run}": 0 for run in runs for n in range(self.items + 1)}
        words |= {f"{what} {run}": 0 for run in runs for what in ("begun", "finished", "ended")}
        words |= {f"data {n}": 0 for n in range(self.items)}
        roles = [role(run) for run in runs for role in (self._dispatcher, self._takes, self._does)]
        blocks = [block for run in runs for block in (2 * run, 2 * run + 1, 2 * run + 1)]
        return Model("overlapping", words, tuple(roles), self.runs * self.items, tuple(blocks))

    def _box(self, run: int, n: int) -> str:
        return f"mailbox {n % BOXES} of set {run % self.sets}"

    def _dispatcher(self, run: int) -> Process:
        def process() -> Steps:
            yield from _begin(run)
            for n in range(self.items):
                yield Store(self._box(run, n), (run, 0, n))
            if self.items == BOXES:
                if run:
                    yield _after(run)
                yield Await(self._box(run, 0), Until("emptied", lambda value: value == (run, 0, _EMPTIED)))
            yield Store(self._box(run, self.items), (run, self.items // BOXES, _STOP))
            yield Add(f"ended {run}", 1, RELEASE)
            return None

        return process

    def _takes(self, run: int) -> Process:
        def process() -> Steps:
            yield from _begin(run)
            for n in range(self.items + 1):
                if n >= BOXES:
                    yield Await(f"finished {run}", at_least(n - BOXES + 1), ACQUIRE, BLOCK)
                found = yield Await(self._box(run, n), _expect_filled(run, n // BOXES))
                stops = found[2] == _STOP
                if stops:
                    yield Store(self._box(run, n), (run, 0, _EMPTIED))
                yield Store(f"message {n} of {run}", _NONE if stops else found[2] + 1, RELEASE, BLOCK)
            if run and self.settles:
                yield _after(run)
            if run + 1 < self.runs:
                yield Add(f"begun {run + 1}", 1, RELEASE)
            yield Add(f"ended {run}", 1, RELEASE)
            return None

        return process

    def _does(self, run: int) -> Process:
        def process() -> Steps:
            if run:
                yield _after(run)
            for n in range(self.items):
                message = yield Await(f"message {n} of {run}", other_than(0), ACQUIRE, BLOCK)
                yield Done(run * self.items + message - 1)
                yield Write(f"data {message - 1}", run + 1)
                yield Add(f"finished {run}", 1, RELEASE, BLOCK)
                yield Store(self._box(run, n), (run, 0, _EMPTIED))
            yield Add(f"ended {run}", 1, RELEASE)
            return None

        return process


def _begin(run: int) -> Steps:
    if run:
        yield Await(f"begun {run}", at_least(1), ACQUIRE)
    return None


def _after(run: int) -> Operation:
    """Return the wait for the end of the previous run."""
    return Await(f"ended {run - 1}", at_least(_ROLES), ACQUIRE)


def _expect_filled(run: int, turn: int) -> Until:
    return Until(f"of run {run}, turn {turn}", lambda value: value[:2] == (run, turn) and value[2] != _EMPTIED)

"""Every interleaving of a protocol's workers, and everything that memory may let them find.

The search goes through states breadth first, so what it reports is a shortest way to the fault. Operations whose
outcome does not depend on when they happen (ordinary accesses, which are faults unless they are ordered; fences) are
done at once; all others are done in every order. Once all states are known, each must be able to end from where it is,
by operations that find the newest messages alone: a scheduler that is fair then ends every run. A value that passes
before it is seen does not count, since a worker that polls may look before and after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from interlace.core.errors import ArgumentError, ModelError, ProtocolError

from .errors import LostItemError, StuckError
from .memory import Knowledge, Memory, Outcome, Shared, forget
from .operations import Operation, Process, Value

#: Beyond this a model is too large to be followed in seconds, and is made smaller instead.
MOST_STATES = 500_000


@dataclass(frozen=True)
class Model:
    """A protocol of a few workers.

    Attributes:
        name: how faults speak of it.
        words: shared words and what is in them at the start.
        workers: their processes, which are called without arguments.
        items: how many are to be done, exactly once each.
        blocks: of each worker, its block; each is one of its own if None.
    """

    name: str
    words: Mapping[str, Value]
    workers: tuple[Process, ...]
    items: int = 0
    blocks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Checked:
    """What a check went through: states, and steps from one to another."""

    states: int
    steps: int


class _Worker(NamedTuple):
    """Where a worker is: the arguments of its process, None at its end, and what it was sent since."""

    arguments: tuple[Any, ...] | None
    sent: tuple[Any, ...]


class _State(NamedTuple):
    shared: Shared
    workers: tuple[_Worker, ...]
    known: tuple[Knowledge | None, ...]


def check(model: Model) -> Checked:
    """Follow a protocol through all interleavings.

    Raises:
        ProtocolError: one goes wrong, as the class of the error says; the message has what came before.
        ModelError: there are too many states.
        ArgumentError: a process names a word that the model does not have, or goes on without doing anything.
    """
    return _Search(model).run()


def endings(model: Model) -> list[dict[str, Value]]:
    """What the words hold where all workers have ended, for every such state; raises as ``check`` does."""
    search = _Search(model)
    search.run()
    return [
        {word: state.shared.messages[n][-1].value for n, word in enumerate(model.words)}
        for state in search.numbers
        if all(worker.arguments is None for worker in state.workers)
    ]


@dataclass
class _Search:
    model: Model
    numbers: dict[_State, int] = field(default_factory=dict)
    came: list[tuple[int, str]] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    _next: dict[tuple[int, _Worker], Operation | _Worker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = self.model
        items = tuple(f"item {n}" for n in range(model.items))
        blocks = tuple(range(len(model.workers))) if model.blocks is None else model.blocks
        self.memory = Memory((*model.words, *items), model.items, blocks)

    def run(self) -> Checked:
        shared, knowledge = self.memory.start((*self.model.words.values(), *(0,) * self.model.items))
        count = len(self.model.workers)
        at, said = 0, "at the start"
        try:
            state = _State(shared, (_Worker((), ()),) * count, (knowledge,) * count)
            for worker in range(count):
                state = self._settle(state, worker)
        except ProtocolError as error:
            raise type(error)(f"protocol {self.model.name!r}: {error}, {said}") from None
        queue = deque([self._number(state, 0, "")])
        states, ended, steps = [state], [], 0
        while queue:
            at = queue.popleft()
            state = states[at]
            if all(w.arguments is None for w in state.workers):
                self._all_done(state, at)
                ended.append(at)
                continue
            for worker in range(count):
                for said, after, newest in self._steps(state, worker, at):
                    steps += 1
                    number = self.numbers.get(after)
                    if number is None:
                        number = self._number(after, at, said)
                        states.append(after)
                        queue.append(number)
                    if newest:
                        self.before[number].append(at)
        self._all_end(states, ended)
        return Checked(len(states), steps)

    def _number(self, state: _State, before: int, said: str) -> int:
        if len(self.came) == MOST_STATES:
            raise ModelError(f"protocol {self.model.name!r} has more than {MOST_STATES} states; model fewer items")
        self.came.append((before, said))
        self.before.append([])
        return self.numbers.setdefault(state, len(self.numbers))

    def _steps(self, state: _State, worker: int, at: int) -> list[tuple[str, _State, bool]]:
        """What a worker may do next: in words, the state after it, and whether it found the newest."""
        operation = self._operation(worker, state.workers[worker])
        knowledge = state.known[worker]
        if knowledge is None or operation is None:
            return []
        steps = []
        said = f"worker {worker} {operation}"
        try:
            for outcome in self.memory.outcomes(operation, state.shared, knowledge, worker):
                said = f"worker {worker} {operation}" + ("" if outcome.value is None else f", finds {outcome.value}")
                after = self._settle(self._after(state, worker, outcome), worker)
                steps.append((said, after, outcome.newest))
        except ProtocolError as error:
            raise type(error)(f"protocol {self.model.name!r}: {error}; {self._way(at)}{said}") from None
        return steps

    def _settle(self, state: _State, worker: int) -> _State:
        """With all done that a worker does at any time alike, and what nobody can find forgotten."""
        while True:
            operation, knowledge = self._operation(worker, state.workers[worker]), state.known[worker]
            if operation is None:
                known = (*state.known[:worker], None, *state.known[worker + 1 :])
                workers = (*state.workers[:worker], _Worker(None, ()), *state.workers[worker + 1 :])
                state = _State(state.shared, workers, known)
                break
            if not self.memory.quiet(operation) or knowledge is None:
                break
            (outcome,) = self.memory.outcomes(operation, state.shared, knowledge, worker)
            state = self._after(state, worker, outcome)
        shared, known = forget(state.shared, state.known, len(self.memory.words))
        return _State(shared, state.workers, known)

    def _after(self, state: _State, worker: int, outcome: Outcome) -> _State:
        place = state.workers[worker]
        place = place._replace(sent=(*place.sent, outcome.value))
        follows = self._follow(worker, place)
        if isinstance(follows, _Worker):
            place = follows
        workers = (*state.workers[:worker], place, *state.workers[worker + 1 :])
        known = (*state.known[:worker], outcome.knowledge, *state.known[worker + 1 :])
        return _State(outcome.shared, workers, known)

    def _operation(self, worker: int, place: _Worker) -> Operation | None:
        """What a worker does next, None if it has ended."""
        been = set()
        while place.arguments is not None:
            if place in been:
                raise ArgumentError(f"process {worker} goes on and on and does nothing; let it end, or poll a word")
            been.add(place)
            follows = self._follow(worker, place)
            if not isinstance(follows, _Worker):
                return follows
            place = follows
        return None

    def _follow(self, worker: int, place: _Worker) -> Operation | _Worker:
        """The operation at a place, or where its process goes on."""
        if place.arguments is None:
            return place
        known = self._next.get((worker, place))
        if known is None:
            process = self.model.workers[worker](*place.arguments)
            try:
                known = next(process)
                for value in place.sent:
                    known = process.send(value)
            except StopIteration as end:
                known = _Worker(end.value, ())
            self._next[worker, place] = known
        return known

    def _all_done(self, state: _State, at: int) -> None:
        for item in range(self.model.items):
            word = len(self.memory.words) - self.model.items + item
            if not state.shared.messages[word][-1].value:
                raise LostItemError(f"protocol {self.model.name!r}: item {item} is never done; {self._way(at)}all end")

    def _all_end(self, states: list[_State], ended: list[int]) -> None:
        """Every state can still come to its end."""
        can, stack = set(ended), [*ended]
        while stack:
            for before in self.before[stack.pop()]:
                if before not in can:
                    can.add(before)
                    stack.append(before)
        lost = [n for n in range(len(states)) if n not in can]
        if lost:
            moving = {before for n in lost for before in self.before[n] if before != n}
            stuck = next((n for n in lost if n not in moving), lost[-1])  # where nothing moves any more, if it stops
            waits = [
                f"worker {worker} {operation}"
                for worker, place in enumerate(states[stuck].workers)
                if (operation := self._operation(worker, place)) is not None
            ]
            raise StuckError(
                f"protocol {self.model.name!r}: it may never end; {self._way(stuck)}then {', '.join(waits)}"
            )

    def _way(self, at: int) -> str:
        said = []
        while at:
            at, text = self.came[at]
            said.append(text)
        return "".join(f"{text}; " for text in reversed(said))

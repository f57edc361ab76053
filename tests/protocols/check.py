"""Model checker: explore every interleaving of a protocol's workers, and every value that memory may return.

The search visits states breadth first, so it reports a shortest path to a fault. Operations with an outcome that does
not depend on their time (fences, and ordinary accesses, which are faults unless they are ordered) run at once; all
others run in every order. Once all states are known, each must be able to reach an end by operations that find only
the newest messages. Every run then ends under a fair scheduler. A value that is overwritten before it is seen does not
count, because a worker that polls may look before and after it.
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

#: Maximum number of states; a larger model takes more than seconds and should be made smaller.
MOST_STATES = 500_000


@dataclass(frozen=True)
class Model:
    """A protocol of a few workers.

    Attributes:
        name: name in the messages of faults.
        words: shared words with their initial values.
        workers: processes of the workers, which are called without arguments.
        items: number of items, each of which must be done exactly once.
        blocks: block of each worker; None for one block per worker.
    """

    name: str
    words: Mapping[str, Value]
    workers: tuple[Process, ...]
    items: int = 0
    blocks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Checked:
    """Numbers of states, and of steps between them, that a check explored."""

    states: int
    steps: int


class _Worker(NamedTuple):
    """State of a worker: the arguments of its process (None at its end), and the values that it was sent since."""

    arguments: tuple[Any, ...] | None
    sent: tuple[Any, ...]


class _State(NamedTuple):
    shared: Shared
    workers: tuple[_Worker, ...]
    known: tuple[Knowledge | None, ...]


def check(model: Model) -> Checked:
    """Explore all interleavings of a protocol.

    Raises:
        ProtocolError: an interleaving fails in the way that the error's class states; the message has its steps.
        ModelError: there are too many states.
        ArgumentError: a process names a word that the model does not have, or continues without any operation.
    """
    return _Search(model).run()


def endings(model: Model) -> list[dict[str, Value]]:
    """Return the values of the words in every state in which all workers have ended. Raises what ``check`` raises."""
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
        """Return a worker's next steps: description, state after it, and whether it found the newest message."""
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
        """Run a worker's operations that do not depend on time, and forget messages that no worker can find."""
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
        """Return the next operation of a worker, or None if it has ended."""
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
        """Return the operation at a worker's state, or the state in which its process continues."""
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
        """Check that an end can be reached from every state."""
        can, stack = set(ended), [*ended]
        while stack:
            for before in self.before[stack.pop()]:
                if before not in can:
                    can.add(before)
                    stack.append(before)
        lost = [n for n in range(len(states)) if n not in can]
        if lost:
            moving = {before for n in lost for before in self.before[n] if before != n}
            stuck = next((n for n in lost if n not in moving), lost[-1])  # a state without moves, if there is one
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

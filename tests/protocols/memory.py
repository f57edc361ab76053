"""Operational model of weak memory: what the operations of a protocol may find under the PTX ISA's memory model.

Every word has a history of messages in the order in which they were stored. Every worker has a *view*: for each word,
the newest message that it must know. A load returns any message from there on, so two workers may see two words change
in different orders. A released message carries the view of its worker; a worker that acquires it joins that view with
its own. An atomic operation reads the newest message, and its own message also carries what that one carried: a chain
of adds releases for all workers that added. If scopes do not include each other (block scope, and workers of different
blocks) nothing is carried, and operations are not strong.

Order is exactly causality order (PTX ISA 8.5, memory consistency model, 8.9), in the form of the views of Kang, Hur,
Lahav, Vafeiadis and Dreyer ("A promising semantics for relaxed-memory concurrency", POPL 2017), without their promises.
Unordered conflicting ordinary accesses are faults, detected from the view alone: one run shows them, whatever their
times. The model omits the following, which hides no fault:

- A store that takes effect before an earlier store of another worker to the same word. In this model it is a fault that
  the storing worker does not know the newest store. Words are either added to by many workers, or stored by one at a
  time.
- A load that takes effect after a later store of its worker, of a value that nothing depends on. PTX allows it (this
  model has no promises). A process continues depending on what it is sent, so its stores depend on its loads. Model a
  load that a store does not wait for after that store.
- ``fence.sc``, which no protocol needs; mixed sizes; and the async proxy, which the PTX lint checks.

Worked example, a post and a wait, views as (data, semaphore):

    writer   Write data           data: 0, 7               view (1, 0)
    writer   Add, release         semaphore: 0, 1 (1, 1)   view (1, 1)
    reader   Await, acquire       takes that 1             view (0, 0) becomes (1, 1): it must find 7
    reader   Await, relaxed       takes that 1             view (0, 1): it may find 0, so its read is a fault
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from interlace.core.errors import ArgumentError, EarlyEndError

from .errors import DoubledItemError, OverwriteError, StaleReadError
from .operations import (
    GPU,
    Add,
    Await,
    Done,
    Ended,
    Fence,
    Load,
    Operation,
    Read,
    Store,
    Strong,
    Swap,
    Value,
    Write,
)

#: Number of the newest known message of each word, then the number of known reads of each worker.
View = tuple[int, ...]


class Carried(NamedTuple):
    """Data that a release passes on: the block of its worker, whether its scope is the GPU, and the view."""

    block: int
    gpu: bool
    view: View


class Message(NamedTuple):
    """One value of a word.

    Attributes:
        value: value of the word.
        carried: views that it releases.
        block: block of the worker that stored it; -1 for the initial value.
        strong: True if a strong operation stored it; with ``gpu``, it is strong for workers of other blocks, too.
        atomic: True if no message can come between it and the previous one.
    """

    value: Value
    carried: tuple[Carried, ...] = ()
    block: int = -1
    strong: bool = True
    gpu: bool = True
    atomic: bool = False


class Knowledge(NamedTuple):
    """Views of one worker: the current one, the one at its last fence, and the one that a fence would add."""

    now: View
    fenced: View | None
    loaded: View


class Shared(NamedTuple):
    """Messages of each word, and for each word the number of reads of each worker at its last read of the word."""

    messages: tuple[tuple[Message, ...], ...]
    reads: tuple[View, ...]


class Outcome(NamedTuple):
    """A possible outcome of an operation; ``newest`` is False if it found an older message than the newest."""

    value: Value | None
    shared: Shared
    knowledge: Knowledge
    newest: bool = True


@dataclass(frozen=True)
class Memory:
    """Rules of memory for given words and workers.

    Attributes:
        words: names of the words; those of items are last.
        items: number of items.
        blocks: block of each worker.
    """

    words: tuple[str, ...]
    items: int
    blocks: tuple[int, ...]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def start(self, values: tuple[Value, ...]) -> tuple[Shared, Knowledge]:
        """Return the initial memory and the knowledge that all workers share."""
        nothing = (0,) * (len(values) + len(self.blocks))
        messages = tuple((Message(value),) for value in values)
        return Shared(messages, ((0,) * len(self.blocks),) * len(values)), Knowledge(nothing, None, nothing)

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is None:
            raise ArgumentError(f"no word {word!r}; the model has {', '.join(self.words)}")
        return number

    def quiet(self, operation: Operation) -> bool:
        """Return True if an operation has the same single outcome at any time, so that it can run at once."""
        return isinstance(operation, Write | Read | Fence | Done | Ended)

    def outcomes(self, operation: Operation, shared: Shared, known: Knowledge, worker: int) -> Iterator[Outcome]:
        """Yield all possible outcomes of an operation; none if it waits.

        Raises:
            StaleReadError, OverwriteError: accesses conflict and are not ordered.
            DoubledItemError, EarlyEndError: see ``Done`` and ``Ended``.
            ArgumentError: there is no such word.
        """
        match operation:
            case Fence():
                now = _join(known.now, known.loaded)
                yield Outcome(None, shared, Knowledge(now, now, now))
            case Read(word, value):
                yield self._read(self._number(word), value, shared, known, worker)
            case Write(word, value):
                yield self._write(self._number(word), value, shared, known, worker)
            case Done(item):
                at = len(self.words) - self.items + item
                if shared.messages[at][-1].value:
                    raise DoubledItemError(f"item {item} is done twice")
                yield self._write(at, 1, shared, known, worker)
            case Ended():
                for at in range(len(self.words) - self.items, len(self.words)):
                    if shared.messages[at][known.now[at]].value == 0:
                        raise EarlyEndError(f"{self.words[at]} is not known to be done where all are taken to be")
                yield Outcome(None, shared, known)
            case Load() | Await():
                yield from self._load(operation, shared, known, worker)
            case Store():
                at = self._number(operation.word)
                self._may_store(at, shared, known)
                yield self._strong(operation, at, operation.value, (), shared, known, worker)
            case Add() | Swap():
                yield from self._atomic(operation, shared, known, worker)

    def _read(self, word: int, wanted: Value, shared: Shared, known: Knowledge, worker: int) -> Outcome:
        messages, name = shared.messages[word], self.words[word]
        if known.now[word] < len(messages) - 1:
            raise StaleReadError(
                f"{name} may be read as {messages[known.now[word]].value}: nothing orders the read behind the store of "
                f"{messages[-1].value}"
            )
        if messages[-1].value != wanted:
            raise StaleReadError(f"{name} is read as {messages[-1].value}, and should be {wanted}")
        at = len(self.words) + worker
        count = known.now[at] + 1
        reads = _put(shared.reads[word], worker, count)
        shared = shared._replace(reads=(*shared.reads[:word], reads, *shared.reads[word + 1 :]))
        return Outcome(None, shared, known._replace(now=_put(known.now, at, count)))

    def _write(self, word: int, value: Value, shared: Shared, known: Knowledge, worker: int) -> Outcome:
        self._may_store(word, shared, known)
        message = Message(value, block=self.blocks[worker], strong=False, gpu=False)
        return Outcome(None, *_append(shared, word, message, known))

    def _load(self, operation: Load | Await, shared: Shared, known: Knowledge, worker: int) -> Iterator[Outcome]:
        word = self._number(operation.word)
        messages = shared.messages[word]
        for number in range(known.now[word], len(messages)):
            message = messages[number]
            if isinstance(operation, Await) and not operation.until.holds(message.value):
                continue
            if number > known.now[word]:
                self._may_meet(operation, word, message, worker)
            knowledge = self._learn(operation, word, number, message, known, worker)
            yield Outcome(message.value, shared, knowledge, number == len(messages) - 1)

    def _atomic(self, operation: Add | Swap, shared: Shared, known: Knowledge, worker: int) -> Iterator[Outcome]:
        word = self._number(operation.word)
        messages = shared.messages[word]
        last = messages[-1]
        if isinstance(operation, Swap):
            for number in range(known.now[word], len(messages)):
                message = messages[number]
                if message.value != operation.expected:
                    if number > known.now[word]:
                        self._may_meet(operation, word, message, worker)
                    knowledge = self._learn(operation, word, number, message, known, worker)
                    yield Outcome(message.value, shared, knowledge, number == len(messages) - 1)
            if last.value != operation.expected:
                return
        unknown = messages[known.now[word] + 1 :]
        for message in unknown:
            self._may_meet(operation, word, message, worker)
        if not all(message.atomic for message in unknown):
            raise OverwriteError(
                f"{self.words[word]} is changed atomically where a store of {last.value} may come before or behind; "
                "acquire the store first"
            )
        self._may_write_over_reads(word, shared, known)
        if isinstance(operation, Add):
            assert isinstance(last.value, int)
            value: Value = last.value + operation.amount
        else:
            value = operation.value
        knowledge = self._learn(operation, word, len(messages) - 1, last, known, worker)
        made = self._strong(operation, word, value, last.carried, shared, knowledge, worker, atomic=True)
        yield made._replace(value=last.value)

    def _strong(
        self,
        operation: Strong,
        word: int,
        value: Value,
        carried: tuple[Carried, ...],
        shared: Shared,
        known: Knowledge,
        worker: int,
        *,
        atomic: bool = False,
    ) -> Outcome:
        """Store a strong message, which carries what its worker releases and ``carried``."""
        block = self.blocks[worker]
        released = known.fenced
        if operation.order.releases:
            released = _put(known.now, word, len(shared.messages[word]))
        if released is not None:
            carried = _with(carried, Carried(block, operation.scope is GPU, released))
        message = Message(value, carried, block, True, operation.scope is GPU, atomic)
        return Outcome(None, *_append(shared, word, message, known))

    def _learn(
        self, operation: Strong, word: int, number: int, message: Message, known: Knowledge, worker: int
    ) -> Knowledge:
        """Return the knowledge after a strong load of a message."""
        now, loaded = _at_least(known.now, word, number), known.loaded
        for carried in message.carried:
            if carried.block == self.blocks[worker] or (carried.gpu and operation.scope is GPU):
                if operation.order.acquires:
                    now = _join(now, carried.view)
                else:
                    loaded = _join(loaded, carried.view)
        return Knowledge(now, known.fenced, loaded)

    def _may_meet(self, operation: Strong, word: int, message: Message, worker: int) -> None:
        """Check that a strong operation and the store that it observes are strong, and in each other's scope."""
        near = message.block in (-1, self.blocks[worker])
        if not message.strong or not (near or (message.gpu and operation.scope is GPU)):
            raise StaleReadError(
                f"{self.words[word]} is met by a strong operation of scope {operation.scope.value}, and its store of "
                f"{message.value} is {'of another block' if message.strong else 'an ordinary one'}: nothing orders them"
            )

    def _may_store(self, word: int, shared: Shared, known: Knowledge) -> None:
        messages = shared.messages[word]
        if known.now[word] < len(messages) - 1:
            raise OverwriteError(
                f"{self.words[word]} is stored while nothing orders this behind the store of {messages[-1].value}"
            )
        self._may_write_over_reads(word, shared, known)

    def _may_write_over_reads(self, word: int, shared: Shared, known: Knowledge) -> None:
        for worker, count in enumerate(shared.reads[word]):
            if known.now[len(self.words) + worker] < count:
                raise OverwriteError(f"{self.words[word]} is stored while worker {worker} may still read it")


def forget(
    shared: Shared, known: tuple[Knowledge | None, ...], words: int
) -> tuple[Shared, tuple[Knowledge | None, ...]]:
    """Drop messages that no worker can find any more; None stands for a worker that has ended."""
    views = [k.now for k in known if k is not None]
    oldest = tuple(map(min, *views)) if len(views) > 1 else views[0] if views else (0,) * words
    gone = [(word, count) for word, count in enumerate(oldest[:words]) if count]
    if not gone:
        return shared, known

    def shift(view: View) -> View:
        numbers = list(view)
        for word, count in gone:
            numbers[word] = max(0, numbers[word] - count)
        return tuple(numbers)

    def shift_views(message: Message) -> Message:
        if not message.carried:
            return message
        return message._replace(carried=tuple([Carried(c.block, c.gpu, shift(c.view)) for c in message.carried]))

    histories = list(shared.messages)
    for word, count in gone:
        histories[word] = histories[word][count:]
    messages = tuple([tuple(map(shift_views, history)) for history in histories])
    return shared._replace(messages=messages), tuple(
        k and Knowledge(shift(k.now), k.fenced and shift(k.fenced), shift(k.loaded)) for k in known
    )


def _append(shared: Shared, word: int, message: Message, known: Knowledge) -> tuple[Shared, Knowledge]:
    messages = (*shared.messages[word], message)
    shared = shared._replace(messages=(*shared.messages[:word], messages, *shared.messages[word + 1 :]))
    return shared, known._replace(now=_put(known.now, word, len(messages) - 1))


def _with(carried: tuple[Carried, ...], more: Carried) -> tuple[Carried, ...]:
    """Add a view; views of the same block and scope are joined."""
    alike = [c for c in carried if c[:2] == more[:2]]
    others = tuple(c for c in carried if c[:2] != more[:2])
    return tuple(sorted((*others, more._replace(view=_join(more.view, *(c.view for c in alike))))))


def _join(*views: View) -> View:
    return tuple(map(max, *views)) if len(views) > 1 else views[0]


def _put(view: View, at: int, number: int) -> View:
    return (*view[:at], number, *view[at + 1 :])


def _at_least(view: View, at: int, number: int) -> View:
    return view if view[at] >= number else _put(view, at, number)

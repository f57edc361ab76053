"""Weak memory as a machine: what the operations of a protocol may find, after the memory model of the PTX ISA.

Every word keeps all of its messages, in the order in which they were stored, and every worker has a *view*: of each
word the newest message that it must know of. A load takes any message from there on, so two workers may see two words
change in different orders. A message carries the view of whoever released it, and who acquires it joins that view with
its own. An atomic operation takes the newest message, and its own carries what that one carried too: a chain of adds
releases for all who added. Where scopes do not reach each other (one is the block, and the workers are of two) nothing
is carried, and nothing is strong.

What is ordered is exactly causality order (PTX ISA 8.5, memory consistency model, 8.9), in the form of views that
Kang, Hur, Lahav, Vafeiadis and Dreyer gave ("A promising semantics for relaxed-memory concurrency", POPL 2017), without
their promises. Conflicting ordinary accesses that nothing orders are faults, told by the view alone: whatever the
moments at which they happen, one such run shows them. Left out, and why that hides nothing:

- A store that comes before an earlier store of another worker to the same word: that the storer does not know of the
  newest store is itself a fault here. Words are added to by many, or stored by one at a time.
- A load that comes behind a later store of its worker, as of a value that nothing depends on: PTX allows it (there are
  no promises here). What a process is sent decides how it goes on, so its stores depend on its loads; model a load that
  a store does not wait for behind that store.
- ``fence.sc``, of which no protocol here has need; mixed sizes; and the async proxy, which the lint of PTX looks after.

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

#: Of each word the number of the newest message known, then of each worker how many of its reads are.
View = tuple[int, ...]


class Carried(NamedTuple):
    """What a release hands on: whose block it is, whether to others as well, and the view."""

    block: int
    gpu: bool
    view: View


class Message(NamedTuple):
    """One value of a word.

    Attributes:
        block: of its worker, -1 for what was there at the start.
        strong: it was stored by a strong operation, for workers of other blocks too if ``gpu``.
        atomic: nothing comes between it and the message before.
    """

    value: Value
    carried: tuple[Carried, ...] = ()
    block: int = -1
    strong: bool = True
    gpu: bool = True
    atomic: bool = False


class Knowledge(NamedTuple):
    """Views of one worker: what it knows, what it knew at its last fence, what a fence would tell it."""

    now: View
    fenced: View | None
    loaded: View


class Shared(NamedTuple):
    """Messages of each word, and of each word how many reads each worker had made when it last read it."""

    messages: tuple[tuple[Message, ...], ...]
    reads: tuple[View, ...]


class Outcome(NamedTuple):
    """What an operation may come to; ``newest`` unless it found an older message than there is."""

    value: Value | None
    shared: Shared
    knowledge: Knowledge
    newest: bool = True


@dataclass(frozen=True)
class Memory:
    """The rules, for given words and workers.

    Attributes:
        words: names; those of items last.
        items: how many.
        blocks: of each worker, its block.
    """

    words: tuple[str, ...]
    items: int
    blocks: tuple[int, ...]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def start(self, values: tuple[Value, ...]) -> tuple[Shared, Knowledge]:
        """Memory that all workers know alike."""
        nothing = (0,) * (len(values) + len(self.blocks))
        messages = tuple((Message(value),) for value in values)
        return Shared(messages, ((0,) * len(self.blocks),) * len(values)), Knowledge(nothing, None, nothing)

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is None:
            raise ArgumentError(f"no word {word!r}; the model has {', '.join(self.words)}")
        return number

    def quiet(self, operation: Operation) -> bool:
        """Whether it has one outcome, whenever it happens, so that none need come before it."""
        return isinstance(operation, Write | Read | Fence | Done | Ended)

    def outcomes(self, operation: Operation, shared: Shared, known: Knowledge, worker: int) -> Iterator[Outcome]:
        """All that may come of an operation; none if it waits.

        Raises:
            StaleReadError, OverwriteError: accesses conflict, and nothing orders them.
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
        """A strong message; what it carries is what its own worker releases, and ``carried``."""
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
        """After a strong load of a message."""
        now, loaded = _at_least(known.now, word, number), known.loaded
        for carried in message.carried:
            if carried.block == self.blocks[worker] or (carried.gpu and operation.scope is GPU):
                if operation.order.acquires:
                    now = _join(now, carried.view)
                else:
                    loaded = _join(loaded, carried.view)
        return Knowledge(now, known.fenced, loaded)

    def _may_meet(self, operation: Strong, word: int, message: Message, worker: int) -> None:
        """A strong operation meets what another stored: both must be strong, and each in the other's scope."""
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
    """The same memory without messages that no worker can find any more; None is a worker that has ended."""
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

    def shifted(message: Message) -> Message:
        if not message.carried:
            return message
        return message._replace(carried=tuple([Carried(c.block, c.gpu, shift(c.view)) for c in message.carried]))

    histories = list(shared.messages)
    for word, count in gone:
        histories[word] = histories[word][count:]
    messages = tuple([tuple(map(shifted, history)) for history in histories])
    return shared._replace(messages=messages), tuple(
        k and Knowledge(shift(k.now), k.fenced and shift(k.fenced), shift(k.loaded)) for k in known
    )


def _append(shared: Shared, word: int, message: Message, known: Knowledge) -> tuple[Shared, Knowledge]:
    messages = (*shared.messages[word], message)
    shared = shared._replace(messages=(*shared.messages[:word], messages, *shared.messages[word + 1 :]))
    return shared, known._replace(now=_put(known.now, word, len(messages) - 1))


def _with(carried: tuple[Carried, ...], more: Carried) -> tuple[Carried, ...]:
    """All of it; what is of one block and reaches as far, in one view."""
    alike = [c for c in carried if c[:2] == more[:2]]
    others = tuple(c for c in carried if c[:2] != more[:2])
    return tuple(sorted((*others, more._replace(view=_join(more.view, *(c.view for c in alike))))))


def _join(*views: View) -> View:
    return tuple(map(max, *views)) if len(views) > 1 else views[0]


def _put(view: View, at: int, number: int) -> View:
    return (*view[:at], number, *view[at + 1 :])


def _at_least(view: View, at: int, number: int) -> View:
    return view if view[at] >= number else _put(view, at, number)

"""Processes of a protocol's workers: generators of operations on shared words.

A process is a generator function. It yields operations and is sent what they find. It returns the arguments with which
it is called again, or None at its end. So its state consists of those arguments and the values that it was sent since,
and a checker can follow it along every path:

    def worker(item=0):
        ticket = yield Add("head", 1)
        if ticket == ITEMS:
            return None
        yield Await("semaphore", at_least(2), ACQUIRE)
        yield Read("data", 7)
        yield Done(ticket)
        return (item + 1,)

A process depends only on its arguments and on what it is sent. A word's value is a number or a tuple of numbers.
``memory`` defines the semantics of the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

#: A number, or several in one word of memory.
Value = int | tuple[int, ...]


class Order(Enum):
    """Memory order of a strong operation: what it orders in addition to its own word."""

    RELAXED = "relaxed"
    ACQUIRE = "acquire"
    RELEASE = "release"
    ACQUIRE_RELEASE = "acq_rel"

    @property
    def acquires(self) -> bool:
        return self in (Order.ACQUIRE, Order.ACQUIRE_RELEASE)

    @property
    def releases(self) -> bool:
        return self in (Order.RELEASE, Order.ACQUIRE_RELEASE)


class Scope(Enum):
    """Scope: the workers for which an operation is strong."""

    BLOCK = "cta"
    GPU = "gpu"


RELAXED, ACQUIRE, RELEASE, ACQUIRE_RELEASE = Order
BLOCK, GPU = Scope


@dataclass(frozen=True)
class Until:
    """Condition that a wait waits for."""

    text: str
    holds: Callable[[Any], bool]


def at_least(count: int) -> Until:
    """Return the condition that a number is at least ``count``."""
    return Until(f">= {count}", lambda value: value >= count)


def expect_equal(wanted: Value) -> Until:
    """Return the condition that a word has exactly this value."""
    return Until(f"== {wanted}", lambda value: value == wanted)


def other_than(unwanted: Value) -> Until:
    """Return the condition that a word has any other value."""
    return Until(f"!= {unwanted}", lambda value: value != unwanted)


@dataclass(frozen=True)
class Write:
    """An ordinary (weak) store. Accesses of other workers to the word must be ordered with it."""

    word: str
    value: Value

    def __str__(self) -> str:
        return f"writes {self.word} = {self.value}"


@dataclass(frozen=True)
class Read:
    """An ordinary (weak) load, which should find ``value``."""

    word: str
    value: Value

    def __str__(self) -> str:
        return f"reads {self.word}"


@dataclass(frozen=True)
class Load:
    """A strong load; sent the value."""

    word: str
    order: Order = RELAXED
    scope: Scope = GPU

    def __str__(self) -> str:
        return f"loads {self.word} ({self.order.value})"


@dataclass(frozen=True)
class Await:
    """Strong loads until one meets the condition; sent its value."""

    word: str
    until: Until
    order: Order = RELAXED
    scope: Scope = GPU

    def __str__(self) -> str:
        return f"awaits {self.word} {self.until.text} ({self.order.value})"


@dataclass(frozen=True)
class Store:
    """A strong store."""

    word: str
    value: Value
    order: Order = RELAXED
    scope: Scope = GPU

    def __str__(self) -> str:
        return f"stores {self.word} = {self.value} ({self.order.value})"


@dataclass(frozen=True)
class Add:
    """An atomic add; sent the previous value."""

    word: str
    amount: int
    order: Order = RELAXED
    scope: Scope = GPU

    def __str__(self) -> str:
        return f"adds {self.amount} to {self.word} ({self.order.value})"


@dataclass(frozen=True)
class Swap:
    """An atomic compare-and-swap; sent the previous value, which is ``expected`` if it succeeded."""

    word: str
    expected: Value
    value: Value
    order: Order = RELAXED
    scope: Scope = GPU

    def __str__(self) -> str:
        return f"swaps {self.word} from {self.expected} to {self.value} ({self.order.value})"


@dataclass(frozen=True)
class Fence:
    """``fence.acq_rel.gpu``: strong loads before it acquire, strong stores after it release."""

    def __str__(self) -> str:
        return "fences"


@dataclass(frozen=True)
class Done:
    """The work of an item, which must be done exactly once."""

    item: int

    def __str__(self) -> str:
        return f"does item {self.item}"


@dataclass(frozen=True)
class Ended:
    """The worker assumes that all items are done, and uses their results."""

    def __str__(self) -> str:
        return "takes all items to be done"


Strong = Load | Await | Store | Add | Swap
Operation = Write | Read | Strong | Fence | Done | Ended
Process = Callable[..., Generator[Operation, Any, tuple[Any, ...] | None]]


def do(item: int, producers: Iterable[int], wait: Order | None = None) -> Generator[Operation, Any, None]:
    """Run an item: it reads the data words of its producers and writes its own.

    Args:
        wait: memory order of its waits for the semaphores of its producers; None if something else orders them.
    """
    yield Done(item)
    for producer in producers:
        if wait is not None:
            yield Await(f"semaphore {producer}", at_least(1), wait)
        yield Read(f"data {producer}", 1)
    yield Write(f"data {item}", 1)

"""Work stealing: how a worker whose queue is empty takes items from the queues of others.

Worked example, worker 0 of three with queues (), (4 5 6 7 8) and (9 10):

    one item, of the next list      takes 4, which leaves (), (5 6 7 8) and (9 10)
    half, of the next list          takes 4, and moves 5 and 6 to its own queue: (5 6), (7 8) and (9 10)
    at most two, of a random list   may take 9, which is half of that queue's rest: (), (4 5 6 7 8) and (10)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from interlace.core.arguments import check_int, check_type
from interlace.core.errors import ArgumentError


class Victim(Enum):
    """Choice of the worker to steal from, among those whose queues are not empty."""

    NEXT = "next"
    """Next worker by number, cyclically. With items assigned round-robin, its tiles are neighbours of the thief's
    own."""
    RANDOM = "random"
    """Any worker, with equal probability, so that workers that run dry at once do not all pick the same victim."""


@dataclass(frozen=True)
class Stealing:
    """Rule by which a worker with an empty queue steals. Items that it does not run at once go to its own queue, from
    which others may take them again (Hendler and Shavit, "Non-blocking steal-half work queues", 2002).

    Attributes:
        most: maximum number of items at a time, and never more than half of the queue's rest, rounded up; None for
            half.
        victim: choice of the worker to steal from.

    Raises:
        ArgumentError: fewer than one item at a time, or a victim of the wrong type.
    """

    most: int | None = 1
    victim: Victim = Victim.NEXT

    def __post_init__(self) -> None:
        if self.most is not None:
            object.__setattr__(self, "most", check_int(self.most, "Stealing", "most"))
            if self.most < 1:
                raise ArgumentError(f"Stealing: most is {self.most}; take at least one item at a time, None for half")
        check_type(self.victim, Victim, "Stealing", "victim")

    def __str__(self) -> str:
        take = "half" if self.most is None else "one item" if self.most == 1 else f"at most {self.most} items"
        return f"{take} of {'a random' if self.victim is Victim.RANDOM else 'the next'} list"


#: Rule of plans that name no other.
STEAL_ONE = Stealing()

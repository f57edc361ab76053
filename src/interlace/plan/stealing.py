"""How a worker whose list is empty takes items from the lists of others.

Worked example, worker 0 of three with lists (), (4 5 6 7 8) and (9 10):

    one item, of the next list      takes 4, which leaves (), (5 6 7 8) and (9 10)
    half, of the next list          takes 4, and has 5 and 6 in its own list: (5 6), (7 8) and (9 10)
    at most two, of a random list   may take 9, which is half of that list's rest: (), (4 5 6 7 8) and (10)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from interlace.core.arguments import check_type, whole
from interlace.core.errors import ArgumentError


class Victim(Enum):
    """From whose list a worker takes, of those that are not empty."""

    NEXT = "next"
    """The next by number, after the last the first. Where items are dealt in turn, its tiles are neighbours of the
    worker's own."""
    RANDOM = "random"
    """Any, each as likely; so workers that have none left at once do not all ask the same."""


@dataclass(frozen=True)
class Stealing:
    """What a worker takes whose list is empty. What it does not run at once it puts into its own list, from which
    others may take it again (Hendler and Shavit, "Non-blocking steal-half work queues", 2002).

    Attributes:
        most: items at a time, and never more than half of the list's rest, rounded up; None for half.
        victim: whose.

    Raises:
        ArgumentError: fewer than one item at a time, or a victim that is none.
    """

    most: int | None = 1
    victim: Victim = Victim.NEXT

    def __post_init__(self) -> None:
        if self.most is not None:
            object.__setattr__(self, "most", whole(self.most, "Stealing", "most"))
            if self.most < 1:
                raise ArgumentError(f"Stealing: most is {self.most}; take at least one item at a time, None for half")
        check_type(self.victim, Victim, "Stealing", "victim")

    def __str__(self) -> str:
        take = "half" if self.most is None else "one item" if self.most == 1 else f"at most {self.most} items"
        return f"{take} of {'a random' if self.victim is Victim.RANDOM else 'the next'} list"


#: What is taken unless a plan says more.
ONE = Stealing()

"""Orderings that make an item run after those that it depends on, and single dependencies with their names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from interlace.graph.dependencies import Hazard
from interlace.graph.tensor import Region


class Ordering(Enum):
    """A guarantee of order between items. A proof names the orderings that it rests on, an executor those it keeps."""

    LAUNCH = "launch"
    """An op begins once all earlier ops that it depends on have ended. Dependencies are between ops, so all hold."""
    WORKER = "worker"
    """Each worker runs its items one after another, in sequence: an item begins once the one before has ended."""
    WAIT = "wait"
    """Posts and waits are executed: an access after a wait begins once the producers have ended."""


@dataclass(frozen=True)
class Edge:
    """One dependency: an item touches a region that a tile of an earlier op touched.

    Attributes:
        hazard: kind of the dependency.
        op: name of the earlier op.
        producer: tile of that op, as ``"op 'up', tile (0, 0)"``.
        consumer: the later item.
        region, arg: region that the item touches, and the argument through which it does.
        k: first element of the item's reduction that needs the region; None if the region does not move with k.
    """

    hazard: Hazard
    op: str
    producer: str
    consumer: str
    region: Region
    arg: str
    k: int | None

    @property
    def verb(self) -> str:
        """Verb for the item's access to the region, for messages."""
        return "reads" if self.hazard is Hazard.RAW else "overwrites"

    def __str__(self) -> str:
        when = "" if self.k is None else f" from k = {self.k} on"
        past = "still reads" if self.hazard is Hazard.WAR else "writes"
        return (
            f"{self.consumer} {self.verb} {self.region}{when}, which {self.producer} {past} "
            f"({self.hazard.name} through {self.region.tensor!r}, argument {self.arg!r})"
        )

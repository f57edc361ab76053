"""What makes an item come after another that it depends on, and such dependencies by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from interlace.graph.dependencies import Hazard
from interlace.graph.tensor import Region


class Ordering(Enum):
    """A way to keep items in order. A proof says on which it rests, an executor which it keeps."""

    LAUNCH = "launch"
    """An op begins once all earlier ops that it depends on have ended: all dependencies hold, being between ops."""
    WORKER = "worker"
    """Each worker runs its items one after another, in sequence: an item begins once the one before has ended."""
    WAIT = "wait"
    """Posts and waits are live: an access that stands behind a wait begins once the producers have ended."""


@dataclass(frozen=True)
class Edge:
    """One dependency: an item touches what a tile of an earlier op touched.

    Attributes:
        hazard: which kind.
        op: the earlier op.
        producer: its tile, as ``"op 'up', tile (0, 0)"``.
        consumer: the item that comes after.
        region, arg: what that item touches, through which of its arguments.
        k: from which element of the item's reduction on, None if the region does not move with k.
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
        """What the item does to the region."""
        return "reads" if self.hazard is Hazard.RAW else "overwrites"

    def __str__(self) -> str:
        when = "" if self.k is None else f" from k = {self.k} on"
        past = "still reads" if self.hazard is Hazard.WAR else "writes"
        return (
            f"{self.consumer} {self.verb} {self.region}{when}, which {self.producer} {past} "
            f"({self.hazard.name} through {self.region.tensor!r}, argument {self.arg!r})"
        )

"""Notes of a command while numba compiles, at the first use of a function and after an update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from interlace.cli.console import note, update_spinners
from interlace.core.compiling import reports_to


@dataclass(frozen=True)
class Part:
    """Functions that are compiled together.

    Attributes:
        name: name of the part in notes.
        seconds: approximate CPU time in seconds to compile all of it.
    """

    name: str
    seconds: int

    def __str__(self) -> str:
        return f"the first use compiles {self.name}, about {self.seconds} s once"


SIMULATOR = Part("the simulator", 5)
CACHE_MODEL, EVENT_LOOP = Part("the simulator's cache model", 2), Part("the simulator's event loop", 3)
SEARCH = Part("the search", 8)
#: Parts by the modules of their functions; the first match counts.
_PARTS = {
    "interlace.sim.engine": EVENT_LOOP,
    "interlace.sim.memory": EVENT_LOOP,
    "interlace.sim.": CACHE_MODEL,
    "interlace.orders.": SEARCH,
}


@contextmanager
def note_compiling() -> Iterator[None]:
    """Print a note before the first function of each part is compiled; spinners then count and name its functions."""
    counts: dict[Part, int] = {}

    def report(module: str, function: str) -> None:
        part = next((part for start, part in _PARTS.items() if module.startswith(start)), None)
        if part is None:
            return
        counts[part] = counts.get(part, 0) + 1
        if counts[part] == 1:
            note(f"compiling {part.name} for this machine (once; about {part.seconds} s of CPU time)")
        update_spinners(f"compiling {part.name}: function {counts[part]}, {function} ...")

    with reports_to(report):
        yield

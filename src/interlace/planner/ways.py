"""Ways to run a graph, each planned at its best, side by side by prediction.

An executor is one way: the tilings that it can launch, the dispatches that it runs, and the mode in which the simulated
machine takes it. What makes the fastest faster than the next is told one difference at a time: the fastest plan is
predicted under its own mode, with that difference undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.kernels.base import tiling
from interlace.plan.plan import Dispatch
from interlace.planner.explain import Reason
from interlace.planner.predict import FINE
from interlace.planner.search import Candidate, Planned, Sketches, search
from interlace.sim.modes import Gate, Mode

#: What modes can differ in: by name, the attributes that go together, and a few words of a mode's.
_DIFFERENCES: Mapping[str, tuple[tuple[str, ...], Callable[[Mode], str]]] = {
    "launches": (("gate", "after", "waits"), lambda mode: _launches(mode)),
    "loads ahead of waits": (("ring_bytes",), lambda mode: f"{mode.ring_bytes >> 10} KiB"),
    "hand-overs": (("words",), lambda mode: "by semaphores" if mode.words is None else "by words where they can be"),
    "bodies": (
        ("matrix_share", "memory_share"),
        lambda mode: f"{mode.matrix_share:.0%} of the rate of matmuls, {mode.memory_share:.0%} of memory's",
    ),
}


def _launches(mode: Mode) -> str:
    if mode.gate is Gate.OPEN:
        return "one"
    return "one for each op" + (", on streams" if mode.after is not None else "")


@dataclass(frozen=True, eq=False)
class Way:
    """What the planner knows of an executor, or of several that are alike to it.

    Attributes:
        names: theirs.
        graphs: the graph in the tilings to choose from.
        mode: how the machine takes it.
        dispatches: those that it runs.
    """

    names: tuple[str, ...]
    graphs: tuple[Graph, ...]
    mode: Mode
    dispatches: tuple[Dispatch, ...]

    @property
    def name(self) -> str:
        """All of its names."""
        return ", ".join(self.names)


@dataclass(frozen=True, eq=False)
class Entry:
    """A way and the best plan of it.

    Attributes:
        way: which.
        planned: the answer of the search.
    """

    way: Way
    planned: Planned

    @property
    def best(self) -> Candidate:
        """The best plan, of an excerpt if the graph has layers."""
        return self.planned.ranking[0]


def merged(ways: Iterable[Way]) -> list[Way]:
    """The same ways, those that differ in nothing but their names as one."""
    alike: dict[object, Way] = {}
    for way in ways:
        key = way.mode, way.dispatches, tuple(map(tiling, way.graphs))
        known = alike.get(key)
        alike[key] = way if known is None else replace(known, names=known.names + way.names)
    return [*alike.values()]


def compare(
    ways: Sequence[Way], device: DeviceSpec, progress: Callable[[int], None] = lambda tried: None
) -> tuple[Entry, ...]:
    """The best plan of every way, the fastest first.

    Args:
        ways: of one graph, at least one.
        device: where it runs.
        progress: told how many candidates have been predicted.

    Raises:
        SimulationError, PlanError, IntraOpRaceError, UnwrittenError: as ``search``.
    """
    found: list[Entry] = []
    sketches = Sketches()
    for way in ways:
        before = sum(entry.planned.tried for entry in found)

        def tell(tried: int, before: int = before) -> None:
            progress(before + tried)

        found.append(Entry(way, search(way.graphs, device, way.mode, tell, way.dispatches, sketches)))
    return tuple(sorted(found, key=lambda entry: entry.best.cost))


def rival(entries: Sequence[Entry]) -> Entry | None:
    """Of ways in the order of their times, the first that differs from the fastest in more than how far it loads ahead.

    Two single launches, in whatever language, are alike in that, and in what they hand over by words. None if there is
    one way.
    """
    best, *others = (replace(entry.way.mode, ring_bytes=0, words=None) for entry in entries)
    unlike = (entry for entry, mode in zip(entries[1:], others, strict=True) if mode != best)
    return next(unlike, entries[1] if others else None)


def differences(best: Entry, other: Entry, device: DeviceSpec) -> Iterator[Reason]:
    """Why one way is faster than another: both times, then each difference of the modes that matters, undone alone."""
    yield Reason("executor", best.way.name, other.best.us, other.best.dram_read)
    first = best.best
    for name, (attributes, words) in _DIFFERENCES.items():
        theirs = {a: getattr(other.way.mode, a) for a in attributes}
        if theirs != {a: getattr(best.way.mode, a) for a in attributes}:
            mode = replace(best.way.mode, **theirs)
            undone = first.sketch.candidate(first.prediction.plan, first.choices, device, mode, FINE)
            without = best.planned.us(undone), best.planned.dram_read(undone)
            if without != (best.planned.us(first), best.planned.dram_read(first)):
                yield Reason(name, words(best.way.mode), *without)

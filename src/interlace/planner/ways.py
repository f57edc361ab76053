"""Compare executors on a graph by prediction, each with its best plan.

A ``Way`` describes one executor to the planner: the tilings that it can launch, the dispatches that it supports, and
its mode on the simulated machine. The advantage of the fastest over the next is explained one difference at a time: the
fastest plan is predicted again under its own mode with that difference undone.
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

#: Differences between modes: name, attributes that belong together, and a function that describes a mode's value.
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
    """An executor as the planner sees it, or several that do not differ to it.

    Attributes:
        names: names of the executors.
        graphs: graph in the tilings to choose from.
        mode: mode on the simulated machine.
        dispatches: dispatches that the executor supports.
    """

    names: tuple[str, ...]
    graphs: tuple[Graph, ...]
    mode: Mode
    dispatches: tuple[Dispatch, ...]

    @property
    def name(self) -> str:
        """Names, joined by commas."""
        return ", ".join(self.names)


@dataclass(frozen=True, eq=False)
class Entry:
    """A way and the result of its search.

    Attributes:
        way: way that was searched.
        planned: result of the search.
    """

    way: Way
    planned: Planned

    @property
    def best(self) -> Candidate:
        """Winner of the search; its plan is a plan of an excerpt if the graph has repeated layers."""
        return self.planned.ranking[0]


def merged(ways: Iterable[Way]) -> list[Way]:
    """Merge ways that differ only in their names."""
    alike: dict[object, Way] = {}
    for way in ways:
        key = way.mode, way.dispatches, tuple(map(tiling, way.graphs))
        known = alike.get(key)
        alike[key] = way if known is None else replace(known, names=known.names + way.names)
    return [*alike.values()]


def compare(
    ways: Sequence[Way], device: DeviceSpec, progress: Callable[[int], None] = lambda tried: None
) -> tuple[Entry, ...]:
    """Search for the best plan of every way; return the fastest first.

    Args:
        ways: ways to run one graph, at least one.
        device: device that it runs on.
        progress: callback that receives the number of candidates predicted so far.

    Raises:
        SimulationError, PlanError, IntraOpRaceError, UnwrittenError: see ``search``.
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
    """Return the first of the entries, sorted by time, that differs from the fastest beyond ring size and LL words.

    Two megakernels do not differ in that sense, whatever their language. Return the second entry if none differs, and
    None if there is only one entry.
    """
    best, *others = (replace(entry.way.mode, ring_bytes=0, words=None) for entry in entries)
    unlike = (entry for entry, mode in zip(entries[1:], others, strict=True) if mode != best)
    return next(unlike, entries[1] if others else None)


def differences(best: Entry, other: Entry, device: DeviceSpec) -> Iterator[Reason]:
    """Explain why one way is faster: yield both times, then the effect of each difference between the two modes."""
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

"""Compare executors on a graph by prediction, each with its best plan.

An ``ExecutorConfig`` describes one executor to the planner: the tilings that it can launch, the dispatches that it
supports, and its mode on the simulated machine. The advantage of the fastest over the next is explained one difference
at a time: the fastest plan is predicted again under its own mode with that difference undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.kernels.base import format_tiling
from interlace.plan.plan import Dispatch
from interlace.planner.explain import Reason
from interlace.planner.predict import FINE
from interlace.planner.search import Candidate, ExcerptPlanners, SearchResult, search
from interlace.sim.modes import Gate, Mode

#: Differences between modes: name, attributes that belong together, and a function that describes a mode's value.
_DIFFERENCES: Mapping[str, tuple[tuple[str, ...], Callable[[Mode], str]]] = {
    "launches": (("gate", "after", "waits"), lambda mode: _describe_launches(mode)),
    "loads ahead of waits": (("ring_bytes",), lambda mode: f"{mode.ring_bytes >> 10} KiB"),
    "hand-offs": (
        ("ll_hand_offs",),
        lambda mode: "by semaphores" if mode.ll_hand_offs is None else "by LL words where possible",
    ),
    "bodies": (
        ("matrix_share", "memory_share"),
        lambda mode: f"{mode.matrix_share:.0%} of the rate of matmuls, {mode.memory_share:.0%} of memory's",
    ),
}


def _describe_launches(mode: Mode) -> str:
    if mode.gate is Gate.OPEN:
        return "one"
    return "one for each op" + (", on streams" if mode.after is not None else "")


@dataclass(frozen=True, eq=False)
class ExecutorConfig:
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
class RankedConfig:
    """An executor configuration and the result of its search.

    Attributes:
        config: configuration that was searched.
        search_result: result of the search.
    """

    config: ExecutorConfig
    search_result: SearchResult

    @property
    def best(self) -> Candidate:
        """Winner of the search; its plan is a plan of an excerpt if the graph has repeated layers."""
        return self.search_result.ranking[0]


def merge_configs(configs: Iterable[ExecutorConfig]) -> list[ExecutorConfig]:
    """Merge configurations that differ only in their names."""
    alike: dict[object, ExecutorConfig] = {}
    for way in configs:
        key = way.mode, way.dispatches, tuple(map(format_tiling, way.graphs))
        known = alike.get(key)
        alike[key] = way if known is None else replace(known, names=known.names + way.names)
    return [*alike.values()]


def compare(
    configs: Sequence[ExecutorConfig], device: DeviceSpec, progress: Callable[[int], None] = lambda tried: None
) -> tuple[RankedConfig, ...]:
    """Search for the best plan of every configuration; return the fastest first.

    Args:
        configs: configurations to run one graph, at least one.
        device: device that it runs on.
        progress: callback that receives the number of candidates predicted so far.

    Raises:
        SimulationError, PlanError, IntraOpRaceError, UnwrittenError: see ``search``.
    """
    found: list[RankedConfig] = []
    sketches = ExcerptPlanners()
    for way in configs:
        before = sum(entry.search_result.tried_candidates for entry in found)

        def tell(tried: int, before: int = before) -> None:
            progress(before + tried)

        found.append(RankedConfig(way, search(way.graphs, device, way.mode, tell, way.dispatches, sketches)))
    return tuple(sorted(found, key=lambda entry: entry.best.cost))


def find_rival(entries: Sequence[RankedConfig]) -> RankedConfig | None:
    """Return the first of the entries, sorted by time, that differs from the fastest beyond ring size and LL words.

    Two megakernels do not differ in that sense, whatever their language. Return the second entry if none differs, and
    None if there is only one entry.
    """
    best, *others = (replace(entry.config.mode, ring_bytes=0, ll_hand_offs=None) for entry in entries)
    unlike = (entry for entry, mode in zip(entries[1:], others, strict=True) if mode != best)
    return next(unlike, entries[1] if others else None)


def explain_differences(best: RankedConfig, other: RankedConfig, device: DeviceSpec) -> Iterator[Reason]:
    """Explain why one way is faster: yield both times, then the effect of each difference between the two modes."""
    yield Reason("executor", best.config.name, other.best.us, other.best.dram_read)
    first = best.best
    for name, (attributes, words) in _DIFFERENCES.items():
        theirs = {a: getattr(other.config.mode, a) for a in attributes}
        if theirs != {a: getattr(best.config.mode, a) for a in attributes}:
            mode = replace(best.config.mode, **theirs)
            undone = first.planner.make_candidate(first.prediction.plan, first.schedule, device, mode, FINE)
            without = best.search_result.compute_us(undone), best.search_result.compute_dram_read(undone)
            if without != (best.search_result.compute_us(first), best.search_result.compute_dram_read(first)):
                yield Reason(name, words(best.config.mode), *without)

"""The planner: ranks candidates by prediction, proves the winner and says why it won.

The search goes step by step, from the tiling and order over interleaving, split and policy to the dispatch: each step
tries all alternatives of one decision on the best few so far, and takes those that gain enough to be worth their
complication. A cheap prediction ranks, in which chunks of reductions are taken together; a finer one decides among the
finalists. Of a graph of layers that are alike an excerpt is searched, and only the winner is planned whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from interlace.core.arguments import check_type, series
from interlace.core.devices import DeviceSpec
from interlace.core.errors import PlanError, SimulationError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import of_layers
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof, verify
from interlace.planner.build import Assignment, Choices, build
from interlace.planner.excerpt import Excerpt
from interlace.planner.predict import CHEAP, FINE, Prediction, predict
from interlace.planner.shared import Shared
from interlace.planner.touched import Touched
from interlace.policies.interleavings import HalfRows, Interleaving, Panels
from interlace.policies.orders import ColumnMajor, GroupedPanels, Hilbert, Order, RowMajor
from interlace.policies.splits import Split, SplitK, SplitTail, Whole
from interlace.policies.sync import RowSync
from interlace.sim.modes import PERSISTENT, Gate, Mode
from interlace.trace.summary import Summary

ORDERS: tuple[Order, ...] = (RowMajor(), *map(GroupedPanels, (2, 4, 8, 16)), Hilbert(), ColumnMajor())
INTERLEAVINGS: tuple[Interleaving, ...] = (HalfRows(), *map(Panels, (1, 2, 4, 8)))
_KEPT = 2  # candidates that a step goes on with
_WORTH = 0.995  # of the time of what it departs from: a plan that is no faster is not chosen for its splits
_MOST_TILES = 1 << 18  # of a graph; its candidates would take minutes


class Sketch:
    """An excerpt of a graph, of which many plans are made and predicted.

    Attributes:
        excerpt: which.
        graph: what is planned.
    """

    def __init__(self, excerpt: Excerpt) -> None:
        self.excerpt, self.graph = excerpt, excerpt.graph
        self._shared, self._touched = Shared(excerpt.graph), Touched()

    def build(self, choices: Choices) -> Plan:
        """As ``build``."""
        return build(self.graph, choices, self._shared)

    def candidate(self, plan: Plan, choices: Choices, device: DeviceSpec, mode: Mode, limit: int) -> Candidate:
        """What is predicted of a plan that ``build`` made; ``mode`` is that of the whole."""
        # Told apart as the whole's would be.
        some = limit * len(self.graph.ops) // len(self.excerpt.whole.ops)
        prediction = predict(plan, device, self.excerpt.mode(mode), some, self._touched)
        return Candidate(self, choices, prediction)

    def tried(self, choices: Choices, device: DeviceSpec, mode: Mode) -> Candidate:
        """What is predicted of choices, finely."""
        return self.candidate(self.build(choices), choices, device, mode, FINE)


class Sketches:
    """Sketches of several graphs, one of those that are equal."""

    def __init__(self) -> None:
        self._all: list[Sketch] = []

    def of(self, graph: Graph) -> Sketch:
        """The sketch of a graph."""
        known = next((s for s in self._all if s.excerpt.whole is graph or s.excerpt.whole == graph), None)
        if known is None:
            known = Sketch(Excerpt.of(graph))
            self._all.append(known)
        return known


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to run a graph, and what it is predicted to cost.

    Attributes:
        sketch: of the graph.
        choices: what the sketch makes the plan from.
        prediction: of that plan, which is one of an excerpt.
    """

    sketch: Sketch
    choices: Choices
    prediction: Prediction

    @property
    def graph(self) -> Graph:
        """What is run, whole."""
        return self.sketch.excerpt.whole

    @property
    def us(self) -> float:
        """Microseconds of one run of the whole."""
        return self.sketch.excerpt.us(self.prediction)

    @property
    def dram_read(self) -> int:
        """Bytes that the whole reads from memory."""
        return self.sketch.excerpt.dram_read(self.prediction)

    @property
    def cost(self) -> tuple[float, int]:
        """By which candidates are ranked: microseconds, then bytes from memory."""
        return self.us, self.dram_read

    @property
    def summary(self) -> Summary:
        """Where the workers' time goes."""
        return self.sketch.excerpt.summary(self.prediction)


@dataclass(frozen=True, eq=False)
class Planned:
    """The planner's answer.

    Attributes:
        ranking: the finalists, best first; the winner is the first.
        plain: row-major order, op after op, nothing split: what one would run of the winner's tiling without a planner.
        sketches: of the tilings that it chose from.
        tried: how many candidates were predicted.
        device, mode: for which.
    """

    ranking: tuple[Candidate, ...]
    plain: Candidate
    sketches: tuple[Sketch, ...]
    tried: int
    device: DeviceSpec
    mode: Mode

    @cached_property
    def best(self) -> Candidate:
        """The winner, planned and predicted whole."""
        first = self.ranking[0]
        excerpt = first.sketch.excerpt
        if not excerpt.left_out:
            return first
        return Sketch(Excerpt(excerpt.whole, excerpt.whole)).tried(
            excerpt.lifted(first.choices), self.device, self.mode
        )

    def us(self, candidate: Candidate) -> float:
        """Microseconds of the winner, and how much longer a candidate takes than it by their excerpts."""
        return candidate.us + (self.best.us - self.ranking[0].us)

    def dram_read(self, candidate: Candidate) -> int:
        """Bytes from memory, in the same way."""
        return candidate.dram_read + (self.best.dram_read - self.ranking[0].dram_read)

    @cached_property
    def proof(self) -> Proof:
        """Of the winner. Raises PlanError if it is not safe."""
        return verify(self.best.prediction.plan)

    @property
    def plan(self) -> Plan:
        """The winner, proved."""
        return self.proof.plan


def search(
    graphs: Graph | Sequence[Graph],
    device: DeviceSpec,
    mode: Mode = PERSISTENT,
    progress: Callable[[int], None] = lambda tried: None,
    dispatches: Sequence[Dispatch] = (Dispatch.TICKET, Dispatch.STATIC),
    sketches: Sketches | None = None,
) -> Planned:
    """The best plan of a graph by prediction, and its proof.

    Args:
        graphs: the graph, or the same one in several tilings to choose from.
        device: what it runs on.
        mode: by which executor.
        progress: told how many candidates have been predicted.
        dispatches: those that the executor runs.
        sketches: for those who search several times for the same graphs.

    Raises:
        ArgumentError: a graph, a device or a mode that is none.
        PlanError: no graph given.
        SimulationError: a graph has too many tiles.
        IntraOpRaceError: two tiles of one op conflict.
        UnwrittenError: an element is read before anything writes it, or an output is written in part.
    """
    if not isinstance(graphs, (Graph, tuple, list)):
        check_type(graphs, Graph, "search", "graph")
    graphs = (graphs,) if isinstance(graphs, Graph) else series(graphs, Graph, "search", "graph")
    check_type(device, DeviceSpec, "search", "device", "il.H200")
    check_type(mode, Mode, "search", "mode", "il.PERSISTENT")
    if not graphs:
        raise PlanError("no graph to plan; give at least one tiling")
    for graph in graphs:
        tiles = sum(op.tiles for op in graph.ops)
        if tiles > _MOST_TILES:
            raise SimulationError(
                f"graph {graph.name!r} has {tiles} tiles and a search takes {_MOST_TILES}; use larger tiles, or plan a "
                "smaller problem of the same kind and take its choices"
            )
    workers = device.sms
    tried = 0
    seen: set[object] = set()

    def judge(sketch: Sketch, plan: Plan, choices: Choices, limit: int) -> Candidate:
        nonlocal tried
        tried += 1
        progress(tried)
        return sketch.candidate(plan, choices, device, mode, limit)

    shelf = sketches or Sketches()
    tilings = tuple(map(shelf.of, graphs))

    def new(sketch: Sketch, alternatives: Iterable[Choices]) -> Iterable[Candidate]:
        """Those alternatives that no candidate so far was like."""
        for choices in alternatives:
            plan = sketch.build(choices)
            key = _as_predicted(plan)
            if key not in seen:
                seen.add(key)
                yield judge(sketch, plan, choices, CHEAP)

    def step(best: list[Candidate], alternatives: Callable[[Candidate], Iterable[Choices]]) -> list[Candidate]:
        """The best of these and of those new alternatives that are faster than what they depart from."""
        faster = [c for old in best for c in new(old.sketch, alternatives(old)) if c.us < _WORTH * old.us]
        return sorted(best + faster, key=lambda c: c.cost)[:_KEPT]

    unplanned = Choices(workers, dispatches[0])
    first = [c for s in tilings for c in new(s, (replace(unplanned, order=o) for o in _orders(s.graph)))]
    best = sorted(first, key=lambda c: c.cost)[:_KEPT]
    if len(graphs[0].ops) > 1:
        best = step(best, lambda c: (replace(c.choices, interleaving=i) for i in INTERLEAVINGS))
    best = step(best, lambda c: _splits(c, workers))
    best = step(best, lambda c: [replace(c.choices, policy=RowSync())])
    if Dispatch.STATIC in dispatches and mode.gate is Gate.OPEN and not mode.ring_bytes:
        # else launches hand out the items, or the ring needs tickets
        best = step(best, lambda c: [replace(c.choices, dispatch=Dispatch.STATIC, assignment=a) for a in Assignment])

    ranking = sorted((judge(c.sketch, c.prediction.plan, c.choices, FINE) for c in best), key=lambda c: c.cost)
    tiled = ranking[0].sketch
    plain = judge(tiled, tiled.build(unplanned), unplanned, FINE)
    if plain.cost < ranking[0].cost:
        ranking.insert(0, plain)
    return Planned(tuple(ranking), plain, tilings, tried, device, mode)


def identity(plan: Plan) -> object:
    """Equal for plans that differ in nothing that matters."""
    return plan.graph, *_columns(plan)


def _as_predicted(plan: Plan) -> object:
    """Equal for plans that prediction takes as one: what tiles touch and cost, not by how many warps and stages."""
    ops = ((op.grid, op.reads, op.writes, op.reduction, op.flops) for op in plan.graph.ops)
    return *ops, *_columns(plan)


def _columns(plan: Plan) -> tuple[bytes, ...]:
    return tuple(column.tobytes() for column in (*vars(plan.items).values(), *vars(plan.waits).values()))


def _orders(graph: Graph) -> Iterable[Order]:
    """The orders that differ on some op of the graph."""
    seen: set[tuple[bytes, ...]] = set()
    for order in ORDERS:
        key = tuple(order.permutation(op.grid).tobytes() for op in graph.ops)
        if key not in seen:
            seen.add(key)
            yield order


def _splits(candidate: Candidate, workers: int) -> Iterable[Choices]:
    """Reductions cut so that all workers have a part of the last wave, op by op and in all ops.

    In a graph of layers, which take long to predict, all ops are cut at once: in the fewest parts, in more, ...
    """
    choices, ops = candidate.choices, candidate.sketch.graph.ops
    cuts = {op.name: tuple(_cuts(op, workers)) for op in ops}
    cuts = {name: some for name, some in cuts.items() if some}
    single: list[dict[str, Split]]
    if len({*map(of_layers, cuts)}) < len(cuts):
        most = max(map(len, cuts.values()))
        single = [{name: some[min(n, len(some) - 1)] for name, some in cuts.items()} for n in range(most)]
    else:
        single = [{name: cut} for name, some in cuts.items() for cut in some]
        if len(cuts) > 1:
            single.append({name: some[0] for name, some in cuts.items()})
    return (replace(choices, split={op.name: split.get(op.name, Whole()) for op in ops}) for split in single)


def _cuts(op: Op, workers: int) -> Iterable[Split]:
    chunks = op.reduction.chunks if op.reduction else 1
    if op.tiles < workers:
        for parts in (2, 3, 4, 8):
            if op.tiles * (parts - 1) < 2 * workers and parts <= chunks:
                yield SplitK(parts)
    if op.tiles > workers // 2:
        yield SplitTail.levelled(op.tiles, chunks, workers)

"""The planner: rank candidates by prediction and prove the winner.

The search decides one thing at a time: tiling and order, interleaving, split, policy, dispatch. Each step tries all
alternatives of one decision on the best few candidates so far. It accepts alternatives whose gain justifies the extra
complexity. A cheap prediction, which merges chunks of reductions, ranks the candidates; a finer one decides among the
finalists. For a graph of identical layers, an excerpt is searched, and only the winner is planned as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from interlace.core.arguments import check_sequence, check_type
from interlace.core.devices import DeviceSpec
from interlace.core.errors import PlanError, SimulationError
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.kernels.base import mask_layer_index
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof, verify
from interlace.planner.build import build
from interlace.planner.excerpt import Excerpt
from interlace.planner.predict import CHEAP, FINE, Prediction, predict
from interlace.planner.shared_results import SharedResults
from interlace.planner.touch_cache import TouchCache
from interlace.policies.interleavings import HalfRowPanels, Interleaving, RowPanels
from interlace.policies.orders import ColumnMajor, GroupedColumnMajor, Hilbert, Order, RowMajor
from interlace.policies.schedule import Assignment, Schedule
from interlace.policies.splits import Split, SplitK, SplitTail, WholeTiles
from interlace.policies.sync import RowSync
from interlace.sim.modes import PERSISTENT, Gate, Mode
from interlace.trace.summary import Summary

ORDERS: tuple[Order, ...] = (RowMajor(), *map(GroupedColumnMajor, (2, 4, 8, 16)), Hilbert(), ColumnMajor())
INTERLEAVINGS: tuple[Interleaving, ...] = (HalfRowPanels(), *map(RowPanels, (1, 2, 4, 8)))
_BEAM_WIDTH = 2  # number of candidates that each step passes on
_MAX_TIME_RATIO = 0.995  # maximum time relative to the parent candidate: a split, for example, must gain at least 0.5 %
_MAX_TILES = 1 << 18  # maximum number of tiles of a graph; the candidates of a larger one would take minutes


class ExcerptPlanner:
    """An excerpt of a graph, with caches for planning and predicting it many times.

    Attributes:
        excerpt: excerpt, with the whole graph that it represents.
        graph: graph that is planned.
    """

    def __init__(self, excerpt: Excerpt) -> None:
        self.excerpt, self.graph = excerpt, excerpt.graph
        self._shared, self._touched = SharedResults(excerpt.graph), TouchCache()

    def build(self, schedule: Schedule) -> Plan:
        """Build a plan from a schedule, as the function ``build`` does."""
        return build(self.graph, schedule, self._shared)

    def make_candidate(self, plan: Plan, schedule: Schedule, device: DeviceSpec, mode: Mode, limit: int) -> Candidate:
        """Predict a plan that ``build`` made; ``mode`` is the mode for the whole graph."""
        # Scale the limit to the excerpt, so that its touches are resolved as finely as those of the whole graph.
        some = limit * len(self.graph.ops) // len(self.excerpt.full_graph.ops)
        prediction = predict(plan, device, self.excerpt.restrict_mode(mode), some, self._touched)
        return Candidate(self, schedule, prediction)

    def build_and_predict(self, schedule: Schedule, device: DeviceSpec, mode: Mode) -> Candidate:
        """Build and predict a plan from a schedule, with the fine prediction."""
        return self.make_candidate(self.build(schedule), schedule, device, mode, FINE)


class ExcerptPlanners:
    """Excerpt planners of several graphs; equal graphs share one."""

    def __init__(self) -> None:
        self._all: list[ExcerptPlanner] = []

    def get_planner(self, graph: Graph) -> ExcerptPlanner:
        """Return the excerpt planner of a graph; create it at the first call."""
        known = next((s for s in self._all if s.excerpt.full_graph is graph or s.excerpt.full_graph == graph), None)
        if known is None:
            known = ExcerptPlanner(Excerpt.from_graph(graph))
            self._all.append(known)
        return known


@dataclass(frozen=True, eq=False)
class Candidate:
    """One configuration to run a graph in, with its predicted cost.

    Attributes:
        planner: excerpt planner of the graph.
        schedule: schedule from which it builds the plan.
        prediction: prediction for that plan, which is a plan of an excerpt.
    """

    planner: ExcerptPlanner
    schedule: Schedule
    prediction: Prediction

    @property
    def graph(self) -> Graph:
        """Whole graph that is run."""
        return self.planner.excerpt.full_graph

    @property
    def us(self) -> float:
        """Predicted microseconds of one run of the whole graph."""
        return self.planner.excerpt.scale_us(self.prediction)

    @property
    def dram_read(self) -> int:
        """Predicted bytes that the whole graph reads from memory."""
        return self.planner.excerpt.scale_dram_read(self.prediction)

    @property
    def cost(self) -> tuple[float, int]:
        """Sort key of candidates: microseconds, then bytes read from memory."""
        return self.us, self.dram_read

    @property
    def summary(self) -> Summary:
        """Summary of the workers' time for the whole graph."""
        return self.planner.excerpt.scale_summary(self.prediction)


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Result of a search.

    Attributes:
        ranking: finalists, best first; the first one is the winner.
        baseline: plain candidate in the winner's tiling (row-major, op after op, nothing split), the baseline without a
            planner.
        planners: excerpt planners of the tilings that were searched.
        tried_candidates: number of candidates that were predicted.
        device, mode: device and mode that the search is for.
    """

    ranking: tuple[Candidate, ...]
    baseline: Candidate
    planners: tuple[ExcerptPlanner, ...]
    tried_candidates: int
    device: DeviceSpec
    mode: Mode

    @cached_property
    def best(self) -> Candidate:
        """Winner, planned and predicted for the whole graph."""
        first = self.ranking[0]
        excerpt = first.planner.excerpt
        if not excerpt.omitted_layers:
            return first
        return ExcerptPlanner(Excerpt(excerpt.full_graph, excerpt.full_graph)).build_and_predict(
            excerpt.extend_schedule(first.schedule), self.device, self.mode
        )

    def compute_us(self, candidate: Candidate) -> float:
        """Return a candidate's microseconds: the winner's, plus the difference between the two excerpts' times."""
        return candidate.us + (self.best.us - self.ranking[0].us)

    def compute_dram_read(self, candidate: Candidate) -> int:
        """Return a candidate's bytes read from memory, computed in the same way."""
        return candidate.dram_read + (self.best.dram_read - self.ranking[0].dram_read)

    @cached_property
    def proof(self) -> Proof:
        """Proof of the winner. Raises PlanError if it is not safe."""
        return verify(self.best.prediction.plan)

    @property
    def plan(self) -> Plan:
        """Winning plan, proved."""
        return self.proof.plan


def search(
    graphs: Graph | Sequence[Graph],
    device: DeviceSpec,
    mode: Mode = PERSISTENT,
    progress: Callable[[int], None] = lambda tried: None,
    dispatches: Sequence[Dispatch] = (Dispatch.TICKET, Dispatch.STATIC),
    sketches: ExcerptPlanners | None = None,
) -> SearchResult:
    """Search for the best plan of a graph by prediction.

    Args:
        graphs: graph, or the same graph in several tilings to choose from.
        device: device that it runs on.
        mode: mode of the executor that runs it.
        progress: callback that receives the number of candidates predicted so far.
        dispatches: dispatches that the executor supports.
        sketches: excerpt planners shared by several searches over the same graphs.

    Raises:
        ArgumentError: a graph, the device or the mode has the wrong type.
        PlanError: no graph is given.
        SimulationError: a graph has too many tiles.
        IntraOpRaceError: two tiles of one op conflict.
        UnwrittenError: an element is read before it is written, or an output is written only in part.
    """
    if not isinstance(graphs, (Graph, tuple, list)):
        check_type(graphs, Graph, "search", "graph")
    graphs = (graphs,) if isinstance(graphs, Graph) else check_sequence(graphs, Graph, "search", "graph")
    check_type(device, DeviceSpec, "search", "device", "il.H200")
    check_type(mode, Mode, "search", "mode", "il.PERSISTENT")
    if not graphs:
        raise PlanError("no graph to plan; give at least one tiling")
    for graph in graphs:
        tiles = sum(op.tiles for op in graph.ops)
        if tiles > _MAX_TILES:
            raise SimulationError(
                f"graph {graph.name!r} has {tiles} tiles and a search takes {_MAX_TILES}; use larger tiles, or plan a "
                "smaller problem of the same kind and take its schedule"
            )
    workers = device.sms
    tried = 0
    seen: set[object] = set()

    def judge(sketch: ExcerptPlanner, plan: Plan, schedule: Schedule, limit: int) -> Candidate:
        nonlocal tried
        tried += 1
        progress(tried)
        return sketch.make_candidate(plan, schedule, device, mode, limit)

    shelf = sketches or ExcerptPlanners()
    tilings = tuple(map(shelf.get_planner, graphs))

    def make_candidates(sketch: ExcerptPlanner, alternatives: Iterable[Schedule]) -> Iterable[Candidate]:
        """Yield candidates for the alternatives whose plans no earlier candidate had."""
        for schedule in alternatives:
            plan = sketch.build(schedule)
            key = _make_prediction_key(plan)
            if key not in seen:
                seen.add(key)
                yield judge(sketch, plan, schedule, CHEAP)

    def step(best: list[Candidate], alternatives: Callable[[Candidate], Iterable[Schedule]]) -> list[Candidate]:
        """Return the best of these candidates and of the new alternatives that are faster than their parents."""
        faster = [
            c
            for old in best
            for c in make_candidates(old.planner, alternatives(old))
            if c.us < _MAX_TIME_RATIO * old.us
        ]
        return sorted(best + faster, key=lambda c: c.cost)[:_BEAM_WIDTH]

    unplanned = Schedule(workers, dispatches[0])
    first = [
        c for s in tilings for c in make_candidates(s, (replace(unplanned, order=o) for o in _iter_orders(s.graph)))
    ]
    best = sorted(first, key=lambda c: c.cost)[:_BEAM_WIDTH]
    if len(graphs[0].ops) > 1:
        best = step(best, lambda c: (replace(c.schedule, interleaving=i) for i in INTERLEAVINGS))
    best = step(best, lambda c: _iter_splits(c, workers))
    best = step(best, lambda c: [replace(c.schedule, policy=RowSync())])
    if Dispatch.STATIC in dispatches and mode.gate is Gate.OPEN and not mode.ring_bytes:
        # otherwise launches hand out the items, or the ring requires tickets
        best = step(best, lambda c: [replace(c.schedule, dispatch=Dispatch.STATIC, assignment=a) for a in Assignment])

    ranking = sorted((judge(c.planner, c.prediction.plan, c.schedule, FINE) for c in best), key=lambda c: c.cost)
    tiled = ranking[0].planner
    plain = judge(tiled, tiled.build(unplanned), unplanned, FINE)
    if plain.cost < ranking[0].cost:
        ranking.insert(0, plain)
    return SearchResult(tuple(ranking), plain, tilings, tried, device, mode)


def make_plan_key(plan: Plan) -> object:
    """Return a key that is equal for plans with the same graph, items and waits."""
    return plan.graph, *_dump_columns(plan)


def _make_prediction_key(plan: Plan) -> object:
    """Return a key that is equal for plans with the same prediction: tiles' accesses and costs, not warps or stages."""
    ops = ((op.grid, op.reads, op.writes, op.reduction, op.flops) for op in plan.graph.ops)
    return *ops, *_dump_columns(plan)


def _dump_columns(plan: Plan) -> tuple[bytes, ...]:
    return tuple(column.tobytes() for column in (*vars(plan.items).values(), *vars(plan.waits).values()))


def _iter_orders(graph: Graph) -> Iterable[Order]:
    """Yield the orders whose permutations differ for at least one op of the graph."""
    seen: set[tuple[bytes, ...]] = set()
    for order in ORDERS:
        key = tuple(order.compute_permutation(op.grid).tobytes() for op in graph.ops)
        if key not in seen:
            seen.add(key)
            yield order


def _iter_splits(candidate: Candidate, workers: int) -> Iterable[Schedule]:
    """Yield schedules whose split reductions give every worker a part of the last wave, per op and for all ops at once.

    Graphs of layers take long to predict, so all their ops are split at once: first into the fewest parts, then into
    more.
    """
    schedule, ops = candidate.schedule, candidate.planner.graph.ops
    cuts = {op.name: tuple(_list_cuts(op, workers)) for op in ops}
    cuts = {name: some for name, some in cuts.items() if some}
    single: list[dict[str, Split]]
    if len({*map(mask_layer_index, cuts)}) < len(cuts):
        most = max(map(len, cuts.values()))
        single = [{name: some[min(n, len(some) - 1)] for name, some in cuts.items()} for n in range(most)]
    else:
        single = [{name: cut} for name, some in cuts.items() for cut in some]
        if len(cuts) > 1:
            single.append({name: some[0] for name, some in cuts.items()})
    return (replace(schedule, split={op.name: split.get(op.name, WholeTiles()) for op in ops}) for split in single)


def _list_cuts(op: Op, workers: int) -> Iterable[Split]:
    chunks = op.reduction.chunks if op.reduction else 1
    if op.tiles < workers:
        for parts in (2, 3, 4, 8):
            if op.tiles * (parts - 1) < 2 * workers and parts <= chunks:
                yield SplitK(parts)
    if op.tiles > workers // 2:
        yield SplitTail.for_last_wave(op.tiles, chunks, workers)

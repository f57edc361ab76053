"""Two chained matmuls played tile by tile: locked tiles, and the fate of the intermediate result in the cache.

The graph is that of ``workloads.two_matmuls``, y = x @ a.T and out = y @ b.T, in square tiles: R rows, K and N tiles
along the two reductions, P columns. ``sim.traffic`` computes what a tile touches, ``graph.dependencies`` what it needs,
and ``orders.replay`` what is loaded. Items are numbered op after op, row by row. With R = N = P = 2:

    first   0 1    second   4 5     item 4 touches y[0, 0] b[0, 0]   y[0, 1] b[0, 1]   out[0, 0]
            2 3             6 7     and is locked until items 0 and 1 are done

A written tile occupies the cache like a read tile, but is not loaded.

With two parts a tile of ``out`` is two items, each of which reads half a row of y; all first halves come before all
second ones. A first half writes a partial sum in float32, twice the bytes of a tile. Its second half is locked until
the partial sum exists:

    second   4 5     then   8 9      item 4 touches y[0, 0] b[0, 0]                  sum[0, 0]
             6 7           10 11     item 8 touches y[0, 1] b[0, 1]   and that sum   out[0, 0]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from interlace.core.dtypes import bf16
from interlace.core.errors import StudioError
from interlace.graph.dependencies import Dependencies
from interlace.graph.graph import Graph
from interlace.kernels.matmul import MatmulTile
from interlace.orders.panels import EvictionPolicy
from interlace.orders.replay import find_loaded, find_lru_contents
from interlace.plan.plan import Plan
from interlace.planner.bounds import BoundedQuantity, Gemm, TrafficBound
from interlace.planner.bounds import bound_chain as chain_bounds
from interlace.planner.build import build
from interlace.policies.interleavings import HalfRowPanels, Interleaving, OpAfterOp, RowPanels
from interlace.policies.orders import ColumnMajor, Hilbert, Order, Serpentine
from interlace.policies.schedule import Schedule
from interlace.policies.splits import SplitK
from interlace.studio.game import MAX_PAIRS, build_chip
from interlace.workloads.chains import two_matmuls

#: Tiles along each side: two grids of these are still a picture.
MAX_SIDE = 16
#: Name of the partial sums among the names of tensors.
SUMS = "partial sums"
_TILE = 128
_NO_ORDER: Mapping[str, Order] = {}


@dataclass(frozen=True)
class Chain:
    """Products and cache.

    Attributes:
        rows, inner, hidden, columns: numbers of tiles along m, k, n and p.
        capacity: capacity of the cache in tiles.
        cache: eviction policy.
        parts: number of items of a tile of the second product: 1, or 2 that read half a row of y each.

    Raises:
        StudioError: a size out of range, too many tiles, or OPT over partial sums, which are larger than tiles.
    """

    rows: int = 4
    inner: int = 2
    hidden: int = 4
    columns: int = 4
    capacity: int = 12
    cache: EvictionPolicy = EvictionPolicy.LRU
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("rows", "inner", "hidden", "columns"):
            if not 1 <= getattr(self, name) <= MAX_SIDE:
                raise StudioError(f"{name} is {getattr(self, name)}; use 1 to {MAX_SIDE} tiles")
        if self.parts not in (1, 2) or self.parts > self.hidden:
            raise StudioError(f"rows of y of {self.hidden} tiles in {self.parts} parts; use 1, or 2 where they have 2")
        if self.parts > 1 and self.cache is EvictionPolicy.OPT:
            raise StudioError("OPT takes pieces of one size, and partial sums are larger than tiles; use LRU")
        least = 2 if self.parts == 1 else 4
        if not least <= self.capacity <= MAX_PAIRS:
            what = "two at once" if self.parts == 1 else "two and a sum as large as two at once"
            raise StudioError(f"capacity is {self.capacity}; a tile touches {what}, so use {least} to {MAX_PAIRS}")

    @property
    def graph(self) -> Graph:
        """Graph of both products."""
        tile = MatmulTile(_TILE, _TILE, _TILE)
        m, k, n, p = (_TILE * size for size in (self.rows, self.inner, self.hidden, self.columns))
        return two_matmuls(m, k, n, p, first=tile, second=tile)

    @property
    def tiles(self) -> tuple[int, int]:
        """Numbers of tiles of the first and of the second product."""
        return self.rows * self.hidden, self.rows * self.columns

    @property
    def items(self) -> int:
        """Number of items of both products."""
        first, second = self.tiles
        return first + self.parts * second

    def make_schedule(self, interleaving: Interleaving, order: Order | Mapping[str, Order] = _NO_ORDER) -> Schedule:
        """Return the schedule with which a planner makes an order of the chain."""
        split = {"second": SplitK(self.parts)} if self.parts > 1 else {}
        return Schedule(1, order=order, split=split, interleaving=interleaving)

    @property
    def bounds(self) -> tuple[TrafficBound, TrafficBound]:
        """Lower bounds on the loads of any order, in bytes: safe, and in leading order, for a chip with this cache."""
        m, k, n, p = (_TILE * size for size in (self.rows, self.inner, self.hidden, self.columns))
        chip = build_chip(self.capacity * _TILE * _TILE * bf16.itemsize, 1, _TILE * _TILE)
        found = chain_bounds((Gemm(m, n, k), Gemm(m, p, n)), bf16.itemsize, chip)
        safe, leading = (bound for bound in found if bound.counts is BoundedQuantity.LOADS)
        return safe, leading


@dataclass(frozen=True, eq=False)
class ChainAccesses:
    """Constants of a chain.

    Attributes:
        groups: units of each item that are held together, step by step; the written ones are last.
        reads: for each group of each item, True if it reads.
        tensor: name of the tensor of each unit.
        unit_index: number of each unit within its tensor.
        sizes: size of each unit in tiles; partial sums take two.
        unit_bytes: bytes of a tile.
        dependencies: items that each item waits for.
    """

    groups: tuple[tuple[tuple[int, ...], ...], ...]
    reads: tuple[tuple[bool, ...], ...]
    tensor: tuple[str, ...]
    unit_index: tuple[int, ...]
    sizes: tuple[int, ...]
    unit_bytes: int
    dependencies: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ChainPosition:
    """Position of a chain.

    Attributes:
        loads: units loaded, by tensor; those of the intermediate result and of sums were evicted while still needed.
        hits: number of reads that found their unit.
        load_bytes: bytes of all loads.
        costs: loads of each step.
        cached: numbers within each tensor of the units that the cache holds; empty under OPT.
        last: units of each tensor that the last step touched, each True if it was loaded.
    """

    loads: Mapping[str, int]
    hits: int
    load_bytes: int
    costs: tuple[int, ...]
    cached: Mapping[str, tuple[int, ...]]
    last: Mapping[str, tuple[tuple[int, bool], ...]]


@lru_cache(maxsize=16)
def find_accesses(chain: Chain) -> ChainAccesses:
    """Return the units that the items of a chain touch, and the items that they need."""
    # Imported late: it takes half a second (numba), and the page for one product does not need it.
    from interlace.sim.traffic import list_touches

    graph = chain.graph
    plan = build(graph, chain.make_schedule(OpAfterOp()))
    found = list_touches(plan)
    groups, reads = [], []
    for item in range(len(plan.items)):
        steps = range(found.step_ptr[item], found.step_ptr[item + 1])
        read = [tuple(found.reads[found.read_ptr[s] : found.read_ptr[s + 1]].tolist()) for s in steps]
        written = tuple(found.writes[found.write_ptr[item] : found.write_ptr[item + 1]].tolist())
        groups.append((*read, written))
        reads.append((True,) * len(read) + (False,))
    of = found.units.tensor
    first = {int(t): int(np.flatnonzero(of == t)[0]) for t in np.unique(of)}
    names = [*(tensor.name for tensor in graph.tensors), SUMS]
    tensor = tuple(names[t] for t in of.tolist())
    place = tuple(unit - first[t] for unit, t in enumerate(of.tolist()))
    nbytes = int(found.units.nbytes.min())
    sizes = tuple((found.units.nbytes // nbytes).tolist())
    return ChainAccesses(tuple(groups), tuple(reads), tensor, place, sizes, nbytes, _find_dependencies(chain, plan))


def _find_dependencies(chain: Chain, plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Return the items that each item waits for: producers of the tiles of y that it reads, and its first half."""
    graph, items, dependencies = plan.graph, plan.items, Dependencies(plan.graph)
    needs: list[tuple[int, ...]] = [()] * len(items)
    for link in dependencies.links:
        mine = np.flatnonzero(items.op == link.consumer)
        op, shape = graph.ops[link.consumer], graph.tensor(link.tensor).shape
        boxes = link.target.compute_bounds(
            shape, op.compute_coords(items.tile[mine]), items.k_lo[mine], items.k_hi[mine]
        )
        producers = dependencies.find_producers(link, *boxes)
        for row, item in enumerate(mine.tolist()):
            found = producers.values[producers.ptr[row] : producers.ptr[row + 1]]
            half = [item - chain.tiles[1]] if items.k_lo[item] else []
            needs[item] = tuple(sorted({*needs[item], *half, *found.tolist()}))
    return tuple(needs)


def play(chain: Chain, path: tuple[int, ...]) -> ChainPosition:
    """Return the position after a path of items.

    Raises:
        StudioError: an item that does not exist, is taken twice, or comes before what it needs.
    """
    touched = find_accesses(chain)
    check_path(chain, path)
    groups = [group for item in path for group in touched.groups[item]]
    owner = [(step, reads) for step, item in enumerate(path) for reads in touched.reads[item]]
    # If all units are tiles, each counts as one, as OPT requires.
    sizes, capacity = (touched.sizes if chain.parts > 1 else None), chain.capacity
    missed = find_loaded(groups, capacity, chain.cache, sizes)
    loads: Counter[str] = Counter()
    costs = [0] * len(path)
    for (step, reads), units in zip(owner, missed, strict=True):
        if reads:
            costs[step] += len(units)
            loads.update(touched.tensor[unit] for unit in units)
    read = sum(len(group) for (_, reads), group in zip(owner, groups, strict=True) if reads)
    held: dict[str, tuple[int, ...]] = {}
    for unit in find_lru_contents(groups, capacity, sizes) if chain.cache is EvictionPolicy.LRU else ():
        held[touched.tensor[unit]] = (*held.get(touched.tensor[unit], ()), touched.unit_index[unit])
    last: dict[str, tuple[tuple[int, bool], ...]] = {}
    for (step, reads), group, units in zip(owner, groups, missed, strict=True):
        if step == len(path) - 1:
            for unit in group:
                name = touched.tensor[unit]
                last[name] = (*last.get(name, ()), (touched.unit_index[unit], reads and unit in units))
    total = sum(costs)
    tiles = sum(touched.sizes[unit] for (_, reads), units in zip(owner, missed, strict=True) for unit in units if reads)
    return ChainPosition(dict(loads), read - total, tiles * touched.unit_bytes, tuple(costs), held, last)


def check_path(chain: Chain, path: tuple[int, ...]) -> None:
    """Raise StudioError unless a path takes existing items, each once and after the items that it needs."""
    needs, taken = find_accesses(chain).dependencies, set[int]()
    for item in path:
        if not 0 <= item < len(needs):
            raise StudioError(f"item {item} does not exist; use 0 to {len(needs) - 1}")
        if item in taken:
            raise StudioError(f"item {item} is taken twice; take each once")
        missing = [need for need in needs[item] if need not in taken]
        if missing:
            raise StudioError(f"item {item} is locked: it needs {', '.join(map(str, missing))}; take these before")
        taken.add(item)


def list_chain_orders(chain: Chain) -> dict[str, Callable[[], tuple[int, ...]]]:
    """Return orders of both products together, as a planner makes them, by name."""
    columns_first = {"first": ColumnMajor(), "second": ColumnMajor()}
    schedules = {
        "op after op": chain.make_schedule(OpAfterOp()),
        "op after op, N first": chain.make_schedule(OpAfterOp(), {"second": ColumnMajor()}),
        "op after op, serpentine": chain.make_schedule(OpAfterOp(), Serpentine()),
        "op after op, hilbert": chain.make_schedule(OpAfterOp(), Hilbert()),
        "whole rows": chain.make_schedule(RowPanels(1)),
    }
    if chain.parts > 1:
        schedules["half rows"] = chain.make_schedule(HalfRowPanels())
    for rows in range(2, chain.rows):
        schedules[f"panels of {rows} rows"] = chain.make_schedule(RowPanels(rows))
        schedules[f"panels of {rows} rows, N first"] = chain.make_schedule(RowPanels(rows), columns_first)
    return {name: partial(_build_sequence, chain, schedule) for name, schedule in schedules.items()}


def _build_sequence(chain: Chain, schedule: Schedule) -> tuple[int, ...]:
    items = build(chain.graph, schedule).items
    first, second = chain.tiles
    later = np.where(items.k_lo > 0, second, 0)  # of a second half
    return tuple((items.tile + np.where(items.op == 0, 0, first + later)).tolist())

"""One matmul played tile by tile: the loads of each tile through a small cache, and the contents of the cache.

A game consists of options and a path, the tiles in the order in which they were taken. There is no other state: an
undo replays a shorter path. Tiles and what they touch are those of ``orders.panels``, replayed by
``orders.replay``. With P workers the path is cut into waves of P tiles, which run along K side by side:

    path of 3 tiles in 2 chunks, P = 2       touches, a pair each
    wave 0: tiles (0, 0), (0, 1)             r0' c0'   r0' c1'   r0" c0"   r0" c1"
    wave 1: tile (1, 1)                      r1' c1'   r1" c1"
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from interlace.core.devices import DEFAULT_GPU, L2, DeviceSpec
from interlace.core.dtypes import DType, bf16
from interlace.core.errors import OrderError, StudioError
from interlace.orders.families import GROUPED, PLAIN, Family
from interlace.orders.panels import EvictionPolicy, Pair, PanelGrid, Visit
from interlace.orders.replay import find_loaded, find_lru_contents, list_touched
from interlace.planner.bounds import BoundedQuantity, Gemm, TrafficBound, bound_matmul

#: Limits of a request: rows and columns of tiles that a picture can still show, and pairs of units that a replay in
#: plain Python processes within tens of milliseconds.
MAX_PANELS = 64
MAX_PAIRS = 1 << 14
_SUM_BYTES = 4  # tiles accumulate in fp32


class Unit(Enum):
    """Unit of the size of the cache."""

    PANELS = "panels"
    """All of K of a tile's rows or columns."""
    TILES = "tiles"
    """One chunk of K of a tile's rows or columns: what is loaded at once."""
    BYTES = "bytes"


@dataclass(frozen=True)
class GameOptions:
    """Product, tiles and cache.

    Attributes:
        m, n, k: sizes of ``out = x @ w.T``, m x n with a reduction over k.
        tile_m, tile_n, tile_k: sizes of a tile, and of one chunk of its reduction.
        capacity: capacity of the cache, in ``unit``.
        cache: eviction policy.
        workers: number of tiles of a wave.
        dtype: dtype of the operands.

    Raises:
        StudioError: a size below one, more tiles than a request takes, a cache that does not hold what one tile
            touches at once, or OPT over units of unequal sizes.
    """

    m: int = 512
    n: int = 512
    k: int = 512
    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 512
    capacity: int = 5
    unit: Unit = Unit.PANELS
    cache: EvictionPolicy = EvictionPolicy.LRU
    workers: int = 1
    dtype: DType = bf16

    def __post_init__(self) -> None:
        sizes = ("m", "n", "k", "tile_m", "tile_n", "tile_k", "capacity", "workers")
        for name in sizes:
            if not 1 <= getattr(self, name) <= 1 << 40:
                raise StudioError(f"{name} is {getattr(self, name)}; use a whole number from 1 to 2^40")
        rows, columns, chunks = -(-self.m // self.tile_m), -(-self.n // self.tile_n), -(-self.k // self.tile_k)
        if max(rows, columns) > MAX_PANELS or rows * columns * chunks > MAX_PAIRS:
            raise StudioError(
                f"{rows} x {columns} tiles in {chunks} chunks are too many for the page, which takes {MAX_PANELS} "
                f"rows, {MAX_PANELS} columns and {MAX_PAIRS} chunks of tiles; use larger tiles or a smaller product"
            )
        if self.unit is not Unit.BYTES and self.capacity_units < 2:
            raise StudioError("a tile touches two at once; use a cache of at least 2")
        if self.unit is Unit.BYTES:
            if self.capacity < 2 * max(self.sizes):
                raise StudioError(
                    f"a cache of {self.capacity} bytes does not hold the two operands of a chunk, {max(self.sizes)} "
                    f"bytes each; use at least {2 * max(self.sizes)} bytes, or a smaller tile"
                )
            if self.cache is EvictionPolicy.OPT and len(set(self.sizes)) > 1:
                raise StudioError(
                    "OPT takes units of one size; give the cache in panels or tiles, use LRU, or a square tile "
                    "that divides the product"
                )

    @cached_property
    def grid(self) -> PanelGrid:
        """Grid of tiles and their panels."""
        return PanelGrid(-(-self.m // self.tile_m), -(-self.n // self.tile_n), -(-self.k // self.tile_k))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each unit; units at the edges are smaller if tiles do not divide the product."""
        lengths = [*_split_extent(self.m, self.tile_m), *_split_extent(self.n, self.tile_n)]
        depths = _split_extent(self.k, self.tile_k)
        return tuple(length * depth * self.dtype.itemsize for length in lengths for depth in depths)

    @property
    def capacity_units(self) -> int:
        """Capacity of the cache in units, if it is not given in bytes."""
        return self.capacity * (self.grid.chunks if self.unit is Unit.PANELS else 1)

    @property
    def capacity_bytes(self) -> int:
        """Capacity of the cache in bytes."""
        return self.capacity if self.unit is Unit.BYTES else self.capacity_units * max(self.sizes)

    @property
    def replay_arguments(self) -> tuple[int, EvictionPolicy, tuple[int, ...] | None]:
        """Arguments of a replay: capacity, eviction policy, and sizes if units do not count as one each."""
        if self.unit is Unit.BYTES and self.cache is EvictionPolicy.LRU:
            return self.capacity, self.cache, self.sizes
        units = self.capacity // max(self.sizes) if self.unit is Unit.BYTES else self.capacity_units
        return units, self.cache, None

    @property
    def bounds(self) -> tuple[TrafficBound, TrafficBound]:
        """Lower bounds on the loads of any order, in bytes: safe, and in leading order, for a chip with this cache."""
        chip = build_chip(self.capacity_bytes, self.workers, self.tile_m * self.tile_n)
        found = bound_matmul(Gemm(self.m, self.n, self.k), self.dtype.itemsize, chip)
        safe, leading = (bound for bound in found if bound.counts is BoundedQuantity.LOADS)
        return safe, leading


Path = tuple[Visit, ...]


@dataclass(frozen=True)
class CachedPanel:
    """Contents of the cache that belong to a panel."""

    panel: int
    units: int


@dataclass(frozen=True)
class GamePosition:
    """Position of a game.

    Attributes:
        touches, loads: number of units touched, and of those loaded.
        touched_bytes, load_bytes: the same in bytes.
        costs: loads of each tile of the path.
        loads_of: loads of each panel, rows first.
        last: panels of the last wave, with the units that were touched and loaded.
        cached: panels by last use, the latest first. Under OPT the panels that may still be held: OPT decides with
            hindsight, so any of them may hit next, but not all at once.
        used_capacity: part of the capacity that is certainly occupied.
        next_evicted: under LRU, the panel that the next load evicts from; None while one more of the largest units
            fits.
    """

    touches: int
    loads: int
    touched_bytes: int
    load_bytes: int
    costs: tuple[int, ...]
    loads_of: tuple[int, ...]
    last: tuple[tuple[int, int, int], ...]
    cached: tuple[CachedPanel, ...]
    used_capacity: int
    next_evicted: int | None


def build_chip(cache_bytes: int, workers: int, sums: int) -> DeviceSpec:
    """Return the device of a game's bounds: its cache, and this many accumulators per worker."""
    one = replace(DEFAULT_GPU, sms=workers, l1_bytes=0, register_bytes=sums * _SUM_BYTES)
    return replace(one, l2_bytes=cache_bytes, l2=L2(1, cache_bytes))


def play(options: GameOptions, path: Path) -> GamePosition:
    """Return the position after a path.

    Raises:
        StudioError: a tile outside the grid, or taken twice.
    """
    grid, sizes = options.grid, options.sizes
    check_path(grid, path)
    groups, owner = group_waves(grid, path, options.workers)
    capacity, cache, unequal = options.replay_arguments
    missed = find_loaded(groups, capacity, cache, unequal)
    costs, loads_of = [0] * len(path), [0] * (grid.rows + grid.columns)
    for at, units in zip(owner, missed, strict=True):
        costs[at] += len(units)
        for unit in units:
            loads_of[unit // grid.chunks] += 1
    held = _find_cached(groups, options)
    used = sum(sizes[unit] for unit in held) if unequal else min(len(held), capacity)
    full = used + (max(sizes) if unequal else 1) > capacity
    return GamePosition(
        touches=2 * len(groups),
        loads=sum(costs),
        touched_bytes=sum(sizes[unit] for group in groups for unit in group),
        load_bytes=sum(sizes[unit] for units in missed for unit in units),
        costs=tuple(costs),
        loads_of=tuple(loads_of),
        last=_find_last_wave(options, path, groups, owner, missed),
        cached=tuple(CachedPanel(*item) for item in Counter(unit // grid.chunks for unit in held).items()),
        used_capacity=used,
        next_evicted=held[-1] // grid.chunks if held and full and cache is EvictionPolicy.LRU else None,
    )


def check_path(grid: PanelGrid, path: Path) -> None:
    """Raise StudioError unless a path takes tiles of the grid, each once."""
    try:
        grid.check_prefix(path)
    except OrderError as error:
        raise StudioError(str(error)) from None


def group_waves(grid: PanelGrid, path: Path, workers: int) -> tuple[list[Pair], list[int]]:
    """Return the pairs that a path touches, wave by wave, and the step of each pair."""
    groups: list[Pair] = []
    owner: list[int] = []
    for first in range(0, len(path), workers):
        wave = [grid.list_pairs(visit) for visit in path[first : first + workers]]
        for chunk in range(grid.chunks):
            groups += [pairs[chunk] for pairs in wave]
            owner += range(first, first + len(wave))
    return groups, owner


def count_load_bytes(options: GameOptions, path: Path, capacities: Sequence[int]) -> list[int]:
    """Return the bytes that a path loads through caches of other sizes, each in the unit of the options."""
    groups, _ = group_waves(options.grid, path, options.workers)
    found = []
    for capacity in capacities:
        missed = find_loaded(groups, *replace(options, capacity=capacity).replay_arguments)
        found.append(sum(options.sizes[unit] for units in missed for unit in units))
    return found


def list_named_orders(grid: PanelGrid) -> dict[str, Family]:
    """Return every named order of a grid by name, with any group and, for panels in chunks, back and forth along K."""
    orders = [*PLAIN.values()]
    orders += [make(rows) for make in GROUPED.values() for rows in range(2, max(3, grid.rows))]
    ways = (False, True) if grid.chunks > 1 else (False,)
    members = [Family(order, sawtooth) for sawtooth in ways for order in orders]
    return {member.name: member for member in members}


def find_named_path(grid: PanelGrid, name: str) -> Path:
    """Return the path of a named order. Raises StudioError if the name is unknown."""
    members = list_named_orders(grid)
    if name not in members:
        raise StudioError(f"no order is called {name!r} on this grid; use one of {', '.join(members)}")
    return members[name].make_walk(grid)


def _find_cached(groups: Sequence[Pair], options: GameOptions) -> list[int]:
    """Return the units that the next touch may find in the cache, the last touched first."""
    capacity, cache, unequal = options.replay_arguments
    if cache is EvictionPolicy.LRU:
        return find_lru_contents(groups, capacity, unequal)
    # A cache that can still hold a unit can also hold one touched later, kept in its place. So bisection finds the end.
    units = list_touched(groups)
    before = sum(map(len, find_loaded(groups, capacity, cache)))

    def misses(unit: int) -> bool:
        return sum(map(len, find_loaded([*groups, (unit,)], capacity, cache))) > before

    return units[: bisect_left(units, True, key=misses)]


def _find_last_wave(
    options: GameOptions, path: Path, groups: Sequence[Pair], owner: Sequence[int], missed: Sequence[Sequence[int]]
) -> tuple[tuple[int, int, int], ...]:
    """Return the units touched and loaded of the panels of the last wave."""
    first = (len(path) - 1) // options.workers * options.workers if path else 0
    chunks = options.grid.chunks
    wave = [i for i, at in enumerate(owner) if at >= first]
    touches = Counter(unit // chunks for i in wave for unit in groups[i])
    misses = Counter(unit // chunks for i in wave for unit in missed[i])
    return tuple((panel, touches[panel], misses[panel]) for panel in sorted(touches))


def _split_extent(extent: int, block: int) -> list[int]:
    return [min(block, extent - start) for start in range(0, extent, block)]

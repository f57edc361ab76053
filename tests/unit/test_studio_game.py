"""The game of the studio against the replay of ``orders``, its links, and what it refuses."""

from __future__ import annotations

import base64
import random
import zlib
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from interlace.core.devices import L2
from interlace.core.dtypes import fp32
from interlace.core.errors import OrderError, StudioError
from interlace.kernels.matmul import MatmulTile
from interlace.orders.cache import lru_mask
from interlace.orders.panels import Cache, PanelGrid, Visit
from interlace.orders.replay import held_by_lru, loaded, loads
from interlace.orders.saved import SavedOrder, read_order, written
from interlace.planner.build import Choices, build
from interlace.policies.interleavings import ExplicitInterleaving
from interlace.policies.orders import Serpentine
from interlace.sim.l2 import missed_bytes
from interlace.sim.lockstep import AccessStream, interleave
from interlace.sim.traffic import touches
from interlace.studio.curve import shown as curve
from interlace.studio.game import Options, Path, Unit, in_waves, named_orders, named_path, play
from interlace.studio.link import Game, decoded, encoded
from interlace.studio.saved import opened
from interlace.studio.saved import shown as saved
from interlace.studio.wire import game_of, shown_game
from interlace.workloads import one_matmul

LRU, OPT = Cache.LRU, Cache.OPT


def games(count: int, seed: int) -> list[Game]:
    """Random options, random paths."""
    rng, made = random.Random(seed), []
    while len(made) < count:
        rows, columns, chunks = rng.randint(1, 6), rng.randint(1, 6), rng.choice((1, 1, 2, 3))
        unit, cache = rng.choice(tuple(Unit)), rng.choice(tuple(Cache))
        capacity = rng.randint(2, 9) * (1 << 13 if unit is Unit.BYTES else 1)
        ragged = rng.choice((0, 0, 10))
        sizes = (64 * rows - ragged, 64 * columns, 32 * chunks - ragged)
        try:
            options = Options(*sizes, 64, 64, 32, capacity, unit, cache, rng.choice((1, 1, 2, 3)))
        except StudioError:
            continue
        tiles = [*product(range(rows), range(columns))]
        path = tuple(
            Visit(*tile, rng.random() < 0.3, rng.random() < 0.3)
            for tile in rng.sample(tiles, rng.randint(0, len(tiles)))
        )
        names = ["", *named_orders(options.grid)]
        made.append(Game(options, path, rng.randint(0, len(path)), rng.choice(names)))
    return made


def test_a_whole_order_loads_what_the_study_of_orders_says() -> None:
    for capacity, cache in product((3, 5, 6), Cache):
        options = Options(capacity=capacity, cache=cache)
        for name, family in named_orders(options.grid).items():
            walk = family.walk(options.grid)
            position = play(options, named_path(options.grid, name))
            assert position.loads == loads(options.grid, walk, capacity, cache), name
            assert position.load_bytes == position.loads * 128 * 512 * 2
    assert [play(Options(), named_path(Options().grid, name)).loads for name in ("row", "serpentine", "hilbert")] == [
        *(17, 11, 10)
    ]


def test_counters_of_random_games_are_those_of_an_exact_cache() -> None:
    """Under LRU that of ``orders.cache``, which works another way, also with sizes and in waves."""
    checked = 0
    for game in games(80, seed=1):
        options, path = game.options, game.path
        groups, _ = in_waves(options.grid, path, options.workers)
        position = play(options, path)
        assert sum(position.costs) == position.loads == sum(position.loads_of)
        assert position.touches == 2 * len(path) * options.grid.chunks
        if options.cache is OPT or not path:
            continue
        capacity, _, unequal = options.replayed
        units = np.array([unit for group in groups for unit in group])
        sizes = np.array(options.sizes)
        hit = lru_mask(units, capacity, sizes if unequal else None)
        assert position.loads == np.count_nonzero(~hit)
        assert position.load_bytes == sizes[units[~hit]].sum()
        held = held_by_lru(groups, capacity, unequal)
        for unit in {*units.tolist()}:
            again = lru_mask(np.append(units, unit), capacity, sizes if unequal else None)
            assert again[-1] == (unit in held)
        checked += 1
    assert checked > 20


def test_counters_of_random_games_are_those_of_the_simulated_plan() -> None:
    """What workers in lockstep read of x and w, on one cache without the tiles of out.

    A plan takes row panels first and K forwards, and runs all tiles; of these the game has the first ones.
    """
    rng, checked = random.Random(4), set()
    for game in games(200, seed=5):
        options = game.options
        if options.cache is OPT:
            continue
        grid, capacity = options.grid, options.replayed[0]
        tiles = rng.sample(range(grid.tiles), grid.tiles)
        tile = MatmulTile(options.tile_m, options.tile_n, options.tile_k)
        graph = one_matmul(options.m, options.n, options.k, options.dtype, tile)
        plan = build(graph, Choices(options.workers, interleaving=ExplicitInterleaving(tuple(tiles))))
        stream = interleave(plan, touches(plan))
        taken = rng.randint(1, len(tiles))
        mine = ~stream.is_write & (stream.item < taken)
        reads = AccessStream(stream.unit[mine], stream.is_write[mine], stream.item[mine], stream.worker[mine])
        sizes = np.array(options.sizes)
        missed = missed_bytes(reads, sizes if options.replayed[2] else np.ones_like(sizes), L2(1, capacity)) > 0
        position = play(options, tuple(Visit(*divmod(tile, grid.columns)) for tile in tiles[:taken]))
        assert position.costs == tuple(np.bincount(reads.item[missed], minlength=taken))
        panels = np.bincount(reads.unit[missed] // grid.chunks, minlength=grid.rows + grid.columns)
        assert position.loads_of == tuple(panels)
        assert position.load_bytes == sizes[reads.unit[missed]].sum()
        assert position.touches == len(reads)
        checked.add((options.unit, options.workers, grid.chunks > 1))
    assert len(checked) == 3 * 3 * 2


def test_what_opt_may_hold_is_what_it_would_find() -> None:
    for game in games(60, seed=2):
        options, path = game.options, game.path
        if options.cache is LRU or options.grid.chunks > 1:
            continue
        groups, _ = in_waves(options.grid, path, options.workers)
        capacity = options.replayed[0]
        before = sum(map(len, loaded(groups, capacity, OPT)))
        held = {held.panel for held in play(options, path).held}
        for panel in range(options.grid.rows + options.grid.columns):
            again = sum(map(len, loaded([*groups, (panel,)], capacity, OPT)))
            assert (again == before) == (panel in held)


def test_workers_side_by_side_share_what_their_wave_loads() -> None:
    """Two workers of a row touch its chunk one after the other, so a cache of three chunks keeps it for both."""
    one = Options(128, 128, 128, 64, 64, 32, capacity=3, unit=Unit.TILES)
    two = replace(one, workers=2)
    path = named_path(one.grid, "row")
    assert play(one, path).loads == 32
    assert play(two, path).loads == 24
    assert play(two, path).last == ((1, 8, 4), (2, 4, 4), (3, 4, 4))


def test_a_position_tells_what_goes_next_and_what_the_last_tile_loaded() -> None:
    options = Options(capacity=3)
    path = (Visit(0, 0), Visit(0, 1), Visit(1, 1))
    position = play(options, path)
    assert position.costs == (2, 1, 1)
    assert position.loads_of == (1, 1, 0, 0, 1, 1, 0, 0)
    assert [held.panel for held in position.held] == [5, 1, 0]
    assert (position.next_out, position.used) == (0, 3)
    assert position.last == ((1, 1, 1), (5, 1, 0))
    assert play(options, path[:1]).next_out is None


def test_bounds_are_compulsory_on_small_products_and_grow_where_the_cache_is_small() -> None:
    safe, leading = Options().bounds
    assert (safe.bytes, leading.bytes) == (8 * 128 * 512 * 2,) * 2
    safe, leading = Options(8192, 8192, 8192, 1024, 1024, 1024, capacity=2, unit=Unit.TILES).bounds
    # 2mnk / sqrt(S): S is two chunks of 2^20 elements, for the safe bound with a tile of sums in fp32 besides
    assert leading.bytes == int(2 * 8192**3 / (2 << 20) ** 0.5) * 2
    assert safe.bytes == (2 * 8192**3 // 2048 - 2 * (4 << 20) - 8192**2) * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"m": 0}, "m is 0; use a whole number from 1"),
        ({"m": 1 << 20}, "8192 x 4 tiles in 1 chunks are too many for the page, which takes 64 rows"),
        ({"capacity": 1}, "use a cache of at least 2"),
        ({"capacity": 1000, "unit": Unit.BYTES}, "does not hold the two operands of a chunk, 131072 bytes each"),
        ({"n": 500, "capacity": 1 << 20, "unit": Unit.BYTES, "cache": OPT}, "OPT takes units of one size"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict, message: str) -> None:
    with pytest.raises(StudioError, match=message):
        Options(**options)


@pytest.mark.parametrize("path", [(Visit(4, 0),), (Visit(0, -1),), (Visit(1, 1), Visit(1, 1))])
def test_a_path_takes_each_tile_of_the_grid_once(path: Path) -> None:
    with pytest.raises(StudioError, match=r"outside a grid|visited twice"):
        play(Options(), path)


# ---------------------------------------------------------------- links, files, requests


def test_links_and_requests_hold_the_whole_game() -> None:
    for game in games(60, seed=3):
        assert decoded(encoded(game)) == game
        assert game_of(shown_game(game)) == game
    whole = Game(Options(), named_path(Options().grid, "serpentine"), 16, "row")
    assert len(encoded(whole)) < 80


def test_what_is_no_link_is_told() -> None:
    link = encoded(Game(Options(dtype=fp32), (Visit(1, 2),), 1))
    bomb = encoded(Game(Options(), (), 0))[:2] + "A" * 100_000
    short = base64.urlsafe_b64encode(b"\1" + zlib.compress(b"\5\5")).decode()
    for text in ("", "x", short, link[:-4], link[1:], "Ag" + link[2:], link + "!", bomb, "é", "A" * 200_000):
        with pytest.raises(StudioError, match="this link holds no game"):
            decoded(text)


def test_a_saved_game_is_an_order_for_other_commands() -> None:
    options = Options()
    whole = Game(options, named_path(options.grid, "serpentine"), 16)
    file = saved(whole)
    assert file["complete"]
    assert (read_order(file["file"]).permutation((4, 4)) == Serpentine().permutation((4, 4))).all()
    assert (read_order(file["file"]).permutation((2, 2, 4)) == Serpentine().permutation((4, 4))).all()
    assert opened(file["file"]) == whole
    part = saved(replace(whole, at=5))
    assert not part["complete"]
    with pytest.raises(OrderError, match="takes 5 of 16 tiles"):
        read_order(part["file"]).permutation((4, 4))
    with pytest.raises(OrderError, match="is of 4 x 4 tiles, and an op has 4 x 8"):
        read_order(file["file"]).permutation((4, 8))
    bare = opened(written(SavedOrder(2, 3, (5, 4, 3, 2, 1, 0))))
    assert (bare.options.grid, bare.at, bare.path[0]) == (PanelGrid(2, 3), 6, Visit(1, 2))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": "interlace-plan"}',
        '{"schema": "interlace-order", "version": 2}',
        '{"schema": "interlace-order", "version": 1, "grid": [2], "tiles": []}',
        '{"schema": "interlace-order", "version": 1, "grid": [2, 2], "tiles": [0, 1, 2, 3, 0]}',
        '{"schema": "interlace-order", "version": 1, "grid": [2, 2], "tiles": [true]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_order_is_told(text: str) -> None:
    with pytest.raises(StudioError, match="order"):
        opened(text)


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"way": 1},
        {"options": []},
        {"options": {"m": "4"}},
        {"options": {"m": True}},
        {"options": {"cache": "mru"}},
        {"options": {"unit": 3}},
        {"path": 3},
        {"path": [0.5]},
        {"path": [0] * 17},
        {"path": [-4]},
        {"path": [0], "at": 2},
        {"ghost": 3},
    ],
)
def test_a_request_that_is_no_game_is_refused(data: object) -> None:
    with pytest.raises(StudioError):
        game_of(data)


def test_the_curve_has_every_size_of_a_small_cache() -> None:
    options = Options()
    found = curve(Game(options, named_path(options.grid, "row"), 16, "serpentine"))
    assert found["sizes"] == [2, 3, 4, 5, 6, 7, 8]
    for name, values in zip(("row", "serpentine"), (found["curves"]["path"], found["curves"]["ghost"]), strict=True):
        walk = named_path(options.grid, name)
        assert values == [loads(options.grid, walk, size, LRU) * 131072 for size in found["sizes"]]

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
from interlace.orders.cache import simulate_lru_mask
from interlace.orders.order_file import SavedOrder, read_order, write_order
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.orders.replay import count_loads, find_loaded, find_lru_contents
from interlace.planner.build import build
from interlace.policies.interleavings import ExplicitInterleaving
from interlace.policies.orders import Serpentine
from interlace.policies.schedule import Schedule
from interlace.sim.l2 import simulate_missed_bytes
from interlace.sim.lockstep import AccessStream, interleave
from interlace.sim.traffic import list_touches
from interlace.studio.curve import compute_curve as curve
from interlace.studio.game import GameOptions, Path, Unit, find_named_path, group_waves, list_named_orders, play
from interlace.studio.game_files import open_game
from interlace.studio.game_files import save_game as saved
from interlace.studio.link import Game, decode_game, encode_game
from interlace.studio.wire import format_game, parse_game
from interlace.workloads import one_matmul

LRU, OPT = EvictionPolicy.LRU, EvictionPolicy.OPT


def games(count: int, seed: int) -> list[Game]:
    """Random options, random paths."""
    rng, made = random.Random(seed), []
    while len(made) < count:
        rows, columns, chunks = rng.randint(1, 6), rng.randint(1, 6), rng.choice((1, 1, 2, 3))
        unit, cache = rng.choice(tuple(Unit)), rng.choice(tuple(EvictionPolicy))
        capacity = rng.randint(2, 9) * (1 << 13 if unit is Unit.BYTES else 1)
        ragged = rng.choice((0, 0, 10))
        sizes = (64 * rows - ragged, 64 * columns, 32 * chunks - ragged)
        try:
            options = GameOptions(*sizes, 64, 64, 32, capacity, unit, cache, rng.choice((1, 1, 2, 3)))
        except StudioError:
            continue
        tiles = [*product(range(rows), range(columns))]
        path = tuple(
            Visit(*tile, rng.random() < 0.3, rng.random() < 0.3)
            for tile in rng.sample(tiles, rng.randint(0, len(tiles)))
        )
        names = ["", *list_named_orders(options.grid)]
        made.append(Game(options, path, rng.randint(0, len(path)), rng.choice(names)))
    return made


def test_a_whole_order_loads_what_the_study_of_orders_says() -> None:
    for capacity, cache in product((3, 5, 6), EvictionPolicy):
        options = GameOptions(capacity=capacity, cache=cache)
        for name, family in list_named_orders(options.grid).items():
            walk = family.make_walk(options.grid)
            position = play(options, find_named_path(options.grid, name))
            assert position.loads == count_loads(options.grid, walk, capacity, cache), name
            assert position.load_bytes == position.loads * 128 * 512 * 2
    assert [
        play(GameOptions(), find_named_path(GameOptions().grid, name)).loads
        for name in ("row", "serpentine", "hilbert")
    ] == [*(17, 11, 10)]


def test_counters_of_random_games_are_those_of_an_exact_cache() -> None:
    """Under LRU that of ``orders.cache``, which works another way, also with sizes and in waves."""
    checked = 0
    for game in games(80, seed=1):
        options, path = game.options, game.path
        groups, _ = group_waves(options.grid, path, options.workers)
        position = play(options, path)
        assert sum(position.costs) == position.loads == sum(position.loads_of)
        assert position.touches == 2 * len(path) * options.grid.chunks
        if options.cache is OPT or not path:
            continue
        capacity, _, unequal = options.replay_arguments
        units = np.array([unit for group in groups for unit in group])
        sizes = np.array(options.sizes)
        hit = simulate_lru_mask(units, capacity, sizes if unequal else None)
        assert position.loads == np.count_nonzero(~hit)
        assert position.load_bytes == sizes[units[~hit]].sum()
        held = find_lru_contents(groups, capacity, unequal)
        for unit in {*units.tolist()}:
            again = simulate_lru_mask(np.append(units, unit), capacity, sizes if unequal else None)
            assert again[-1] == (unit in held)
        checked += 1
    assert checked > 20


def test_counters_of_random_games_are_those_of_the_simulated_plan() -> None:
    """Compare reads of x and w by workers in lockstep, on one cache without the tiles of out.

    A plan takes row panels first and K forwards, and runs all tiles; of these the game has the first ones.
    """
    rng, checked = random.Random(4), set()
    for game in games(200, seed=5):
        options = game.options
        if options.cache is OPT:
            continue
        grid, capacity = options.grid, options.replay_arguments[0]
        tiles = rng.sample(range(grid.tiles), grid.tiles)
        tile = MatmulTile(options.tile_m, options.tile_n, options.tile_k)
        graph = one_matmul(options.m, options.n, options.k, options.dtype, tile)
        plan = build(graph, Schedule(options.workers, interleaving=ExplicitInterleaving(tuple(tiles))))
        stream = interleave(plan, list_touches(plan))
        taken = rng.randint(1, len(tiles))
        mine = ~stream.is_write & (stream.item < taken)
        reads = AccessStream(
            *(
                column[mine]
                for column in (stream.unit, stream.is_write, stream.item, stream.worker, stream.is_evict_first)
            )
        )
        sizes = np.array(options.sizes)
        missed = (
            simulate_missed_bytes(reads, sizes if options.replay_arguments[2] else np.ones_like(sizes), L2(1, capacity))
            > 0
        )
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
        groups, _ = group_waves(options.grid, path, options.workers)
        capacity = options.replay_arguments[0]
        before = sum(map(len, find_loaded(groups, capacity, OPT)))
        held = {held.panel for held in play(options, path).cached}
        for panel in range(options.grid.rows + options.grid.columns):
            again = sum(map(len, find_loaded([*groups, (panel,)], capacity, OPT)))
            assert (again == before) == (panel in held)


def test_workers_side_by_side_share_what_their_wave_loads() -> None:
    """Two workers of a row touch its chunk one after the other, so a cache of three chunks keeps it for both."""
    one = GameOptions(128, 128, 128, 64, 64, 32, capacity=3, unit=Unit.TILES)
    two = replace(one, workers=2)
    path = find_named_path(one.grid, "row")
    assert play(one, path).loads == 32
    assert play(two, path).loads == 24
    assert play(two, path).last == ((1, 8, 4), (2, 4, 4), (3, 4, 4))


def test_a_position_tells_what_goes_next_and_what_the_last_tile_loaded() -> None:
    options = GameOptions(capacity=3)
    path = (Visit(0, 0), Visit(0, 1), Visit(1, 1))
    position = play(options, path)
    assert position.costs == (2, 1, 1)
    assert position.loads_of == (1, 1, 0, 0, 1, 1, 0, 0)
    assert [held.panel for held in position.cached] == [5, 1, 0]
    assert (position.next_evicted, position.used_capacity) == (0, 3)
    assert position.last == ((1, 1, 1), (5, 1, 0))
    assert play(options, path[:1]).next_evicted is None


def test_bounds_are_compulsory_on_small_products_and_grow_where_the_cache_is_small() -> None:
    safe, leading = GameOptions().bounds
    assert (safe.bytes, leading.bytes) == (8 * 128 * 512 * 2,) * 2
    safe, leading = GameOptions(8192, 8192, 8192, 1024, 1024, 1024, capacity=2, unit=Unit.TILES).bounds
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
        GameOptions(**options)


@pytest.mark.parametrize("path", [(Visit(4, 0),), (Visit(0, -1),), (Visit(1, 1), Visit(1, 1))])
def test_a_path_takes_each_tile_of_the_grid_once(path: Path) -> None:
    with pytest.raises(StudioError, match=r"outside a grid|visited twice"):
        play(GameOptions(), path)


# ---------------------------------------------------------------- links, files, requests


def test_links_and_requests_hold_the_whole_game() -> None:
    for game in games(60, seed=3):
        assert decode_game(encode_game(game)) == game
        assert parse_game(format_game(game)) == game
    whole = Game(GameOptions(), find_named_path(GameOptions().grid, "serpentine"), 16, "row")
    assert len(encode_game(whole)) < 80


def test_what_is_no_link_is_told() -> None:
    link = encode_game(Game(GameOptions(dtype=fp32), (Visit(1, 2),), 1))
    bomb = encode_game(Game(GameOptions(), (), 0))[:2] + "A" * 100_000
    short = base64.urlsafe_b64encode(b"\1" + zlib.compress(b"\5\5")).decode()
    for text in ("", "x", short, link[:-4], link[1:], "Ag" + link[2:], link + "!", bomb, "é", "A" * 200_000):
        with pytest.raises(StudioError, match="this link holds no game"):
            decode_game(text)


def test_a_saved_game_is_an_order_for_other_commands() -> None:
    options = GameOptions()
    whole = Game(options, find_named_path(options.grid, "serpentine"), 16)
    file = saved(whole)
    assert file["complete"]
    assert (read_order(file["file"]).compute_permutation((4, 4)) == Serpentine().compute_permutation((4, 4))).all()
    assert (read_order(file["file"]).compute_permutation((2, 2, 4)) == Serpentine().compute_permutation((4, 4))).all()
    assert open_game(file["file"]) == whole
    part = saved(replace(whole, at=5))
    assert not part["complete"]
    with pytest.raises(OrderError, match="takes 5 of 16 tiles"):
        read_order(part["file"]).compute_permutation((4, 4))
    with pytest.raises(OrderError, match="is of 4 x 4 tiles, and an op has 4 x 8"):
        read_order(file["file"]).compute_permutation((4, 8))
    bare = open_game(write_order(SavedOrder(2, 3, (5, 4, 3, 2, 1, 0))))
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
        open_game(text)


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
        parse_game(data)


def test_the_curve_has_every_size_of_a_small_cache() -> None:
    options = GameOptions()
    found = curve(Game(options, find_named_path(options.grid, "row"), 16, "serpentine"))
    assert found["sizes"] == [2, 3, 4, 5, 6, 7, 8]
    for name, values in zip(("row", "serpentine"), (found["curves"]["path"], found["curves"]["ghost"]), strict=True):
        walk = find_named_path(options.grid, name)
        assert values == [count_loads(options.grid, walk, size, LRU) * 131072 for size in found["sizes"]]

"""The game of two products of the studio, against the simulation of plans, and its links."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import product

import pytest

from interlace.core.devices import DEFAULT_GPU, L2
from interlace.core.errors import StudioError
from interlace.orders.panels import EvictionPolicy
from interlace.planner.build import build
from interlace.planner.predict import WORKSPACE, predict
from interlace.policies.interleavings import ExplicitInterleaving
from interlace.studio.chain import Chain, find_accesses, list_chain_orders, play
from interlace.studio.chain_wire import ChainGame, decode_chain, encode_chain, format_chain_game, parse_chain_game
from interlace.studio.game_files import open_chain
from interlace.studio.game_files import open_game as opened_order
from interlace.studio.game_files import save_chain as saved


def draw_path(chain: Chain, rng: random.Random) -> tuple[int, ...]:
    """Items in a random order that the needs allow."""
    needs, path = find_accesses(chain).dependencies, list[int]()
    while len(path) < len(needs):
        ready = [i for i in range(len(needs)) if i not in path and all(need in path for need in needs[i])]
        path.append(rng.choice(ready))
    return tuple(path)


def test_traffic_of_every_order_is_that_of_the_simulated_plan() -> None:
    """Compare by tensor, on one LRU cache; the simulation knows plans alone."""
    rng = random.Random(0)
    for capacity, parts in product((5, 9, 14, 24), (1, 2)):
        chain = Chain(3, 2, 4, 2, capacity, parts=parts)
        nbytes = find_accesses(chain).unit_bytes
        one = replace(DEFAULT_GPU, sms=1, l2_bytes=capacity * nbytes, l2=L2(1, capacity * nbytes), speed_spread=0.0)
        for path in [draw_path(chain, rng), *(order() for order in list_chain_orders(chain).values())]:
            plan = build(chain.graph, chain.make_schedule(ExplicitInterleaving(path)))
            read = predict(plan, one).traffic.read_bytes
            position = play(chain, path)
            sizes = {**dict.fromkeys("xayb", 1), WORKSPACE: 2}
            told = {name: loads * nbytes * sizes[name] for name, loads in position.loads.items() if loads}
            assert told == dict(read)
            assert position.load_bytes == sum(read.values())
            assert sum(position.costs) == sum(position.loads.values())


def test_a_tile_is_locked_until_its_whole_row_is_there() -> None:
    chain = Chain(2, 1, 3, 2)
    needs = find_accesses(chain).dependencies
    assert needs[:6] == ((),) * 6
    assert needs[6:] == ((0, 1, 2),) * 2 + ((3, 4, 5),) * 2
    with pytest.raises(StudioError, match="item 6 is locked: it needs 2; take these before"):
        play(chain, (0, 1, 6))
    position = play(chain, (0, 1, 2, 6))
    assert position.costs == (2, 1, 1, 3)
    assert position.last["y"] == ((0, False), (1, False), (2, False))
    assert [loaded for _, loaded in position.last["b"]] == [True] * 3
    assert position.cached["y"] == (2, 1, 0)


def test_whole_rows_keep_the_intermediate_in_a_cache_that_op_after_op_loses_it_from() -> None:
    orders = list_chain_orders(Chain())
    assert play(Chain(), orders["whole rows"]()).loads.get("y", 0) == 0
    assert play(Chain(), orders["op after op"]()).loads["y"] == 16


def test_half_rows_keep_the_intermediate_in_a_cache_too_small_for_whole_ones() -> None:
    """Rows of eight tiles in a cache of 14: a half of y stays, for the price of sums that travel, two tiles each."""
    whole, halves = (Chain(hidden=8, capacity=14, parts=parts) for parts in (1, 2))
    rows, half = (play(c, list_chain_orders(c)[name]()) for c, name in ((whole, "whole rows"), (halves, "half rows")))
    assert (rows.loads, rows.load_bytes >> 15) == ({"x": 8, "a": 64, "y": 128, "b": 128}, 328)
    assert (half.loads, half.load_bytes >> 15) == ({"x": 16, "a": 64, "b": 128, WORKSPACE: 16}, 240)
    needs = find_accesses(halves).dependencies
    assert (needs[32], needs[48]) == ((0, 1, 2, 3), (4, 5, 6, 7, 32))  # halves of out[0, 0]
    with pytest.raises(StudioError, match="item 48 is locked: it needs 4, 5, 6, 7, 32"):
        play(halves, (0, 1, 2, 3, 48))


def test_no_hilbert_curve_runs_over_the_second_product_while_rows_are_made_one_by_one() -> None:
    """After the first row only its own tiles are open, and a curve soon leaves the row."""
    chain = Chain()
    orders = list_chain_orders(chain)
    hilbert = [item for item in orders["op after op, hilbert"]() if item >= 16]
    with pytest.raises(StudioError, match="is locked"):
        play(chain, (0, 1, 2, 3, *hilbert[:4]))


def test_opt_loads_no_more_than_lru() -> None:
    for order in list_chain_orders(Chain()).values():
        lru, opt = (play(Chain(cache=cache), order()) for cache in EvictionPolicy)
        assert opt.load_bytes <= lru.load_bytes
        assert opt.cached == {}


def test_links_hold_a_chain_and_nothing_else() -> None:
    rng = random.Random(1)
    for cache in EvictionPolicy:
        chain = Chain(3, 1, 2, 4, 7, cache, 2 if cache is EvictionPolicy.LRU else 1)
        path = draw_path(chain, rng)
        game = ChainGame(chain, path, rng.randint(0, len(path)), "whole rows")
        assert decode_chain(encode_chain(game)) == game
        assert parse_chain_game(format_chain_game(game)) == game
        assert open_chain(saved(game)["file"]) == game
        assert saved(game)["complete"] == (game.at == chain.items)
    link = encode_chain(ChainGame(Chain(), (0, 1, 2), 3))
    for text in ("", "AA", link[:-4], "AX" + link[2:]):
        with pytest.raises(StudioError, match="this link holds no game"):
            decode_chain(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "interlace-order"}, "its schema is not 'interlace-chain'; open an order on the other page"),
        ({"version": 2}, "a game of version 2; this release reads version 1"),
        ({"game": 3}, "a file of a game without the game"),
        ({"game": "AA"}, "this link holds no game"),
    ],
)
def test_a_file_that_holds_no_chain_is_told(change: dict[str, object], message: str) -> None:
    file = json.loads(saved(ChainGame(Chain(), (0, 1)))["file"])
    with pytest.raises(StudioError, match=message):
        open_chain(json.dumps({**file, **change}))
    for text in ("", "[]", "[" * 100_000):
        with pytest.raises(StudioError, match="no game"):
            open_chain(text)
    with pytest.raises(StudioError, match="its schema is not 'interlace-order'"):
        opened_order(json.dumps(file))


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"options": {"rows": 17}},
        {"options": {"rows": "4"}},
        {"options": {"capacity": 1}},
        {"options": {"capacity": 3, "parts": 2}},
        {"options": {"parts": 3}},
        {"options": {"parts": 2, "hidden": 1}},
        {"options": {"parts": 2, "cache": "opt"}},
        {"options": {"cache": 3}},
        {"options": {"m": 4}},
        {"path": [0, 0]},
        {"path": [99]},
        {"path": [16]},
        {"path": [True]},
        {"path": 3},
        {"path": [0], "at": 2},
        {"ghost": 3},
    ],
)
def test_a_request_that_is_no_chain_is_refused(data: object) -> None:
    with pytest.raises(StudioError):
        parse_chain_game(data)

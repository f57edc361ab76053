"""Minimum loads with which a game can still end: proved if ``orders`` proves it, else the best known order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interlace.orders.panels import EvictionPolicy
from interlace.studio.game import GameOptions, Path, play
from interlace.studio.link import encode_path

#: Limits of one search: seconds; states, each of at most 345 bytes, or twice that while its tables grow.
MAX_SECONDS = 20.0
_MAX_STATES = 1 << 20


class SearchCancelled(Exception):
    """The client has cancelled the search."""


@dataclass(frozen=True)
class BestCompletion:
    """Best known end of a game.

    Attributes:
        loads, load_bytes: loads of the best order found that begins with the game's path.
        path: that order.
        is_proved: True if no order that begins with the path loads less.
        lower_bound: lower bound on the loads; 0 if none is known.
        why: reason why there is no proof; "" if there is one.
    """

    loads: int
    load_bytes: int
    path: Path
    is_proved: bool
    lower_bound: int
    why: str

    def to_data(self, options: GameOptions, steps_taken: int) -> dict[str, Any]:
        """Return the data for the page, with the next step of the best order."""
        steps = encode_path(options.grid, self.path)
        return {
            "state": "done",
            "loads": self.loads,
            "load_bytes": self.load_bytes,
            "path": steps,
            "next": steps[steps_taken] if steps_taken < len(steps) else None,
            "proved": self.is_proved,
            "lower_bound": self.lower_bound,
            "why": self.why,
        }


def find_best_completion(
    options: GameOptions, path: Path, stop: threading.Event, progress: Callable[[int, int, int], None]
) -> BestCompletion:
    """Return the best known end of a game.

    The search is over whole units in the sequence of one worker. Workers that run along K side by side, and units of
    unequal sizes, are compared over a few known ends instead.

    Args:
        options, path: the game.
        stop: ends the search with ``SearchCancelled`` when it is set.
        progress: called now and then with states kept, the lower bound reached and the loads of the best known order.

    Raises:
        SearchCancelled: the event was set.
        StudioError: the path is invalid.
    """
    # Imported late: it takes half a second (numba), which would delay the first click.
    from interlace.orders.completion import find_completion, iter_ends

    def tell(states: int, low: int, high: int) -> None:
        if stop.is_set():
            raise SearchCancelled
        progress(states, low, high)

    so_far = play(options, path)
    capacity, cache, unequal = options.replay_arguments
    if unequal is not None and len(set(unequal)) == 1:
        capacity, unequal = capacity // unequal[0], None
    side_by_side = options.workers > 1 and options.grid.chunks > 1
    if unequal is None and not side_by_side:
        found = find_completion(
            options.grid, path, capacity, cache, seconds=MAX_SECONDS, max_states=_MAX_STATES, progress=tell
        )
        end = play(options, found.walk)
        return BestCompletion(
            found.loads, end.load_bytes, found.walk, found.is_proved, found.lower_bound, found.stop_reason
        )
    best = None
    for walk in iter_ends(options.grid, path, min(options.capacity_bytes // max(options.sizes), options.grid.units)):
        tell(0, so_far.loads, best.loads if best else 0)
        end = play(options, walk)
        if best is None or end.loads < best.loads:
            what = "workers side by side" if side_by_side else "panels of unequal sizes"
            why = f"no search here takes {what}, so the best of a few known ends answered"
            best = BestCompletion(end.loads, end.load_bytes, walk, False, max(so_far.loads, options.grid.units), why)
    assert best is not None  # there are always families
    if cache is EvictionPolicy.LRU and best.loads == best.lower_bound:
        return BestCompletion(best.loads, best.load_bytes, best.path, True, best.lower_bound, "")
    return best

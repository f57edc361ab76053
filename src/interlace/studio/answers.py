"""What the page may ask, by name, whoever carries it: the server for a browser, or a notebook's own channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from interlace.core.errors import StudioError
from interlace.studio import curve, saved
from interlace.studio.chain_wire import (
    chain_game_of,
    decoded_chain,
    shown_chain,
    shown_chain_game,
    shown_chain_order,
    shown_chain_position,
)
from interlace.studio.game import named_path
from interlace.studio.link import decoded, steps_of
from interlace.studio.plan_view import PlanView
from interlace.studio.records import RecordView
from interlace.studio.timeline import TimelineView
from interlace.studio.wire import game_of, members, options_of, shown_game, shown_position, shown_setting

T = TypeVar("T")

#: What a page can begin with.
View = PlanView | TimelineView | RecordView
Answers = Mapping[str, Callable[[Any], dict[str, Any]]]


def answers(view: View | None) -> Answers:
    """By name, from data to data; each raises StudioError, OrderError or SearchError for what makes no sense."""
    kinds: dict[str, type[View]] = {"plan": PlanView, "timeline": TimelineView, "records": RecordView}
    return {
        "setting": _setting,
        "open": lambda data: shown_game(_game(data, decoded, saved.opened)),
        "position": lambda data: shown_position(game_of(data)),
        "order": _order,
        "curve": lambda data: curve.shown(game_of(data)),
        "save": lambda data: saved.shown(game_of(data)),
        "chain/setting": shown_chain,
        "chain/open": lambda data: shown_chain_game(_game(data, decoded_chain, saved.opened_chain)),
        "chain/position": shown_chain_position,
        "chain/order": shown_chain_order,
        "chain/save": lambda data: saved.shown_chain(chain_game_of(data)),
        **{name: partial(_whole, view if isinstance(view, kind) else None) for name, kind in kinds.items()},
        "plan/item": partial(_item, view),
    }


def _setting(data: object) -> dict[str, Any]:
    """What follows from options alone."""
    options = options_of(members(data, "a request", ("options",)).get("options", {}))
    return shown_setting(options)


def _game(data: object, of_link: Callable[[str], T], of_file: Callable[[str], T]) -> T:
    """The game of a link or of a saved file."""
    given = members(data, "a request", ("link", "file"))
    text = next(iter(given.values()), None)
    if len(given) != 1 or not isinstance(text, str):
        raise StudioError("send a link or the text of a file")
    return of_link(text) if "link" in given else of_file(text)


def _order(data: object) -> dict[str, Any]:
    """The path of a named order."""
    given = members(data, "a request", ("options", "name"))
    options, name = options_of(given.get("options", {})), given.get("name")
    if not isinstance(name, str):
        raise StudioError("name an order, such as serpentine")
    return {"path": steps_of(options.grid, named_path(options.grid, name))}


def _whole(view: View | None, data: object) -> dict[str, Any]:
    """All that there is to look at, or that there is nothing."""
    members(data, "a request", ())
    return {"name": ""} if view is None else view.shown()


def _item(view: View | None, data: object) -> dict[str, Any]:
    """One item of the plan."""
    if not isinstance(view, PlanView):
        raise StudioError("there is no plan here; begin with: interlace studio PLAN.json")
    return view.item(data)

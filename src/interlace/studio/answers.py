"""Requests of the page by name; the server of a browser or the channel of a notebook transports them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from interlace.core.errors import StudioError
from interlace.studio import curve, game_files
from interlace.studio.chain_wire import (
    decode_chain,
    format_chain,
    format_chain_game,
    format_chain_order,
    format_chain_position,
    parse_chain_game,
)
from interlace.studio.game import find_named_path
from interlace.studio.link import decode_game, encode_path
from interlace.studio.pending import Pending, StudioView
from interlace.studio.plan_view import PlanView
from interlace.studio.records import RecordView
from interlace.studio.timeline import TimelineView
from interlace.studio.wire import check_members, format_game, format_position, format_setting, parse_game, parse_options

T = TypeVar("T")

Answers = Mapping[str, Callable[[Any], dict[str, Any]]]


def build_answers(view: StudioView | Pending | None) -> Answers:
    """Return the functions from data to data; they raise StudioError, OrderError or SearchError for bad requests."""
    kinds: dict[str, type[StudioView]] = {"plan": PlanView, "timeline": TimelineView, "records": RecordView}
    return {
        "setting": _answer_setting,
        "open": lambda data: format_game(_open_game(data, decode_game, game_files.open_game)),
        "position": lambda data: format_position(parse_game(data)),
        "order": _answer_order,
        "curve": lambda data: curve.compute_curve(parse_game(data)),
        "save": lambda data: game_files.save_game(parse_game(data)),
        "chain/setting": format_chain,
        "chain/open": lambda data: format_chain_game(_open_game(data, decode_chain, game_files.open_chain)),
        "chain/position": format_chain_position,
        "chain/order": format_chain_order,
        "chain/save": lambda data: game_files.save_chain(parse_chain_game(data)),
        **{name: partial(_answer_view, view, kind) for name, kind in kinds.items()},
        "plan/item": partial(_answer_item, view),
    }


def _answer_setting(data: object) -> dict[str, Any]:
    """Return the data that depend on the options alone."""
    options = parse_options(check_members(data, "a request", ("options",)).get("options", {}))
    return format_setting(options)


def _open_game(data: object, of_link: Callable[[str], T], of_file: Callable[[str], T]) -> T:
    """Return the game of a link or of a saved file."""
    given = check_members(data, "a request", ("link", "file"))
    text = next(iter(given.values()), None)
    if len(given) != 1 or not isinstance(text, str):
        raise StudioError("send a link or the text of a file")
    return of_link(text) if "link" in given else of_file(text)


def _answer_order(data: object) -> dict[str, Any]:
    """Return the path of a named order."""
    given = check_members(data, "a request", ("options", "name"))
    options, name = parse_options(given.get("options", {})), given.get("name")
    if not isinstance(name, str):
        raise StudioError("name an order, such as serpentine")
    return {"path": encode_path(options.grid, find_named_path(options.grid, name))}


def _answer_view(view: StudioView | Pending | None, kind: type[StudioView], data: object) -> dict[str, Any]:
    """Return the data of the view, or state that there is no view, or none yet (``preparing`` gives the reason)."""
    check_members(data, "a request", ())
    if isinstance(view, Pending) and view.kind is kind:
        made = view.view()
        if made is None:
            return {"name": "", "preparing": view.says}
        return made.to_data()
    return view.to_data() if isinstance(view, kind) else {"name": ""}


def _answer_item(view: StudioView | Pending | None, data: object) -> dict[str, Any]:
    """Return one item of the plan."""
    if isinstance(view, Pending):
        view = view.view()
    if not isinstance(view, PlanView):
        raise StudioError("there is no plan here; begin with: interlace studio PLAN.json")
    return view.describe_item(data)

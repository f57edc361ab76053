"""Pages of the studio as notebook widgets, in Jupyter, marimo and other hosts of anywidget."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from importlib.resources import files
from typing import Any

import anywidget
import traitlets

from interlace.core.errors import InterlaceError, StudioError
from interlace.orders.panels import PanelGrid
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof
from interlace.studio.answers import build_answers
from interlace.studio.best_completion import SearchCancelled, find_best_completion
from interlace.studio.chain import Chain
from interlace.studio.chain_wire import ChainGame, encode_chain
from interlace.studio.game import GameOptions
from interlace.studio.link import Game, encode_game
from interlace.studio.pages import PAGES, inline_page
from interlace.studio.pending import StudioView
from interlace.studio.plan_view import PlanView
from interlace.studio.timeline import Timeline, TimelineView
from interlace.studio.wire import encode_json, parse_game
from interlace.trace.events import Trace
from interlace.trace.perfetto import to_perfetto

#: View that a notebook can show.
Showable = Plan | Proof | Trace | PanelGrid | GameOptions | Chain | StudioView
_TICK_S = 0.1
_TILE = 128  # of the product that stands for a grid of panels
_CHUNK = 64


class StudioWidget(anywidget.AnyWidget):
    """Page in a frame, which sends its requests to this kernel instead of a server.

    Args:
        page: stem of its file, such as ``plan``.
        view: view that it shows, if it is not a game.
        link: link of the game that it begins with.
        height: height of the frame, in pixels.
    """

    _esm = files("interlace.studio").joinpath("page/parts/widget.js").read_text("utf-8")
    page = traitlets.Unicode().tag(sync=True)
    link = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int().tag(sync=True)

    def __init__(self, page: str, view: StudioView | None = None, link: str = "", height: int = 720) -> None:
        text = inline_page(next(each for each in PAGES if each.name == page))
        super().__init__(page=text, link=link, height=height)
        self._answers = build_answers(view)
        self._searches: dict[int, threading.Event] = {}
        self.on_msg(self.handle_message)

    def handle_message(self, _: object, message: dict[str, Any], buffers: object) -> None:
        """Answer a request of the page at once, or start a search that sends its progress."""
        number, data = message["id"], message.get("data")
        if message.get("cancel"):
            self._searches.pop(number, threading.Event()).set()
        elif message.get("name") == "least":
            stop = self._searches[number] = threading.Event()
            threading.Thread(target=self._search, args=(number, data, stop), daemon=True).start()
        else:
            answer = self._answers.get(message.get("name", ""))
            try:
                if answer is None:
                    raise StudioError("the page asks for what there is not; show it again")
                self._send_answer(number, found=answer(data))
            except InterlaceError as error:
                self._send_answer(number, error=str(error))

    def _search(self, number: int, data: Any, stop: threading.Event) -> None:
        said = time.monotonic()

        def progress(states: int, low: int, high: int) -> None:
            nonlocal said
            if time.monotonic() - said > _TICK_S:
                said = time.monotonic()
                found = {"state": "searching", "states": states, "lower_bound": low, "loads": high}
                self._send_answer(number, found=found, last=False)

        try:
            game = parse_game(data)
            found = find_best_completion(game.options, game.path[: game.at], stop, progress).to_data(
                game.options, game.at
            )
            self._send_answer(number, found=found)
        except InterlaceError as error:
            self._send_answer(number, error=str(error))
        except SearchCancelled:
            pass  # the client has cancelled
        finally:
            self._searches.pop(number, None)

    def _send_answer(self, number: int, *, last: bool = True, **what: Any) -> None:
        self.send({"id": number, "last": last, **json.loads(encode_json(what))})


def build_widget(what: Showable, height: int = 720) -> StudioWidget:
    """See ``interlace.studio.show``."""
    made = partial(StudioWidget, height=height)
    if isinstance(what, Proof):
        what = what.plan
    if isinstance(what, Plan):
        what = PlanView.from_plan(what)
    if isinstance(what, Trace):
        what = TimelineView((Timeline.read(json.dumps(to_perfetto(what))),))
    if isinstance(what, StudioView):
        return made(what.page.removesuffix(".html"), view=what)
    if isinstance(what, PanelGrid):
        what = GameOptions(_TILE * what.rows, _TILE * what.columns, _CHUNK * what.chunks, _TILE, _TILE, _CHUNK)
    if isinstance(what, GameOptions):
        return made("index", link=encode_game(Game(what)))
    if isinstance(what, Chain):
        return made("chain", link=encode_chain(ChainGame(what)))
    raise StudioError(
        f"{type(what).__name__} is nothing that the studio shows; give it a plan, a proof, a trace, a grid "
        "(interlace.orders.panels.PanelGrid), or options of a game"
    )

"""Handlers of the page; each takes a whole game and keeps no state, so that pages do not disturb each other."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from interlace.core.errors import InterlaceError, StudioError
from interlace.studio.answers import build_answers
from interlace.studio.best_completion import SearchCancelled, find_best_completion
from interlace.studio.guard import Guard
from interlace.studio.link import Game
from interlace.studio.pages import load_assets
from interlace.studio.pending import Pending, StudioView
from interlace.studio.wire import encode_json, parse_game

#: Searches at once; each takes a core and some hundred megabytes.
_MAX_SEARCHES = 2
_TICK_S = 0.1


def build_application(port: int, view: StudioView | Pending | None = None) -> ASGIApp:
    """Return the application for a port of this machine, with a view if there is one."""
    page = load_assets()
    searches = threading.BoundedSemaphore(_MAX_SEARCHES)

    async def asset(request: Request) -> Response:
        """Return a file of the page; all are in memory, so no name reaches the file system."""
        found = page.get(request.path_params.get("name", "index.html"))
        if found is None:
            return JSONResponse({"error": "no such page; begin at /"}, 404)
        return Response(found.content, media_type=found.type)

    async def stream(request: Request) -> Response:
        try:
            game = parse_game(_parse_json(await request.body()))
        except InterlaceError as error:
            return _build_refusal(error)
        return StreamingResponse(_search(game, searches), media_type="application/x-ndjson")

    routes = [
        Route(f"/api/{name}", _make_endpoint(answer), methods=["POST"]) for name, answer in build_answers(view).items()
    ]
    routes += [
        Route("/api/least", stream, methods=["POST"]),
        Route("/", asset, methods=["GET"]),
        Route("/{name}", asset, methods=["GET"]),
    ]
    return Guard(Starlette(routes=routes), port)


def _make_endpoint(answer: Callable[[Any], dict[str, Any]]) -> Callable[[Request], Any]:
    """Return a handler that runs outside the event loop and answers errors as JSON."""

    async def endpoint(request: Request) -> Response:
        try:
            found = await run_in_threadpool(answer, _parse_json(await request.body()))
            return Response(await run_in_threadpool(encode_json, found), media_type="application/json")
        except InterlaceError as error:
            return _build_refusal(error)

    return endpoint


def _build_refusal(error: InterlaceError) -> Response:
    return Response(encode_json({"error": str(error)[:1000]}), 400, media_type="application/json")


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise StudioError("the request is no JSON; reload the page") from None


async def _search(game: Game, searches: threading.BoundedSemaphore) -> AsyncIterator[bytes]:
    """Yield lines of JSON: the progress of the search, then its result. It ends when the client stops reading."""
    if not searches.acquire(blocking=False):
        yield _encode_line({"state": "refused", "error": f"{_MAX_SEARCHES} searches run already; cancel one of them"})
        return
    stop, seen = threading.Event(), [0, 0, 0]

    def progress(*at: int) -> None:
        seen[:] = at

    def work() -> dict[str, Any]:
        try:
            return find_best_completion(game.options, game.path[: game.at], stop, progress).to_data(
                game.options, game.at
            )
        except InterlaceError as error:
            return {"state": "refused", "error": str(error)[:1000]}
        except SearchCancelled:
            return {"state": "cancelled"}
        finally:
            searches.release()

    task = asyncio.ensure_future(run_in_threadpool(work))
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_TICK_S)
            if not task.done():
                states, low, high = seen
                yield _encode_line({"state": "searching", "states": states, "lower_bound": low, "loads": high})
        yield _encode_line(task.result())
    finally:
        stop.set()


def _encode_line(data: dict[str, Any]) -> bytes:
    return encode_json(data) + b"\n"

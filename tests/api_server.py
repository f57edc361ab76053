"""The API's server in this process, on a free port of 127.0.0.1, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from interlace.serve.app import ApiServer
from interlace.serve.server import ApiUvicorn, listen
from interlace.serve.settings import ServerSettings

JSON = {"content-type": "application/json"}


@dataclass
class RunningServer:
    """A server that runs.

    Attributes:
        url: its address.
        api: its handlers.
        uvicorn: the server itself.
        faults: lines that it reported.
        http: a client of it.
    """

    url: str
    api: ApiServer
    uvicorn: ApiUvicorn
    faults: list[str]
    http: httpx.Client

    def post(self, path: str, **body: Any) -> httpx.Response:
        """Send a request of a model's name and other fields."""
        return self.http.post(path, json={"model": "fake", **body})


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail after 20 s."""
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("the condition never held")


@contextmanager
def run_server(engine: Any, **settings: Any) -> Iterator[RunningServer]:
    """Run a server for the block; it must have reported no fault at the end."""
    faults: list[str] = []
    with listen("127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        api = ApiServer(engine, ServerSettings(engine.model_name, **settings), faults.append)
        server = ApiUvicorn(api)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with httpx.Client(base_url=url, timeout=30, trust_env=False, headers=JSON) as http:
                yield RunningServer(url, api, server, faults, http)
        finally:
            server.should_exit = True
            thread.join()
    assert faults == []

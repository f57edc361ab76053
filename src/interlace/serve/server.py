"""Server: uvicorn with a graceful end."""

from __future__ import annotations

import gc
import resource
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from interlace.engine import Engine
from interlace.serve.app import ApiServer
from interlace.serve.errors import make_shutdown_error
from interlace.serve.settings import ServerSettings
from interlace.studio.connection import Connection

UNREAD_TIMEOUT_S = 30.0  # seconds that a client may leave an answer unread, after which its connection is lost


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes any free one.

    Raises:
        OSError: the host is not an address of this machine, or the port is taken or may not be used.
    """
    # asyncio sets TCP_NODELAY only if the protocol is named; otherwise a chunk waits 40 ms.
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_TIMEOUT_S * 1000))
        listening.bind(address)
        listening.listen(2048)
    except OSError:
        listening.close()
        raise
    return listening


class ApiConnection(Connection):
    """Connection of a client of the API."""

    max_connections = 4096
    request_timeout_s = 30.0


class ApiUvicorn(uvicorn.Server):
    """Uvicorn server of an ``ApiServer``.

    The first SIGTERM or SIGINT lets running requests finish and has new ones refused with 503; a second one ends the
    server at once. If the engine fails, the server ends.
    """

    def __init__(self, api: ApiServer) -> None:
        super().__init__(
            uvicorn.Config(
                api.application,
                http=ApiConnection,
                ws="none",
                log_level="critical",  # the application reports its faults, without messages that quote prompts
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=1,  # seconds after running requests have finished
            )
        )
        self._api = api

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end at the first signal, end at the second."""
        self.should_exit = self._api.is_draining
        self._api.is_draining = True

    async def on_tick(self, counter: int) -> bool:
        """Return True if the server ends now; uvicorn asks ten times a second."""
        has_drained = self._api.is_draining and not self.server_state.tasks
        if has_drained or self._api.engine_thread.failure is not None:
            self.should_exit = True
        if self.should_exit:
            self._api.engine_thread.fail_all(make_shutdown_error())
        return await super().on_tick(counter)


def run_server(
    engine: Engine, settings: ServerSettings, listening: socket.socket, report: Callable[[str], None]
) -> BaseException | None:
    """Answer requests in this process until a signal ends it; return the error if the engine failed.

    Args:
        engine: the engine.
        settings: name, limits and defaults.
        listening: socket of the server, as ``listen`` returns it.
        report: function that gets a line on each fault of the server.
    """
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, min(most, 1 << 16)), most))  # one for each connection
    api = ApiServer(engine, settings, report)
    gc.collect()
    gc.freeze()  # later collections, in which no answer is sent, need not look at the modules
    ApiUvicorn(api).run(sockets=[listening])
    return api.engine_thread.failure

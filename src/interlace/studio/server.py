"""Server: uvicorn, reachable from this machine only."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from interlace.studio.app import build_application
from interlace.studio.connection import Connection
from interlace.studio.pending import Pending, StudioView

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """Return a listening socket on a port of this machine; 0 takes any free port.

    Raises:
        OSError: the port is taken, or may not be used.
    """
    # asyncio sets TCP_NODELAY only if the protocol is named; otherwise an answer waits 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


def build_server(listening: socket.socket, view: StudioView | Pending | None = None) -> uvicorn.Server:
    """Return the server of a socket; ``run(sockets=[listening])`` answers until ``should_exit`` is set."""
    port = listening.getsockname()[1]
    return uvicorn.Server(
        uvicorn.Config(
            build_application(port, view),
            http=Connection,
            lifespan="off",
            ws="none",
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
        )
    )


def serve(port: int, view: StudioView | Pending | None, *, browser: bool, report: Callable[[str], None]) -> None:
    """Answer until Ctrl-C.

    Args:
        port: 0 for any free one.
        view: view that the page begins with; None for a game. A pending view is started after the address is known.
        browser: True to open the page.
        report: function that gets the page's address once it can be opened.

    Raises:
        OSError: as ``listen``.
    """
    with listen(port) as listening:
        address = f"http://{HOST}:{listening.getsockname()[1]}/{view.page if view else ''}"
        report(address)
        if isinstance(view, Pending):
            view.start()
        if browser:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            build_server(listening, view).run(sockets=[listening])

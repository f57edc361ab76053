"""Connection of the studio's server and of the API's; it is closed if a client keeps it open without a request.

A client that sends a byte now and then, or a thousand connections, would otherwise take all files that the process may
open, and then no browser is answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """Connection with a limit on the time until a request.

    Attributes:
        max_connections: connections at once; a browser opens six for a page.
        request_timeout_s: seconds from a connection, or from the first byte of a later request on it, to the last byte
            of the headers; and from there to the last byte of the body.
    """

    max_connections = 100
    request_timeout_s = 20.0
    _expiry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.abort()
        else:
            self._expiry = self.loop.call_later(self.request_timeout_s, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()  # there is a request; the guard waits for its body
        elif self._expiry is None and not self.transport.is_closing():
            self._expiry = self.loop.call_later(self.request_timeout_s, self.transport.close)

    def _forget(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

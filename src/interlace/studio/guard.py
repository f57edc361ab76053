"""Filter between the network and the page's handlers: this machine only, this page only, bounded bodies.

A page of another site can make a browser send requests here, and can give its own name this machine's address (DNS
rebinding). The first have a foreign Origin, the second a foreign Host; both are rejected.
"""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from interlace.studio.connection import Connection

#: Bytes of a body: the longest path takes a fifth of it.
MAX_BODY_BYTES = 1 << 17

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Middleware that refuses foreign Hosts and Origins and long bodies; each answer limits what the page may load.

    Args:
        app: application that answers the rest; it gets each body whole.
        port: port on which the server listens.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        refusal, body = self._find_refusal(scope), None
        if refusal is None:
            try:
                async with asyncio.timeout(Connection.request_timeout_s):
                    body = await _read_body(receive)
            except TimeoutError:
                refusal = 408, "the request did not arrive in time; send it again"
        if body is None:
            refusal = refusal or (413, f"a request of more than {MAX_BODY_BYTES} bytes; the page sends shorter ones")
            late = {"connection": "close"} if refusal[0] == 408 else {}
            await JSONResponse({"error": refusal[1]}, refusal[0], late)(scope, receive, send_with_headers)
            return
        unread = [body]

        async def receive_again() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        await self._app(scope, receive_again, send_with_headers)

    def _find_refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and text of a refusal, or None for a request of this page."""
        sent: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            sent.setdefault(name.lower(), []).append(value)
        host, origin = sent.get(b"host", []), sent.get(b"origin", [])
        if len(host) != 1 or host[0].lower() not in self._hosts:
            return 421, "this server answers under 127.0.0.1 and localhost only"
        if (origin or scope["method"] not in ("GET", "HEAD")) and (len(origin) != 1 or origin[0] not in self._origins):
            return 403, "this server answers requests of its own page only"
        if scope["method"] == "POST" and sent.get(b"content-type") != [b"application/json"]:
            return 415, "send JSON, as application/json"
        return None


async def _read_body(receive: Receive) -> bytes | None:
    """Return the whole body; None if it is too long, in which case the rest is not read."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)

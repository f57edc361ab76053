"""Responses that follow the engine: they end its work when the client leaves, or after the longest time for an answer.

Both are ASGI applications. An error before the first byte is raised, so that it becomes a plain error response; later
it is the last event of the stream.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from interlace.serve.engine_thread import AnswerStream, EngineThread
from interlace.serve.errors import ApiError
from interlace.serve.writers import AnswerWriter, write_error

_EVENT_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class ClientLeft(ApiError):
    """The client closed the connection before its answer was complete; nobody gets this error."""

    def __init__(self) -> None:
        super().__init__(499, "the client left")


@dataclass(frozen=True)
class AnswerLimits:
    """Limits of answers: they end early when the client leaves or the time is over.

    Attributes:
        engine_thread: thread of the engine that answers.
        timeout_s: seconds until an answer must be complete.
    """

    engine_thread: EngineThread
    timeout_s: float

    @asynccontextmanager
    async def watch(self, receive: Receive, stream: AnswerStream) -> AsyncIterator[None]:
        """Abort the stream when the client leaves, after the timeout, and at the end of the block if it is not done."""

        async def wait_for_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.engine_thread.abort(stream, ClientLeft())

        late = ApiError(504, f"the answer takes more than {self.timeout_s:g} s", code="timeout")
        timer = asyncio.get_running_loop().call_later(self.timeout_s, self.engine_thread.abort, stream, late)
        watcher = asyncio.create_task(wait_for_disconnect())
        try:
            yield
        finally:
            timer.cancel()
            watcher.cancel()
            self.engine_thread.abort(stream, ClientLeft())


class Answer(ABC):
    """Response to a request that the engine works on."""

    def __init__(self, writer: AnswerWriter, limits: AnswerLimits) -> None:
        self._writer = writer
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientLeft):
            async with self._limits.watch(receive, self._writer.stream):
                await self._send(scope, receive, send)

    @abstractmethod
    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response as the engine's news arrive."""


class WholeAnswer(Answer):
    """Response of one JSON body."""

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream, news = self._writer.stream, []
        while not stream.is_done:
            news += await stream.read_news()
        await JSONResponse(self._writer.build_whole(news))(scope, receive, send)


class StreamedAnswer(Answer):
    """Response of server-sent events, which begins with the first news."""

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = self._writer.stream
        news = await stream.read_news()
        await send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
        try:
            while not stream.is_done:
                await _send_part(send, self._writer.write_chunks(news))
                news = await stream.read_news()
            end = self._writer.write_chunks(news) + self._writer.write_end()
        except ClientLeft:
            raise
        except ApiError as error:
            end = write_error(error.body)
        await send({"type": "http.response.body", "body": end, "more_body": False})


async def _send_part(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """Return the body of a request.

    Raises:
        ApiError: it is not declared as JSON, is too long, or does not arrive in time.
    """
    # A page of another site can make a browser send any other type, but this one only with leave.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "the content-type must be application/json", code="unsupported_media_type")
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    headers = {"connection": "close"}
                    raise ApiError(413, f"the body has more than {max_bytes} bytes", code="too_large", headers=headers)
    except TimeoutError:
        headers = {"connection": "close"}
        raise ApiError(408, f"the body did not arrive within {timeout_s:g} s", headers=headers) from None
    except ClientDisconnect:
        raise ClientLeft() from None
    return bytes(body)

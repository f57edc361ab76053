"""Application: the routes of OpenAI's API, of health and of metrics."""

from __future__ import annotations

import hmac
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from interlace.engine import Engine
from interlace.serve.answers import AnswerLimits, StreamedAnswer, WholeAnswer, read_body
from interlace.serve.engine_thread import EngineThread
from interlace.serve.errors import ApiError, make_shutdown_error
from interlace.serve.metrics import Metrics
from interlace.serve.prompts import PromptEncoder
from interlace.serve.requests import ChatRequest, CompletionRequest, GenerationRequest, parse_request
from interlace.serve.settings import ServerSettings
from interlace.serve.tool_use import plan_tools
from interlace.serve.writers import AnswerWriter, ChatWriter, CompletionWriter

Handler = Callable[[Request], Awaitable[ASGIApp]]


class ApiServer:
    """Handlers of one model; ``application`` is the ASGI application.

    Args:
        engine: the engine, which only this server may use from then on.
        settings: name, limits and defaults.
        report: function that gets a line on each fault of the server itself.

    Attributes:
        is_draining: True once new requests are refused.
        engine_thread: thread of the engine.
    """

    def __init__(self, engine: Engine, settings: ServerSettings, report: Callable[[str], None]) -> None:
        self.is_draining = False
        self._settings = settings
        self._report = report
        self._begin_s = int(time())
        self._max_model_len = engine.max_model_len
        self._metrics = Metrics(settings.model_name)
        self._encoder = PromptEncoder(engine, settings.log_prompt)
        self.engine_thread = EngineThread(engine, engine.max_num_seqs + settings.max_waiting, self._metrics.observe)
        self._limits = AnswerLimits(self.engine_thread, settings.answer_timeout_s)
        routes = [
            Route("/v1/models", self._guard(self._list_models), methods=["GET"]),
            Route("/v1/models/{name:path}", self._guard(self._describe_model), methods=["GET"]),
            Route("/v1/completions", self._guard(self._complete), methods=["POST"]),
            Route("/v1/chat/completions", self._guard(self._chat), methods=["POST"]),
            Route("/health", self._report_health, methods=["GET"]),
            Route("/metrics", self._render_metrics, methods=["GET"]),
        ]
        handlers: Any = {ApiError: _refuse, HTTPException: _refuse_path, Exception: self._handle_fault}
        self.application = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._run_engine)

    @asynccontextmanager
    async def _run_engine(self, _: Starlette) -> AsyncIterator[None]:
        self.engine_thread.start()
        try:
            yield
        finally:
            await self.engine_thread.stop()
            self._encoder.close()

    def _guard(self, handler: Handler) -> Handler:
        """Return a handler that first checks the key and whether the server still takes requests."""
        expected = None if self._settings.api_key is None else f"Bearer {self._settings.api_key}".encode()

        async def endpoint(request: Request) -> ASGIApp:
            sent = request.headers.get("authorization", "").encode("latin-1")
            if expected is not None and not hmac.compare_digest(sent, expected):
                raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
            if self.is_draining:
                raise make_shutdown_error()
            return await handler(request)

        return endpoint

    async def _list_models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._describe()]})

    async def _describe_model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._describe())

    def _describe(self) -> dict[str, Any]:
        model = {"id": self._settings.model_name, "object": "model", "created": self._begin_s}
        return {**model, "owned_by": "interlace", "max_model_len": self._max_model_len}

    def _check_model(self, name: str) -> None:
        if name != self._settings.model_name:
            message = f"there is no model {name[:200]!r}; this server has {self._settings.model_name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def _complete(self, request: Request) -> ASGIApp:
        call = await self._read(request, CompletionRequest)
        defaults = self._settings.default_params
        params = call.build_params(defaults, logprobs=call.logprobs)
        await self._encoder.compile_grammar(params, "structured_outputs")
        stream = self.engine_thread.submit(await self._encoder.encode_prompts(call.prompt), params, "prompt")
        return self._answer(call, CompletionWriter(call, stream))

    async def _chat(self, request: Request) -> ASGIApp:
        call = await self._read(request, ChatRequest)
        use = plan_tools(call)
        params = call.build_chat_params(self._settings.default_params, use.schema)
        await self._encoder.compile_grammar(params, use.schema_param or "structured_outputs")
        prompt = await self._encoder.encode_chat(call.messages, use.tools)
        stream = self.engine_thread.submit([prompt], params, "messages")
        return self._answer(call, ChatWriter(call, stream, use.parse_names, use.call_reason))

    async def _read(self, request: Request, kind: type[Any]) -> Any:
        body = await read_body(request, self._settings.max_body_bytes, self._settings.body_timeout_s)
        call = parse_request(kind, body)
        self._check_model(call.model)
        return call

    def _answer(self, call: GenerationRequest, writer: AnswerWriter) -> ASGIApp:
        return (StreamedAnswer if call.stream else WholeAnswer)(writer, self._limits)

    async def _report_health(self, _: Request) -> Response:
        is_well = self.engine_thread.failure is None and not self.is_draining
        return JSONResponse({"status": "ok" if is_well else "unavailable"}, 200 if is_well else 503)

    async def _render_metrics(self, _: Request) -> Response:
        text = self._metrics.render(await self.engine_thread.read_stats())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _handle_fault(self, _: Request, error: Exception) -> Response:
        """Answer a fault of the server; report its type and location, but no message, which may quote a prompt."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        self._report(f"{type(error).__name__} in {frame.name}, {frame.filename}:{frame.lineno}")
        headers = {"connection": "close"}  # as uvicorn does after an exception
        return _render_error(ApiError(500, "the server failed at this request", code="internal_error", headers=headers))


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _render_error(error)


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return _render_error(ApiError(error.status_code, message, code="unknown_url", headers=error.headers))


def _render_error(error: ApiError) -> Response:
    return JSONResponse(error.body, error.status, error.headers)

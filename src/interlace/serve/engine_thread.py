"""Thread of an engine: requests go in through a queue, and the news of a step come out in one call of the event loop.

Nothing of the engine runs on the event loop, and nothing of HTTP on this thread, so neither waits for the other. A
server's engine is in another process (``serve/remote_engine``), whose steps this thread awaits.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from uuid import uuid4

from interlace.core.errors import InterlaceError
from interlace.engine import Engine, EngineStats, RequestOutput, SamplingParams
from interlace.serve.errors import ApiError, convert_engine_error, make_shutdown_error

_RETRY_AFTER_S = 1
#: News of one prompt: its index within the HTTP request, and the engine's output.
News = tuple[int, RequestOutput]
#: Function that gets the stream, the output and the time in seconds of every news.
Observer = Callable[["AnswerStream", RequestOutput, float], None]


class AnswerStream:
    """News of the engine on the prompts of one HTTP request; used on the event loop only.

    Attributes:
        prompts: ids of each prompt.
        param: field of the request that they come from.
        n: number of texts for each prompt.
        id: name of the request; the engine's request of prompt ``i`` is ``f"{id}-{i}"``.
        is_done: True once all prompts are answered and all news were read.
        cached_tokens: tokens of prompts that the engine had cached.
        generated_tokens: tokens of all answers so far.
        begin_s, last_s: when the request came, and when its last news came; None for no news.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], param: str, n: int) -> None:
        self.prompts = prompts
        self.param = param
        self.n = n
        self.id = uuid4().hex
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.begin_s = perf_counter()
        self.last_s: float | None = None
        self._unfinished = len(prompts)
        self._news: deque[News] = deque()
        self._failure: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_done(self) -> bool:
        return not self._unfinished and not self._news

    def add(self, index: int, output: RequestOutput) -> None:
        """Append news of a prompt."""
        if output.error is not None:
            self.fail(ApiError(500, output.error, code="engine_error"))
            return
        if output.finished:
            self._unfinished -= 1
            self.cached_tokens += output.num_cached_tokens
        for each in output.outputs:
            self.generated_tokens += len(each.token_ids)
        self._news.append((index, output))
        self._wake()

    def fail(self, error: ApiError) -> None:
        """End the stream: whoever reads it gets the error."""
        self._failure = self._failure or error
        self._wake()

    async def read_news(self) -> list[News]:
        """Wait for news and return all that came.

        Raises:
            ApiError: the request failed, or was aborted.
        """
        if not self._news and self._failure is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._failure is not None:
            raise self._failure
        news = [*self._news]
        self._news.clear()
        return news

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineThread:
    """Owner of an engine, which no one else may use.

    Args:
        engine: the engine.
        max_texts: texts that may be in the engine, running and waiting.
        observe: function that gets all news.

    Attributes:
        failure: the error with which the engine failed, None while it works.
    """

    def __init__(self, engine: Engine, max_texts: int, observe: Observer) -> None:
        self.failure: BaseException | None = None
        self._engine = engine
        self._max_texts = max_texts
        self._observe = observe
        self._streams: dict[str, tuple[int, AnswerStream]] = {}
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; news go to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its step; requests that are left fail."""
        self._commands.put(self._end)
        await asyncio.to_thread(self._thread.join)
        self.fail_all(make_shutdown_error())

    def submit(self, prompts: Sequence[Sequence[int]], params: SamplingParams, param: str) -> AnswerStream:
        """Hand prompts to the engine and return the stream of their answers, which also delivers the engine's refusal.

        Args:
            prompts: ids of each prompt.
            params: sampling parameters of all.
            param: field of the request that the prompts come from.

        Raises:
            ApiError: the queue is full, or the engine has failed.
        """
        if self.failure is not None:
            raise ApiError(503, "the engine has failed", code="engine_error")
        count = len(prompts) * params.n
        if count > self._max_texts:
            message = f"{len(prompts)} prompts with n {params.n} are more than the {self._max_texts} texts of a queue"
            raise ApiError(400, message, param=param)
        held = sum(stream.n for _, stream in self._streams.values())
        if held + count > self._max_texts:
            raise ApiError(
                429,
                f"{held} texts are running or waiting; try again later",
                code="queue_full",
                headers={"retry-after": str(_RETRY_AFTER_S)},
            )
        stream = AnswerStream(prompts, param, params.n)
        for index, ids in enumerate(prompts):
            request_id = f"{stream.id}-{index}"
            self._streams[request_id] = index, stream
            self._commands.put(partial(self._add, request_id, ids, params))
        return stream

    def abort(self, stream: AnswerStream, error: ApiError) -> None:
        """End the requests of a stream that are not answered yet, and fail it; no effect on one that is answered."""
        for index in range(len(stream.prompts)):
            request_id = f"{stream.id}-{index}"
            if self._streams.pop(request_id, None) is not None:
                self._commands.put(partial(self._engine.abort, request_id))
                stream.fail(error)

    def fail_all(self, error: ApiError) -> None:
        """Fail all streams; the engine's later news of them are dropped."""
        streams = {stream.id: stream for _, stream in self._streams.values()}
        self._streams.clear()
        for stream in streams.values():
            stream.fail(error)

    async def read_stats(self) -> EngineStats:
        """Return the engine's statistics, as they are between two steps.

        Raises:
            ApiError: the engine has failed.
        """
        if self.failure is not None:
            raise ApiError(503, "the engine has failed", code="engine_error")
        found: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._commands.put(lambda: self._call_loop(found.set_result, self._engine.stats()))
        return await found

    def _run(self) -> None:
        """Take commands and run steps until the end; wait for a command while there is nothing to do."""
        try:
            while not self._is_stopping:
                self._take_commands()
                if self._engine.has_unfinished:
                    outputs = self._engine.step()
                    if outputs:
                        self._call_loop(self._deliver, outputs)
        except BaseException as error:  # noqa: BLE001  whatever it is, no later step can be trusted
            self._call_loop(self._fail, error)

    def _take_commands(self) -> None:
        try:
            while True:
                self._commands.get(block=not self._engine.has_unfinished and not self._is_stopping)()
        except Empty:
            return

    def _add(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> None:
        try:
            self._engine.add_request(request_id, ids, params)
        except InterlaceError as error:
            self._call_loop(self._refuse, request_id, error)

    def _end(self) -> None:
        self._is_stopping = True

    def _call_loop(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function, *arguments)

    # The rest runs on the event loop.

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        now_s = perf_counter()
        for output in outputs:
            index, stream = self._streams.get(output.request_id, (0, None))
            if stream is None:
                continue  # aborted meanwhile
            if output.finished:
                del self._streams[output.request_id]
            self._observe(stream, output, now_s)
            stream.last_s = now_s
            stream.add(index, output)

    def _refuse(self, request_id: str, error: InterlaceError) -> None:
        _, stream = self._streams.pop(request_id, (0, None))
        if stream is not None:
            refusal = convert_engine_error(error, stream.param)
            stream.fail(refusal)
            self.abort(stream, refusal)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.fail_all(ApiError(500, "the engine has failed", code="engine_error"))

"""Many requests of all kinds at once, from clients that also leave, lie and overload: the server loses nothing."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

torch = pytest.importorskip("torch")
for package in ("jinja2", "prometheus_client", "pydantic", "starlette", "tokenizers", "uvicorn"):
    pytest.importorskip(package)
httpx = pytest.importorskip("httpx")

from interlace.engine import LLM, SamplingParams  # noqa: E402
from interlace.models.pretrained import load_model  # noqa: E402
from interlace.models.tokenizer import open_tokenizer  # noqa: E402

from ..api_server import JSON, run_server, wait_until  # noqa: E402
from .engines import make_engine, write_model  # noqa: E402

CAPACITY, CLIENTS, SEQUENCES, WAITING, BLOCKS = 192, 16, 4, 12, 4
PREFIX = "hello world " * 12  # more than a block of 64 tokens
#: Bodies that are refused with 400, and the field that each error names.
BAD_BODIES: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b'{"model": "tiny", "prompt": "a"', None),
    (b'{"model": "tiny", "prompt": "\xff"}', None),
    (b"[" * 5000, None),
    (b'{"model": "tiny"}', "prompt"),
    (b'{"model": "tiny", "prompt": "a", "max_tokens": -1}', "max_tokens"),
    (b'{"model": "tiny", "prompt": "a", "temperature": "hot"}', "temperature"),
    (b'{"model": "tiny", "prompt": "a", "nonsense": 1}', "nonsense"),
    (b'{"model": "tiny", "prompt": [[1], [99999]]}', "prompt"),
]


@dataclass
class Soak:
    """Requests with known answers, and a count of what became of all that were sent.

    Attributes:
        cases: body of each request, and the ids of its answer alone.
        outcomes: number of requests by what they were and how they ended.
    """

    http: Any
    cases: list[tuple[dict[str, Any], list[int]]]
    outcomes: Counter[str] = field(default_factory=Counter)

    async def run(self, count: int, deadline_s: float) -> None:
        """Send so many requests, or as many as there is time for, from several clients at once."""
        numbers = iter(range(count))
        end_s = monotonic() + deadline_s

        async def send_some() -> None:
            for number in numbers:
                if monotonic() > end_s:
                    return
                await self.send(random.Random(number))

        await asyncio.gather(*(send_some() for _ in range(CLIENTS)))

    async def send(self, draw: random.Random) -> None:
        """Send one request, check its answer, and count it."""
        kind = draw.choices(["whole", "stream", "leave", "cancel", "bad", "long", "many"], [30, 30, 12, 12, 8, 4, 4])[0]
        body, ids = draw.choice(self.cases)
        if kind == "bad":
            content, param = draw.choice(BAD_BODIES)
            response = await self.http.post("/v1/completions", content=content)
            await self.count(kind, response, 400)
            assert response.status_code == 429 or response.json()["error"]["param"] == param, response.text
        elif kind == "long":
            response = await self.http.post("/v1/completions", json={**body, "prompt": "a" * CAPACITY})
            await self.count(kind, response, 400)
        elif kind == "many":
            response = await self.http.post("/v1/completions", json={**body, "prompt": [body["prompt"]] * 3})
            if await self.count(kind, response, 200):
                assert [choice["token_ids"] for choice in response.json()["choices"]] == [ids] * 3
        elif kind == "whole":
            response = await self.http.post("/v1/completions", json=body)
            if await self.count(kind, response, 200):
                assert response.json()["choices"][0]["token_ids"] == ids
        elif kind == "cancel":
            try:
                await asyncio.wait_for(self.http.post("/v1/completions", json=body), draw.uniform(0, 0.05))
                self.outcomes["cancel: answered"] += 1
            except (TimeoutError, httpx.HTTPError):
                self.outcomes["cancel: left"] += 1
        else:
            await self.stream(body, ids, draw.randrange(4) if kind == "leave" else None)

    async def stream(self, body: dict[str, Any], ids: list[int], leave_after: int | None) -> None:
        """Read a stream, to its end or for so many chunks."""
        found: list[int] = []
        async with self.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
            if response.status_code != 200:
                await response.aread()
                await self.count("stream", response, 200)
                return
            async for line in response.aiter_lines():
                if leave_after is not None and len(found) >= leave_after:
                    self.outcomes["stream: left"] += 1
                    return
                if line.startswith("data: {"):
                    found += json.loads(line[6:])["choices"][0]["token_ids"]
                    assert found == ids[: len(found)]
        assert found == ids
        self.outcomes["stream: 200"] += 1

    async def count(self, kind: str, response: Any, status: int) -> bool:
        """Count a response, which has the expected status or finds the queue full; return True if it has an answer."""
        assert response.status_code in (status, 429), response.text
        if response.status_code == 429:
            await asyncio.sleep(0.05)
        self.outcomes[f"{kind}: {response.status_code}"] += 1
        return response.status_code == 200


def make_cases(llm: LLM, count: int) -> list[tuple[dict[str, Any], list[int]]]:
    """Return bodies of requests and the ids that the engine alone answers each with."""
    draw, cases = random.Random(5), []
    for number in range(count):
        prompt = "".join(draw.choices("helo w", k=draw.randrange(1, 20)))
        if number % 3 == 1:
            prompt = PREFIX + prompt  # which the cache of prefixes has after the first
        elif number % 3 == 2:
            prompt += "".join(draw.choices("abcdxyz", k=48))  # whose answer may need a second block when there is none
        params: dict[str, Any] = {"max_tokens": draw.randrange(1, 24), "ignore_eos": draw.random() < 0.5}
        params |= {"temperature": 0.0} if number % 2 else {"temperature": 0.8, "seed": number, "top_p": 0.9}
        (result,) = llm.generate(prompt, SamplingParams(**params))
        body = {"model": "tiny", "prompt": prompt, "return_token_ids": True, **params}
        cases.append((body, [*result.outputs[0].token_ids]))
    return cases


def read_gauge(http: Any, name: str) -> float:
    (value,) = re.findall(rf"^vllm:{name}{{.*}} (.*)$", http.get("/metrics").text, re.MULTILINE)
    return float(value)


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("count", "seconds"),
    [
        pytest.param(300, 60, id="300"),
        pytest.param(10_000, 800, id="10000", marks=[pytest.mark.thorough, pytest.mark.timeout(1200)]),
    ],
)
def test_every_request_ends_and_each_answer_is_that_of_the_request_alone(
    tmp_path: Path, count: int, seconds: float
) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    tokenizer = open_tokenizer(path, load_model(path).gguf)
    options: Any = {"tokenizer": tokenizer, "model_name": "tiny"}
    llm = LLM(make_engine(1, CAPACITY, **options))
    engine = make_engine(SEQUENCES, CAPACITY, num_blocks=BLOCKS, **options)

    async def soak(url: str) -> Soak:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, limits=limits, headers=JSON) as http:
            found = Soak(http, make_cases(llm, 24))
            await found.run(min(count, 100), seconds)
            before = read_resident_bytes()
            await found.run(count, seconds)
            assert read_resident_bytes() - before < 48 << 20
            return found

    with run_server(engine, max_waiting=WAITING) as server:
        outcomes = asyncio.run(soak(server.url)).outcomes
        names = ("num_requests_running", "num_requests_waiting")
        wait_until(lambda: not any(read_gauge(server.http, name) for name in names))
        assert read_gauge(server.http, "kv_cache_usage_perc") == 0, "all blocks came back"
        assert server.api.engine_thread._streams == {}
        assert read_gauge(server.http, "prefix_cache_hits_total") > 0
        assert read_gauge(server.http, "num_preemptions_total") > 0
        assert not engine.has_unfinished
        wait_until(lambda: not server.uvicorn.server_state.tasks)
    kinds = ["whole: 200", "stream: 200", "stream: left", "cancel: left", "bad: 400", "long: 400", "many: 200"]
    print(dict(outcomes))
    assert [kind for kind in kinds if not outcomes[kind]] == []
    assert outcomes["whole: 429"] + outcomes["stream: 429"] > 0
    if count <= 300:
        assert outcomes.total() == count + min(count, 100)

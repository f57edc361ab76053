"""Load on an OpenAI-compatible server: time to first token, inter-token latency and tokens per second.

    python benchmarks/http_load.py http://127.0.0.1:8000 --model NAME --vocabulary 128256 --requests 64 --streams 64
    python benchmarks/http_load.py http://127.0.0.1:8000 --model NAME --requests 200 --rate 12 --out load.json

With ``--streams``, so many clients send one request after another (closed loop). With ``--rate``, requests arrive by a
Poisson process of that many a second, whatever the server does (open loop). Prompts are random token ids, sent to
/v1/completions with ``ignore_eos``, so no tokenizer is needed, and lengths are drawn uniformly from ``--input`` and
``--output``; all are the same for one ``--seed``. ``--body`` adds fields to each request, such as
``'{"return_token_ids": true}'``. Each of ``--processes`` takes an equal share, because one process of
Python reads some ten thousand chunks a second.

Inter-token latency is the time between two chunks of a stream that carry tokens; time to first token runs from before
the request is sent to its first chunk. Tokens per second are all generated tokens, as the server counts them, over the
time from the first request to the last chunk.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from script import end_process, make_parser, round_figure

PROTOCOL = "random ids through /v1/completions, streamed, ignore_eos, temperature 0; wall clock of the client"


@dataclass(frozen=True)
class Load:
    """Load of a server.

    Attributes:
        model: name of the model.
        requests: number of requests.
        streams: clients that send one request after another, None for an open loop.
        rate: requests per second of an open loop.
        input_tokens, output_tokens: least and most ids of a prompt, and tokens of an answer.
        vocabulary: ids are drawn below it.
        seed: seed of ids, lengths and arrivals.
        processes: number of processes that send.
        api_key: key of the server, None for none.
        body: further fields of each request.
    """

    model: str
    requests: int
    streams: int | None
    rate: float | None
    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    vocabulary: int
    seed: int = 0
    processes: int = 1
    api_key: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class RequestTimes:
    """Times of one request, in seconds since the start of the load.

    Attributes:
        arrival_s: when it was sent.
        chunks_s: when each chunk with tokens came.
        input_tokens, output_tokens: tokens as the server counts them.
        error: why it failed, empty if it did not.
    """

    arrival_s: float
    chunks_s: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class PlannedRequest:
    """Request before it is sent: ids, tokens of the answer, and seconds until it arrives in an open loop."""

    ids: Sequence[int]
    output_tokens: int
    arrival_s: float


def plan_requests(load: Load) -> list[PlannedRequest]:
    """Return all requests of a load, which its seed decides."""
    draw, arrival_s, planned = random.Random(load.seed), 0.0, []
    for _ in range(load.requests):
        length, output = draw.randint(*load.input_tokens), draw.randint(*load.output_tokens)
        planned.append(PlannedRequest([draw.randrange(load.vocabulary) for _ in range(length)], output, arrival_s))
        if load.rate is not None:
            arrival_s += draw.expovariate(load.rate)
    return planned


async def send_request(http: httpx.AsyncClient, load: Load, request: PlannedRequest, start_s: float) -> RequestTimes:
    """Send one request and return its times; its stream is only split at its events, whose tokens are not read."""
    body = {**load.body, "model": load.model, "prompt": request.ids, "max_tokens": request.output_tokens}
    body |= {"temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    times = RequestTimes(time.perf_counter() - start_s)
    last, rest = b"", b""
    try:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                times.error = f"{response.status_code}: {(await response.aread()).decode(errors='replace')[:200]}"
                return times
            async for part in response.aiter_raw():
                now_s = time.perf_counter() - start_s
                *events, rest = (rest + part).split(b"\n\n")
                for event in events:
                    if event.startswith(b"data: {"):
                        last = event
                        times.chunks_s.append(now_s)
        found = json.loads(last[6:])
        times.chunks_s.pop()  # of the usage
        times.input_tokens, times.output_tokens = (found["usage"][f"{n}_tokens"] for n in ("prompt", "completion"))
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        times.error = f"{type(error).__name__}: {error}"
    return times


async def send_share(url: str, load: Load, share: int, wait: Callable[[], object]) -> list[RequestTimes]:
    """Send the requests of one process, every ``processes``-th, once ``wait`` returns."""
    planned = plan_requests(load)[share :: load.processes]
    headers = {} if load.api_key is None else {"authorization": f"Bearer {load.api_key}"}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits, headers=headers, trust_env=False) as http:
        with suppress(httpx.HTTPError):
            await http.get("/health")  # imports what the first request needs
        wait()
        start_s = time.perf_counter()  # one clock for all processes

        async def send_at(request: PlannedRequest) -> RequestTimes:
            await asyncio.sleep(start_s + request.arrival_s - time.perf_counter())
            return await send_request(http, load, request, start_s)

        async def send_in_turn(requests: Sequence[PlannedRequest]) -> list[RequestTimes]:
            return [await send_request(http, load, request, start_s) for request in requests]

        if load.streams is None:
            return await asyncio.gather(*map(send_at, planned))
        streams = [planned[n :: load.streams // load.processes] for n in range(load.streams // load.processes)]
        return [times for each in await asyncio.gather(*map(send_in_turn, streams)) for times in each]


def _run_share(url: str, load: Load, share: int, barrier: Any) -> list[RequestTimes]:
    return asyncio.run(send_share(url, load, share, barrier.wait))


def run_load(url: str, load: Load) -> dict[str, Any]:
    """Return the figures of a load on a server."""
    if load.processes == 1:
        return summarise(asyncio.run(send_share(url, load, 0, lambda: None)))
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(load.processes) as pool:
        barrier = manager.Barrier(load.processes)
        shares = [(url, load, share, barrier) for share in range(load.processes)]
        return summarise([times for each in pool.starmap(_run_share, shares, chunksize=1) for times in each])


def run_client(url: str, load: Load, warmup: int = 0, timeout_s: float | None = None) -> dict[str, Any]:
    """Return the figures of a load that this script sends in processes of its own, none of them the caller's.

    Args:
        warmup: requests before, which are not counted.
        timeout_s: most seconds of all, None for any number.

    Raises:
        subprocess.TimeoutExpired: it took longer.
        subprocess.CalledProcessError: the script failed.
    """
    options = {name: getattr(load, name) for name in ("model", "requests", "vocabulary", "seed", "processes")}
    options |= {"streams": load.streams} if load.rate is None else {"rate": load.rate}
    options |= {"input": "{}:{}".format(*load.input_tokens), "output": "{}:{}".format(*load.output_tokens)}
    options |= {"body": json.dumps(load.body), "warmup": warmup}
    options |= {} if load.api_key is None else {"api-key": load.api_key}
    command = [sys.executable, __file__, url, *(f"--{name}={value}" for name, value in options.items())]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, text=True, start_new_session=True, stdout=pipe, stderr=pipe)
    try:
        output, faults = process.communicate(timeout=timeout_s)
    finally:
        end_process(process)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output, faults)
    found: dict[str, Any] = json.loads(output)
    return found


def summarise(requests: Sequence[RequestTimes]) -> dict[str, Any]:
    """Return figures of all requests that were answered, and the errors of the others."""
    answered = [each for each in requests if not each.error and each.chunks_s]
    first = [each.chunks_s[0] - each.arrival_s for each in answered]
    between = [b - a for each in answered for a, b in pairwise(each.chunks_s)]
    whole = [each.chunks_s[-1] - each.arrival_s for each in answered]
    if not answered:
        return {"answered": 0, "errors": sorted({each.error for each in requests})}
    seconds = max(each.chunks_s[-1] for each in answered) - min(each.arrival_s for each in answered)
    generated = sum(each.output_tokens for each in answered)
    return {
        "answered": len(answered),
        "errors": sorted({each.error for each in requests if each.error}),
        "seconds": round_figure(seconds),
        "input_tokens": sum(each.input_tokens for each in answered),
        "output_tokens": generated,
        "chunks": sum(len(each.chunks_s) for each in answered),
        "tokens_per_s": round_figure(generated / seconds),
        "requests_per_s": round_figure(len(answered) / seconds),
        "ttft_ms": describe_times(first),
        "itl_ms": describe_times(between),
        "request_ms": describe_times(whole),
    }


def describe_times(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return mean and percentiles in milliseconds; None of no times."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    found = {"mean": sum(ordered) / len(ordered)}
    found |= {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 90, 99)}
    return {name: round_figure(value * 1e3) for name, value in found.items()}


def parse_range(text: str) -> tuple[int, int]:
    """Return least and most of ``LOW:HIGH``, or of one number."""
    low, _, high = text.partition(":")
    return int(low), int(high or low)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("url")
    parser.add_argument("--model", required=True, help="name of the model in requests")
    parser.add_argument("--requests", type=int, default=64)
    loop = parser.add_mutually_exclusive_group(required=True)
    loop.add_argument("--streams", type=int, help="closed loop: clients that send one request after another")
    loop.add_argument("--rate", type=float, help="open loop: requests per second")
    parser.add_argument("--input", type=parse_range, default=(32, 32), help="ids of a prompt, LOW:HIGH")
    parser.add_argument("--output", type=parse_range, default=(128, 128), help="tokens of an answer, LOW:HIGH")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=0, help="requests before, which are not counted")
    parser.add_argument("--api-key")
    parser.add_argument("--body", type=json.loads, default={}, help="further fields of each request, as JSON")
    parser.add_argument("--out", type=Path, help="write a JSON record")
    a = parser.parse_args()
    if a.streams is not None and a.streams % a.processes:
        parser.error("--streams must be a multiple of --processes")
    load = Load(a.model, a.requests, a.streams, a.rate, a.input, a.output, a.vocabulary, a.seed, a.processes, a.api_key)
    load = replace(load, body=a.body)
    if a.warmup:
        run_load(a.url, replace(load, requests=a.warmup, streams=a.warmup, rate=None, seed=load.seed + 1, processes=1))
    figures = run_load(a.url, load)
    settings = {name: value for name, value in asdict(load).items() if name != "api_key"}
    command = " ".join(["python", "benchmarks/http_load.py", *sys.argv[1:]])
    record = {"date": datetime.now(UTC).date().isoformat(), "command": command, "protocol": PROTOCOL}
    text = json.dumps({**record, "load": settings, **figures}, indent=1) + "\n"
    print(text, end="")
    if a.out is not None:
        a.out.write_text(text)


if __name__ == "__main__":
    main()

"""Cost of HTTP: tokens per second of an engine in process, and of the same engine behind the server.

    python benchmarks/serve_overhead.py benchmarks/results/serve-h200.json --case llama3.2-1b --streams 1,64

Random weights and no tokenizer. In process, so many requests are added together and stepped to their end. Over HTTP,
so many clients of another process (``http_load.py``) send one each at once, and read their streams. Rounds alternate;
the median of each counts, after one round of each that does not. Answers are long, because requests that start together
spend their first steps on connections. On a GPU this writes a record; elsewhere use ``-``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from http_load import Load, plan_requests, run_client
from script import format_command, make_parser, round_figure
from serve_model import build_engine

from interlace.bench.record import write_record
from interlace.workloads import LLAMAS

MEASURES = ("engine", "nn", "serve")
_VOCABULARY = 150  # ids that every shape has


def measure_engine(engine: Any, load: Load) -> float:
    """Return tokens per second of requests that are added together, in process."""
    from interlace.engine import SamplingParams

    planned = plan_requests(load)
    begin_s, tokens = time.perf_counter(), 0
    for number, request in enumerate(planned):
        params = SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
        engine.add_request(str(number), request.ids, params)
    while engine.has_unfinished:
        tokens += sum(len(output.token_ids) for news in engine.step() for output in news.outputs)
    return tokens / (time.perf_counter() - begin_s)


def measure_server(engine: Any, load: Load) -> dict[str, Any]:
    """Return the figures of ``http_load.py`` in a process of its own, against the server of an engine in this one.

    The server takes a signal to end, so the call is made on the main thread.
    """
    from interlace.serve.process import serve
    from interlace.serve.server import listen
    from interlace.serve.settings import ServerSettings

    with listen("127.0.0.1", 0) as listening, ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def send() -> dict[str, Any]:
            try:
                return run_client(url, load, warmup=load.requests)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)  # which ends the server

        figures = pool.submit(send)
        failure = serve(engine, ServerSettings(load.model), listening, print)
        if failure is not None:
            raise failure
        return figures.result()


def measure_case(engine: Any, load: Load, rounds: int) -> dict[str, Any]:
    """Return the row of a number of streams."""
    ways: dict[str, Callable[[], float]] = {
        "engine": lambda: measure_engine(engine, load),
        "http": lambda: measure_server(engine, load)["tokens_per_s"],
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, measure in ways.items():
            samples[name].append(measure())
    rates = {name: median(rates[1:]) for name, rates in samples.items()}
    return {
        "streams": load.streams,
        "engine_tokens_per_s": round_figure(rates["engine"]),
        "http_tokens_per_s": round_figure(rates["http"]),
        "ratio": round_figure(rates["http"] / rates["engine"]),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("record", help="file of the record, or - for none")
    parser.add_argument("--case", choices=sorted(LLAMAS), default="llama3.2-1b")
    parser.add_argument("--streams", default="1,64")
    parser.add_argument("--input", type=int, default=32)
    parser.add_argument("--output", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=4, help="clients' processes, for as many streams or more")
    a = parser.parse_args()
    rows = []
    for streams in map(int, a.streams.split(",")):
        engine = build_engine(a.case, max_num_seqs=streams, max_model_len=-(-(a.input + a.output) // 64) * 64)
        processes = a.processes if streams % a.processes == 0 else 1
        lengths = (a.input, a.input), (a.output, a.output)
        load = Load(a.case, streams, streams, None, *lengths, _VOCABULARY, processes=processes)
        rows.append({"case": a.case, "input": a.input, "output": a.output, **measure_case(engine, load, a.rounds)})
        print(rows[-1], flush=True)
        engine.close()
    if a.record != "-":
        options = [f"--case {a.case}", f"--streams {a.streams}", f"--input {a.input}", f"--output {a.output}"]
        protocol = f"median of {a.rounds} rounds after one, in turn; random weights; requests start together"
        path = Path(a.record)
        write_record(path, format_command(path, *options), protocol, MEASURES, {"rows": rows})


if __name__ == "__main__":
    main()

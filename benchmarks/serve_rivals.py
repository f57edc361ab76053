"""Our server and another one over HTTP: the same loads on both, in turns, on one GPU in one run.

    python benchmarks/serve_rivals.py benchmarks/results/serve-rivals-h200.json --case llama3.2-1b --name vLLM \\
        --rival 'vllm serve {config} --port {port} --served-model-name {model} --load-format dummy \\
        --skip-tokenizer-init --max-model-len 2048 --max-num-seqs 64 --kv-cache-memory-bytes 8G'

The rival is any server of OpenAI's API. ``--rival`` is its command line for a shell, in which ``{port}`` is the port
that it listens on, ``{model}`` the name of the model in requests, and ``{config}`` a folder whose ``config.json`` has
the shape of the case, for random weights. Ours is ``serve_model.py``. Both start at once on 127.0.0.1 and stay up, so
both need memory, but only one is measured at a time. ``http_load.py`` sends prompts of random ids and asks for the ids
of the answers, since neither has a tokenizer:

    closed loop    each of ``--streams`` clients sends one request after another; a round of each server is not counted,
                   and figures are medians of ``--rounds`` rounds, whose servers take turns in going first
    open loop      Poisson arrivals at each of ``--loads`` of the requests per second that the rival answered with the
                   most streams; one round of ``--open-seconds``

Each round draws new prompts, the same for both servers. Ratios above 1 are in our favour: ours over the rival's for
tokens per second, the rival's over ours for times. A rate that only one of them can take shows in its time to first
token, which then grows with the length of the round.

What does not begin within ``--seconds`` of the start is left out, and the record names it. It is written after every
loop, so a run that is ended early leaves what it has. A server that does not come up or dies ends the run with the end
of its log, and with what was measured. On a GPU this writes a record; elsewhere use ``-``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from http_load import Load, parse_range, run_client
from script import ROOT, format_command, format_error, make_parser, round_figure
from server_processes import Server, ServerError, run_servers

from interlace.bench.record import write_record
from interlace.workloads import LLAMAS, LlamaShape

MEASURES = ("engine", "nn", "serve")
PROTOCOL = (
    "random weights and ids over HTTP, both servers up and one loaded at a time, in turns; closed loops: medians of "
    "rounds after one that is not counted; open loops: Poisson arrivals at shares of the rival's requests per second"
)
OURS = "interlace"
#: Names of figures, and where http_load.py has them.
FIGURES: dict[str, tuple[str, ...]] = {name: (name,) for name in ("tokens_per_s", "requests_per_s")}
FIGURES |= {f"{kind}_{p}_ms": (f"{kind}_ms", p) for kind in ("request", "ttft", "itl") for p in ("p50", "p99")}
_BODY = {"return_token_ids": True}  # otherwise chunks without a tokenizer would be empty
_FEWEST_REQUESTS = 16  # of a closed loop
_LOAD_TIMEOUT_S = 60.0


def write_config(shape: LlamaShape, folder: Path) -> None:
    """Write the ``config.json`` that ``transformers`` would have of a shape."""
    family, name = ("qwen3", "Qwen3") if shape.qk_norm else ("qwen2", "Qwen2") if shape.qkv_bias else ("llama", "Llama")
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = {"architectures": [f"{name}ForCausalLM"], "model_type": family, "vocab_size": shape.vocabulary}
    config |= {"hidden_size": shape.hidden, "intermediate_size": shape.ffn, "num_hidden_layers": shape.layers}
    config |= {"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim}
    config |= {"rms_norm_eps": shape.eps, "tie_word_embeddings": shape.tied, "hidden_act": "silu"}
    config |= {"attention_bias": False, "max_position_embeddings": 131072, "dtype": "bfloat16"}
    config |= {"rope_parameters": rope, "rope_theta": rope["rope_theta"], "bos_token_id": 0, "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


@dataclass
class Comparison:
    """Loads on two servers in turns.

    Attributes:
        servers: ours, and the rival.
        deadline_s: time of the monotonic clock after which nothing more begins.
        rows: a row of each loop that was measured.
        left_out: reasons of all that was not, by its name.
    """

    servers: list[Server]
    deadline_s: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def measure(self, label: str, load: Load, rounds: int, warmups: int) -> None:
        """Measure a loop, and print and append its row if a round of it was counted.

        Raises:
            ServerError: a server died.
        """
        counted: list[dict[str, Any]] = []
        for number in range(warmups + rounds):
            what = f"{label}, " + (f"round {number - warmups + 1}" if number >= warmups else "warm-up")
            if time.monotonic() > self.deadline_s:
                self.left_out[f"{what} and later"] = "no time left"
                break
            order = self.servers if number % 2 == 0 else self.servers[::-1]
            figures = {server.name: _send(server, replace(load, seed=load.seed + number)) for server in order}
            failed = {name: found["errors"] for name, found in figures.items() if found["answered"] < load.requests}
            rates = [f"{server.name} {figures[server.name].get('tokens_per_s', 0):g}" for server in self.servers]
            print(f"  {what}: {', '.join(rates)} tokens/s", flush=True)
            if failed:
                self.left_out[what] = f"requests failed: {failed}"
            elif number >= warmups:
                counted.append(figures)
        if counted:
            self.rows.append(self._build_row(label, load, counted))
            self._print_row(self.rows[-1])

    def _build_row(self, label: str, load: Load, counted: list[dict[str, Any]]) -> dict[str, Any]:
        row: dict[str, Any] = {"loop": label, "requests": load.requests, "streams": load.streams, "rate": load.rate}
        for server in self.servers:
            rounds = [each[server.name] for each in counted]
            row[server.name] = {name: _find_median(path, rounds) for name, path in FIGURES.items()}
        ours, rival = (row[server.name] for server in self.servers)
        pairs = {name: (ours[name], rival[name])[:: 1 if name.endswith("per_s") else -1] for name in FIGURES}
        row["ratios"] = {name: round_figure(a / b) if b else None for name, (a, b) in pairs.items()}
        return {**row, "rounds": counted}

    def _print_row(self, row: Mapping[str, Any]) -> None:
        columns = [*(server.name for server in self.servers), "ratios"]
        print(f"{row['loop']:20}" + "".join(f"{name:>12}" for name in columns), flush=True)
        for figure in FIGURES:
            print(f"  {figure:18}" + "".join(f"{row[name][figure]!s:>12}" for name in columns), flush=True)


def _find_median(path: tuple[str, ...], rounds: list[Any]) -> float:
    return round_figure(median(reduce(lambda found, key: found[key], path, figures) for figures in rounds))


def _send(server: Server, load: Load) -> dict[str, Any]:
    """Return the figures of a load, or its errors."""
    try:
        found = run_client(server.url, load, timeout_s=_LOAD_TIMEOUT_S)
    except (subprocess.SubprocessError, ValueError) as error:
        found = {"answered": 0, "errors": [format_error(error)]}
    server.check()
    return found


def compare(comparison: Comparison, a: argparse.Namespace, write: Callable[[], None]) -> None:
    """Measure all loops of a command line, and write the record after each.

    Raises:
        ServerError: a server died.
    """
    vocabulary, streams = LLAMAS[a.case].vocabulary, [int(number) for number in a.streams.split(",")]
    load = Load(a.case, 0, None, None, a.input, a.output, vocabulary, processes=a.processes, body=a.body)
    seeds = count(0, 1000)  # a loop never repeats prompts of another, which a prefix cache would have
    for number in streams:
        processes = a.processes if number % a.processes == 0 else 1
        requests = max(_FEWEST_REQUESTS, a.requests * number)
        closed = replace(load, requests=requests, streams=number, processes=processes, seed=next(seeds))
        comparison.measure(f"{number} streams", closed, a.rounds, warmups=1)
        write()
    capacity = {row["streams"]: row[a.name]["requests_per_s"] for row in comparison.rows}.get(max(streams))
    for share in filter(None, a.loads.split(",")):
        if capacity is None:
            comparison.left_out[f"load {share}"] = f"{max(streams)} streams were not measured"
        else:
            rate = float(share) * capacity
            arrivals = replace(load, requests=ceil(rate * a.open_seconds), rate=rate, seed=next(seeds))
            comparison.measure(f"load {share}", arrivals, rounds=1, warmups=0)
        write()


def parse() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("record", help="file of the record, or - for none")
    parser.add_argument("--case", choices=sorted(LLAMAS), default="llama3.2-1b")
    parser.add_argument("--rival", required=True, metavar="COMMAND", help="with {port}, {model}, {config}")
    parser.add_argument("--name", default="rival", help="name of the rival in the record")
    parser.add_argument("--ours", default="--max-num-seqs 64 --max-model-len 2048", help="options of serve_model.py")
    parser.add_argument("--input", type=parse_range, default=(32, 256), help="ids of a prompt, LOW:HIGH")
    parser.add_argument("--output", type=parse_range, default=(128, 128), help="tokens of an answer, LOW:HIGH")
    parser.add_argument("--streams", default="1,64", help="numbers of clients of closed loops")
    parser.add_argument("--requests", type=int, default=8, help=f"of each client, at least {_FEWEST_REQUESTS} in all")
    parser.add_argument("--rounds", type=int, default=3, help="of closed loops")
    parser.add_argument("--loads", default="0.5,0.9", help="shares of the rival's requests per second")
    parser.add_argument("--open-seconds", type=float, default=10.0, help="of arrivals of an open loop")
    parser.add_argument("--body", type=json.loads, default=_BODY, help="further fields of each request, as JSON")
    parser.add_argument("--processes", type=int, default=4, help="clients' processes, for as many streams or more")
    parser.add_argument("--start-seconds", type=float, default=150.0, help="in which both servers must come up")
    parser.add_argument("--seconds", type=float, default=240.0, help="from the start, after which nothing more begins")
    parser.add_argument("--logs", type=Path, help="folder of the servers' logs; otherwise kept on failure only")
    a = parser.parse_args()
    if a.name == OURS:
        parser.error(f"--name {OURS} is our own")
    if a.output[0] < 2:
        parser.error("--output must be at least 2 tokens, else there is no inter-token latency")
    return a


def main() -> None:
    begin_s, a = time.monotonic(), parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the servers too
    script = shlex.join([sys.executable, str(ROOT / "benchmarks/serve_model.py"), a.case])
    commands = {OURS: f"{script} --port {{port}} {a.ours}", a.name: a.rival}
    options = shlex.join(word for word in sys.argv[1:] if word != a.record)
    with tempfile.TemporaryDirectory() as config:
        write_config(LLAMAS[a.case], Path(config))
        try:
            texts = {"model": a.case, "config": config}
            with run_servers(commands, texts, a.start_seconds, a.logs) as servers:
                comparison = Comparison(servers, begin_s + a.seconds)
                head = {"case": a.case, "rival": {"name": a.name, "version": servers[1].read_version()}}

                def write() -> None:
                    path, figures = Path(a.record), {"rows": comparison.rows, "left_out": comparison.left_out}
                    if a.record != "-":
                        write_record(path, format_command(path, options), PROTOCOL, MEASURES, {**head, **figures})

                compare(comparison, a, write)
                for what, reason in comparison.left_out.items():
                    print(f"left out: {what}: {reason}", flush=True)
        except ServerError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()

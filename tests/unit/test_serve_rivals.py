"""``benchmarks/serve_rivals.py``: two small servers in turns, rivals that never come up or die, and figures by hand."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("prometheus_client")
pytest.importorskip("pydantic")
pytest.importorskip("starlette")
pytest.importorskip("torch")
pytest.importorskip("uvicorn")
transformers = pytest.importorskip("transformers")

from interlace.workloads import LLAMAS  # noqa: E402

from ..benchmarks import BENCHMARKS, load_script  # noqa: E402

RIVALS = SimpleNamespace(**load_script("serve_rivals"))
#: A server of one route on {port}, which lists no models before it has started.
LISTEN = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(STATUS)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *words):
        print("asked for", self.path, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def format_server(status: int) -> str:
    code = LISTEN.replace("STATUS", str(status))
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {{port}}"


def make_figures(tokens_per_s: float, ms: float, answered: int = 4) -> dict[str, Any]:
    times = {"p50": ms, "p99": 2 * ms}
    figures = {"answered": answered, "errors": [], "tokens_per_s": tokens_per_s, "requests_per_s": tokens_per_s / 5}
    return {**figures, "request_ms": times, "ttft_ms": times, "itl_ms": times}


def make_server(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, url=name, check=lambda: None)


def make_load(**fields: Any) -> Any:
    return RIVALS.Load("tiny", 4, 2, None, (3, 3), (8, 8), 100, **fields)


def test_two_servers_are_measured_in_turns_and_ended(tmp_path: Path) -> None:
    script = shlex.quote(str(BENCHMARKS / "serve_model.py"))
    small = "--max-num-seqs 2 --max-model-len 64"
    command = [sys.executable, str(BENCHMARKS / "serve_rivals.py"), "-", "--case", "tiny", "--ours", small]
    command += ["--rival", f"echo $$ > {tmp_path}/pid; {sys.executable} {script} {{model}} --port {{port}} {small}"]
    command += ["--input", "3:8", "--output", "4", "--streams", "2", "--requests", "2", "--rounds", "1"]
    command += ["--loads", "0.5", "--open-seconds", "0.5", "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    tables = [line.split() for line in lines if line.startswith(("2 streams", "load 0.5", "  tokens_per_s"))]
    assert [table[:-3] for table in tables[::2]] == [["2", "streams"], ["load", "0.5"]]
    assert all(table[-3:] == ["interlace", "rival", "ratios"] for table in tables[::2])
    assert all(float(number) > 0 for table in tables[1::2] for number in table[1:])
    assert "left out" not in done.stdout
    shell = int((tmp_path / "pid").read_text())
    assert subprocess.run(["ps", "-o", "pid=", "--ppid", str(shell)], capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo no such flag >&2; exit 3", "rival ended with exit status 3; the end of .*rival.log:\nno such flag$"),
        (format_server(503), "rival does not answer within 2 s; the end of .*rival.log:\n(asked for /v1/models\n?)+$"),
    ],
)
def test_a_rival_that_never_comes_up_ends_both_servers_and_shows_its_log(
    command: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    servers: list[Any] = []
    start = RIVALS.Server.__init__

    class Noted(RIVALS.Server):  # type: ignore[misc, name-defined]
        def __init__(self, *fields: Any) -> None:
            start(self, *fields)
            servers.append(self)

    names = RIVALS.run_servers.__wrapped__.__globals__
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(names, "Server", Noted)
        commands = {"ours": format_server(200), "rival": command}
        with pytest.raises(RIVALS.ServerError, match=problem), RIVALS.run_servers(commands, {}, 2.0):
            raise AssertionError("a server that does not answer was waited for")
    assert [server.process.poll() is None for server in servers] == [False, False]


def test_a_rival_that_dies_ends_the_comparison_and_leaves_earlier_rows() -> None:
    commands = {"ours": format_server(200), "rival": format_server(200)}
    with RIVALS.run_servers(commands, {}, 20.0) as servers:
        comparison = RIVALS.Comparison(servers, time.monotonic() + 60, rows=[{"loop": "before"}])
        servers[1].process.kill()
        servers[1].process.wait()
        with pytest.raises(RIVALS.ServerError, match="rival ended with exit status -9"):
            comparison.measure("2 streams", make_load(), 1, 0)
    assert comparison.rows == [{"loop": "before"}]


def test_rounds_take_turns_and_failed_ones_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, int]] = []
    answers = {("ours", 1): (100, 4), ("ours", 2): (300, 2), ("ours", 3): (200, 3), ("rival", 3): (50, 6)}

    def send(url: str, load: Any, timeout_s: float) -> dict[str, Any]:
        sent.append((url, load.seed))
        if (url, load.seed) == ("rival", 2):
            return make_figures(1, 1, answered=3)
        return make_figures(*answers.get((url, load.seed), (40, 8)))

    monkeypatch.setitem(RIVALS.Comparison.measure.__globals__, "run_client", send)
    comparison = RIVALS.Comparison([make_server("ours"), make_server("rival")], time.monotonic() + 60)
    comparison.measure("2 streams", make_load(), 3, 1)
    assert [url for url, _ in sent] == ["ours", "rival", "rival", "ours"] * 2
    assert [seed for _, seed in sent] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert comparison.left_out == {"2 streams, round 2": "requests failed: {'rival': []}"}
    (row,) = comparison.rows
    assert (row["ours"]["tokens_per_s"], row["rival"]["tokens_per_s"]) == (150, 45)
    assert (row["ours"]["ttft_p99_ms"], row["rival"]["itl_p50_ms"]) == (7, 7)
    assert row["ratios"] == {**dict.fromkeys(RIVALS.FIGURES, 2.0), "tokens_per_s": 3.33, "requests_per_s": 3.33}
    assert len(row["rounds"]) == 2


def test_what_does_not_begin_in_time_is_left_out() -> None:
    comparison = RIVALS.Comparison([make_server("ours"), make_server("rival")], time.monotonic() - 1)
    comparison.measure("2 streams", make_load(), 3, 1)
    assert comparison.rows == []
    assert comparison.left_out == {"2 streams, warm-up and later": "no time left"}


@pytest.mark.parametrize("name", ["llama3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b"])
def test_transformers_reads_the_shape_from_the_config(name: str, tmp_path: Path) -> None:
    shape = LLAMAS[name]
    RIVALS.write_config(shape, tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    found = [config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.num_attention_heads]
    assert found == [shape.layers, shape.hidden, shape.ffn, shape.heads]
    assert [config.num_key_value_heads, config.vocab_size] == [shape.kv_heads, shape.vocabulary]
    assert getattr(config, "head_dim", config.hidden_size // config.num_attention_heads) == shape.head_dim
    assert (config.rms_norm_eps, config.tie_word_embeddings) == (shape.eps, shape.tied)
    assert config.architectures[0] in dir(transformers)

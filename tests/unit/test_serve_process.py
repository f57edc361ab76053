"""Two processes: an engine here, and the server of its answers in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
pytest.importorskip("pydantic")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from interlace.serve import process as process_module
from interlace.serve.process import serve
from interlace.serve.server import listen
from interlace.serve.settings import ServerSettings

from ..api_server import JSON, wait_until
from ..fake_engine import FakeEngine

ROOT = Path(__file__).parents[2]
TYPE = "content-type: application/json"
#: A server in a process of its own: it prints its port, and exits with 1 if it failed.
SERVER = """
import sys
from interlace.serve.process import serve
from interlace.serve.server import listen
from interlace.serve.settings import ServerSettings
from tests.fake_engine import FakeEngine

listening = listen("127.0.0.1", 0)
print(listening.getsockname()[1], flush=True)
sys.exit(serve(FakeEngine(), ServerSettings("fake"), listening, print) is not None)
"""


@dataclass
class Running:
    """A server that runs: a client of it, its process, and what ``serve`` will return."""

    http: httpx.Client
    process: subprocess.Popen[bytes]
    failure: Future[BaseException | None]
    lines: list[str]

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json={"model": "fake", **body})


@contextmanager
def run_both(engine: FakeEngine, **settings: Any) -> Iterator[Running]:
    """Run an engine on a thread, and its server in a process."""
    started: list[subprocess.Popen[bytes]] = []
    lines: list[str] = []

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    with pytest.MonkeyPatch.context() as patch, listen("127.0.0.1", 0) as listening, ThreadPoolExecutor(1) as pool:
        patch.setattr(process_module.subprocess, "Popen", Popen)
        patch.setenv("PYTHONPATH", str(ROOT))  # the tokenizer is one of the tests
        patch.setattr(process_module.gc, "freeze", lambda: None)
        if settings.pop("logs_prompts", False):
            settings["log_prompt"] = lambda text: lines.append(f"prompt: {text}")
        failure = pool.submit(serve, engine, ServerSettings("fake", **settings), listening, lines.append)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        wait_until(lambda: bool(started))
        try:
            with httpx.Client(base_url=url, timeout=60, trust_env=False, headers=JSON) as http:
                yield Running(http, started[0], failure, lines)
        finally:
            started[0].kill()
            failure.result(20)


def test_answers_limits_counters_and_prompts_cross_both_processes() -> None:
    engine = FakeEngine(max_num_seqs=4, max_model_len=64, script={"hi": "hello"})
    with run_both(engine, logs_prompts=True) as running, ThreadPoolExecutor(4) as pool:
        whole = running.post("/v1/completions", prompt="abc", max_tokens=5).json()
        assert whole["choices"][0] == {"index": 0, "text": "abcab", "logprobs": None, "finish_reason": "length"}
        assert whole["usage"]["completion_tokens"] == 5
        body = {"model": "fake", "prompt": ["ab", "cd"], "max_tokens": 4, "stream": True}
        with running.http.stream("POST", "/v1/completions", json=body) as response:
            events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
        texts = ["", ""]
        for event in events:
            texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert texts == ["abab", "cdcd"]
        chat = running.post("/v1/chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=5)
        assert chat.json()["choices"][0]["message"]["content"] == "hello"
        many = pool.map(lambda n: running.post("/v1/completions", prompt="x" * n, max_tokens=9).json(), range(1, 20))
        assert {each["choices"][0]["text"] for each in many} == {"x" * 9}
        long = running.post("/v1/completions", prompt="x" * 64)
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        wrong = running.post("/v1/completions", prompt=[1 << 30])
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "prompt")
        regex = running.post("/v1/completions", prompt="a", structured_outputs={"regex": "bad"})
        assert (regex.status_code, regex.json()["error"]["param"]) == (400, "structured_outputs")
        assert "vllm:generation_tokens_total" in running.http.get("/metrics").text
        assert running.lines[0] == "prompt: abc"
        assert engine.requests == {}
        running.process.send_signal(signal.SIGTERM)
        assert running.failure.result(20) is None
    assert "MainThread" not in engine.threads


def test_a_request_that_its_client_leaves_ends_in_the_engine() -> None:
    gate = threading.Semaphore(1)
    engine = FakeEngine(gate=gate, max_model_len=1 << 16)
    with run_both(engine) as running, socket.socket() as client:
        client.connect((running.http.base_url.host, running.http.base_url.port))
        body = json.dumps({"model": "fake", "prompt": "abc", "max_tokens": 1000, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\n{TYPE}\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_until(lambda: engine.tokens == 1)
        client.close()
        gate.release(100)
        wait_until(lambda: bool(engine.aborted))
        gate.release(1000)
        wait_until(lambda: engine.requests == {})


def test_an_engine_that_fails_ends_both() -> None:
    gate = threading.Semaphore(1)
    engine = FakeEngine(gate=gate)
    with run_both(engine) as running, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(running.post, "/v1/completions", prompt="abc", max_tokens=100)
        wait_until(lambda: engine.tokens == 1)
        engine.fault = RuntimeError("CUDA error: secret prompt")
        gate.release(10)
        response = answer.result()
        assert (response.status_code, response.json()["error"]["message"]) == (500, "the engine has failed")
        assert running.failure.result(20) is engine.fault
        assert running.process.wait(20) == 1


def test_a_server_that_is_killed_ends_the_engine() -> None:
    engine = FakeEngine()
    with run_both(engine) as running:
        assert running.http.get("/health").status_code == 200
        running.process.kill()
        assert str(running.failure.result(20)) == "the server's process ended with status -9"


def test_a_server_that_ends_before_it_is_told_anything_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe to the server holds less than the message to it."""
    monkeypatch.setattr(process_module, "_COMMAND", "import sys; sys.exit(3)")
    engine = FakeEngine(chat_template="x" * (1 << 20))
    with run_both(engine) as running:
        assert str(running.failure.result(20)) == "the server's process ended with status 3"


@contextmanager
def run_script() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the script, and yield its process and port once it answers."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, env=environment, text=True) as engine:
        assert engine.stdout is not None
        port = int(engine.stdout.readline())
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=60, trust_env=False).json() == {"status": "ok"}
        yield engine, port


def test_a_server_ends_with_its_engine_though_nobody_asks_it_anything() -> None:
    with run_script() as (engine, port):
        engine.kill()

        def is_gone() -> bool:
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) != 0

        wait_until(is_gone)


def test_a_signal_of_the_engines_process_reaches_the_server() -> None:
    with run_script() as (engine, _):
        engine.send_signal(signal.SIGINT)
        assert engine.wait(20) == 0

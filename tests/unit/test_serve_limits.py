"""Limits of the server: keys, queues, bodies, times, clients that leave, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("starlette")
pytest.importorskip("torch")
pytest.importorskip("pydantic")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

import interlace.serve.server as server_module
from interlace.engine import RequestOutput
from interlace.serve.server import ApiConnection

from ..api_server import RunningServer, run_server, wait_until
from ..fake_engine import FakeEngine

TYPE = "content-type: application/json"
LONG = {"model": "fake", "prompt": "abc", "max_tokens": 1000}


@contextmanager
def run_gated(permits: int = 0, **settings: Any) -> Iterator[tuple[RunningServer, FakeEngine, threading.Semaphore]]:
    """Run a server whose engine takes so many steps, until more are released."""
    gate = threading.Semaphore(permits)
    engine = FakeEngine(gate=gate, max_num_seqs=2)
    with run_server(engine, **settings) as server:
        yield server, engine, gate


def test_a_key_must_be_sent_where_one_is_set() -> None:
    with run_server(FakeEngine(), api_key="secret-ü") as server:
        for sent in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "secret"},
            {"authorization": b"Bearer \xff"},
        ):
            for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
                response = server.http.request(method, path, headers=sent)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
        key = {"authorization": "Bearer secret-ü".encode()}
        assert server.http.get("/v1/models", headers=key).status_code == 200
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/metrics").status_code == 200


def test_a_full_queue_is_answered_with_429_and_when_to_try_again() -> None:
    with run_gated(max_waiting=1) as (server, engine, gate), ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(server.post, "/v1/completions", prompt="abc", max_tokens=2) for _ in range(3)]
        wait_until(lambda: len(engine.requests) == 3)
        refused = server.post("/v1/completions", prompt="abc")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"] == {
            "message": "3 texts are running or waiting; try again later",
            "type": "rate_limit_error",
            "param": None,
            "code": "queue_full",
        }
        many = server.post("/v1/completions", prompt=["a"] * 4)
        assert (many.status_code, many.json()["error"]["param"]) == (400, "prompt")
        assert server.post("/v1/completions", prompt=["a"] * 2, n=2).status_code == 400
        text = server.http.get("/metrics").text
        assert 'vllm:num_requests_running{model_name="fake"} 2.0' in text
        assert 'vllm:num_requests_waiting{model_name="fake"} 1.0' in text
        gate.release(100)
        assert [each.result().json()["choices"][0]["text"] for each in waiting] == ["ab"] * 3
        assert server.post("/v1/completions", prompt="abc", max_tokens=1).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_drops_a_request_whose_client_leaves(stream: bool) -> None:
    with run_gated(5) as (server, engine, gate):
        body = json.dumps({**LONG, "stream": stream}).encode()
        with socket.create_connection(server.uvicorn.servers[0].sockets[0].getsockname()) as client:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\n{TYPE}\r\ncontent-length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            wait_until(lambda: engine.tokens == 5)
            if stream:
                assert client.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
            assert engine.aborted == []
        wait_until(lambda: len(engine.aborted) == 1)
        assert engine.requests == {}
        gate.release(100)
        assert server.post("/v1/completions", prompt="abc", max_tokens=3).json()["choices"][0]["text"] == "abc"


def test_all_prompts_of_a_request_end_when_one_is_refused() -> None:
    with run_gated(100) as (server, engine, gate):
        response = server.post("/v1/completions", prompt=[[97], [-1], [98]], max_tokens=1000)
        assert response.status_code == 400
        wait_until(lambda: engine.requests == {})
        gate.release(100)
        assert server.post("/v1/completions", prompt="abc", max_tokens=3).status_code == 200


def test_the_other_texts_of_a_request_end_when_one_fails() -> None:
    with run_gated(1) as (server, engine, _):
        step = engine.step

        def fail_one_text() -> list[RequestOutput]:
            news = step()
            for output in news:
                output.error = "a limit was reached"
            return news

        engine.step = fail_one_text  # type: ignore[method-assign]
        response = server.post("/v1/completions", prompt="abc", n=2, max_tokens=1000)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")
        wait_until(lambda: len(engine.aborted) == 1)
        assert engine.requests == {}


def test_an_answer_that_takes_too_long_is_ended() -> None:
    with run_gated(3, answer_timeout_s=0.3) as (server, engine, _):
        response = server.http.post("/v1/completions", json=LONG)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
        assert server.http.post("/v1/completions", json={**LONG, "stream": True}).status_code == 504
        wait_until(lambda: engine.requests == {})
    with run_gated(3, answer_timeout_s=0.5) as (server, engine, _):
        *events, error, end, _ = server.http.post("/v1/completions", json={**LONG, "stream": True}).text.split("\n\n")
        assert [json.loads(event[6:])["choices"][0]["text"] for event in events] == ["a", "b", "c"]
        assert json.loads(error[6:])["error"]["code"] == "timeout"
        assert end == "data: [DONE]"


def test_a_body_that_is_too_long_or_too_late_is_refused() -> None:
    with run_server(FakeEngine(), max_body_bytes=1000, body_timeout_s=0.2) as server:
        for content in (b"x" * 1001, iter([b"x" * 600] * 2)):
            response = server.http.post("/v1/completions", content=content)
            assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")
        with socket.create_connection(server.uvicorn.servers[0].sockets[0].getsockname()) as client:
            client.sendall(
                f"POST /v1/completions HTTP/1.1\r\nhost: a\r\n{TYPE}\r\ncontent-length: 10\r\n\r\n{{".encode()
            )
            assert client.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert server.post("/v1/completions", prompt="abc").status_code == 200


def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApiConnection, "request_timeout_s", 0.2)
    with run_server(FakeEngine()) as server:
        for sent in (b"", b"POST /v1/completions HTTP/1.1\r\nhost: "):
            with socket.create_connection(server.uvicorn.servers[0].sockets[0].getsockname()) as client:
                client.sendall(sent)
                assert client.recv(100) == b""
        assert server.post("/v1/completions", prompt="abc").status_code == 200


def test_a_failed_engine_fails_its_requests_and_ends_the_server() -> None:
    with run_gated() as (server, engine, gate), ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.http.post, "/v1/completions", json=LONG)
        wait_until(lambda: len(engine.requests) == 1)
        engine.fault = RuntimeError("CUDA error: secret prompt")
        gate.release()
        response = running.result()
        assert (response.status_code, response.json()["error"]["message"]) == (500, "the engine has failed")
        wait_until(lambda: server.uvicorn.should_exit)
        assert server.api.engine_thread.failure is engine.fault


def test_the_first_signal_lets_requests_finish_and_refuses_new_ones() -> None:
    with run_gated(1) as (server, engine, gate), ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.http.post, "/v1/completions", json={**LONG, "max_tokens": 4})
        wait_until(lambda: engine.tokens == 1)
        server.uvicorn.handle_exit(signal.SIGTERM, None)
        refused = server.post("/v1/completions", prompt="a")
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert refused.json()["error"]["code"] == "shutting_down"
        assert server.http.get("/health").status_code == 503
        assert not server.uvicorn.should_exit
        gate.release(3)
        assert running.result().json()["choices"][0]["text"] == "abca"
        wait_until(lambda: server.uvicorn.should_exit)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs TCP_USER_TIMEOUT")
def test_a_client_that_reads_no_answer_does_not_keep_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "UNREAD_TIMEOUT_S", 0.5)
    engine = FakeEngine(max_model_len=1 << 20)
    with run_server(engine) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(server.uvicorn.servers[0].sockets[0].getsockname())
        body = json.dumps({**LONG, "max_tokens": 1 << 19, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\n{TYPE}\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_until(lambda: engine.tokens > 0)
        server.uvicorn.handle_exit(signal.SIGTERM, None)
        wait_until(lambda: server.uvicorn.should_exit)
        assert engine.requests == {}


def test_the_second_signal_ends_running_requests() -> None:
    with run_gated(1) as (server, engine, _), ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.http.post, "/v1/completions", json=LONG)
        wait_until(lambda: engine.tokens == 1)
        for _ in range(2):
            server.uvicorn.handle_exit(signal.SIGINT, None)
        assert (running.result().status_code, running.result().json()["error"]["code"]) == (503, "shutting_down")


def test_news_of_a_step_cross_to_the_event_loop_in_one_call() -> None:
    """Sixteen requests of ten tokens take at least ten steps; each step makes one call, whatever it has."""
    gate = threading.Semaphore(0)
    engine = FakeEngine(gate=gate, max_num_seqs=16)
    with run_server(engine) as server, ThreadPoolExecutor(16) as pool:
        calls: list[int] = []
        deliver = server.api.engine_thread._deliver

        def count(outputs: Any) -> None:
            assert asyncio.get_running_loop() is not None
            calls.append(len(outputs))
            deliver(outputs)

        server.api.engine_thread._deliver = count  # type: ignore[method-assign]
        running = [pool.submit(server.post, "/v1/completions", prompt="abc", max_tokens=10) for _ in range(16)]
        wait_until(lambda: len(engine.requests) == 16)
        gate.release(10)
        assert {each.result().json()["choices"][0]["text"] for each in running} == {"abcabcabca"}
    assert calls == [16] * 10

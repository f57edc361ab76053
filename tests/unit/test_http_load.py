"""``benchmarks/http_load.py``: loads that a seed decides, figures by hand, and a server that answers them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("prometheus_client")
pytest.importorskip("pydantic")
pytest.importorskip("starlette")
pytest.importorskip("torch")
pytest.importorskip("uvicorn")

from ..api_server import run_server
from ..benchmarks import load_script
from ..fake_engine import FakeEngine

LOAD = SimpleNamespace(**load_script("http_load"))


def make_load(**fields: Any) -> Any:
    settings = {"requests": 12, "streams": 4, "rate": None, "input_tokens": (3, 9), "output_tokens": (1, 20)}
    return LOAD.Load("fake", **{**settings, "vocabulary": 100, **fields})


def test_a_seed_decides_ids_lengths_and_arrivals() -> None:
    planned = LOAD.plan_requests(make_load(requests=2000, streams=None, rate=8.0, seed=3))
    assert planned == LOAD.plan_requests(make_load(requests=2000, streams=None, rate=8.0, seed=3))
    assert planned != LOAD.plan_requests(make_load(requests=2000, streams=None, rate=8.0, seed=4))
    assert {len(each.ids) for each in planned} == {*range(3, 10)}
    assert {each.output_tokens for each in planned} == {*range(1, 21)}
    assert {id for each in planned for id in each.ids} == {*range(100)}
    assert planned[0].arrival_s == 0.0
    assert 2000 / planned[-1].arrival_s == pytest.approx(8.0, rel=0.1)


@pytest.mark.parametrize("loop", [{"streams": 4}, {"streams": None, "rate": 200.0}, {"streams": 1}])
def test_every_request_is_sent_once_and_every_token_counted(loop: dict[str, Any]) -> None:
    engine = FakeEngine()
    load = make_load(**loop)
    with run_server(engine) as server:
        figures = LOAD.run_load(server.url, load)
    planned = LOAD.plan_requests(load)
    tokens = sum(each.output_tokens for each in planned)
    assert (figures["answered"], figures["errors"]) == (12, [])
    assert (figures["output_tokens"], figures["chunks"]) == (tokens, tokens)
    assert figures["input_tokens"] == sum(len(each.ids) for each in planned)
    assert sorted(params.max_tokens for params in engine.params) == sorted(each.output_tokens for each in planned)
    assert all(params.ignore_eos and params.temperature == 0 for params in engine.params)


def test_further_fields_are_sent_with_every_request() -> None:
    engine = FakeEngine()
    with run_server(engine) as server:
        figures = LOAD.run_load(server.url, make_load(body={"top_k": 5, "temperature": 9}))
    assert figures["answered"] == 12
    assert [(params.top_k, params.temperature) for params in engine.params] == [(5, 0)] * 12


def test_refused_requests_are_reported_and_not_counted() -> None:
    with run_server(FakeEngine(), api_key="secret") as server:
        refused = LOAD.run_load(server.url, make_load())
        answered = LOAD.run_load(server.url, make_load(api_key="secret"))
    assert refused["answered"] == 0
    assert [error[:4] for error in refused["errors"]] == ["401:"]
    assert answered["answered"] == 12


def test_figures_are_those_of_the_times() -> None:
    times = [
        LOAD.RequestTimes(1.0, [1.5, 1.6, 1.9], 10, 3),
        LOAD.RequestTimes(2.0, [2.1, 3.0], 20, 2),
        LOAD.RequestTimes(2.0, error="500: x"),
    ]
    figures = LOAD.summarise(times)
    assert (figures["answered"], figures["errors"]) == (2, ["500: x"])
    assert (figures["seconds"], figures["tokens_per_s"], figures["requests_per_s"]) == (2.0, 2.5, 1.0)
    assert figures["ttft_ms"] == {"mean": 300, "p50": 500, "p90": 500, "p99": 500}
    assert figures["itl_ms"] == {"mean": 433, "p50": 300, "p90": 900, "p99": 900}
    assert figures["request_ms"]["mean"] == 950


def test_random_weights_answer_as_many_tokens_over_http_as_in_process() -> None:
    overhead = SimpleNamespace(**load_script("serve_overhead"))
    engine = overhead.build_engine("tiny", max_num_seqs=2, max_model_len=64)
    load = make_load(requests=2, streams=2, input_tokens=(8, 8), output_tokens=(5, 5))
    figures = overhead.measure_server(engine, load)
    assert (figures["answered"], figures["output_tokens"], figures["errors"]) == (2, 10, [])
    assert overhead.measure_engine(engine, load) > 0
    assert not engine.has_unfinished

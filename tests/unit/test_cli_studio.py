"""``interlace studio``: where it listens, what it says, and what it refuses."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

import interlace as il
from interlace.studio import server
from interlace.studio.pending import Pending
from interlace.studio.plan_view import PlanView

from ..studio_server import send
from .commands import fail, succeed

RECORDS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_it_says_where_the_page_is_answers_there_and_ends_with_ctrl_c() -> None:
    command = [sys.executable, "-m", "interlace", "studio", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("http://127.0.0.1:")
        port = int(said.split(":")[2].partition("/")[0])
        assert send(port, "GET", "/")[0] == 200
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=240)
    assert (process.returncode, rest, errors) == (0, "", "")


def test_a_plan_is_read_as_other_commands_do_and_is_where_the_page_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = []
    monkeypatch.setattr(server, "serve", lambda port, view, **more: served.append(view))
    plan = tmp_path / "plan.json"
    succeed("plan", "two-copies", "--m", 64, "--n", 64, "--out", plan)
    succeed("studio", plan, "--no-browser")
    succeed("studio")
    assert served[0].page == "plan.html"
    while (view := served[0].view()) is None:
        time.sleep(0.01)
    assert view.plan.to_json() == plan.read_text()
    assert (view.fault, view.trace is None) == (None, False)
    assert served[1] is None
    assert "no file" in fail(2, "studio", tmp_path)
    plan.write_text("{}")
    assert "not a plan" in fail(2, "studio", plan)
    assert len(served) == 2


def test_traces_and_records_are_told_by_what_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = []
    monkeypatch.setattr(server, "serve", lambda port, view, **more: served.append(view))
    plan, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    succeed("plan", "two-copies", "--m", 64, "--n", 64, "--out", plan)
    succeed("trace", plan, "--device", "cpu", "--executor", "reference", "--out", trace)
    succeed("studio", trace, trace)
    succeed("studio", RECORDS / "ffn-h200.json")
    succeed("studio", RECORDS / "ffn-h200.json", RECORDS / "decode-h200.json", RECORDS / "traffic-h200.json")
    assert [view.page for view in served] == ["trace.html", "records.html", "records.html"]
    assert [timeline.trace.clock for timeline in served[0].timelines] == ["steps", "steps"]
    trace.write_text(trace.read_text().replace('"steps"', '"ns"'))
    succeed("studio", trace, plan)
    measured, predicted = served[3].timelines
    assert predicted.title.startswith("predicted, NVIDIA H200")
    assert (predicted.trace.ops, predicted.tiles) == (measured.trace.ops, measured.tiles)
    assert "do not go together" in fail(2, "studio", plan, trace)
    assert "do not go together" in fail(2, "studio", trace, RECORDS / "ffn-h200.json")
    other = fail(2, "studio", RECORDS / "sync-h200.json")
    assert "sync-h200.json" in other
    assert "but of `interlace bench sync` (it has no 'rows')" in other
    trace.write_text('{"traceEvents": []}')
    assert "not a trace that `interlace trace` wrote" in fail(2, "studio", trace)
    assert len(served) == 4


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = fail(2, "studio", "--port", port, "--no-browser")
    assert f"cannot listen on port {port}: Address already in use; choose another one with --port" in message


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # importing it fails, as on the base install
    monkeypatch.delattr("interlace.studio.server", raising=False)
    monkeypatch.delitem(sys.modules, "interlace.studio.server", raising=False)
    assert "pip install -e '.[studio]'" in fail(1, "studio", "--no-browser")


def test_the_address_is_known_before_anything_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    made = threading.Event()

    def simulate() -> PlanView:
        order.append("simulate")
        made.set()
        return PlanView.from_plan(il.build(il.workloads.two_copies(64, 64), il.Schedule(2)))

    class Server:
        def run(self, sockets: object) -> None:
            assert made.wait(60)

    monkeypatch.setattr(server, "build_server", lambda listening, view: Server())
    pending = Pending(PlanView, simulate, "simulating")
    server.serve(0, pending, browser=False, report=lambda address: order.append(address.rpartition("/")[2]))
    assert order == ["plan.html", "simulate"]

"""The first use of a command: what is compiled, and what the command says meanwhile."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import event

from interlace.cli.first_use import CACHE_MODEL, EVENT_LOOP, SEARCH, SIMULATOR, Part, note_compiling
from interlace.core.compiling import report_compiling, reports_to
from interlace.planner import predict
from interlace.sim.engine import sort

from .commands import invoke

_COMMANDS = """
import sys
from collections import Counter
from numba.core import event
from numba.core.dispatcher import Dispatcher
from interlace.cli import app

class Compilations(event.Listener):
    counts = Counter()

    def on_start(self, event):
        function = event.data["dispatcher"]
        if function.__module__.startswith("interlace."):
            self.counts[f"{function.__module__}.{function.__name__}"] += 1

    def on_end(self, event):
        pass

event.register("numba:compile", Compilations())

def compiled():
    modules = [module for name, module in sys.modules.items() if name.startswith("interlace.")]
    functions = {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
    return {f"{f.__module__}.{f.__name__}": len(f.signatures) for f in functions if f.signatures}

def call(*arguments):
    try:
        app(arguments, standalone_mode=False)
    except SystemExit as end:
        assert not end.code
    return compiled()

traffic = call("traffic", "one-matmul", "--m", "256", "--n", "256", "--k", "256")
assert "interlace.sim.engine.run_engine" not in traffic, traffic
found = call("run", "ffn")
assert "interlace.sim.engine.run_engine" in found, found
call("traffic", "one-matmul", "--m", "256", "--n", "256", "--k", "256", "--sweep")
call("order", "--grid", "3x3", "--capacity", "3")
found = call("order", "--grid", "2x3", "--capacity", "5", "--chunks", "2", "--cache", "opt")
assert "interlace.orders.astar._expand" in found, found
assert set(found.values()) == {1}, found
# Helpers are compiled at most twice: with functions that Python calls, and with other helpers.
assert set(Compilations.counts.values()) <= {1, 2}, Compilations.counts
assert all(Compilations.counts[name] <= 1 for name in found), Compilations.counts
"""

_MODULE = """
from interlace.core.jit import cached_njit

@cached_njit
def twice(x):
    return x + x
"""


@pytest.mark.parametrize("cache", ["warm", pytest.param("cold", marks=pytest.mark.thorough)])
def test_each_function_has_one_signature_and_traffic_compiles_no_event_loop(tmp_path: Path, cache: str) -> None:
    """In a process of its own, because other tests call these functions with other types."""
    environment = os.environ | ({"NUMBA_CACHE_DIR": str(tmp_path)} if cache == "cold" else {})
    command = [sys.executable, "-c", _COMMANDS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


class _Compilations(event.Listener):
    def __init__(self, order: list[str]) -> None:
        self._order = order

    def on_start(self, event: Any) -> None:
        self._order.append(f"compile {event.data['dispatcher'].__name__}")

    def on_end(self, event: Any) -> None:
        pass


def test_a_function_is_reported_before_it_is_compiled_and_not_when_it_is_loaded(tmp_path: Path) -> None:
    path, order = tmp_path / "module.py", []
    path.write_text(_MODULE)

    def load() -> Any:
        spec = importlib.util.spec_from_file_location("module", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.twice

    with (
        reports_to(lambda module, name: order.append(f"report {module}.{name}")),
        event.install_listener("numba:compile", _Compilations(order)),
    ):
        assert load()(4) == 8
        assert load()(4) == 8
    assert order == ["report module.twice", "compile twice"]
    assert load()(4.0) == 8.0  # nobody listens any more
    assert len(order) == 2


def test_a_function_is_reported_that_has_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from interlace.core import jit

    def refuse(function: object) -> None:
        raise RuntimeError("no folder")

    monkeypatch.setattr(jit, "_CheckedCache", refuse)
    order: list[str] = []
    with reports_to(lambda module, name: order.append(name)):
        assert jit.cached_njit(lambda x: x + 1)(1) == 2
    assert order == ["<lambda>"]


def test_each_part_is_noted_once_before_it_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    with note_compiling():
        report_compiling("interlace.sim.traffic", "_size")
        noted = f"{CACHE_MODEL.name} for this machine (once; about {CACHE_MODEL.seconds} s"
        assert noted in capsys.readouterr().err
        report_compiling("interlace.sim.l2", "_missed")
        report_compiling("a_module_of_a_user", "run")
        assert capsys.readouterr().err == ""
        report_compiling("interlace.sim.engine", "run")
        assert f"{EVENT_LOOP.name} for this machine" in capsys.readouterr().err
        report_compiling("interlace.sim.memory", "find_level")
        assert capsys.readouterr().err == ""
        report_compiling("interlace.orders.astar", "_run")
        assert f"{SEARCH.name} for this machine" in capsys.readouterr().err
    report_compiling("interlace.sim.traffic", "_size")
    assert capsys.readouterr().err == ""


def test_commands_note_what_they_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    count = predict.count_traffic

    def compile_and_count(*arguments: Any) -> Any:
        report_compiling("interlace.sim.traffic", "_size")
        return count(*arguments)

    monkeypatch.setattr(predict, "count_traffic", compile_and_count)
    assert "compiling the simulator's cache model" in invoke("traffic", "two-copies", "--m", 64, "--n", 64).stderr


@pytest.mark.parametrize("values", [[], [3], [2, 1], [5, 4, 3, 2, 1, 0], [1, 0, 2, 9, 8, 7, 3]])
def test_a_part_of_a_column_is_sorted(values: list[int]) -> None:
    column = np.array([99, *values, -99])
    sort(column, 1, len(values) + 1)
    assert column.tolist() == [99, *sorted(values), -99]


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (("run", "ffn"), SIMULATOR),
        (("explain", "ffn"), SIMULATOR),
        (("bench", "dispatch"), SIMULATOR),
        (("studio",), SIMULATOR),
        (("order",), SEARCH),
    ],
)
def test_help_says_what_the_first_use_takes(command: tuple[str, ...], part: Part) -> None:
    shown = " ".join(invoke(*command, "--help").stdout.replace("│", " ").split())
    assert f"compiles {part.name}, about {part.seconds} s once" in shown

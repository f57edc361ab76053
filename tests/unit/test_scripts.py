"""Parts that the scripts of ``benchmarks`` share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from interlace.bench.problem import BenchProblem
from interlace.core.errors import ResultError

from ..benchmarks import BENCHMARKS, load_script

SCRIPT = SimpleNamespace(**load_script("script"))


def test_only_one_place_parses_arguments_and_starts_jobs() -> None:
    others = {path.name: path.read_text() for path in BENCHMARKS.glob("*.py") if path.name != "script.py"}
    for once in ("ArgumentParser(", "run_on_gpus(", "takewhile(", "ProcessPoolExecutor(", "create_block_mask("):
        assert [name for name, text in others.items() if once in text] == [], once


def test_jobs_go_on_after_one_that_fails_and_end_with_the_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(function: Callable[[int], object], jobs: Iterable[int], gpus: int, share: int) -> Iterator[object]:
        assert (gpus, share) == (2, 3)
        return ((job, function(job)) for job in jobs)

    now = iter([0.0, *(n for n in range(100) for _ in range(2))])
    monkeypatch.setattr("interlace.bench.gpus.run_on_gpus", run)
    clock = SimpleNamespace(monotonic=lambda: float(next(now)))
    monkeypatch.setitem(SCRIPT.measure_jobs.__globals__, "time", clock)
    done = SCRIPT.measure_jobs(lambda n: 12 // n, range(9), "job {}".format, seconds=3.0, gpus=2, share=3)
    assert list(done) == [(1, 12), (2, 6)]
    assert capsys.readouterr().out.splitlines() == [
        "[  0.0 s] job 0",
        "  left out: ZeroDivisionError: integer division or modulo by zero",
        "[  1.0 s] job 1",
        "[  2.0 s] job 2",
    ]


def test_a_record_names_the_script_that_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/some/where/moe.py", "x.json"])
    command = SCRIPT.format_command(Path("/tmp/moe-h200.json"), "--case a")
    assert command == "python benchmarks/moe.py benchmarks/results/moe-h200.json --case a"


@pytest.mark.parametrize(("pytorch", "fp32_bound", "right"), [(1e-3, 0.0, True), (5e-4, 0.0, False), (0.0, 1e-2, True)])
def test_a_function_is_right_up_to_one_and_a_half_times_the_error_of_pytorch(
    pytorch: float, fp32_bound: float, right: bool
) -> None:
    problem = SimpleNamespace(rest={"x": 1.0}, weights=[{"w": 2.0}], pytorch_error=pytorch, _most=fp32_bound)
    problem.compute_error = lambda outputs: outputs["out"]
    for name in ("_list_inputs", "_check_error"):
        setattr(problem, name, partial(getattr(BenchProblem, name), problem))
    check = partial(BenchProblem.check_function, problem, lambda t: {"out": t["x"] * t["w"] * 6e-4}, "the module")
    if right:
        assert check() == pytest.approx(1.2e-3)
        assert check([{"w": 1.0}]) == pytest.approx(6e-4)
    else:
        with pytest.raises(ResultError, match=r"^the module is wrong: relative error 1.2e-03, where PyTorch has 5.0e"):
            check()

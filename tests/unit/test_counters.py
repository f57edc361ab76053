"""Hardware counters: what the profiler is asked for, how its table is read, and what is said when it fails."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from interlace.bench.counters import count_launches, find_ncu, parse_counters
from interlace.bench.profile import METRICS
from interlace.core.errors import ProfilerError

from .profiler import csv, install, launch

#: As `ncu --csv --page raw` prints it: names, units, and a row per launch with separators of thousands.
TABLE = """\
==PROF== Connected to process 8123 (/usr/bin/python3.12)
==PROF== Profiling "one_launch" - 0: 0%....50%....100% - 2 passes
"not", "a table"
==PROF== Disconnected from process 8123
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","lts__t_sector_hit_rate.pct"
"","","","","","","","","","","","byte","byte","ns","%"
"0","8123","python3.12","127.0.0.1","one_launch","1","7","(256, 1, 1)","(132, 1, 1)","0","9.0",\
"236,223,488","3,166,464","62,752","10.31"
"1","8123","python3.12","127.0.0.1","one_launch","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0",\
"2,608,404,224","303,370,496","2,408,960","77.93"
"""


def test_a_table_is_read_amid_other_output_launch_by_launch() -> None:
    assert parse_counters(TABLE, METRICS) == [
        {"dram_read_bytes": 236223488.0, "dram_write_bytes": 3166464.0, "l2_hit_pct": 10.31, "ns": 62752.0},
        {"dram_read_bytes": 2608404224.0, "dram_write_bytes": 303370496.0, "l2_hit_pct": 77.93, "ns": 2408960.0},
    ]


def test_only_the_metrics_asked_for_are_returned() -> None:
    assert parse_counters(TABLE, {"us": "gpu__time_duration.sum"}) == [{"us": 62752.0}, {"us": 2408960.0}]


def test_what_the_command_prints_behind_the_table_is_no_row() -> None:
    text = '"ID","x"\n"","byte"\n"0","5"\nbye\n"1","6"\n'
    assert parse_counters(text, {"bytes": "x"}) == [{"bytes": 5.0}]


def test_a_table_without_launches_has_no_counters() -> None:
    assert parse_counters(csv([]), METRICS) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ncu counted nothing; does the kernel run"),
        ("==WARNING== No kernels were profiled.\n", "ncu counted nothing"),
        (csv([launch(hits="n/a")]), "ncu gave no number for 'lts__t_sector_hit_rate.pct' but 'n/a'; is it known"),
        (csv([{"dram__bytes_read.sum": "1"}]), "ncu gave no number for 'dram__bytes_write.sum'"),
        (TABLE + '"2","8123"\n', "ncu gave no number for 'dram__bytes_read.sum' but ''"),
    ],
)
def test_a_table_that_lacks_a_number_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ProfilerError, match=message):
        parse_counters(text, METRICS)


def test_the_profiler_is_asked_for_the_kernel_and_the_metrics_with_clocks_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = install(tmp_path, monkeypatch, csv([launch(), launch(ns="1,234,567")]))
    counted = count_launches(["python", "-m", "something"], "one_launch", METRICS)
    assert [row["ns"] for row in counted] == [63000.0, 1234567.0]
    arguments = seen.read_text().split("\n")
    assert arguments[-3:] == ["python", "-m", "something"]
    options = dict(pairwise(arguments))
    assert options["--clock-control"] == "none"
    assert options["--cache-control"] == "all"
    assert options["--print-units"] == "base"
    assert options["-k"] == "regex:^one_launch$"
    assert options["--metrics"].split(",") == list(METRICS.values())
    count_launches(["python"], "one_launch", METRICS, flush=False)
    arguments = seen.read_text().split("\n")
    assert arguments[arguments.index("--cache-control") + 1] == "none"


def test_without_the_profiler_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for call in (find_ncu, lambda: count_launches(["true"], "kernel", METRICS)):
        with pytest.raises(ProfilerError, match="ncu is not on the PATH; install NVIDIA Nsight Compute"):
            call()


@pytest.mark.parametrize("code", [0, 1])
def test_a_user_who_may_not_count_is_told_whom_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    message = (
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
        "the target device 0.\n"
    )
    install(tmp_path, monkeypatch, stdout=message, code=code)
    with pytest.raises(ProfilerError, match=r"may not read hardware counters here.*run as root, or"):
        count_launches(["true"], "kernel", METRICS)


def test_a_command_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, stderr="Traceback ...\nRuntimeError: out of memory\n", code=9)
    with pytest.raises(ProfilerError, match="ncu ended with exit code 9: RuntimeError: out of memory"):
        count_launches(["true"], "kernel", METRICS)
    install(tmp_path, monkeypatch, code=3)
    with pytest.raises(ProfilerError, match="exit code 3: no message"):
        count_launches(["true"], "kernel", METRICS)

"""Standard streams that cannot be written, readers that stop, Ctrl-C, letters that a terminal does not have."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlace.cli import plan as plan_module
from interlace.cli import run as run_module
from interlace.cli.console import note_warnings
from interlace.cli.streams import guard_standard_streams
from interlace.cli.workloads import WorkloadGroup
from interlace.workloads import WORKLOADS

from .commands import SMALL, fail, invoke, succeed

COMMAND = f"{sys.executable} -m interlace"
SOURCE = Path(__file__).parents[2] / "src"


def shell(text: str, stdout: int = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of the shell in which ``interlace`` is the command."""
    line = text.replace("interlace", COMMAND, 1)
    env = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    streams: dict[str, int] = {"stdout": stdout, "stderr": subprocess.PIPE}
    return subprocess.run(["bash", "-c", line], **streams, text=True, env=env, timeout=300)  # type: ignore[call-overload]


@pytest.fixture
def unread() -> Iterator[int]:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_reader_that_stopped_ends_the_command_without_a_word(
    unread: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with os.fdopen(unread, "w", closefd=False) as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as ended, guard_standard_streams():
            print("a line that is flushed at the end")
        assert ended.value.code == 141
        print("what the interpreter flushes at its end goes nowhere", flush=True)
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended, guard_standard_streams():
            print("text", flush=True)
        assert ended.value.code == 1
    assert capsys.readouterr().err == "error: cannot write to standard output: No space left on device\n"


def test_stderr_that_cannot_be_written_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        with guard_standard_streams():
            print("note", file=sys.stderr, flush=True)
            print("another", file=sys.stderr, flush=True)


def test_letters_that_the_terminal_lacks_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "out", "w", encoding="ascii") as plain:
        monkeypatch.setattr(sys, "stdout", plain)
        with guard_standard_streams():
            print("4 × 4 \udcff")
    assert (tmp_path / "out").read_text() == "4 ? 4 ?\n"


@pytest.mark.parametrize(
    ("line", "code", "error"),
    [
        ("interlace --help > /dev/full", 1, "error: cannot write to standard output: No space left on device\n"),
        ("interlace --help >&-", 1, "error: cannot write to standard output: Bad file descriptor\n"),
        ("interlace --version >&- 2>&- <&-", 1, ""),
        ("interlace --version | cat > /dev/null; exit ${PIPESTATUS[0]}", 0, ""),
    ],
)
def test_the_process_ends_as_its_streams_do(line: str, code: int, error: str) -> None:
    ended = shell(line)
    assert (ended.returncode, ended.stderr) == (code, error)


def test_a_process_whose_text_nobody_reads_ends_as_the_signal_would_end_it(unread: int) -> None:
    ended = shell("interlace --help", unread)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_files_are_written_before_text_that_nobody_reads(unread: int, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    ended = shell(f"interlace run ffn {' '.join(SMALL)} --json {path}", unread)
    assert (ended.returncode, ended.stderr) == (141, "")
    assert path.stat().st_size > 100


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii", "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "1"},
    ],
)
def test_a_poor_terminal_gets_all_words(environment: dict[str, str]) -> None:
    ended = shell(f"interlace plan ffn {' '.join(SMALL)} --out -", **environment)
    assert (ended.returncode, ended.stdout[:10]) == (0, '{"format":')
    assert "dependencies enforced" in ended.stderr
    assert shell("interlace run --help", **environment).returncode == 0


def test_python_runs_the_package_as_a_command() -> None:
    assert shell("interlace --version").stdout.startswith("interlace ")
    assert "Usage: interlace run " in shell("interlace run -h").stdout


# ---------------------------------------------------------------- Ctrl-C, lack of memory


def test_ctrl_c_is_one_line_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "time_all", interrupt)
    outputs = ["--json", tmp_path / "r.json", "--trace", tmp_path / "t.json"]
    assert fail(130, "run", "ffn", *SMALL, *outputs) == "error: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_options_are_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkloadGroup, "resolve_command", interrupt)
    assert fail(130, "run", "ffn", *SMALL) == "error: interrupted"


def test_lack_of_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_memory_error(*_: object) -> None:
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr(plan_module, "build", raise_memory_error)
    message = fail(1, "plan", "ffn", *SMALL, "--out", tmp_path / "p.json")
    assert message == "error: out of memory: Unable to allocate 3 TiB; use a smaller problem or larger tiles"


# ---------------------------------------------------------------- help and completion


@pytest.mark.parametrize(
    "command", ["", "run", "plan", "verify", "trace", "order", "pipeline", "bench", "bench sync", "tune ffn"]
)
def test_h_is_help(command: str) -> None:
    assert succeed(*command.split(), "-h") == succeed(*command.split(), "--help")


STEALING = ["stealing", "stealing-half", "stealing-random", "stealing-random-half", "stealing:4"]


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("run ", [*(workload.name for workload in WORKLOADS), "two.json"]),
        ("trace two", ["two-matmuls", "two-copies", "two.json"]),
        ("plan two", ["two-matmuls", "two-copies"]),
        ("run two.json --executor ref", ["reference", "reference-random"]),
        (
            "run ffn --policy ",
            ["tile", "row", "column", "conv2d", "kernel", "consumer", "none", "batched-row:4", "strided:3"],
        ),
        ("run ffn --order g", ["grouped:8", "grouped-serpentine:8"]),
        ("run ffn --executor pers", ["persistent-static", "persistent-ticket", "persistent"]),
        ("plan ffn --dispatch st", ["static", "static-balanced", *STEALING]),
        ("plan ffn --preset m", ["minilm"]),
        ("explain ffn --dtype ", ["bf16", "fp16", "fp32"]),
        ("trace ffn --interleave o", ["op-after-op"]),
        ("traffic one-matmul --order h", ["hilbert"]),
        ("order --cache ", ["lru", "opt"]),
        ("pipeline x.py --print ", ["ir", "cuda", "smem"]),
        ("bench ffn --preset ll", ["llama3-8b", "llama3-70b-tp8"]),
        ("bench tw", ["two-matmuls", "two-copies"]),
        ("profile ffn --sweep ", ["m", "hidden", "ffn"]),
        ("profile two-copies --sweep ", ["m", "n"]),
        ("tune ffn --activation s", ["silu"]),
    ],
)
def test_values_complete(
    line: str,
    completed: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.json").touch()
    words = f"interlace {line}"
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    monkeypatch.setenv("_INTERLACE_COMPLETE", "complete_bash")
    from interlace.cli import main

    monkeypatch.setattr("sys.argv", ["interlace"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == completed


def test_unknown_commands_are_exit_code_2() -> None:
    for arguments in ([""], ["rum"], ["bench", "x"], ["--nonsense"]):
        assert invoke(*arguments).exit_code == 2


def test_a_warning_is_one_line(capsys: pytest.CaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with note_warnings():
            warnings.warn("the cache\nis not used", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "note: the cache is not used\n"

"""``interlace pipeline``, and the examples that it is shown on."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from interlace.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"
REDUCTION, MATMUL = (str(EXAMPLES / f"{name}_as_loops.py") for name in ("06_row_sums", "07_matmul"))


def run_pipeline(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pipeline", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_ir_shows_the_loops_before_and_after() -> None:
    before, _, after = run_pipeline(REDUCTION, "--stages", "3").partition("// pipeline")
    assert "tile = tma load x" in before
    assert "barriers" not in before
    for section in ("prologue:", "main:", "epilogue:", "end:"):
        assert section in after
    assert "barriers tile_full{3} for tile" in after
    assert "min(1, " in run_pipeline(REDUCTION, "--stages", "3", "--prefetch", "1")


def test_cuda_is_a_kernel_with_a_tensor_map() -> None:
    text = run_pipeline(REDUCTION, "--print", "cuda")
    assert "__grid_constant__" in text
    assert "mbarrier_wait(tile_full" in text
    assert "wgmma" in run_pipeline(MATMUL, "--warp-specialised", "--print", "cuda")


def test_smem_lists_every_buffer() -> None:
    assert "tile 4 x 16384 = 65536 bytes" in run_pipeline(REDUCTION, "--print", "smem")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing.py",), "no file"),
        ((REDUCTION, "--stages", "0"), "depth is 0 stages"),
        ((REDUCTION, "--stages", "64", "--print", "smem"), "14 stages would fit"),
        ((MATMUL, "--stages", "9", "--print", "smem"), "stages would fit"),
        ((REDUCTION, "--stages", "100000"), "14 stages would fit"),
        ((REDUCTION, "--stages", "100000", "--print", "cuda"), "14 stages would fit"),
        ((str(Path(__file__)),), "must define KERNEL"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(app, ["pipeline", *arguments])
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_file_that_fails_says_so(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("1 / 0")
    result = CliRunner().invoke(app, ["pipeline", str(bad)])
    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys\nsys.exit(0)\n", "line 2: SystemExit: 0"),
        ("quit()", "line 1: SystemExit: None"),
        ("raise SystemExit(3)", "line 1: SystemExit: 3"),
        ("def f():\n    return 1 / 0\nf()\n", "line 2: ZeroDivisionError"),
        ("x = 1\ndef f(:\n", "line 2: SyntaxError"),
        ("def f():\n    return f()\nf()", "line 2: RecursionError"),
        ("import nothing_of_this_name", "line 1: ModuleNotFoundError"),
        ("class E(BaseException): pass\nraise E('odd')", "line 2: E: odd"),
        ("x = ' ' * (1 << 62)", "line 1: MemoryError"),
        ("x = '\0'", "cannot be run"),
        ("KERNEL = 1\nBUFFERED = 2", "must define KERNEL"),
        ("", "must define KERNEL"),
    ],
)
def test_what_a_users_file_does_is_never_success(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    result = CliRunner().invoke(app, ["pipeline", str(file)])
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.startswith(f"error: {str(file)!r} ")
    assert result.stderr.count("\n") == 1


def test_ctrl_c_in_a_users_file_is_ctrl_c(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise KeyboardInterrupt")
    result = CliRunner().invoke(app, ["pipeline", str(file)])
    assert (result.exit_code, result.stderr) == (130, "error: interrupted\n")

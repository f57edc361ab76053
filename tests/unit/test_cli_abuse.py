"""Whatever a command is given, it ends with the exit code that is true, in few words, and leaves nothing behind."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from interlace.core.errors import ShapeError
from interlace.graph.graph import Graph
from interlace.workloads import WORKLOADS
from interlace.workloads.base import list_options
from interlace.workloads.quadrature import quadrature

from .commands import SMALL, fail, invoke, succeed

REDUCTION = str(Path(__file__).parents[2] / "examples" / "06_row_sums_as_loops.py")


def pack_safetensors(header: object, data: bytes = b"") -> bytes:
    """A safetensors file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[object], end: object, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


FILES = {
    "binary": bytes(range(256)) * 50,
    "empty": b"",
    "zeros": b"\0" * 100,
    "deep": b"[" * 200_000,
    "latin": b"\xff\xfe{}",
    "short": struct.pack("<Q", 100) + b"{}",
    "huge-header": struct.pack("<Q", 1 << 63) + b"{}",
    "list": pack_safetensors([1]),
    "deep-header": pack_safetensors(b"[" * 100_000),
    "negative": pack_safetensors({"u": entry([-1, 2], 8)}, b"0" * 8),
    "beyond": pack_safetensors({"u": entry([1 << 40, 1 << 40], 8)}, b"0" * 8),
    "no-elements": pack_safetensors({"u": entry([0, 2], 0), "d": entry([2, 0], 0)}),
    "nul-name": pack_safetensors({"u\0": entry([1, 1], 4)}, b"0" * 4),
    "nan": pack_safetensors({"u": entry([16, 16], 1024), "d": entry([16, 16], 1024)}, b"\xff" * 1024),
    "float-shape": pack_safetensors({"u": entry([1.5, 2], 8.0)}, b"0" * 8),
    "fp8": pack_safetensors({"u": entry([4, 4], 16, "F8_E4M3"), "d": entry([4, 4], 16, "F8_E4M3")}, b"0" * 16),
    "weights": pack_safetensors(
        {"u": entry([32, 16], 2048), "d": entry([16, 32], 2048)}, np.ones(512, np.float32).tobytes()
    ),
}
SIZES = ["one-matmul", "--m", "300", "--n", "200", "--k", "100"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    "name", [*(n for n in FILES if n != "weights"), "folder", "none", "loop", "/dev/null", "", "a" * 300]
)
@pytest.mark.parametrize("command", ["verify", "checkpoint", "pipeline"])
def test_files_that_are_something_else(name: str, command: str) -> None:
    weights = ["--device", "cpu", "--up", "u", "--down", "d"]
    arguments = ["run", "ffn", *weights, "--checkpoint", name] if command == "checkpoint" else [command, name]
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert all(c.isprintable() or c == "\n" for c in result.stderr)


@pytest.mark.parametrize(
    "options",
    [
        *(["--m", value] for value in ("-1", "0", "", "1.5", "1e3", "x", "×", "9" * 30)),
        *(["--tile", value] for value in ("0x0x0", "x", "16x16x16x16", "16X16", "-1x2", "99999x99999x99999", "")),
        *(["--policy", value] for value in ("", "row:1", "batched-row:1e3", "batched-row:99999999999", "[bold]")),
        *(["--split", value] for value in ("split-k:0", "split-k:-1", "stream-k:", "stream-k:0")),
        *(["--workers", value] for value in ("0", "-1", "1.5", "2147483648")),
        *(["--interleave", "panels:0"], ["--order", ""], ["--order", "grouped:0"], ["--dispatch", "lottery"]),
        *(["--seed", "-1"], ["--seed", "x"], ["--executor", ""], ["--dtype", "fp8"], ["--device", "tpu"]),
        *(["--preset", "gpt"], ["--activation", "swish"], ["--json"], ["--json", ""], ["--nonsense"], ["extra"]),
        *(["--gated", "--activation", "relu"], ["--preset", "minilm", "--checkpoint", "weights"], ["--up", "u"]),
    ],
    ids="_".join,
)
def test_run_with_options_that_make_no_sense(options: list[str]) -> None:
    assert "rror" in fail(2, "run", "ffn", *SMALL, *options)


@pytest.mark.parametrize(
    "command",
    [
        *(["order", "--grid", grid, "--capacity", "3"] for grid in ("0x0", "99999x99999", "4", "4x", "x", "-1x4")),
        *(["order", "--grid", "4x4", "--capacity", n] for n in ("-3", "1", "0", "x", "1.5")),
        *(["order", "--grid", "4x4", "--capacity", "3", "--seconds", s] for s in ("-1", "0", "nan", "x")),
        *(["order", "--grid", "4x4", "--capacity", "3", "--states", s] for s in ("-5", "0", "x")),
        *(["order", "--grid", "4x4", "--capacity", "3", "--start", s] for s in ("9,9", "0", "0;0", "-1,0")),
        ["order", "--grid", "4x4", "--capacity", "3", "--chunks", "0"],
        *(["traffic", *SIZES, "--cache", size] for size in ("0", "1", "nan", "", "1KiB", "99999GiB", "-1MiB")),
        *(["traffic", *SIZES, "--tile", tile] for tile in ("0x0x0", "1", "99999x99999x1")),
        *(["traffic", *SIZES, *rest] for rest in (["--workers", "65537"], ["--order", "x"])),
        ["traffic", *SIZES, "--order", "row", "--sweep"],
        ["traffic", "one-matmul", "--m", "1000000000", "--n", "1000000000", "--k", "1"],
        ["traffic", "one-matmul", "--m", "9" * 20, "--n", "1", "--k", "1"],
        ["traffic", "one-matmul", "--m", "4096", "--n", "4096", "--k", "4096", "--tile", "1x1x1"],
        ["explain", "ffn", "--device", "cuda", "--m", "1000000000"],
        ["explain", "two-copies", "--device", "cuda", "--m", "100000", "--n", "100000"],
        ["explain", "ffn", "--device", "cpu", "--one-launch"],
        ["explain", "ffn", "--device", "cuda", "--one-launch", "--hidden", "3", "--ffn", "5"],
        *(["pipeline", REDUCTION, "--stages", stages] for stages in ("0", "-1", "x", "1.5")),
        *(["pipeline", REDUCTION, "--prefetch", prefetch] for prefetch in ("-1", "9999999")),
        ["pipeline", REDUCTION, "--print", "foo"],
        ["bench", "ffn", "--preset", "nonsense"],
        ["bench", "ffn", "--m", "0"],
        ["bench", "two-matmuls", "--seconds", "-1"],
        ["bench", "sync", "--out", "folder"],
        ["tune", "ffn", "--top", "0"],
        ["tune", "ffn", "--m", "0"],
        ["tune", "nonsense"],
        ["profile", "ffn", "--sweep", "x"],
        ["verify"],
        ["verify", "weights", "weights"],
        ["trace", "ffn", "--out", "x", "--executor", "serial"],
    ],
    ids=" ".join,
)
def test_commands_that_make_no_sense(command: list[str], here: Path) -> None:
    before = sorted(path.name for path in here.iterdir())
    assert "rror" in fail(2, *command)
    assert sorted(path.name for path in here.iterdir()) == before


SIZED = [
    (kind.name, name, option.most)
    for kind in WORKLOADS
    for name, (_, of, option) in list_options(kind).items()
    if of is int
]


@pytest.mark.parametrize(("workload", "name", "most"), SIZED)
def test_a_size_that_no_plan_has_is_refused_before_any_work(
    workload: str, name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Graph, "__post_init__", lambda graph: pytest.fail("it is made"))
    for value in (most + 1, 1 << 160, 10**4000):
        result = invoke("plan", workload, "--device", "cpu", f"--{name.replace('_', '-')}", value, "--out", "p.json")
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
        assert result.stderr.startswith(f"error: workload '{workload}' has {name} ")
        assert result.stderr.endswith(f"; use at most {most:,}\n")


def test_ops_that_are_made_one_by_one_are_few() -> None:
    """A plan of 100,000 layers, or of a million matmuls, would come to no end."""
    most = {(workload, name): most for workload, name, most in SIZED}
    assert most["decode", "layers"] < most["ffn-layers", "layers"] < most["dag", "count"] <= 10_000
    with pytest.raises(ShapeError, match="quadrature has level 14999; use 0 to 19"):
        quadrature(15_000, 3, 16, 1e-5)


@pytest.mark.parametrize(
    "options",
    [
        ["--m", "1", "--hidden", "1", "--ffn", "1"],
        ["--gated", "--no-gated"],
        ["--m", "16", "--m", "32"],
        ["--executor", "reference", "--executor", "reference"],
        ["--seed", "9" * 30],
        ["--policy", "batched-row:999999999"],
        ["--policy", "strided:999999999"],
        ["--order", "grouped:999999999", "--interleave", "panels:999999999"],
        ["--split", "split-k:999999999"],
        ["--split", "stream-k:999999999"],
        ["--workers", "2147483647"],
    ],
    ids="_".join,
)
def test_odd_but_sound_runs_are_right(options: list[str]) -> None:
    succeed("run", "ffn", *SMALL, *options, "--json", "r.json")
    assert all(e["relative_error"] < 1e-12 for e in json.loads(Path("r.json").read_text())["executors"])


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "INTERLACE_CACHE_DIR", "HOME"])
@pytest.mark.parametrize("value", ["{0}/binary", "{0}/none", "", "\udcff", "relative"])
def test_a_cache_folder_that_is_none_is_no_failure(
    here: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.delenv("INTERLACE_CACHE_DIR", raising=False)
    monkeypatch.setenv(variable, value.format(here))
    before = sorted(path.name for path in here.iterdir())
    succeed("plan", "ffn", *SMALL, "--out", "-")
    assert sorted(path.name for path in here.iterdir()) == before


def test_a_disk_that_has_no_space_for_a_temporary_file_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/tmp/x")

    monkeypatch.setattr("interlace.cli.plan.build", raise_disk_full)
    message = fail(1, "plan", "ffn", *SMALL, "--out", "p.json")
    assert message == "error: OSError: [Errno 28] No space left on device: '/tmp/x'"

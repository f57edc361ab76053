"""A stand-in for ``ncu``: a program on the PATH that prints what the real one would."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from interlace.bench.profile import METRICS, ProfileRun

UNITS = {"gpu__time_duration.sum": "ns", "lts__t_sector_hit_rate.pct": "%"}


def load_counted_runs(folder: Path) -> list[ProfileRun]:
    """Return the runs that the last ``ncu`` of ``install`` had to count."""
    runs: list[ProfileRun] = pickle.loads((folder / "runs").read_bytes())
    return runs


def csv(rows: Sequence[Mapping[str, str]]) -> str:
    """Format rows as ``ncu --csv --page raw`` does: names, units, a row per launch, amid its own messages."""
    names = ["ID", "Process ID", "Kernel Name", *(rows[0] if rows else METRICS.values())]
    lines = [names, ["", "", "", *(UNITS.get(name, "byte") for name in names[3:])]]
    lines += [[str(i), "4711", "one_launch", *row.values()] for i, row in enumerate(rows)]
    table = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    return f"==PROF== Connected to process 4711\nwhat the program prints\n==PROF== Disconnected\n{table}\n"


def launch(
    read: str = "236,000,000", written: str = "2,000,000", hits: str = "10.25", ns: str = "63,000"
) -> dict[str, str]:
    """One row, in the order of ``METRICS``."""
    return dict(zip(METRICS.values(), (read, written, hits, ns), strict=True))


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, stdout: str = "", stderr: str = "", code: int = 0) -> Path:
    """Put an ``ncu`` on the PATH that prints this and ends so.

    Returns the file that gets its arguments; beside it a file ``runs`` gets what the last of them names.
    """
    seen = folder / "arguments"
    program = folder / "ncu"
    program.write_text(
        f"#!{sys.executable}\nimport os, shutil, sys\n"
        f"open({str(seen)!r}, 'w').write('\\n'.join(sys.argv[1:]))\n"
        f"os.path.isfile(sys.argv[-1]) and shutil.copy(sys.argv[-1], {str(folder / 'runs')!r})\n"
        f"sys.stdout.write({stdout!r})\nsys.stderr.write({stderr!r})\nsys.exit({code})\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return seen

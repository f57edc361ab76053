"""Hardware counters of kernels, read with NVIDIA's command-line profiler ``ncu``."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import takewhile

from interlace.core.errors import ProfilerError

_FORBIDDEN = "ERR_NVGPUCTRPERM"  # printed by ncu if it lacks the permission, whatever its exit code


def find_ncu() -> str:
    """Return the path of ``ncu``.

    Raises:
        ProfilerError: ``ncu`` is not on the PATH.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ProfilerError("ncu is not on the PATH; install NVIDIA Nsight Compute to read hardware counters")
    return ncu


def count_launches(
    command: Sequence[str], kernel: str, metrics: Mapping[str, str], *, flush: bool = True
) -> list[dict[str, float]]:
    """Run a command under ``ncu`` and return the counters of every launch of a kernel, in launch order.

    Args:
        command: command line to run.
        kernel: name of the kernel.
        metrics: ``ncu`` metrics by their names in the result, in base units (bytes, nanoseconds).
        flush: True to flush the caches before each launch.

    Raises:
        ProfilerError: ``ncu`` is missing or may not read counters, or the command failed.
    """
    ncu = find_ncu()
    # Leave the clocks alone: counters at locked, lower clocks do not represent a normal run.
    options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    options += ["--cache-control", "all" if flush else "none", "-k", f"regex:^{kernel}$"]
    options += ["--metrics", ",".join(metrics.values())]
    done = subprocess.run([ncu, *options, *command], capture_output=True, text=True, check=False)
    if _FORBIDDEN in done.stdout + done.stderr:
        raise ProfilerError(
            f"ncu may not read hardware counters here ({_FORBIDDEN}); run as root, or have the administrator load the "
            "NVIDIA driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
        raise ProfilerError(f"ncu ended with exit code {done.returncode}: {reason[0]}")
    return parse_counters(done.stdout, metrics)


def parse_counters(text: str, metrics: Mapping[str, str]) -> list[dict[str, float]]:
    """Return the rows of ``ncu --csv --page raw`` output, which may be mixed with output of the profiled command.

    Raises:
        ProfilerError: the output has no counters, or not the requested ones.
    """
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        raise ProfilerError("ncu counted nothing; does the kernel run, and may this user read the counters?")
    table = takewhile(lambda line: line.startswith('"'), lines[head:])  # the command may print after the table
    rows = list(csv.DictReader(table))[1:]  # the row after the header holds the units
    return [{name: _parse_number(row, metric) for name, metric in metrics.items()} for row in rows]


def _parse_number(row: Mapping[str, str | None], metric: str) -> float:
    text = row.get(metric) or ""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise ProfilerError(f"ncu gave no number for {metric!r} but {text!r}; is it known on this GPU?") from None

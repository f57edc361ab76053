"""Hardware counters of kernels, read with NVIDIA's command-line profiler ``ncu``."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import takewhile

from interlace.core.errors import ProfilerError

_FORBIDDEN = "ERR_NVGPUCTRPERM"  # what ncu says then, whatever its exit code


def find_ncu() -> str:
    """The path of ``ncu``.

    Raises:
        ProfilerError: it is not there.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise ProfilerError("ncu is not on the PATH; install NVIDIA Nsight Compute to read hardware counters")
    return ncu


def count_launches(
    command: Sequence[str], kernel: str, metrics: Mapping[str, str], *, flush: bool = True
) -> list[dict[str, float]]:
    """Counters of every launch of a kernel in a command, in launch order.

    Args:
        command: what to run.
        kernel: name of the kernel.
        metrics: ``ncu`` metrics by the names that the result gives them, in base units (bytes, nanoseconds).
        flush: empty the caches before each launch.

    Raises:
        ProfilerError: ``ncu`` is not there, may not read counters, or the command failed.
    """
    ncu = find_ncu()
    # Clocks as they are, because counters of a throttled chip say nothing about a run.
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
    """The rows of ``ncu --csv --page raw``, amid whatever the profiled command printed.

    Raises:
        ProfilerError: no counters, or not those asked for.
    """
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        raise ProfilerError("ncu counted nothing; does the kernel run, and may this user read the counters?")
    table = takewhile(lambda line: line.startswith('"'), lines[head:])  # the command may print behind it
    rows = list(csv.DictReader(table))[1:]  # below the names stand the units
    return [{name: _number(row, metric) for name, metric in metrics.items()} for row in rows]


def _number(row: Mapping[str, str | None], metric: str) -> float:
    text = row.get(metric) or ""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise ProfilerError(f"ncu gave no number for {metric!r} but {text!r}; is it known on this GPU?") from None

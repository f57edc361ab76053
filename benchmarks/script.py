"""Parts that the scripts share: command lines, jobs on GPUs, processes, time on the host, FlexAttention's mask."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import takewhile
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the script's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def parse_arguments(doc: str | None, *names: str, optional: tuple[str, ...] = ()) -> list[str]:
    """Return the positional arguments of the command line, optional ones as far as they are given."""
    parser = make_parser(doc)
    for name in names:
        parser.add_argument(name)
    for name in optional:
        parser.add_argument(name, nargs="?")
    found = vars(parser.parse_args())
    return [found[name] for name in (*names, *optional) if found[name] is not None]


def parse_out(doc: str | None) -> Path | None:
    """Return the path of ``--out``, the only option of scripts that write a record of the CPU."""
    parser = make_parser(doc)
    parser.add_argument("--out", type=Path, help="write a JSON record")
    out: Path | None = parser.parse_args().out
    return out


def format_command(path: Path, *options: str) -> str:
    """Return the command that writes a record again with the running script."""
    return " ".join([f"python benchmarks/{Path(sys.argv[0]).name} benchmarks/results/{path.name}", *options])


def format_error(error: BaseException) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def measure_jobs(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    describe: Callable[[Job], str],
    *,
    seconds: float = inf,
    gpus: int = 1,
    share: int = 1,
) -> Iterator[tuple[Job, Result]]:
    """Measure jobs on GPUs and yield each with its result; print the reason of each that fails, and go on.

    Args:
        function: function that measures one job; other processes get it by pickle.
        describe: function that returns a job's name.
        seconds: begin no job later than this.
        gpus, share: see ``run_on_gpus``.
    """
    from interlace.bench.gpus import run_on_gpus

    begin = time.monotonic()
    in_time = takewhile(lambda _: time.monotonic() - begin < seconds, jobs)
    for job, (result, reason) in run_on_gpus(partial(_attempt, function), in_time, gpus, share):
        print(f"[{time.monotonic() - begin:5.1f} s] {describe(job)}", flush=True)
        if result is None:
            print(f"  left out: {reason}", flush=True)
        else:
            yield job, result


def _attempt(function: Callable[[Job], Result], job: Job) -> tuple[Result | None, str]:
    """Return the result of a job and no reason, or no result and the reason."""
    try:
        return function(job), ""
    except Exception as error:  # noqa: BLE001  memory and others: the next jobs go on
        return None, format_error(error)


def time_host_s(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call over rounds of all; a first round, which compiles, is not counted."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - begin)
    return {name: median(times[1:]) for name, times in samples.items()}


def end_process(process: subprocess.Popen[Any], seconds: float = 10.0) -> None:
    """End a process that leads its session, and its children: terminate it, and kill what is left after so long."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(seconds)
    with suppress(ProcessLookupError):  # a child may outlive the process
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def round_figure(value: float) -> float:
    """Round to three significant digits."""
    return float(f"{value:.3g}")


def make_cache_mask(last: Any, capacity: int) -> Any:
    """Return FlexAttention's block mask of cached positions up to the last of each sequence, which it then skips."""
    from torch.nn.attention.flex_attention import create_block_mask

    def is_cached(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return kv <= last[b]

    return create_block_mask(is_cached, len(last), None, 1, capacity, device=last.device)

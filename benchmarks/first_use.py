"""CPU seconds of a command's first use on a machine, which compiles jitted functions, and of its second.

python benchmarks/first_use.py --out benchmarks/results/first-use-cpu.json
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from tempfile import TemporaryDirectory

from script import parse_out

from interlace.bench.record import read_cpu_name, write_cpu_record

MEASURES = ("cli", "core", "orders", "planner", "sim")
COMMANDS = (
    ("run", "ffn"),
    ("explain", "ffn", "--device", "h200"),
    ("traffic", "ffn"),
    ("order", "--grid", "4x4", "--capacity", "3"),
)


def measure_cpu_s(command: tuple[str, ...], cache: str) -> float:
    """Return the CPU seconds of a command in a process of its own, with this cache folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "INTERLACE_CACHE_DIR": cache, "NUMBA_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-m", "interlace", *command], env=environment, stdout=subprocess.DEVNULL)
    done.check_returncode()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)


def main() -> None:
    out = parse_out(__doc__)
    print(f"CPU seconds on {read_cpu_name()}, first and second use:")
    rows = []
    for command in COMMANDS:
        with TemporaryDirectory() as cache:
            first, second = measure_cpu_s(command, cache), measure_cpu_s(command, cache)
        rows.append({"command": " ".join(command), "first_s": first, "second_s": second})
        print(f"  {rows[-1]['command']:36}{first:6.1f}{second:6.1f}")
    if out is not None:
        protocol = "user and system time of a process of its own, once each; first: in an empty cache folder"
        write_cpu_record(out, "python benchmarks/first_use.py", protocol, MEASURES, {"rows": rows}, ("numpy", "numba"))


if __name__ == "__main__":
    main()

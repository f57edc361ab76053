"""Derive mutants of source files, run the tests of each, and report the survivors.

python -m tests.mutation plan/verify.py plan/coverage.py --jobs 2
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from .equivalents import equivalent_texts
from .operators import derive_mutants
from .plant import SOURCES, Copy, Mutant, Outcome
from .targets import TESTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="such as plan/verify.py; all that have tests if none")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--sample", type=int, help="how many mutants of each file; all if not given")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument(
        "--limit-s", type=int, default=60, help="seconds of a processor after which a mutant counts as caught"
    )
    parser.add_argument("--lines", metavar="FIRST:LAST", help="only mutants on these lines")
    asked = parser.parse_args()
    mutants = []
    for file in asked.files or TESTS:
        text = (SOURCES / file).read_text()
        equivalent = equivalent_texts(file)
        some = [m for m in derive_mutants(file, text, TESTS[file]) if m.apply(text) not in equivalent]
        if asked.lines:
            first, last = map(int, asked.lines.split(":"))
            some = [mutant for mutant in some if first <= _line(mutant) <= last]
        if asked.sample is not None and asked.sample < len(some):
            some = random.Random(asked.seed).sample(some, asked.sample)
        mutants += some
    caught: Counter[str] = Counter()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for job in range(asked.jobs):
            (Path(folder) / str(job)).mkdir()
            copies.put(Copy(Path(folder) / str(job)))

        def run(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                return copy.run(mutant, asked.limit_s)[0]
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(asked.jobs) as threads:
            for mutant, outcome in zip(mutants, threads.map(run, mutants), strict=True):
                total[mutant.file] += 1
                caught[mutant.file] += outcome in (Outcome.KILLED, Outcome.TIMEOUT)
                if outcome is not Outcome.KILLED:
                    print(f"{outcome.value}: {mutant.file}:{_line(mutant)}: {_context(mutant)}", flush=True)
    for file, count in total.items():
        print(f"{file}: {caught[file]} of {count} caught ({caught[file] / count:.1%})")
    return 0 if caught.total() == total.total() else 1


def _line(mutant: Mutant) -> int:
    assert mutant.offset is not None
    return (SOURCES / mutant.file).read_text()[: mutant.offset].count("\n") + 1


def _context(mutant: Mutant) -> str:
    """The line with the replacement marked."""
    assert mutant.offset is not None
    text = (SOURCES / mutant.file).read_text()
    begin = text.rfind("\n", 0, mutant.offset) + 1
    end = text.find("\n", mutant.offset)
    tail = text[mutant.offset + len(mutant.old) : end]  # empty behind a change of several lines
    return f"{text[begin : mutant.offset].lstrip()}[{mutant.old} -> {mutant.new}]{tail}"


if __name__ == "__main__":
    sys.exit(main())

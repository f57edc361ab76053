"""Random kernels on the emulator, as many as you like: what goes wrong is made smaller and printed.

    python -m tests.emulator --seed 1000 --kernels 2000

Kernels are numbered from ``--seed``. The exit status is 1 if one fails. ``--prove`` also proves each kernel: a kernel
that ``prove`` rejects is counted; one that it accepts and that fails is a hole in the proof. ``--megakernel`` runs the
kernels that can be an op of the megakernel. ``--chains`` runs chains of skinny GEMMs instead, and ``--steps`` decode
steps, both with LL hand-off and with semaphores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from interlace.loops.ir.text import print_kernel
from interlace.loops.rewrite.circular import lower

from .build import MISSING
from .search import TOGETHER, draw_kernel, find_smallest, prove_trial, search


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="number of the first kernel")
    parser.add_argument("--kernels", type=int, default=400, help="how many numbers to try")
    parser.add_argument("--runs", type=int, default=1, help="of each kernel, each with a schedule of its own")
    parser.add_argument("--prove", action="store_true", help="prove each kernel too")
    parser.add_argument("--whole", action="store_true", help="print what goes wrong as it is")
    parser.add_argument("--megakernel", action="store_true", help="run each as an op of the megakernel")
    parser.add_argument("--chains", action="store_true", help="run chains of products by words and by semaphores")
    parser.add_argument("--steps", action="store_true", help="run decode steps by words and by semaphores")
    asked = parser.parse_args()
    if MISSING:
        print(MISSING, file=sys.stderr)
        return 2
    numbers = range(asked.seed, asked.seed + asked.kernels)
    if asked.chains or asked.steps:
        return both_ways(numbers, asked.runs, steps=asked.steps)
    if asked.megakernel:
        return search_megakernel(numbers, asked.runs)
    verdicts: Counter[str] = Counter()
    count = bad = 0
    start, last = time.monotonic(), asked.seed + asked.kernels
    for first in range(asked.seed, last, TOGETHER):
        numbers = range(first, min(first + TOGETHER, last))
        tried, wrong = search(numbers, asked.runs)
        count += tried
        bad += len(wrong)
        if asked.prove:
            verdicts.update(
                prove_trial(found.trial) for number in numbers if (found := draw_kernel(number)) is not None
            )
        for found, troubles in wrong:
            verdict = f", {prove_trial(found.trial)} by prove" if asked.prove else ""
            print(f"kernel {found.number}{verdict}:", *troubles, sep="\n  ")
            least = found if asked.whole else find_smallest(found)
            source = least.trial.source
            print(f"with extents {dict(least.trial.sizes)}:", print_kernel(source), sep="\n")
            print(print_kernel(lower(source, warp_specialised=least.trial.warp_specialised)), flush=True)
        told = "".join(f", {n} {verdict}" for verdict, n in sorted(verdicts.items()))
        print(f"{count} kernels, {bad} wrong{told}; {time.monotonic() - start:.0f} s", file=sys.stderr)
    return int(bad > 0)


def search_megakernel(numbers: range, runs: int) -> int:
    """Run the kernels that can be an op of the megakernel."""
    from . import megakernel  # imports torch

    count = bad = 0
    for first in range(numbers.start, numbers.stop, TOGETHER):
        tried, wrong = megakernel.search(range(first, min(first + TOGETHER, numbers.stop)), runs)
        count, bad = count + tried, bad + len(wrong)
        for number, troubles in wrong:
            print(f"kernel {number}:", *troubles, sep="\n  ", flush=True)
            found = draw_kernel(number)
            if found is not None:
                print(print_kernel(found.trial.source), flush=True)
        print(f"{count} kernels in the megakernel, {bad} wrong", file=sys.stderr)
    return int(bad > 0)


def both_ways(numbers: range, runs: int, *, steps: bool) -> int:
    """Run chains of skinny GEMMs, or decode steps, with LL hand-off and with semaphores."""
    from . import random_chains, random_steps  # import torch

    search, what = (random_steps.search, "step") if steps else (random_chains.search, "chain")
    count = bad = 0
    for first in range(numbers.start, numbers.stop, TOGETHER):
        tried, wrong = search(range(first, min(first + TOGETHER, numbers.stop)), runs)
        count, bad = count + tried, bad + len(wrong)
        for number, troubles in wrong:
            print(f"{what} {number}:", *troubles, sep="\n  ", flush=True)
        print(f"{count} {what}s, {bad} wrong", file=sys.stderr)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Which problems ``interlace bench`` measures, in which order, and for how long."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from interlace.cli.console import note
from interlace.cli.workloads import Selection
from interlace.workloads.base import Workload

#: A problem, with the name of its preset if it is as that has it.
Case = tuple[str | None, Workload]


def list_cases(work: Selection) -> list[Case]:
    """Every problem that the options ask for; without a preset or a shape, those that the project keeps records of."""
    kind = work.kind
    presets: Sequence[str | None] = work.presets
    if not presets:
        presets = (None,) if work.given_fields else tuple(kind.record) or (kind.gpu_preset,)
    found = []
    for preset in dict.fromkeys(presets):
        kept = kind.record.get(preset) if preset else None
        sizes = work.sizes or (kept.sizes if kept else kind.sizes)
        named = None if work.given_fields else preset  # with fields of its own it is no longer as the preset has it
        found += [(named, problem) for problem in work.build_sizes(preset, True, sizes)]
    return found


def interleave_cases(cases: Sequence[Case]) -> list[Case]:
    """Cases in an order in which any beginning has each preset, and of each the sizes spread out.

    Of eight sizes that is the first, fifth, third, seventh, second, sixth, fourth and last.
    """
    presets = list(dict.fromkeys(preset for preset, _ in cases))
    seen: Counter[str | None] = Counter()
    places = []
    for preset, _ in cases:
        places.append((_reverse_bits(seen[preset]), presets.index(preset)))
        seen[preset] += 1
    return [case for _, case in sorted(zip(places, cases, strict=True), key=lambda placed: placed[0])]


def _reverse_bits(n: int) -> int:
    """The place of the n-th of many in an order that halves the gaps again and again: n with its bits reversed."""
    return int(f"{n:016b}"[::-1], 2)


class Budget:
    """Seconds for some cases, if they are bounded.

    Attributes:
        took: seconds of each case so far.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.durations_s: list[float] = []

    def take_affordable(self, cases: Sequence[Case]) -> Iterator[Case]:
        """The cases, until another that takes as long as those so far did in the mean would end too late."""
        for done, case in enumerate(cases):
            expected = fmean(self.durations_s) if self.durations_s else 0.0
            if self._end is not None and time.monotonic() + expected > self._end:
                note(f"{len(cases) - done} of {len(cases)} rows are left; run it again with --update")
                return
            yield case


def sort_rows(rows: list[dict[str, Any]], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Rows of these cases in their order, behind others that the record had."""
    order = [problem.to_data() for _, problem in cases]
    return sorted(rows, key=lambda row: order.index(row["workload"]) if row["workload"] in order else -1)

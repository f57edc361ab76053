"""Problems that ``interlace bench`` measures, their order, and a limit on the time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from interlace.cli.console import note
from interlace.cli.workloads import Selection
from interlace.workloads.base import Workload

#: A problem, with the name of its preset if it is unchanged.
Case = tuple[str | None, Workload]


def list_cases(work: Selection) -> list[Case]:
    """Return the problems that the options select; without preset and shape, those with records in the project."""
    kind = work.kind
    presets: Sequence[str | None] = work.presets
    if not presets:
        presets = (None,) if work.given_fields else tuple(kind.record) or (kind.gpu_preset,)
    found = []
    for preset in dict.fromkeys(presets):
        kept = kind.record.get(preset) if preset else None
        sizes = work.sizes or (kept.sizes if kept else kind.sizes)
        named = None if work.given_fields else preset  # given fields may differ from the preset
        found += [(named, problem) for problem in work.build_sizes(preset, True, sizes)]
    return found


def interleave_cases(cases: Sequence[Case]) -> list[Case]:
    """Return cases in an order of which any prefix has each preset, with spread-out sizes of each.

    For eight sizes: the first, fifth, third, seventh, second, sixth, fourth and last.
    """
    presets = list(dict.fromkeys(preset for preset, _ in cases))
    seen: Counter[str | None] = Counter()
    places = []
    for preset, _ in cases:
        places.append((_reverse_bits(seen[preset]), presets.index(preset)))
        seen[preset] += 1
    return [case for _, case in sorted(zip(places, cases, strict=True), key=lambda placed: placed[0])]


def _reverse_bits(n: int) -> int:
    """Return the position of the n-th case in an order that halves the gaps repeatedly: n with its bits reversed."""
    return int(f"{n:016b}"[::-1], 2)


class Budget:
    """Limit in seconds on the time of some cases, if there is one.

    Attributes:
        durations_s: seconds of each case so far.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.durations_s: list[float] = []

    def take_affordable(self, cases: Sequence[Case]) -> Iterator[Case]:
        """Yield cases until one more, of the mean duration so far, would exceed the limit."""
        for done, case in enumerate(cases):
            expected = fmean(self.durations_s) if self.durations_s else 0.0
            if self._end is not None and time.monotonic() + expected > self._end:
                note(f"{len(cases) - done} of {len(cases)} rows are left; run it again with --update")
                return
            yield case


def sort_rows(rows: list[dict[str, Any]], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return the rows of these cases in their order, after the other rows of the record."""
    order = [problem.to_data() for _, problem in cases]
    return sorted(rows, key=lambda row: order.index(row["workload"]) if row["workload"] in order else -1)

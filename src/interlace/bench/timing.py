"""Timing protocol: CUDA-graph replays, interleaved variants, medians.

Every variant is captured once. Each round then replays all variants in a new order, so that drifts of clock and
temperature, and effects of the preceding variant, affect all of them equally. Within one call, callers rotate over more
weights than the L2 holds. All rounds are one turn at the GPU (``turns``) if other processes measure on it too.

Where the fastest of several variants represents all of them, it is picked on other rounds than the reported ones
(``Rounds``): the minimum of many noisy medians underestimates every true median. Two variants are compared round by
round: a GPU at its power limit alternates between clocks, and which clock the median of a few rounds hits is chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from interlace.bench.clocks import Clocks, open_meter, watch_clocks
from interlace.bench.gpu_lock import hold_gpu
from interlace.executors.gpu import open_device

_REPORTED_US, _MAX_REPEATS = 1e5, 25  # total time of the reported rounds, all variants; maximum number of rounds


@dataclass(frozen=True)
class Timing:
    """Microseconds per run over the rounds: median, 20th and 80th percentile."""

    median_us: float
    p20_us: float
    p80_us: float

    @staticmethod
    def from_samples(samples_us: Sequence[float]) -> Timing:
        """Return the percentiles of samples."""
        p20, median, p80 = np.percentile(samples_us, (20, 50, 80))
        return Timing(float(median), float(p20), float(p80))


@dataclass(frozen=True)
class Rounds:
    """Variants timed in the same rounds: every second round to pick the fastest by, the others to report.

    Attributes:
        picking, reported: microseconds of each round, by variant.
        clocks: clock and power over all rounds; None if they were not read.
    """

    picking: Mapping[str, Sequence[float]]
    reported: Mapping[str, Sequence[float]]
    clocks: Clocks | None = None

    @property
    def picking_us(self) -> dict[str, float]:
        """Median microseconds of the rounds to pick by, by variant."""
        return {name: float(np.median(samples)) for name, samples in self.picking.items()}

    @property
    def times(self) -> dict[str, Timing]:
        """Timing of the reported rounds, by variant."""
        return {name: Timing.from_samples(samples) for name, samples in self.reported.items()}

    def find_fastest(self, names: Iterable[str]) -> str:
        """Return the fastest of some variants, by the rounds to pick by."""
        picking_us = self.picking_us
        return min(names, key=lambda name: picking_us[name])

    def compute_ratio(self, one: str, other: str) -> float:
        """Return the ratio of two variants' times: the median of the ratios of the reported rounds."""
        return float(np.median(np.divide(self.reported[one], self.reported[other])))


def time_rounds(
    functions: Mapping[str, Callable[[], None]], repeats: int, calls: int = 1, *, read_clocks: bool = False
) -> Rounds:
    """Time each function on the current CUDA device, per run, with rounds to pick by and rounds to report.

    Args:
        functions: functions to time, as in ``time_medians``.
        repeats: minimum number of rounds to pick by, and to report. Rounds are added until the reported ones take
            0.1 s in total, up to 25 of each kind.
        calls: runs per function call.
        read_clocks: True to read clock and power meanwhile, which takes some of the host's time (``clocks``).
    """
    samples, clocks = _collect_samples_us(functions, 2 * repeats, 2 * max(repeats, _MAX_REPEATS), calls, read_clocks)
    picking, reported = ({name: values[half::2] for name, values in samples.items()} for half in (0, 1))
    return Rounds(picking, reported, clocks)


def describe_protocol(repeats: int) -> str:
    """Return the description of ``time_rounds`` for a record."""
    return (
        f"replayed with variants interleaved in an order drawn for each round, median of {repeats} to "
        f"{max(repeats, _MAX_REPEATS)} rounds ({_REPORTED_US / 1e6:g} s) after picking on as many others"
    )


def time_medians(functions: Mapping[str, Callable[[], None]], repeats: int = 20, calls: int = 1) -> dict[str, Timing]:
    """Time each function on the current CUDA device; return its timing per run.

    Args:
        functions: functions that each enqueue ``calls`` runs on the current stream; they must be capturable.
        repeats: number of rounds over all functions.
        calls: runs per function call.
    """
    samples, _ = _collect_samples_us(functions, repeats, repeats, calls)
    return {name: Timing.from_samples(values) for name, values in samples.items()}


def _collect_samples_us(
    functions: Mapping[str, Callable[[], None]], least: int, most: int, calls: int, watched: bool = False
) -> tuple[dict[str, list[float]], Clocks | None]:
    """Return the microseconds per run of each round, by name, and the clocks if they were watched.

    It runs ``least`` to ``most`` rounds in one turn at the GPU.
    """
    with hold_gpu():
        graphs = _capture(functions)
        return _replay(graphs, least, most, calls, watched)


def _capture(functions: Mapping[str, Callable[[], None]]) -> dict[str, Any]:
    """Capture each function in a CUDA graph and replay it once."""
    torch, _ = open_device("cuda")
    from interlace.megakernel.capture import capture_graph  # imports torch

    graphs = {}
    for name, function in functions.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()  # compiles and completes first-call setup
            function()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with capture_graph(graphs[name]):
            function()
    for graph in graphs.values():
        graph.replay()
    torch.cuda.synchronize()
    return graphs


def _replay(
    graphs: Mapping[str, Any], least: int, most: int, calls: int, watched: bool = False
) -> tuple[dict[str, list[float]], Clocks | None]:
    torch, device = open_device("cuda")
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    names, order = list(graphs), Random(0)
    rounds, spent_us = 0, 0.0
    with watch_clocks(open_meter(torch, device) if watched else None) as watch:
        while rounds < least or (rounds < most and (spent_us < 2 * _REPORTED_US or rounds % 2)):
            rounds += 1
            order.shuffle(names)
            for name in names:
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                graphs[name].replay()
                end.record()
                watch.running = name
                end.synchronize()
                watch.running = None
                us = begin.elapsed_time(end) * 1e3
                samples[name].append(us / calls)
                spent_us += us
    return samples, watch.compute_medians()

"""The timing protocol: CUDA-graph replays, variants interleaved, medians.

Every variant is captured once; then rounds replay one variant after the other, so that drift of clocks and
temperature meets all of them alike. Callers rotate over more weights than the L2 holds within one call. All of it is
one turn at the GPU (``turns``), where other processes measure too.

Where the fastest of several variants stands for all of them, it is picked on other rounds than those that are reported
(``Rounds``): the least of many noisy medians is lower than any of them is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from interlace.bench.clocks import Clocks, meter_of, watching
from interlace.bench.turns import alone
from interlace.executors.gpu import open_device


@dataclass(frozen=True)
class Timing:
    """Microseconds per run over the rounds: median, 20th and 80th percentile."""

    median_us: float
    p20_us: float
    p80_us: float

    @staticmethod
    def of(samples_us: list[float]) -> Timing:
        """Percentiles of samples."""
        p20, median, p80 = np.percentile(samples_us, (20, 50, 80))
        return Timing(float(median), float(p20), float(p80))


@dataclass(frozen=True)
class Rounds:
    """Some variants timed in the same rounds: every second one to pick by, the others to report.

    Attributes:
        picking_us: median of the rounds to pick by, by variant.
        times: of the others.
        clocks: over all rounds, if they were watched and the driver tells.
    """

    picking_us: Mapping[str, float]
    times: Mapping[str, Timing]
    clocks: Clocks | None = None

    def fastest(self, names: Iterable[str]) -> str:
        """Of some variants, by the rounds to pick by."""
        return min(names, key=lambda name: self.picking_us[name])


def rounds_us(
    functions: Mapping[str, Callable[[], None]], repeats: int, calls: int = 1, *, watched: bool = False
) -> Rounds:
    """Time per run of each function on the current CUDA device; see ``median_us``.

    Args:
        repeats: rounds to pick by, and as many to report.
        watched: read clock and power meanwhile, which takes some of the host's time (``clocks``).
    """
    samples, clocks = _samples_us(functions, 2 * repeats, calls, watched)
    return Rounds(
        {name: float(np.median(values[::2])) for name, values in samples.items()},
        {name: Timing.of(values[1::2]) for name, values in samples.items()},
        clocks,
    )


def median_us(
    functions: Mapping[str, Callable[[], None]], repeats: int = 20, calls: int = 1
) -> dict[str, Timing]:
    """Time per run of each function on the current CUDA device.

    Args:
        functions: each enqueues ``calls`` runs on the current stream; it must be capturable.
        repeats: rounds over all functions.
        calls: runs per function call.
    """
    samples, _ = _samples_us(functions, repeats, calls)
    return {name: Timing.of(values) for name, values in samples.items()}


def _samples_us(
    functions: Mapping[str, Callable[[], None]], repeats: int, calls: int, watched: bool = False
) -> tuple[dict[str, list[float]], Clocks | None]:
    """By name the microseconds per run of each round, and clocks if they are watched; takes a turn at the GPU."""
    with alone():
        graphs = _captured(functions)
        return _replayed(graphs, repeats, calls, watched)


def _captured(functions: Mapping[str, Callable[[], None]]) -> dict[str, Any]:
    """A CUDA graph of each, replayed once."""
    torch, _ = open_device("cuda")
    graphs = {}
    for name, function in functions.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()  # compiles, and warms what a first call sets up
            function()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            function()
    for graph in graphs.values():
        graph.replay()
    torch.cuda.synchronize()
    return graphs


def _replayed(
    graphs: Mapping[str, Any], repeats: int, calls: int, watched: bool = False
) -> tuple[dict[str, list[float]], Clocks | None]:
    torch, device = open_device("cuda")
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    with watching(meter_of(torch, device) if watched else None) as watch:
        for _ in range(repeats):
            for name, graph in graphs.items():
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                graph.replay()
                end.record()
                watch.running = name
                end.synchronize()
                watch.running = None
                samples[name].append(begin.elapsed_time(end) * 1e3 / calls)
    return samples, watch.clocks()

"""Fit the constants of ``kernels/matmul/megakernel_cost`` to measured times of tilings of FFNs.

    python benchmarks/fit_matmul_cost.py benchmarks/results/walk-cost-h200.json
    python benchmarks/fit_matmul_cost.py walk-cost.json --measure --gpus 2

Prints the ``[stages]`` of a chip's data file in ``core/devices``, how far off the formula is with them and with those
that the file has, and how far off it is on each FFN if fitted to all the others. ``--measure`` makes the record first,
on a GPU that has a data file (``devices.py``): FFNs over numbers of tokens, drawn from a seed, of each the way that is
taken and others drawn from those that cost about as much. Two H200s take some minutes.

The formula is to tell ways of one FFN apart. So every row has a factor of its own, for its run's clocks and for what a
launch costs besides: residuals are of logarithms, about the mean of their row. From 1 % on they count by their size
alone (soft L1). The logarithms of the constants are found by damped Gauss-Newton steps (Levenberg and Marquardt), the
weights of the loss anew at each; as the formula has kinks, from several points drawn around the file's.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np
from script import make_parser, measure_jobs

from interlace.bench.gpus import count_processes
from interlace.bench.record import write_record
from interlace.bench.sources import list_launch_sources
from interlace.bench.timing import describe_protocol, time_rounds
from interlace.core.devices import H200, DeviceSpec, StageCosts, load_known_chips
from interlace.deploy import current_device, make_executor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.kernels.matmul import Activation
from interlace.kernels.matmul.megakernel_candidates import iter_cheapest
from interlace.kernels.matmul.megakernel_cost import MatmulExtents, TilingCandidate, count_ring_stages, estimate_seconds
from interlace.kernels.matmul.tile import MatmulTile
from interlace.policies.tiling import OpTiling, Tilings
from interlace.workloads import FeedForward

_REPEATS = 5
PROTOCOL = (
    f"CUDA graphs of several runs each, {describe_protocol(_REPEATS)}, weights rotated past twice the L2, bf16, "
    "dependent launch; a way is that of both matmuls, each tokens x weight rows x depth of its tile, T where weights "
    "are the tensor core's 64-row operand, / parts along k"
)
_WAY = re.compile(r"(\d+)x(\d+)x(\d+)(T?)/(\d+)")
_SOFT = 0.01  # from which on a residual counts by its size alone
_STEPS, _NUDGE, _CLOSE, _LONGEST = 60, 0.03, 1e-3, 0.5  # of logarithms of constants
_STARTS, _AROUND = 8, 0.4
_HIDDEN, _RATIO, _TOKENS = (1024, 8192), (1.0, 4.5), (17, 2048)  # of what is drawn, evenly by their logarithms
_ROUND = 128
_DEARER = 1.4  # by the formula than the least: ways to draw from


@dataclass(frozen=True)
class Row:
    """An FFN over some tokens, and microseconds by way of tiling it."""

    hidden: int
    ffn: int
    gated: bool
    tokens: int
    ways_us: Mapping[str, float]

    @property
    def network(self) -> tuple[int, int, bool]:
        return self.hidden, self.ffn, self.gated

    @property
    def workload(self) -> FeedForward:
        return FeedForward(
            self.hidden, self.ffn, self.tokens, self.gated, Activation.SILU if self.gated else Activation.RELU
        )

    def predicted_us(self, device: DeviceSpec) -> list[float]:
        """Return the time of each tiling by the formula."""
        up = MatmulExtents(self.tokens, (self.ffn,), self.hidden, 1 + self.gated)
        down = MatmulExtents(self.tokens, (self.hidden,), self.ffn, 1)
        found = []
        for text in self.ways_us:
            ways = [way_of(one, op) for one, op in zip(text.split(), (up, down), strict=True)]
            stages = count_ring_stages(ways, device.smem_bytes)
            found.append(
                1e6 * sum(estimate_seconds(op, way, stages, device) for op, way in zip((up, down), ways, strict=True))
            )
        return found

    def residuals(self, device: DeviceSpec) -> np.ndarray:
        """Predicted over measured, in logarithms, about their mean."""
        logs = np.log(self.predicted_us(device)) - np.log([*self.ways_us.values()])
        return logs - logs.mean()

    def over_fastest(self, device: DeviceSpec) -> float:
        """Time of the way that the formula takes, over that of the fastest."""
        us = [*self.ways_us.values()]
        return us[int(np.argmin(self.predicted_us(device)))] / min(us)


def way_of(text: str, op: MatmulExtents) -> TilingCandidate:
    """The inverse of ``text_of``."""
    told = _WAY.fullmatch(text)
    assert told is not None, text
    m, n, k, parts = (int(told[group]) for group in (1, 2, 3, 5))
    turned = bool(told[4])
    warps = 12 if (n if turned else m) == 192 else 8  # three warpgroups are priced unlike one or two
    return TilingCandidate(
        MatmulTile(m, n, k, num_warps=warps, swap_ab=turned), parts, op.sums, min(-(-op.m // 8) * 8, m)
    )


def text_of(op: OpTiling) -> str:
    """As records have it."""
    tile = dict(op.params)
    return f"{tile['BM']}x{tile['BN']}x{tile['BK']}{'T' if tile['SWAP'] else ''}/{op.parts}"


# ---------------------------------------------------------------- the fit


def residuals(rows: Sequence[Row], device: DeviceSpec) -> np.ndarray:
    return np.concatenate([row.residuals(device) for row in rows])


def rms(rows: Sequence[Row], device: DeviceSpec) -> float:
    return float(np.sqrt(np.mean(residuals(rows, device) ** 2)))


def over_fastest(rows: Sequence[Row], device: DeviceSpec) -> float:
    return float(np.mean([row.over_fastest(device) for row in rows]))


def loss(found: np.ndarray) -> float:
    return float(np.sum(np.sqrt(1 + (found / _SOFT) ** 2) - 1))


def with_logs(device: DeviceSpec, logs: np.ndarray) -> DeviceSpec:
    """A device with constants of these logarithms."""
    return replace(device, stages=StageCosts(*map(float, np.exp(logs))))


def descend(rows: Sequence[Row], device: DeviceSpec) -> DeviceSpec:
    """The least loss that steps from a device's constants lead to."""
    x = np.log(astuple(device.stages))
    now, damping = residuals(rows, device), 1e-2
    for _ in range(_STEPS):
        ends = [(with_logs(device, x - d), with_logs(device, x + d)) for d in _NUDGE * np.eye(len(x))]
        slopes = np.stack([residuals(rows, b) - residuals(rows, a) for a, b in ends], axis=1) / (2 * _NUDGE)
        weights = 1 / np.sqrt(1 + (now / _SOFT) ** 2)
        normal, right = slopes.T @ (weights[:, None] * slopes), slopes.T @ (weights * now)
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), right).clip(-_LONGEST, _LONGEST)
        tried = residuals(rows, with_logs(device, x - step))
        if loss(tried) < loss(now):
            x, now, damping = x - step, tried, damping / 3
        else:
            damping *= 5
        if np.abs(step).max() < _CLOSE:
            break
    return with_logs(device, x)


def fit(rows: Sequence[Row], device: DeviceSpec) -> DeviceSpec:
    """A device with the constants that fit rows best."""
    numbers = np.random.default_rng(0)
    x = np.log(astuple(device.stages))
    starts = [x] + [x + numbers.normal(0, _AROUND, len(x)) for _ in range(_STARTS)]
    return min(
        (descend(rows, with_logs(device, start)) for start in starts), key=lambda found: loss(residuals(rows, found))
    )


def report(rows: Sequence[Row], device: DeviceSpec) -> Iterator[str]:
    """The constants that fit best, and how well, in lines."""
    best = fit(rows, device)
    count = sum(len(row.ways_us) for row in rows)
    yield f"{device.name}: {count} ways of {len(rows)} rows, {len({row.network for row in rows})} FFNs"
    yield "[stages]"
    for name, value in asdict(best.stages).items():
        yield f"{name} = {value:.3g}  # {getattr(device.stages, name):g} in the chip's data file"
    for what, one in (("fitted", best), ("the data file's", device)):
        yield f"{what}: residuals {rms(rows, one):.2%}, what is taken over the fastest {over_fastest(rows, one):.4f}"
    left_out = []
    for network in dict.fromkeys(row.network for row in rows):
        own = [row for row in rows if row.network == network]
        others = descend([row for row in rows if row.network != network], best)
        left_out.append(residuals(own, others))
        yield (
            f"  {network[0]} to {network[1]}{', gated' if network[2] else ''}: by all others' fit "
            f"{rms(own, others):.2%}, what is taken over the fastest {over_fastest(own, others):.4f}"
        )
    yield f"each FFN by the others' fit: residuals {np.sqrt(np.mean(np.concatenate(left_out) ** 2)):.2%}"


# ---------------------------------------------------------------- measurements


def draw_rows(seed: int, count: int) -> Iterator[Row]:
    """FFNs over tokens, none measured."""
    numbers = random.Random(seed)

    def between(ends: tuple[float, float]) -> float:
        return math.exp(numbers.uniform(*map(math.log, ends)))

    for _ in range(count):
        hidden = round(between(_HIDDEN) / _ROUND) * _ROUND
        ffn = round(hidden * between(_RATIO) / _ROUND) * _ROUND
        yield Row(hidden, ffn, numbers.random() < 0.5, round(between(_TOKENS)), {})


def list_tilings(row: Row, device: DeviceSpec, count: int) -> dict[str, Tilings]:
    """The way that is taken, and others at random of those that are likely."""
    ops = row.workload.build_graph(device).ops
    every = {" ".join(map(text_of, tilings.values())): tilings for tilings in iter_cheapest(ops, row.tokens, device)}
    us = dict(zip(every, replace(row, ways_us=dict.fromkeys(every, 0.0)).predicted_us(device), strict=True))
    first, *others = (text for text in every if us[text] < _DEARER * min(us.values()))
    numbers = random.Random(f"{row}")
    return {text: every[text] for text in (first, *numbers.sample(others, min(len(others), count - 1)))}


def measure_row(job: tuple[Row, int]) -> Row:
    """Return a row with the times of so many ways."""
    from interlace.bench.problem import BenchProblem

    row, count = job
    device = current_device()
    problem = BenchProblem(row.workload, device)
    graph = row.workload.build_graph(device)
    calls = {}
    for text, tilings in list_tilings(row, device, count).items():
        schedule = MegakernelExecutor.make_schedule(graph, device, tilings)
        executor = make_executor(graph, device, MegakernelExecutor, schedule)
        for launch in executor.build_launches():  # else it would be compiled in a turn at the GPU
            launch.compile()
        problem.check(executor)
        calls[text] = problem.make_rotation(problem.make_run(executor))
    times = time_rounds(calls, _REPEATS, problem.runs).times
    return replace(row, ways_us={text: round(time.median_us, 2) for text, time in times.items()})


def describe(job: tuple[Row, int]) -> str:
    """Return the name of a job: its network and tokens."""
    return f"{job[0].network} {job[0].tokens}"


def measure(path: Path, given: argparse.Namespace) -> None:
    """Write the record, anew after each row."""
    rows: list[Row] = []
    jobs = ((row, given.ways) for row in draw_rows(given.seed, given.rows))
    command = f"python benchmarks/fit_matmul_cost.py {path.name} --measure --seed {given.seed} --rows {given.rows}"
    measures = list_launch_sources(FeedForward.from_fields({}, True).build_graph(H200))
    share = count_processes(given.gpus, cpus=2)
    measured = measure_jobs(measure_row, jobs, describe, seconds=given.seconds, gpus=given.gpus, share=share)
    for _, row in measured:
        print("  " + ", ".join(f"{way} {us:.1f}" for way, us in row.ways_us.items()), flush=True)
        rows.append(row)
        write_record(path, command, PROTOCOL, measures, {"rows": [asdict(row) for row in rows]})


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--measure", action="store_true", help="make the record first")
    parser.add_argument("--seed", type=int, default=0, help="of the FFNs that are drawn")
    parser.add_argument("--rows", type=int, default=48, help="FFNs over tokens that are drawn")
    parser.add_argument("--ways", type=int, default=6, help="of each")
    parser.add_argument("--seconds", type=float, default=240.0, help="begin no row later than this")
    parser.add_argument("--gpus", type=int, default=1, help="measure on so many GPUs at once")
    given = parser.parse_args()
    chips = {chip.name: chip for chip in load_known_chips().values()}
    if given.measure and current_device().name not in chips:
        parser.error(f"{current_device().name} has no data file; make one first (benchmarks/devices.py)")
    if given.measure:
        measure(given.path, given)
    record = json.loads(given.path.read_text())
    rows = [Row(**row) for row in record["rows"]]
    device = chips[record["gpu"]]
    for line in report(rows, device):
        print(line, flush=True)


if __name__ == "__main__":
    main()

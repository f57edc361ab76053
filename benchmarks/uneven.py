"""Common parts of the benchmarks of work whose extent data decide (``moe.py``, ``ragged.py``); ``cusync.py`` has its
command line.

Every dispatch of the one launch and a CUDA graph of the Triton bodies stand beside other ways to do the same. All of a
row run interleaved in CUDA graphs on the same random inputs, weights rotated past twice the L2. What is right is
checked first, against float64. What does not run is told in the row, and the others go on. The record is written after
each row. Several rows are under way on a GPU, and whatever is timed has it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from script import format_command, format_error, make_parser, measure_jobs

from interlace.bench.gpu_lock import hold_gpu, lock_autotuning
from interlace.bench.gpus import count_processes
from interlace.bench.problem import BenchProblem, Tensors
from interlace.bench.record import read_matching_rows, write_record
from interlace.bench.sources import list_launch_sources
from interlace.bench.timing import time_medians, time_rounds
from interlace.deploy import autoplan, can_overlap, current_device
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.serial import CudaGraphExecutor
from interlace.megakernel.options import RunOptions
from interlace.plan.plan import Dispatch
from interlace.workloads import Workload

DISPATCHES = Dispatch.STATIC, Dispatch.TICKET, Dispatch.HYBRID, Dispatch.STEALING, Dispatch.QUEUE
TRITON = "CUDA graph of Triton bodies"
#: Rounds to pick by, and to report, at least.
REPEATS = 5
_CPUS = 2  # that a row keeps busy: it traces, plans and compiles
_COPIES = 5  # of its weights: two sets, these as rivals take them, and activations; for a while also float64

#: Inputs by name -> outputs by name.
Way = Callable[[Tensors], Tensors]


@dataclass(frozen=True)
class Case:
    """A row to measure.

    Attributes:
        key: what tells it from others, by column.
    """

    key: tuple[tuple[str, str | int], ...]
    work: Workload

    @property
    def name(self) -> str:
        return ":".join(str(value) for _, value in self.key)


def as_they_lie(problem: BenchProblem) -> Sequence[Tensors]:
    """The sets of weights."""
    return problem.weights


@dataclass(frozen=True)
class Rival:
    """Another way to do the same.

    Attributes:
        make: of the problem; what it raises is told in the row.
        weights: of the problem, as the way takes them; made once for all ways that name the same function.
    """

    make: Callable[[BenchProblem], Way]
    weights: Callable[[BenchProblem], Sequence[Tensors]] = as_they_lie


def measure_case(case: Case, rivals: Mapping[str, Rival]) -> dict[str, Any]:
    """Return the row of a case."""
    device, work = current_device(), case.work
    lock_autotuning()
    problem = BenchProblem(work, device)
    row: dict[str, Any] = dict(case.key)
    row |= {"workload": work.to_data(), "bytes_us": problem.bytes_us, "flops_us": problem.flops_us}
    row |= {"pytorch_relative_error": problem.pytorch_error, "ways": {}, "left_out": {}}
    ways: dict[str, Callable[[], None]] = {}
    found: dict[str, Any] = row["ways"]

    def try_rival(name: str, make: Callable[[], tuple[float, Callable[[], None]]]) -> None:
        try:
            error, way = make()
            time_medians({name: way}, 1)  # what cannot be captured may not end what can
        except Exception as error:  # noqa: BLE001  whatever it is, the others go on
            row["left_out"][name] = format_error(error)
            return
        ways[name], found[name] = way, {"relative_error": error}

    def executor(kind: type[Any], **given: Any) -> tuple[float, Callable[[], None]]:
        plan = autoplan(work.build_graph(device), device, kind, **given)
        made = kind(plan, RunOptions(dependent_launch=can_overlap(kind, plan, device)))
        for launch in made.build_launches({**problem.rest, **problem.weights[0], **problem.outputs}):
            launch.compile()
        return problem.check(made), problem.make_rotation(problem.make_run(made))

    @cache
    def lying(weights: Callable[[BenchProblem], Sequence[Tensors]]) -> Sequence[Tensors]:
        with hold_gpu():
            return weights(problem)

    def rival(of: Rival) -> tuple[float, Callable[[], None]]:
        way, weights = of.make(problem), lying(of.weights)
        problem.run_once(way, weights)  # compiles
        return problem.check_function(way, "it", weights), problem.make_rotation(way, weights)

    for name, of in rivals.items():
        try_rival(name, partial(rival, of))
    try_rival(TRITON, partial(executor, CudaGraphExecutor))
    for dispatch in DISPATCHES:
        try_rival(dispatch.value, partial(executor, MegakernelExecutor, dispatch=dispatch))
    for name, timing in time_rounds(ways, REPEATS, problem.runs).times.items():
        found[name] |= asdict(timing)
    return row


def main(
    description: str,
    protocol: str,
    cases: Sequence[Case],
    function: Callable[[Case], dict[str, Any]],
    also: Sequence[str],
    ranks: Mapping[str, float] | None = None,
) -> None:
    """The command line of a benchmark.

    Args:
        cases: all that there are, as rows of a record follow each other.
        function: makes a row of one; it is sent to other processes.
        also: what the record measures beside what is launched; see ``bench/sources``.
        ranks: numbers of the cases' names, in whose order they run; by default what takes longest comes first.
    """
    parser = make_parser(description)
    parser.add_argument("path", type=Path)
    parser.add_argument("--case", action="append", metavar="A:B:C", help="only this row of the record")
    parser.add_argument("--update", action="store_true", help="only what the record has no row of")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin none after so long; 600 by default")
    parser.add_argument("--gpus", type=int, default=1, help="measure on so many GPUs at once")
    given = parser.parse_args()
    asked = [case for case in cases if given.case is None or case.name in given.case]
    unknown = sorted({*(given.case or ())} - {case.name for case in cases})
    if unknown:
        parser.error(f"there are no cases {', '.join(unknown)}; there are {', '.join(case.name for case in cases)}")
    place = {case.key: n for n, case in enumerate(cases)}
    measures = sorted(
        {*also, *(room for case in cases for room in list_launch_sources(case.work.build_graph(current_device())))}
    )
    rows = {_key(row, cases): row for row in read_matching_rows(given.path, measures)}
    left = [case for case in asked if not given.update or case.key not in rows]
    left.sort(key=lambda case: -case.work.flops if ranks is None else ranks[case.name])
    share = min(count_processes(given.gpus, cpus=_CPUS), max(1, -(-len(left) // given.gpus)), _fitting(cases))
    measured = measure_jobs(function, left, lambda case: case.name, seconds=given.seconds, gpus=given.gpus, share=share)
    for case, row in measured:
        rows[case.key] = row
        ordered = [rows[key] for key in sorted(rows, key=place.__getitem__)]
        write_record(given.path, format_command(given.path), protocol, measures, {"rows": ordered})
        print(f"  bytes {row['bytes_us']:.1f}, products {row['flops_us']:.1f} us", flush=True)
        for way, figures in row["ways"].items():
            print(f"  {way:30} {figures['median_us']:8.1f} us, error {figures['relative_error']:.1e}", flush=True)
        for way, reason in row["left_out"].items():
            print(f"  {way}: {reason}", flush=True)


def _fitting(cases: Sequence[Case]) -> int:
    """How many of the largest cases fit the memory of a GPU at once, beside what one of them needs for a while."""
    import torch

    graphs = [(case.work.build_graph(current_device()), case.work.weights) for case in cases]
    largest = max(sum(graph.tensor(n).nbytes for n in weights if n in graph.inputs) for graph, weights in graphs)
    memory: int = torch.cuda.get_device_properties(0).total_memory
    return max(1, memory // (_COPIES * largest) - 1)


def _key(row: Mapping[str, Any], cases: Sequence[Case]) -> tuple[tuple[str, str | int], ...]:
    return tuple((column, row[column]) for column, _ in cases[0].key)

"""``interlace bench``: measurements, and the records that the documentation quotes."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import Executor as Pool
from dataclasses import dataclass
from functools import cache
from multiprocessing.util import Finalize
from typing import Annotated, Any

import typer

from interlace.bench import dispatch as bench_dispatch
from interlace.bench import spawn as bench_spawn
from interlace.bench import sync as bench_sync
from interlace.bench.compile import open_pool
from interlace.bench.gpus import count_processes, run_on_gpus
from interlace.bench.record import format_record, read_matching_rows
from interlace.bench.sources import list_launch_sources
from interlace.bench.timing import describe_protocol
from interlace.bench.workload import CANDIDATES, REPEATS, measure
from interlace.cli import names
from interlace.cli.bench_cases import Budget, Case, interleave_cases, list_cases, sort_rows
from interlace.cli.bench_tables import compute_means, show_dispatch, show_rows, show_spawning
from interlace.cli.console import BadInput, print_table, show_progress, show_spinner
from interlace.cli.machine import find_machine, target_gpu
from interlace.cli.names import Device
from interlace.cli.options import DeviceOption, ExecutorOptions, register_command
from interlace.cli.outputs import Output, parse_output, parse_output_file, save
from interlace.cli.table import build_facts, format_number
from interlace.cli.workloads import Selection, add_per_workload, add_workload_group
from interlace.core.devices import DeviceSpec
from interlace.core.errors import InterlaceError, LaunchEndedError
from interlace.executors import Executor
from interlace.policies.orders import Order

_PROTOCOL = (
    f"CUDA graphs of many runs each, {describe_protocol(REPEATS)}, weights rotated past twice the L2; rows are "
    "compiled beside each other, and what is timed, by torch.compile too, has the GPU alone"
)
_DISPATCH_PROTOCOL = (
    "eight runs in a CUDA graph, one of items that spawn others, replayed with variants interleaved, "
    "median of 20 rounds"
)
_SYNC_PROTOCOL = "1,000 rounds in one thread block of 4 warps, median of 11 repeats, %globaltimer"
_ROW_CPUS = 4  # CPUs that the compilation of a row keeps busy
SyncOut = Annotated[
    Output | None,
    typer.Option(
        "--out", metavar="FILE", parser=parse_output, help="Write the record to this JSON file; - for stdout."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = add_workload_group(app, "bench", "Measure on a GPU, all variants in one run, interleaved.")

    @add_per_workload(commands, several=True)
    def bench(
        work: Selection,
        executor: ExecutorOptions = None,
        out: Annotated[
            Output | None,
            typer.Option("--out", metavar="FILE", parser=parse_output_file, help="Write the record to this JSON file."),
        ] = None,
        update: Annotated[
            bool,
            typer.Option(
                "--update",
                help="Keep the rows that the record has from this GPU with these versions and sources, and measure the "
                "others.",
            ),
        ] = False,
        seconds: Annotated[
            float | None,
            typer.Option(
                "--seconds", min=0.0, metavar="S", help="Stop before a row that would not end in so many seconds."
            ),
        ] = None,
        compiled: Annotated[
            bool, typer.Option("--compile/--no-compile", help="Include torch.compile, which takes long to tune.")
        ] = True,
        order: Annotated[
            names.NamedOrder | None,
            names.build_order_option(
                f"In which order every op's tiles run, for tiles of grids that it fits: {names.ORDERS.listing}."
            ),
        ] = None,
        gpus: Annotated[int, typer.Option("--gpus", min=1, metavar="N", help="Measure on so many GPUs at once.")] = 1,
    ) -> None:
        """Every executor that can run a workload against the best of eager PyTorch and torch.compile in CUDA graphs.

        Without a preset or sizes: the rows that the project keeps records of, back to back and, for a layer, inside a
        model. Each executor runs with the fastest of its settings, picked on other rounds than those reported. The
        record is written after each row, so a run that is cut short keeps what it has.

        On a host with many CPUs several rows are under way on a GPU at once; whatever is timed has it alone.

        Example: interlace bench ffn --preset relu --m 16 --m 512 --out record.json

        Example: interlace bench ffn --update --seconds 500 --out record.json

        Example: interlace bench one-matmul --m 512 --order explicit:order.json
        """
        executors = _deduplicate(executor or [])
        if update and out is None:
            raise BadInput("--update keeps rows of a record; name it with --out")
        cases = list_cases(work)
        machine = find_machine(Device.CUDA)
        options: dict[str, Any] = {"executors": [e.name for e in executors], "compiled": compiled}
        # In the form of JSON, with the tiles of a file, so that rows of another order are not reused.
        options |= {"order": json.loads(json.dumps({"name": order.name, **vars(order.order)}))} if order else {}
        measures = list_launch_sources(cases[0][1].build_graph(machine.spec))
        rows = read_matching_rows(out.path, measures, options=options) if update and out is not None else []
        done = [row["workload"] for row in rows]
        open_cases = [case for case in interleave_cases(cases) if case[1].to_data() not in done]
        budget = Budget(seconds)
        share = min(count_processes(gpus, _ROW_CPUS), max(1, len(open_cases) // gpus))
        measuring = _Measurer(machine.spec, tuple(executors), compiled, order.order if order else None, gpus * share)
        measured = run_on_gpus(measuring, budget.take_affordable(open_cases), gpus, share)
        failed = None
        for _, (row, took) in show_progress(measured, "measuring", len(open_cases)):
            budget.durations_s.append(took)
            if isinstance(row, InterlaceError):
                failed = failed or row
                continue
            rows = sort_rows([*rows, row], cases)
            if out is not None:
                figures = {"options": options, "rows": rows, "means": compute_means(work.kind, rows)}
                save(
                    out,
                    format_record(
                        _format_command(work, executors, compiled, order, gpus), _PROTOCOL, measures, figures
                    ),
                )
        if rows:
            show_rows(work.kind, rows, machine.name)
        if failed is not None:
            raise failed

    @register_command(commands, "sync")
    def sync(out: SyncOut = None) -> None:
        """Measure a post, a wait, a hand-off between SMs and a ticket, in nanoseconds on an idle GPU.

        Example: interlace bench sync
        """
        with show_spinner("measuring"):
            costs = bench_sync.measure_costs()
        if out is not None:
            figures = {"nanoseconds": dict(costs)}
            save(out, format_record("interlace bench sync", _SYNC_PROTOCOL, bench_sync.MEASURES, figures))
        print_table(build_facts("cost of the parts", [(name, f"{format_number(ns)} ns") for name, ns in costs.items()]))

    @register_command(commands, "dispatch")
    def dispatch(
        items: Annotated[int, typer.Option("--items", min=1, max=1 << 16, metavar="N", help="Items.")] = 4096,
        device: DeviceOption = None,
        out: SyncOut = None,
    ) -> None:
        """How near each dispatch comes to the ideal, for items of equal and of unequal cost.

        The ideal is the work of all items over the workers. A second table has items that spawn others: what it is
        worth to run those alone that are wanted, by how workers find that none is left. Without a GPU, or with a chip
        or a file as --device, the times are predicted. The first use compiles the simulator, about 5 s once.

        Example: interlace bench dispatch --items 4096
        """
        machine = target_gpu(device)
        here = machine.torch is not None
        if out is not None and not here:
            raise BadInput("--out: a record is of what was measured, and there is no CUDA GPU here")
        with show_spinner("measuring" if here else f"predicting for {machine.name}"):
            rows = bench_dispatch.measure_rows(machine.spec, items, measure=here)
            spawning = bench_spawn.measure_rows(machine.spec, measure=here)
        if out is not None:
            figures = {"items": items, "rows": [row.to_data() for row in rows]}
            figures["spawning"] = [row.to_data() for row in spawning]
            line = f"interlace bench dispatch --items {items}"
            save(out, format_record(line, _DISPATCH_PROTOCOL, bench_dispatch.MEASURES, figures))
        where = f"on {machine.name}{'' if here else ', predicted, nothing ran'}"
        show_dispatch(rows, f"{items:,} items {where}")
        if spawning:
            show_spawning(spawning, f"items that spawn items {where}")


@dataclass(frozen=True)
class _Measurer:
    """Measures a case; other processes get it by pickle.

    Attributes:
        device: each GPU as data.
        executors, compiled, order: see ``measure``.
        processes: number of processes that measure at once.
    """

    device: DeviceSpec
    executors: tuple[type[Executor], ...]
    compiled: bool
    order: Order | None
    processes: int

    def __call__(self, case: Case) -> tuple[dict[str, Any] | InterlaceError, float]:
        """Return the row of a case as JSON data, or the reason why there is none, and the seconds that it took."""
        begin = time.monotonic()
        preset, problem = case
        pool = _get_compilers(self.processes)
        row: dict[str, Any] | InterlaceError
        try:
            picked, compiled = self.executors, self.compiled
            found = measure(preset, problem, self.device, picked, with_compile=compiled, order=self.order, pool=pool)
            row = found.to_data()
        except LaunchEndedError:  # this process can run no further row
            raise
        except InterlaceError as error:
            row = error
        return row, time.monotonic() - begin


@cache
def _get_compilers(processes: int) -> Pool:
    """Return the compilers of this process, shared by all its rows."""
    pool = open_pool(share=processes)
    # A process that run_on_gpus started waits for its children before it ends, and these wait for work until the pool
    # is shut down. Shutdown needs the pool's queue, which is closed at priority 10.
    Finalize(None, pool.shutdown, kwargs={"cancel_futures": True}, exitpriority=100)
    return pool


def _deduplicate(named: Sequence[type[Executor]]) -> list[type[Executor]]:
    """Return the named executors without repeats."""
    other = [e.name for e in named if e not in CANDIDATES]
    if other:
        raise BadInput(f"{', '.join(other)} cannot be captured; use {', '.join(e.name for e in CANDIDATES)}")
    return list(dict.fromkeys(named))


def _format_command(
    work: Selection, executors: Sequence[type[Executor]], compiled: bool, order: names.NamedOrder | None, gpus: int
) -> str:
    """Return the command line that repeats the measurement."""
    words = ["interlace", "bench", work.kind.name]
    for preset in work.presets:
        words += ["--preset", preset]
    for name, value in {**work.given_fields}.items():
        flag = name.replace("_", "-")
        words += (
            [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", _format_word(value)]
        )
    for size in work.sizes:
        words += [f"--{work.kind.size.replace('_', '-')}", str(size)]
    for executor in executors:
        words += ["--executor", executor.name]
    words += ["--order", order.name] if order else []
    words += [] if compiled else ["--no-compile"]
    return shlex.join(words + (["--gpus", str(gpus)] if gpus > 1 else []))


def _format_word(value: Any) -> str:
    return str(getattr(value, "value", value))

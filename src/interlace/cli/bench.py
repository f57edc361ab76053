"""``interlace bench``: measurements, and the records that the documentation quotes."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Annotated, Any

import typer

from interlace.bench import dispatch as bench_dispatch
from interlace.bench import spawn as bench_spawn
from interlace.bench import sync as bench_sync
from interlace.bench.compile import compilers
from interlace.bench.gpus import on_gpus, shares
from interlace.bench.record import kept_rows, record
from interlace.bench.row import means
from interlace.bench.sources import launched
from interlace.bench.timing import protocol
from interlace.bench.workload import CANDIDATES, REPEATS, measure
from interlace.cli import names
from interlace.cli.console import BadInput, note, progress, say, show, working
from interlace.cli.machine import find, target
from interlace.cli.names import Device
from interlace.cli.options import ExecutorOptions, command
from interlace.cli.outputs import Output, output, output_file, save
from interlace.cli.table import columns, facts, number
from interlace.cli.workloads import Selection, group, per_workload
from interlace.core.devices import DeviceSpec
from interlace.core.errors import InterlaceError
from interlace.executors import Executor
from interlace.policies.orders import Order
from interlace.workloads.base import Workload

_PROTOCOL = (
    f"CUDA graphs of many runs each, {protocol(REPEATS)}, weights rotated past twice the L2; rows are compiled beside "
    "each other, and what is timed, by torch.compile too, has the GPU alone"
)
_DISPATCH_PROTOCOL = (
    "eight runs in a CUDA graph, one of items that spawn others, replayed with variants interleaved, "
    "median of 20 rounds"
)
_SYNC_PROTOCOL = "1,000 rounds in one thread block of 4 warps, median of 11 repeats, %globaltimer"
_ROW_CPUS = 4  # kept busy by a row while it is compiled
SyncOut = Annotated[
    Output | None,
    typer.Option("--out", metavar="FILE", parser=output, help="Write the record to this JSON file; - for stdout."),
]
#: A problem, with the name of its preset if it is as that has it.
Case = tuple[str | None, Workload]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = group(app, "bench", "Measure on a GPU, all variants in one run, interleaved.")

    @per_workload(commands, several=True)
    def bench(
        work: Selection,
        executor: ExecutorOptions = None,
        out: Annotated[
            Output | None,
            typer.Option("--out", metavar="FILE", parser=output_file, help="Write the record to this JSON file."),
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
            names.order_option(
                f"In which order every op's tiles run, for tiles of grids that it fits: {names.ORDERS.listing}."
            ),
        ] = None,
        gpus: Annotated[int, typer.Option("--gpus", min=1, metavar="N", help="Measure on so many GPUs at once.")] = 1,
    ) -> None:
        """Every executor that can run a workload against the best of eager PyTorch and torch.compile in CUDA graphs.

        Without a preset or a shape, the rows that the project keeps records of. Back to back and, where the workload
        is a layer's, inside a model. Each executor stands with the fastest of its settings, picked on other rounds
        than those reported. On a host with many CPUs several rows are under way on a GPU at once; whatever is timed has
        it alone. The record is written after each row, and rows come in an order in which any beginning says most, so a
        run that is cut short keeps what it has.

        Example: interlace bench ffn --preset relu --m 16 --m 512 --out record.json

        Example: interlace bench ffn --update --seconds 500 --out record.json

        Example: interlace bench one-matmul --m 512 --order explicit:order.json
        """
        executors = _executors(executor or [])
        if update and out is None:
            raise BadInput("--update keeps rows of a record; name it with --out")
        cases = _cases(work)
        machine = find(Device.CUDA)
        options: dict[str, Any] = {"executors": [e.name for e in executors], "compiled": compiled}
        # As JSON has it, with the tiles of a file, so that rows of another order are not kept.
        options |= {"order": json.loads(json.dumps({"name": order.name, **vars(order.order)}))} if order else {}
        measures = launched(cases[0][1].graph(machine.spec))
        rows = kept_rows(out.path, measures, options=options) if update and out is not None else []
        done = [row["workload"] for row in rows]
        open_cases = [case for case in _spread(cases) if case[1].facts() not in done]
        budget = _Budget(seconds)
        share = min(shares(gpus, _ROW_CPUS), max(1, len(open_cases) // gpus))
        measuring = _Measure(machine.spec, tuple(executors), compiled, order.order if order else None, gpus * share)
        measured = on_gpus(measuring, budget.while_it_fits(open_cases), gpus, share)
        failed = None
        for _, (row, took) in progress(measured, "measuring", len(open_cases)):
            budget.took.append(took)
            if isinstance(row, InterlaceError):
                failed = failed or row
                continue
            rows = _sorted([*rows, row], cases)
            if out is not None:
                figures = {"options": options, "rows": rows, "means": _means(work.kind, rows)}
                save(out, record(_command(work, executors, compiled, order), _PROTOCOL, measures, figures))
        if rows:
            _show(work.kind, rows, machine.name)
        if failed is not None:
            raise failed

    @command(commands, "sync")
    def sync(out: SyncOut = None) -> None:
        """What a post, a wait, a hand-over between SMs and a ticket cost, in nanoseconds on an idle GPU.

        Example: interlace bench sync
        """
        with working("measuring"):
            costs = bench_sync.costs()
        if out is not None:
            figures = {"nanoseconds": dict(costs)}
            save(out, record("interlace bench sync", _SYNC_PROTOCOL, bench_sync.MEASURES, figures))
        show(facts("cost of the parts", [(name, f"{number(ns)} ns") for name, ns in costs.items()]))


    @command(commands, "dispatch")
    def dispatch(
        items: Annotated[int, typer.Option("--items", min=1, max=1 << 16, metavar="N", help="Items.")] = 4096,
        out: SyncOut = None,
    ) -> None:
        """How near each dispatch comes to the ideal, for items of equal and of unequal cost.

        The ideal is the work of all items over the workers. A second table has items that spawn others: what it is
        worth to run those alone that are wanted, by how workers find that none is left. Without a GPU the times are
        predicted for an NVIDIA H200.

        Example: interlace bench dispatch --items 4096
        """
        machine = target(Device.CUDA)
        here = machine.torch is not None
        if out is not None and not here:
            raise BadInput("--out: a record is of what was measured, and there is no CUDA GPU here")
        with working("measuring" if here else f"predicting for {machine.name}"):
            rows = bench_dispatch.rows(machine.spec, items, measured=here)
            spawning = bench_spawn.rows(machine.spec, measured=here)
        if out is not None:
            figures = {"items": items, "rows": [row.to_data() for row in rows]}
            figures["spawning"] = [row.to_data() for row in spawning]
            line = f"interlace bench dispatch --items {items}"
            save(out, record(line, _DISPATCH_PROTOCOL, bench_dispatch.MEASURES, figures))
        where = f"on {machine.name}{'' if here else ', predicted, nothing ran'}"
        _show_dispatch(rows, f"{items:,} items {where}")
        if spawning:
            _show_spawning(spawning, f"items that spawn items {where}")


def _show_dispatch(rows: Sequence[bench_dispatch.Row], title: str) -> None:
    def cells(row: bench_dispatch.Row) -> list[str]:
        times = [row.ideal_us, row.predicted_us, *([] if row.us is None else [row.us])]
        beside = ["" if row.overhead_ns is None else f"{row.overhead_ns:,.0f}"]
        beside += ["" if row.launch_us is None else f"{row.launch_us:.1f}"]
        last = [f"{times[-1] / row.ideal_us:.2f}", f"{row.busy:.0%}", *beside]
        return [row.costs, row.executor, row.dispatch, *map(number, times), *last]

    measured = [] if any(row.us is None for row in rows) else ["us"]
    headings = ["costs", "executor", "dispatch", "ideal us", "predicted us", *measured, "over", "busy"]
    show(columns(title, [*headings, "item ns", "launch us"], map(cells, rows)))


def _show_spawning(rows: Sequence[bench_spawn.Row], title: str) -> None:
    measured = [] if any(row.us is None for row in rows) else ["us"]
    headings = ("dispatch", "end by", "items", "wanted", "predicted us", *measured)
    cells = (
        (r.dispatch, r.termination, f"{r.items:,}", f"{r.wanted:,}", number(r.predicted_us))
        + (() if r.us is None else (number(r.us),))
        for r in rows
    )
    show(columns(title, headings, cells))


@dataclass(frozen=True)
class _Measure:
    """Measures a case; other processes get it by pickle.

    Attributes:
        device: each GPU as data.
        executors, compiled, order: see ``measure``.
        processes: that measure at once.
    """

    device: DeviceSpec
    executors: tuple[type[Executor], ...]
    compiled: bool
    order: Order | None
    processes: int

    def __call__(self, case: Case) -> tuple[dict[str, Any] | InterlaceError, float]:
        """The row of a case as JSON data, or why there is none, and the seconds that it took."""
        begin = time.monotonic()
        preset, problem = case
        pool = _compilers(self.processes)
        row: dict[str, Any] | InterlaceError
        try:
            picked, compiled = self.executors, self.compiled
            found = measure(preset, problem, self.device, picked, compiled=compiled, order=self.order, pool=pool)
            row = found.to_data()
        except InterlaceError as error:
            row = error
        return row, time.monotonic() - begin


@cache
def _compilers(processes: int) -> Pool:
    """This process's own, for all its rows."""
    return compilers(share=processes)


def _executors(named: Sequence[type[Executor]]) -> list[type[Executor]]:
    """Those that were named, each once."""
    other = [e.name for e in named if e not in CANDIDATES]
    if other:
        raise BadInput(f"{', '.join(other)} cannot be captured; use {', '.join(e.name for e in CANDIDATES)}")
    return list(dict.fromkeys(named))


def _cases(work: Selection) -> list[Case]:
    """Every problem that the options ask for; without a preset or a shape, those that the project keeps records of."""
    kind = work.kind
    presets: Sequence[str | None] = work.presets
    if not presets:
        presets = (None,) if work.given else tuple(kind.record) or (kind.on_gpu,)
    found = []
    for preset in dict.fromkeys(presets):
        kept = kind.record.get(preset) if preset else None
        sizes = work.sizes or (kept.sizes if kept else kind.sizes)
        named = None if work.given else preset  # with fields of its own it is no longer as the preset has it
        found += [(named, problem) for problem in work.under(preset, True, sizes)]
    return found


def _spread(cases: Sequence[Case]) -> list[Case]:
    """Cases in an order in which any beginning has each preset, and of each the sizes spread out.

    Of eight sizes that is the first, fifth, third, seventh, second, sixth, fourth and last.
    """
    presets = list(dict.fromkeys(preset for preset, _ in cases))
    seen: Counter[str | None] = Counter()
    places = []
    for preset, _ in cases:
        places.append((_halved(seen[preset]), presets.index(preset)))
        seen[preset] += 1
    return [case for _, case in sorted(zip(places, cases, strict=True), key=lambda placed: placed[0])]


def _halved(n: int) -> int:
    """The place of the n-th of many in an order that halves the gaps again and again: n with its bits reversed."""
    return int(f"{n:016b}"[::-1], 2)


class _Budget:
    """Seconds for some cases, if they are bounded.

    Attributes:
        took: seconds of each case so far.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self.took: list[float] = []

    def while_it_fits(self, cases: Sequence[Case]) -> Iterator[Case]:
        """The cases, until another that takes as long as those so far did in the mean would end too late."""
        for done, case in enumerate(cases):
            expected = fmean(self.took) if self.took else 0.0
            if self._end is not None and time.monotonic() + expected > self._end:
                note(f"{len(cases) - done} of {len(cases)} rows are left; run it again with --update")
                return
            yield case


def _sorted(rows: list[dict[str, Any]], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Rows of these cases in their order, behind others that the record had."""
    order = [problem.facts() for _, problem in cases]
    return sorted(rows, key=lambda row: order.index(row["workload"]) if row["workload"] in order else -1)


def _command(
    work: Selection, executors: Sequence[type[Executor]], compiled: bool, order: names.NamedOrder | None
) -> str:
    """What repeats the measurement."""
    words = ["interlace", "bench", work.kind.name]
    for preset in work.presets:
        words += ["--preset", preset]
    for name, value in {**work.given}.items():
        flag = name.replace("_", "-")
        words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", _word(value)]
    for size in work.sizes:
        words += [f"--{work.kind.size.replace('_', '-')}", str(size)]
    for executor in executors:
        words += ["--executor", executor.name]
    words += ["--order", order.name] if order else []
    return shlex.join(words + ([] if compiled else ["--no-compile"]))


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))


def _means(kind: type[Workload], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    ratios = {(row["preset"], row["size"]): row["ratio"] for row in rows}
    return [
        {"preset": preset, "sizes": list(target.sizes), "geometric_mean": mean, "target": target.ratio}
        for preset, target, mean in means(kind, ratios)
    ]


def _show(kind: type[Workload], rows: Sequence[Mapping[str, Any]], machine: str) -> None:
    def name(row: Mapping[str, Any]) -> str:
        return row["preset"] or ", ".join(_told(row["workload"], kind.size))

    def cells(row: Mapping[str, Any]) -> list[str]:
        library, ours = row["libraries"][row["library"]], row["executors"][row["executor"]]
        target = "" if row["target"] is None else f"{row['target']:.2f}"
        layer = "" if row["layer"] is None else f"{row['layer']['ratio']:.3f}"
        times = [number(row["floor_us"]), row["library"], number(library["median_us"])]
        times += [row["executor"], number(ours["median_us"]), f"{ours['median_us'] / row['floor_us']:.2f}"]
        return [name(row), str(row["size"]), *times, f"{row['ratio']:.3f}", target, layer]

    measured = ("floor us", "library", "us", "executor", "us", "over floor")
    headings = ("row", kind.size, *measured, "speedup", "target", "in a model")
    show(columns(f"{kind.name} on {machine}, medians", headings, map(cells, rows)))
    names = list(dict.fromkeys(executor for row in rows for executor in row["executors"]))
    each = [
        [name(row), str(row["size"])]
        + [number(row["executors"][n]["median_us"]) if n in row["executors"] else "" for n in names]
        for row in rows
    ]
    show(columns("microseconds of each executor", ("row", kind.size, *names), each))
    _show_clocks(name, kind.size, rows)
    reasons = {f"{executor} is left out: {why}" for row in rows for executor, why in row["left_out"].items()}
    for reason in sorted(reasons):
        note(reason)
    for mean in _means(kind, rows):
        sizes = f"{kind.size} {mean['sizes'][0]} to {mean['sizes'][-1]}"
        say(f"{mean['preset']}, {sizes}: geometric mean {mean['geometric_mean']:.3f}, target {mean['target']:.2f}")


def _show_clocks(name: Callable[[Mapping[str, Any]], str], size: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Clock and power where arithmetic is the limit; a row of an older record has neither."""
    bound = [row for row in rows if row.get("compute_bound")]
    watched = [row for row in bound if row["watts"] is not None]

    def cells(row: Mapping[str, Any]) -> list[str]:
        fastest = row["libraries"][row["library"]], row["executors"][row["executor"]]
        library, ours = (number(timed["sm_mhz"]) if "sm_mhz" in timed else "" for timed in fastest)
        return [name(row), str(row["size"]), row["library"], library, row["executor"], ours, number(row["watts"])]

    if watched:
        headings = ("row", size, "library", "SM MHz", "executor", "SM MHz", "watts")
        show(columns("clock and power, where arithmetic is the limit", headings, map(cells, watched)))
    if len(watched) < len(bound):
        note("SM clock and power are not kept of all rows: the driver's management library (NVML) did not tell them")


def _told(workload: Mapping[str, Any], size: str) -> Iterator[str]:
    for name, value in workload.items():
        if name not in ("name", size) and value is not None and value is not False:
            yield name if value is True else f"{name} {value}"

"""Tables that ``interlace bench`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from interlace.bench import dispatch as bench_dispatch
from interlace.bench import spawn as bench_spawn
from interlace.bench.row import iter_means
from interlace.cli.console import note, print_line, print_table
from interlace.cli.table import build_columns, format_number
from interlace.workloads.base import Workload


def show_rows(kind: type[Workload], rows: Sequence[Mapping[str, Any]], machine: str) -> None:
    def name(row: Mapping[str, Any]) -> str:
        return row["preset"] or ", ".join(_describe_fields(row["workload"], kind.size))

    def cells(row: Mapping[str, Any]) -> list[str]:
        library, ours = row["libraries"][row["library"]], row["executors"][row["executor"]]
        target = "" if row["target"] is None else f"{row['target']:.2f}"
        layer = "" if row["layer"] is None else f"{row['layer']['ratio']:.3f}"
        times = [format_number(row["floor_us"]), row["library"], format_number(library["median_us"])]
        times += [row["executor"], format_number(ours["median_us"]), f"{ours['median_us'] / row['floor_us']:.2f}"]
        return [name(row), str(row["size"]), *times, f"{row['ratio']:.3f}", target, layer]

    measured = ("floor us", "library", "us", "executor", "us", "over floor")
    headings = ("row", kind.size, *measured, "speedup", "target", "in a model")
    print_table(build_columns(f"{kind.name} on {machine}, medians", headings, map(cells, rows)))
    names = list(dict.fromkeys(executor for row in rows for executor in row["executors"]))
    each = [
        [name(row), str(row["size"])]
        + [format_number(row["executors"][n]["median_us"]) if n in row["executors"] else "" for n in names]
        for row in rows
    ]
    print_table(build_columns("microseconds of each executor", ("row", kind.size, *names), each))
    _show_clocks(name, kind.size, rows)
    reasons = {f"{executor} is left out: {why}" for row in rows for executor, why in row["left_out"].items()}
    for reason in sorted(reasons):
        note(reason)
    for mean in compute_means(kind, rows):
        sizes = f"{kind.size} {mean['sizes'][0]} to {mean['sizes'][-1]}"
        print_line(
            f"{mean['preset']}, {sizes}: geometric mean {mean['geometric_mean']:.3f}, target {mean['target']:.2f}"
        )


def _show_clocks(name: Callable[[Mapping[str, Any]], str], size: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print clock and power where arithmetic is the limit; rows of older records have neither."""
    bound = [row for row in rows if row.get("compute_bound")]
    watched = [row for row in bound if row["watts"] is not None]

    def cells(row: Mapping[str, Any]) -> list[str]:
        fastest = row["libraries"][row["library"]], row["executors"][row["executor"]]
        library, ours = (format_number(timed["sm_mhz"]) if "sm_mhz" in timed else "" for timed in fastest)
        return [
            name(row),
            str(row["size"]),
            row["library"],
            library,
            row["executor"],
            ours,
            format_number(row["watts"]),
        ]

    if watched:
        headings = ("row", size, "library", "SM MHz", "executor", "SM MHz", "watts")
        print_table(build_columns("clock and power, where arithmetic is the limit", headings, map(cells, watched)))
    if len(watched) < len(bound):
        note("SM clock and power are not kept of all rows: the driver's management library (NVML) did not tell them")


def _describe_fields(workload: Mapping[str, Any], size: str) -> Iterator[str]:
    for name, value in workload.items():
        if name not in ("name", size) and value is not None and value is not False:
            yield name if value is True else f"{name} {value}"


def compute_means(kind: type[Workload], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    ratios = {(row["preset"], row["size"]): row["ratio"] for row in rows}
    return [
        {"preset": preset, "sizes": list(target.sizes), "geometric_mean": mean, "target": target.ratio}
        for preset, target, mean in iter_means(kind, ratios)
    ]


def show_dispatch(rows: Sequence[bench_dispatch.DispatchRow], title: str) -> None:
    def cells(row: bench_dispatch.DispatchRow) -> list[str]:
        times = [row.ideal_us, row.predicted_us, *([] if row.us is None else [row.us])]
        beside = ["" if row.overhead_ns is None else f"{row.overhead_ns:,.0f}"]
        beside += ["" if row.launch_us is None else f"{row.launch_us:.1f}"]
        last = [f"{times[-1] / row.ideal_us:.2f}", f"{row.busy:.0%}", *beside]
        return [row.costs, row.executor, row.dispatch, *map(format_number, times), *last]

    measured = [] if any(row.us is None for row in rows) else ["us"]
    headings = ["costs", "executor", "dispatch", "ideal us", "predicted us", *measured, "over", "busy"]
    print_table(build_columns(title, [*headings, "item ns", "launch us"], map(cells, rows)))


def show_spawning(rows: Sequence[bench_spawn.SpawnRow], title: str) -> None:
    measured = [] if any(row.us is None for row in rows) else ["us"]
    headings = ("dispatch", "end by", "items", "wanted", "predicted us", *measured)
    cells = (
        (r.dispatch, r.termination, f"{r.items:,}", f"{r.wanted:,}", format_number(r.predicted_us))
        + (() if r.us is None else (format_number(r.us),))
        for r in rows
    )
    print_table(build_columns(title, headings, cells))

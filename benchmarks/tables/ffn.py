"""FFNs and products as a megakernel and as Triton bodies, compared with PyTorch: README, docs/performance.md."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from interlace.executors import EXECUTORS
from interlace.kernels.bodies import BodyKind
from interlace.plan.orderings import Ordering
from interlace.workloads import FeedForward
from tables import format_table

#: Sizes of the record's rows: a name, the least and the most tokens.
SIZES = (("up to 64", 0, 64), ("65 to 256", 65, 256), ("from 512", 257, 1 << 30))


def models_table(record: dict[str, Any]) -> str:
    """The table of docs/performance.md: Triton bodies op by op and tile by tile."""
    lines = [
        f"Microseconds on an {record['gpu']} ({record['date']}, {_versions(record)}); "
        f"`{record['command']}` repeats it.",
        "",
    ]
    table = []
    for row in record["rows"]:
        t, (baseline, best) = times(row), op_by_op(row)
        *context, launches, ours = (f"{us:.1f}" for us in t.values())
        table.append((row["preset"], row["size"], *context, launches, baseline, ours, best))
    ratios = tiled_ratios(record)
    heads = "FFN | tokens | cuBLAS + graph | torch.compile + graph | our bodies, op by op | by"
    lines += [
        format_table(f"{heads} | best tile-synchronised | by", table),
        "",
        f"Tile-synchronised against launches of the same bodies op by op, each with its best tiling: geometric mean "
        f"{geometric_mean(ratios):.3f}, lowest {min(ratios):.3f}.",
    ]
    return "\n".join(lines)


def tiled_ratios(record: dict[str, Any]) -> list[float]:
    """Return, for each row, the ratio of launches op by op to tile-synchronised."""
    return [each["launches"] / each["best"] for each in map(times, record["rows"])]


def times(row: dict[str, Any]) -> dict[str, float]:
    """Median microseconds of each series."""
    libraries, executors = row["libraries"], row["executors"]
    eager = {name: timed for name, timed in libraries.items() if name.startswith("eager")}
    compiled = {name: timed for name, timed in libraries.items() if name not in eager}
    launches, best = op_by_op(row)
    return {
        "eager": eager[pick_fastest(eager)]["median_us"],
        "compiled": compiled[pick_fastest(compiled)]["median_us"],
        "launches": executors[launches]["median_us"],
        "best": executors[best]["median_us"],
    }


def op_by_op(row: dict[str, Any]) -> tuple[str, str]:
    """The fastest executor of Triton bodies that launches op by op, and the fastest that synchronises tile by tile."""
    launched = {e.name: Ordering.LAUNCH in e.enforced_orderings for e in EXECUTORS if BodyKind.TRITON in e.body_kinds}
    both = ({n: t for n, t in row["executors"].items() if launched.get(n) is wanted} for wanted in (True, False))
    launches, best = map(pick_fastest, both)
    return launches, best


def pick_fastest(timed: dict[str, dict[str, float]]) -> str:
    """Return the fastest, by the rounds to pick by where the record has them apart."""
    return min(timed, key=lambda name: timed[name].get("picked_us", timed[name]["median_us"]))


def speedups_table(record: dict[str, Any]) -> str:
    """The table of benchmarks/notes/ffn.md: the fastest executor against the best of PyTorch."""
    lines = [
        f"Medians in microseconds on an {record['gpu']} ({record['date']}, {_versions(record)}); "
        f"`{record['command']}` repeats it.",
        "",
    ]
    table = []
    for row in record["rows"]:
        layer = row["layer"]
        library, ours = _medians(row)
        library_layer, ours_layer = _medians(layer)
        alone = library, row["library"], ours, f"{row['ratio']:.2f}"
        in_layer = library_layer, ours_layer, f"{layer['ratio']:.2f}"
        table.append((row["preset"], row["size"], *alone, *in_layer, f"{row['floor_us']:.1f}"))
    heads = "FFN | tokens | best of PyTorch | which | Interlace | speedup | in a model: PyTorch | Interlace | speedup"
    lines.append(format_table(f"{heads} | memory or tensor-core limit", table))
    for where, ratios in _ratios(record["rows"]).items():
        lines += ["", f"Speedup {where}: geometric mean {geometric_mean(ratios):.3f}, lowest {min(ratios):.3f}."]
    defined = sum(len(kept.sizes) for kept in FeedForward.record.values())
    if len(record["rows"]) < defined:
        lines += ["", f"These {len(record['rows'])} of the benchmark's {defined} rows were measured that day."]
    return "\n".join(lines)


def readme(speedups: dict[str, Any], plain: dict[str, Any], steps: dict[str, Any]) -> str:
    """Return the first figures of the README: decode steps, FFNs in the megakernel, and plain Triton bodies."""
    step, ratios = steps["rows"][0], _ratios(speedups["rows"])["in a model"]
    tiled, libraries = tiled_ratios(plain), step["libraries"]
    best = min(libraries, key=lambda name: float(libraries[name]["median_us"]))
    lines = (
        f"**The megakernel on Hopper gains.** A [decode step](docs/glossary.md#decode-step) of {step['model']} takes "
        f"{step['executors']['one_launch']['median_us']:.0f} us on an {steps['gpu']}; the best of PyTorch "
        f"({best}) takes {libraries[best]['median_us']:.0f}. A feed-forward network (FFN) in a model runs at "
        f"{geometric_mean(ratios):.2f} times the speed of the best of PyTorch, the geometric mean of {len(ratios)} "
        f"rows ({min(ratios):.2f} to {max(ratios):.2f}).",
        "**Plain Triton bodies gain nothing from tile synchronisation.** They run at "
        f"{geometric_mean(tiled):.2f} of the speed of a launch per op ({min(tiled):.2f} to {max(tiled):.2f}). They get "
        "the proof, the prediction and the trace.",
    )
    return "\n".join(f"- {line}" for line in lines)


def summary(
    speedups: dict[str, Any],
    plain: dict[str, Any],
    sync: dict[str, Any],
    host: dict[str, Any],
    forecast: dict[str, Any],
    steps: dict[str, Any],
) -> str:
    """Return the summary of docs/performance.md, in five lines."""
    step = steps["rows"][0]
    one_launch = step["executors"]["one_launch"]["median_us"]
    pytorch = min(way["median_us"] for way in step["libraries"].values())
    means = {where: geometric_mean(ratios) for where, ratios in _ratios(speedups["rows"]).items()}
    ahead = {where: _ahead(ratios) for where, ratios in _ratios(speedups["rows"]).items()}
    ns, off = sync["nanoseconds"], forecast["errors"]["all"]
    largest = max(host["rows"], key=lambda row: row["counts"]["tiles"])
    lines = (
        f"On an {steps['gpu']} a [decode step](models.md#what-was-measured) of {step['model']} for one sequence "
        f"takes {one_launch:.0f} us in the megakernel, {one_launch / step['floor_us']:.2f} times what memory needs "
        f"for its bytes; the best of PyTorch takes {pytorch:.0f}.",
        f"An FFN in the megakernel, in a model on an {speedups['gpu']}, is {means['in a model']:.2f} times as fast as "
        f"the best of PyTorch in the geometric mean, and more than 2 % ahead in {ahead['in a model']} of "
        f"{len(speedups['rows'])} rows; back to back {means['back to back']:.2f} times, and "
        f"{ahead['back to back']} rows.",
        "Plain Triton bodies synchronised [tile](glossary.md#tile) by tile run at "
        f"{geometric_mean(tiled_ratios(plain)):.2f} of the speed of launches op by op: worth it where the last "
        "[wave](glossary.md#wave) is badly filled, and nowhere else.",
        f"A post costs {ns['post']:.0f} ns, a [wait](glossary.md#wait) that is already satisfied "
        f"{ns['satisfied wait']:.0f}, a hand-off between two SMs {ns['one-way hand-over']:.0f}.",
        f"Predictions are off by {off['time']['median']:.1%} in time and {off['dram_read']['median']:.1%} in bytes "
        "from memory, in the median ([the planner](planner.md#how-well-it-predicts)); a graph of "
        f"{largest['counts']['tiles']:,} tiles is planned and proved in {sum(largest['seconds'].values()):.1f} s on a "
        "CPU.",
    )
    return "\n".join(f"- {line}" for line in lines)


def speedups_summary(record: dict[str, Any]) -> str:
    """Return the table of speedups, summed up by size."""
    columns = "mean speedup | lowest | more than 2 % ahead"
    table = []
    for name, least, most in (*SIZES, ("all", 0, 1 << 30)):
        rows = _within(record, least, most)
        cells = []
        for ratios in _ratios(rows).values():
            cells += [f"{geometric_mean(ratios):.3f}", f"{min(ratios):.2f}", str(_ahead(ratios))]
        table.append((name, len(rows), *cells))
    return format_table(f"tokens | rows | back to back: {columns} | in a model: {columns}", table)


def products_table(*records: dict[str, Any]) -> str:
    """Another one there: a matmul alone, and two with a norm between."""
    dates = " and ".join(dict.fromkeys(record["date"] for record in records))
    lines = [
        f"Medians in microseconds on an {records[0]['gpu']} ({dates}, {_versions(records[0])}), by columns of x and of "
        "the result.",
        "",
    ]
    table = []
    for row in (row for record in records for row in record["rows"]):
        of, (library, ours) = row["workload"], _medians(row)
        name = f"{of['hidden']} to {of['ffn']}, norm, back" if "ffn" in of else f"{of['k']} to {of['n']}"
        table.append((name, row["size"], library, row["library"], ours, f"{row['ratio']:.2f}"))
    heads = "product | tokens | fastest measured of PyTorch | which | megakernel | speedup"
    return "\n".join([*lines, format_table(heads, table)])


def _medians(contest: dict[str, Any]) -> tuple[str, str]:
    """Return the median of the fastest library and of the fastest executor."""
    library, ours = contest["libraries"][contest["library"]], contest["executors"][contest["executor"]]
    return f"{library['median_us']:.1f}", f"{ours['median_us']:.1f}"


def _ratios(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Speedups of rows over the best of PyTorch."""
    return {"back to back": [row["ratio"] for row in rows], "in a model": [row["layer"]["ratio"] for row in rows]}


def _ahead(ratios: list[float]) -> int:
    """Rows that are ahead by more than what a row differs by from run to run."""
    return sum(ratio > 1.02 for ratio in ratios)


def _within(record: dict[str, Any], least: int, most: int) -> list[dict[str, Any]]:
    """The rows with so many tokens."""
    return [row for row in record["rows"] if least <= row["size"] <= most]


def _versions(record: dict[str, Any]) -> str:
    return f"torch {record['versions']['torch'].split('+')[0]}, triton {record['versions']['triton']}"

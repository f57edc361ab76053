"""Modules for PyTorch, and decode steps of whole models: blocks of docs/ and benchmarks/notes/decode.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from interlace.bench.workload import MODES
from tables import format_table


def nn_table(record: dict[str, Any]) -> str:
    """The table of docs/performance.md: modules against PyTorch by number of tokens."""
    lines = [
        f"Measured on an {record['gpu']} ({record['date']}, torch {record['versions']['torch'].split('+')[0]}), speed "
        "over the better of eager PyTorch and `torch.compile`, each in a CUDA graph; lowest of all: "
        f"{record['worst']:.3f}.",
        "",
    ]
    heads = "tokens | models | a launch of the FFN | alone | in a layer | a launch of the layer | whole layer | lowest"
    table = []
    for tokens in sorted({row["tokens"] for row in record["rows"]}):
        rows = [row for row in record["rows"] if row["tokens"] == tokens]
        ratios = {where: [row[f"{where}_ratio"] for row in rows] for where in ("alone", "layer", "whole")}
        alone, layer, whole = (f"{geometric_mean(values):.3f}" for values in ratios.values())
        launches, of_all = (sum(row[name] == "launch" for row in rows) for name in ("runs", "whole_runs"))
        lowest = min(map(min, ratios.values()))
        table.append((tokens, len(rows), launches, alone, layer, of_all, whole, f"{lowest:.3f}"))
    return "\n".join([*lines, format_table(heads, table)])


_SIZES = {"1 to 8": 8, "9 to 64": 64, "65 to 192": 192, "193 to 1000": 1000}  # of drawn rows, by their most tokens


def drawn_table(record: dict[str, Any]) -> str:
    """The table of docs/performance.md: FFNs drawn at random, by the launch of exactly their tokens and by modules."""
    heads = "tokens | FFNs | the launch of them, alone | lowest | module, alone | in a layer | whole layer | lowest"
    table = []
    left = record["rows"]
    for size, most in _SIZES.items():
        rows, left = ([row for row in left if (row["tokens"] <= most) == inside] for inside in (True, False))
        times = [{name: told["median_us"] for name, told in row["alone"].items()} for row in rows]
        exact = [min(us[name] for name in MODES if name in us) / us["exact"] for us in times]
        ratios = [[row[f"{where}_ratio"] for row in rows] for where in ("alone", "layer", "whole")]
        figures = (geometric_mean(exact), min(exact), *map(geometric_mean, ratios), min(map(min, ratios)))
        table.append([size, len(rows), *(f"{value:.3f}" for value in figures)])
    return format_table(heads, table)


def choice_line(record: dict[str, Any]) -> str:
    """How well it is known which FFNs a launch runs faster, of docs/pytorch.md."""
    rows = record["rows"]
    gained, possible = (100 * (record[name] - 1) for name in ("mean", "oracle"))
    margins = record["margins"]["predicted"].values()
    return (
        f"On the FFNs of {len({row['model'] for row in rows})} public models, each left out of the table in turn, this "
        f"choice gains {gained:.1f} % over PyTorch's ops where an oracle would gain {possible:.1f} % (geometric means "
        f"over {min(row['tokens'] for row in rows)} to {max(row['tokens'] for row in rows):,} tokens). Of "
        f"{record['launches']} launches that it takes {record['below'] or 'none'} "
        f"{'is' if record['below'] < 2 else 'are'} at below 0.97 of PyTorch's speed, with margins of "
        f"{100 * (min(margins) - 1):.0f} to {100 * (max(margins) - 1):.0f} %, by the rows of the launch."
    )


def decode_table(*records: dict[str, Any]) -> str:
    """A table of docs/models.md: steps of whole models, of some records, and the fastest of PyTorch's ways."""
    names = "one_launch", "pdl", "cuda_graph"
    table = []
    for row in (row for record in records for row in record["rows"]):
        pytorch = min(way["median_us"] for way in row["libraries"].values())
        speedup = pytorch / row["executors"][names[0]]["median_us"]
        cells = (*_cells(row["executors"], names), f"{pytorch:.0f}", f"{speedup:.2f}")
        table.append((row["model"], row["batch"], row["context"], f"{row['floor_us']:.0f}", *cells))
    return format_table(
        "model | batch | context | floor | megakernel | dependent launches | CUDA graph | PyTorch | speedup", table
    )


def rivals_table(*records: dict[str, Any]) -> str:
    """Another one there: each way of PyTorch that some row has."""
    rows = [row for record in records for row in record["rows"]]
    ways = [*dict.fromkeys(way for row in rows for way in row["libraries"])]
    table = ((row["model"], row["batch"], row["context"], *_cells(row["libraries"], ways)) for row in rows)
    return format_table(f"model | batch | context | {' | '.join(ways)}", table)


def _cells(ways: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Microseconds of each, nothing where it was left out."""
    return [f"{ways[name]['median_us']:.0f}" if name in ways else "" for name in names]


def prefill_table(record: dict[str, Any]) -> str:
    """A table of docs/performance.md: attention of prompts with its output product."""
    names = {"flash + cuBLAS": "FlashAttention, cuBLAS", "cuDNN + cuBLAS": "cuDNN, cuBLAS", "one_launch": "megakernel"}
    columns = " | ".join(names.values())
    heads = f"heads of | prompts x tokens | {columns} | the better of both over megakernel | bodies op by op"
    table = []
    for row in record["rows"]:
        us = {name: timing["median_us"] for name, timing in row["times"].items()}
        cells = (f"{us[name]:,.0f}" for name in names)
        ratio = min(us["flash + cuBLAS"], us["cuDNN + cuBLAS"]) / us["one_launch"]
        plain = min(us["cuda_graph"], us["pdl"])
        prompts = f"{row['batch']} x {row['tokens']}"
        table.append((row["model"], prompts, *cells, f"{ratio:.2f}", f"{plain:,.0f}"))
    return format_table(heads, table)


_TRACED = "llama3.2-1b", 1024  # model and positions of the hand-offs that are told


def hand_overs_table(record: dict[str, Any], first: dict[str, Any]) -> str:
    """Return the table of benchmarks/notes/decode.md: when the ops of a layer of the megakernel end, then and now."""
    before = {layer["batch"]: layer["ops"] for layer in first["layers"]}
    columns: dict[str, dict[str, float]] = {}
    for row in record["rows"]:
        if (row["model"], row["context"]) != _TRACED:
            continue
        if row["batch"] in before:
            begin = before[row["batch"]][0]["first_start_us"]
            ends = {op["op"]: op["last_end_us"] - begin for op in before[row["batch"]]}
            columns[f"batch {row['batch']}, first version"] = ends
        columns[f"batch {row['batch']}"] = {op["op"]: op["last_end_us"] for op in row["layer"]}
    rows = (
        [f"`{name}`", *(f"{column[name]:.1f}" if name in column else "" for column in columns.values())]
        for name in dict.fromkeys(name for column in columns.values() for name in column)
    )
    return format_table(f"op of a layer | {' | '.join(columns)}", rows)

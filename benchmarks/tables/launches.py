"""Costs of launches, and the variants that were tried: blocks of several pages."""

from __future__ import annotations

from math import inf
from typing import Any

from interlace.plan.plan import Dispatch
from tables import format_table

#: Fields of rows of uneven.py that do not identify a case, and the suffix of variants that torch.compile made.
UNEVEN = "workload", "bytes_us", "flops_us", "pytorch_relative_error", "ways", "left_out"
COMPILED = ", compiled"
#: Variants that are launches of ours.
OWN = [dispatch.value for dispatch in Dispatch] + ["CUDA graph of Triton bodies"]
#: Dispatch that the megakernel chooses for a workload, by its name.
CHOSEN = {
    "block-sparse": Dispatch.TICKET.value,
    "moe": Dispatch.HYBRID.value,
    "ragged-attention": Dispatch.TICKET.value,
}


def sync_table(record: dict[str, Any]) -> str:
    """Return the table of costs of the parts of synchronisation."""
    words = {
        "post": "post: barrier and release add",
        "satisfied wait": "wait that is already satisfied: read its row, one poll, barrier",
        "satisfied wait of 112": "the same over 112 semaphores at once",
        "one-way hand-over": "hand-off between two SMs: from before a post to the end of the wait",
        "ticket": "ticket: claim one and tell all threads",
    }
    return format_table("part | ns", ((text, f"{record['nanoseconds'][name]:.0f}") for name, text in words.items()))


def trace_lines(record: dict[str, Any]) -> str:
    """Return the line on the cost of recording a trace."""
    ratios = ((row, row["with_us"] / row["without_us"]) for row in record["rows"])
    costs = (f"{ratio - 1:+.2%} ({row['model']}, {row['m']} tokens)" for row, ratio in ratios)
    return f"Recording a trace changes the time of a run by {' and '.join(costs)} (`trace-h200.json`)."


def fences_table(record: dict[str, Any]) -> str:
    """Nanoseconds of each way, a row for the bytes under way."""
    ways = list(record["rows"][0]["ns"])
    rows = (
        [f"{row['bytes_under_way'] // 1024} KiB", *(f"{row['ns'][way]['median']:.0f}" for way in ways)]
        for row in record["rows"]
    )
    return format_table(" | ".join(["under way", *ways]), rows)


def dispatches_table(record: dict[str, Any]) -> str:
    """The table of docs/concepts.md: microseconds over the ideal of each dispatch of the one launch, by costs."""
    rows = [row for row in record["rows"] if row["executor"] == "one_launch"]
    kinds = list(dict.fromkeys(row["costs"] for row in rows))
    table = []
    for dispatch in dict.fromkeys(row["dispatch"] for row in rows):
        mine = {row["costs"]: row for row in rows if row["dispatch"] == dispatch}
        over = (f"{mine[kind]['us'] / mine[kind]['ideal_us']:.2f}" for kind in kinds)
        table.append([dispatch, *over, f"{mine['uniform']['overhead_ns']:.0f}"])
    return format_table(f"dispatch | {' | '.join(kinds)} | ns an item", table)


def uneven_table(record: dict[str, Any]) -> str:
    """Return a table of microseconds by variant, with the speedup of the chosen dispatch in the last column.

    The floor is the larger of the times of bytes and products. The speedup is over the fastest variant that is not a
    launch of ours.
    """
    rows = record["rows"]
    heads = [name for name in rows[0] if name not in UNEVEN]
    ways = list(dict.fromkeys(way.removesuffix(COMPILED) for row in rows for way in row["ways"]))
    table = []
    for row in rows:
        us = _fastest_us(row)
        gain = _compute_gain(us, _get_chosen(row))
        cells = [str(row[name]) for name in heads] + [f"{max(row['bytes_us'], row['flops_us']):.1f}"]
        cells += [f"{us[way]:.1f}" if way in us else "-" for way in ways]
        table.append([*cells, "-" if gain is None else f"{gain:.2f}x"])
    return format_table(" | ".join([*heads, "floor", *ways, f"speedup of {_get_chosen(rows[0])}"]), table)


def uneven_range(record: dict[str, Any]) -> str:
    """Return the range of that speedup over all rows."""
    chosen = _get_chosen(record["rows"][0])
    gains = [gain for row in record["rows"] if (gain := _compute_gain(_fastest_us(row), chosen)) is not None]
    return (
        f"The megakernel with {chosen} dispatch runs at {min(gains):.2f} to {max(gains):.2f} times the speed of the "
        f"faster of these in {len(gains)} rows."
    )


def _fastest_us(row: dict[str, Any]) -> dict[str, float]:
    """Return microseconds by variant, the faster of compiled and not."""
    us: dict[str, float] = {}
    for way, timing in row["ways"].items():
        name = way.removesuffix(COMPILED)
        us[name] = min(us.get(name, inf), timing["median_us"])
    return us


def _get_chosen(row: dict[str, Any]) -> str:
    return CHOSEN[row["workload"]["name"]]


def _compute_gain(us: dict[str, float], chosen: str) -> float | None:
    """Return the speed of a dispatch over the fastest variant that is no launch of ours, None without both."""
    others = [value for way, value in us.items() if way not in OWN]
    return min(others) / us[chosen] if others and chosen in us else None


def explored_table(record: dict[str, Any]) -> str:
    """A table of what was tried by hand, each row within one run: what its rows name, then microseconds by variant."""
    heads = [name for name in record["rows"][0] if name != "us"]
    rows = (
        [*(row[name] for name in heads), ", ".join(f"{name}: {us:.1f}" for name, us in row["us"].items())]
        for row in record["rows"]
    )
    return format_table(" | ".join([*heads, "us"]), rows)

"""Rows first next to op by op, in one launch: blocks of benchmarks/notes/training-shapes.md and docs/related.md."""

from __future__ import annotations

from typing import Any

from tables import format_table

BY_OP, ROWS_FIRST, EAGER = "op by op", "rows first, 1024 tokens, lag", "PyTorch eager"


def orders_table(preset: str, predicted: dict[str, Any], measured: dict[str, Any]) -> str:
    """Return the table of a preset: times, bytes from and to memory, and hits in the L2, by order."""
    row, forecast = find_row(measured, preset), find_row(predicted, preset)["orders"]
    table = []
    for name, timed in row["timed"].items():
        if name not in forecast and name not in (row["library"], EAGER):
            continue
        said, counted = forecast.get(name), row["counted"].get(name)
        cells = [name, f"{said['us']:.0f}" if said else "-", f"{timed['median_us']:.0f}"]
        cells += [f"{timed['over_op_by_op']:.2f}x", f"{timed['over_library']:.2f}x"]
        cells += [f"{said['dram_read_bytes'] / 1e9:.2f}" if said else "-"]
        kinds = "dram_read_bytes", "dram_write_bytes"
        cells += [f"{counted[kind] / 1e9:.2f}" if counted else "-" for kind in kinds]
        cells += [f"{counted[kind]:.1f}" if counted else "-" for kind in ("l2_hit_pct", "l2_read_hit_pct")]
        table.append(cells)
    heads = "predicted us | us | speed of op by op | speed of PyTorch | predicted GB read | GB read | GB written"
    return format_table(f"order | {heads} | hits, % | hits of reads, %", table)


def rows_first_line(_: dict[str, Any], measured: dict[str, Any]) -> str:
    """Return what rows first is worth in speed and in hits."""
    gains = sorted(row["timed"][ROWS_FIRST]["over_op_by_op"] for row in measured["rows"])
    hits = sorted(
        row["counted"][ROWS_FIRST]["l2_hit_pct"] - row["counted"][BY_OP]["l2_hit_pct"] for row in measured["rows"]
    )
    return (
        f"Over 8,192 tokens, `RowPanels(8, lag=1)` runs at {gains[0]:.3f} to {gains[-1]:.3f} times the speed of op by "
        f"op, with {hits[0]:+.1f} to {hits[-1]:+.1f} points of L2 hits: weights that pass in between push the rows out "
        "(`training-shapes-h200.json`)."
    )


def find_row(record: dict[str, Any], preset: str) -> dict[str, Any]:
    """Return the row of a preset."""
    row: dict[str, Any] = next(row for row in record["rows"] if row["preset"] == preset)
    return row

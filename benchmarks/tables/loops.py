"""Kernels written as loops beside kernels by hand: blocks of docs/loops.md."""

from __future__ import annotations

from typing import Any

from tables import format_table

#: The rows of docs/loops.md: the record's kernel, its title, its rival, and the target ratio.
PIPELINES = (
    ("copy, 1 dimension", "copy of 4 GiB, one dimension", "a vectorised kernel by hand, {}; cudaMemcpyAsync, {}", 0.95),
    ("copy, 2 dimensions", "copy of 4 GiB, two dimensions", "the same", 0.95),
    ("copy, 3 dimensions", "copy of 4 GiB, three dimensions", "the same", 0.95),
    ("pointwise", "pointwise chain, 4 GiB", "the same chain by hand, {}", 0.95),
    ("row sums", "row sums, 4 GiB", "a kernel that only reads, {}", 0.9),
    ("column sums", "column sums, 4 GiB", "the same", 0.9),
    ("layer norm of 4096", "layer normalisation, 4096 columns", "PyTorch", 1.0),
    ("layer norm of 16384", "layer normalisation, 16384 columns", "PyTorch", 1.0),
    ("matmul 4096 cubed", "matmul, 4096 cubed, bf16", "cuBLAS, {}", 0.8),
    ("matmul 8192 cubed", "matmul, 8192 cubed, bf16", "cuBLAS, {}", 0.8),
)

#: One shape of a kernel at every depth: the record's kernel and shape, and the title.
DEPTHS = (
    ("copy, 2 dimensions", "16x256 tiles, walks of 4", "copy, 16x256 tiles, four to a block"),
    ("pointwise", "4x256 tiles, walks of 8", "pointwise, 4x256 tiles, eight to a block"),
    ("row sums", "walks of 16", "row sums, 128 rows to a block"),
    ("column sums", "tiles of 16x128", "column sums, 16x128 tiles"),
    ("layer norm of 4096", "walks of 8", "layer normalisation, eight rows of 4096 to a block"),
    ("matmul 8192 cubed", "128x128 tiles", "matmul 8192 cubed, 128x128 tiles"),
    ("matmul 8192 cubed", "128x256 tiles", "matmul 8192 cubed, 128x256 tiles"),
)


def pipeline_table(record: dict[str, Any]) -> str:
    """The first table of docs/loops.md: the best setting of each kernel beside its best rival."""
    rows = {row["kernel"]: row for row in record["rows"]}
    table = []
    for kernel, title, beside, target in PIPELINES:
        row = rows[kernel]
        mine = {name: rate for name, rate in row["per_s"].items() if name.endswith(" stages")}
        others = {name: rate for name, rate in row["per_s"].items() if name not in mine}
        setting = max(mine, key=lambda name: mine[name])
        rates = (_rate(row, rate, unit=True) for rate in (max(others.values()), others.get("cudaMemcpyAsync", 0)))
        table.append((title, setting, beside.format(*rates), f"{row['ratio']:.2f}", f"{target:.2f}"))
    return format_table("kernel | best setting | compared with | times as fast | target", table)


def row_ops_table(record: dict[str, Any]) -> str:
    """Return the table of benchmarks/notes/loops.md: speed of the fastest loops over the fastest kernel by hand."""
    speeds = {((row["rows"], row["columns"]), row["op"], row["place"]): row["times_as_fast"] for row in record["rows"]}
    columns = [
        (op, place)
        for op in ("rms_norm", "silu_times")
        for place in ("megakernel, alone", "megakernel, between matmuls", "own launch")
    ]
    table = []
    for rows, width in dict.fromkeys(shape for shape, *_ in speeds):
        cells = (speeds.get(((rows, width), *column)) for column in columns)
        table.append([f"{rows} x {width}", *("-" if cell is None else f"{cell:.2f}" for cell in cells)])
    heads = "rows x columns | RMS norm: alone | between matmuls | own launch | silu(x) * y: alone | between matmuls"
    return format_table(f"{heads} | own launch", table)


def converted_table(record: dict[str, Any]) -> str:
    """Return the table of converted Triton functions: range of their time over that of the package's own CUDA."""
    table = []
    for title, fits in (("1 to 128", lambda rows: rows <= 128), ("2048 and more", lambda rows: rows >= 2048)):
        cells = []
        for place in ("megakernel, between matmuls", "megakernel, alone"):
            chosen = [row for row in record["rows"] if row["place"] == place and fits(row["rows"])]
            us = [{name: timing["median_us"] for name, timing in row["us"].items()} for row in chosen]
            ratios = [
                times["loops of Triton"] / times[row["fastest_by_hand"]] for times, row in zip(us, chosen, strict=True)
            ]
            cells.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
        table.append((title, *cells))
    return format_table("rows | between two matmuls | alone in a megakernel", table)


def depth_table(record: dict[str, Any]) -> str:
    """The table of benchmarks/notes/loops.md: one shape of a kernel at every depth; a dash where it does not fit."""
    rows = {row["kernel"]: row for row in record["rows"]}
    stages = range(1, 9)
    table = []
    for kernel, shape, title in DEPTHS:
        row = rows[kernel]
        rates = (row["per_s"].get(f"{shape}, {depth} stages") for depth in stages)
        table.append([title, *("-" if r is None else _rate(row, r) for r in rates)])
    return format_table(f"stages | {' | '.join(map(str, stages))}", table)


def _rate(row: dict[str, Any], rate: float, *, unit: bool = False) -> str:
    """TB/s with two decimals, TFLOP/s with none."""
    text = f"{rate:.2f}" if row["unit"] == "TB/s" else f"{rate:.0f}"
    return f"{text} {row['unit']}" if unit else text

"""How far the bytes and times that the planner predicts are from those that the hardware counted.

    python benchmarks/traffic_error.py benchmarks/results/traffic-predicted.json

Needs no GPU: it reads benchmarks/results/traffic-h200.json, predicts each of its cases and compares, in minutes. The
traffic of every case is held out of the fit: the L2 was fitted to streams of loads (l2-h200.json), the spread of speeds
to times of tiles. Of the times, four of 8192-cubed matmuls are not: two rates were fitted to them.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from dram_traffic import Case, cases
from script import RESULTS, format_command, parse_arguments

import interlace as il
from interlace.bench.record import write_cpu_record
from interlace.planner.intervals import predict_read_interval
from interlace.planner.predict import predict
from interlace.sim.modes import make_megakernel_mode

MEASURED = RESULTS / "traffic-h200.json"
MEASURES = ("core/devices", "planner", "policies", "sim")
MODE = make_megakernel_mode(192 << 10)
FIGURES = "dram_read", "dram_read_interval", "time"
FITTED_TO = "grouped:2", "grouped:8", "grouped:16", "grouped:32"


def error(case: Case, measured: dict[str, Any]) -> dict[str, Any]:
    """Predictions of one case, and their relative errors."""
    plan = case.plan()
    facts = ("name", "m", "n", "k", "tile", "order", "dram_read_bytes", "ns")
    row: dict[str, Any] = {fact: measured[fact] for fact in facts}
    predicted = predict(plan, il.H200, MODE)
    read, ns = predicted.traffic.dram_read, predicted.trace.span_ns
    interval = predict_read_interval(plan, il.H200, MODE)
    row["predicted"] = {
        "dram_read_bytes": read,
        "dram_read_error": read / measured["dram_read_bytes"] - 1,
        "dram_read_interval_bytes": [interval.low, interval.high],
        "dram_read_interval_error": interval.compute_error(measured["dram_read_bytes"]),
        "ns": ns,
        "time_error": ns / measured["ns"] - 1,
    }
    return row


def summary(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Absolute relative errors by group and figure."""
    listed = list(rows)
    groups = {
        "all": listed,
        "matmuls": [r for r in listed if r["name"] == "matmul"],
        "ffns": [r for r in listed if r["name"] != "matmul"],
    }
    return {
        group: {"cases": len(members)}
        | {
            figure: _spread([abs(r["predicted"][f"{figure}_error"]) for r in members if held_out(r, figure)])
            for figure in FIGURES
        }
        | {"interval_width": _spread([high / low - 1 for low, high in map(_get_interval, members)])}
        for group, members in groups.items()
    }


def _get_interval(row: dict[str, Any]) -> tuple[int, int]:
    """Return the low and the high end."""
    low, high = row["predicted"]["dram_read_interval_bytes"]
    return low, high


def held_out(row: dict[str, Any], figure: str) -> bool:
    """Return True if nothing was fitted to a figure of a case."""
    cubed = figure == "time" and row["name"] == "matmul" and {row["m"], row["n"], row["k"]} == {8192}
    return not (cubed and row["tile"] == "128x128x64" and row["order"] in FITTED_TO)


def _spread(errors: list[float]) -> dict[str, float]:
    values = np.array(errors)
    return {"median": float(np.median(values)), "p90": float(np.quantile(values, 0.9)), "worst": float(values.max())}


def main(path: str) -> None:
    """Predict, compare, print and record."""
    measured = json.loads(MEASURED.read_text())["rows"]
    rows = []
    for case, counted in zip(cases(), measured, strict=True):
        facts = (case.name, case.m, case.n, case.k, case.order)
        if facts != tuple(counted[fact] for fact in ("name", "m", "n", "k", "order")):
            raise SystemExit(f"{MEASURED} has {counted} where cases() has {case}; measure again")
        row = error(case, counted)
        rows.append(row)
        name = " ".join(str(fact) for fact in (case.name, case.m, case.n, case.k, row["tile"], case.order) if fact)
        counts, said = (facts["dram_read_bytes"] / 1e6 for facts in (counted, row["predicted"]))
        errors = ", ".join(f"{figure} {row['predicted'][f'{figure}_error']:+.1%}" for figure in FIGURES)
        print(f"{name:46} {counts:6.0f} MB, predicted {said:6.0f} MB; {errors}", flush=True)
        gc.collect()
    spreads = summary(rows)
    for group, found in spreads.items():
        for figure in (*FIGURES, "interval_width"):
            shown = ", ".join(f"{part} {value:.1%}" for part, value in found[figure].items())
            print(f"{group} ({found['cases']}), {figure}: {shown}")
    protocol = "predicted over counted, less one; counts of traffic-h200.json, one cold launch each"
    write_cpu_record(
        Path(path),
        format_command(Path(path)),
        protocol,
        MEASURES,
        {"errors": spreads, "rows": rows},
        ("numba", "numpy"),
    )


if __name__ == "__main__":
    main(*parse_arguments(__doc__, "record"))

"""Does ``deploy.choose`` know when one launch is faster than PyTorch's own ops, on FFNs that nobody measured?

    python benchmarks/choose.py benchmarks/results/choose-h200.json        the study of a table, on any machine
    python benchmarks/choose.py --table launches.json                      the table that ships, from a sweep
    python benchmarks/choose.py --predict src/.../measured/h200.json       its predictions, after the model changed

The study is of the GPU that the record is named after. Each model of the table is left out in turn, and its rows are
judged by the others. Of each row that is taken for a launch, ratio is the library's time over the launch's; others
count as 1. An oracle takes the launch wherever that exceeds 1. The sweep is one of launches (``benchmarks/nn.py
--launches``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import exp, floor, log
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from script import format_command, make_parser

from interlace.bench.record import write_cpu_record
from interlace.core.devices import DeviceSpec, load_known_chips
from interlace.core.files import write_atomic
from interlace.deploy import choose_launch_rows
from interlace.deploy import table as tables
from interlace.deploy.choose import EXTRAPOLATED_RATIO, MEASURED_RATIO, SCALED_RATIO, judge, predict_us
from interlace.deploy.table import FFNTimes, MeasurementTable
from interlace.executors.megakernel import MegakernelExecutor
from interlace.kernels.base import next_power_of_2

MEASURES = ("csrc/ops/matmul", "deploy", "kernels/matmul", "planner/predict.py", "policies", "sim")
PROTOCOL = (
    "every model of the table left out in turn and judged by the others; ratio is the library's time over the "
    "launch's, back to back, in a layer or in a compiled one, whichever is least, and 1 where the library is chosen"
)
_BAR = 0.97


def judge_rows(table: MeasurementTable) -> list[dict[str, Any]]:
    """Every row as the rows of other models have it."""
    found = []
    for model in dict.fromkeys(row.model for row in table.rows):
        mine = [row for row in table.rows if row.model == model]
        others = table.exclude_rows(mine)
        for row in mine:
            said = judge(
                others, row.problem, row.build_graph(row.launched), table.device, lambda us=row.predicted_us: us
            )
            figures = {"ratio": round(row.ratio, 4), "judged": round(said.ratio, 4), "least": said.least}
            rows = {"tokens": row.tokens, "launched": row.launched}
            found.append({"model": model, **rows, **figures, "launch": said.ratio >= said.least})
    return found


def margins(table: MeasurementTable) -> dict[int, float]:
    """The least, in whole percent, with which no row judged by other models falls below the bar.

    By the power of two of at least the rows of a launch: of those between, each has few rows of the table. It is no
    less than where a measured one is only scaled.
    """
    least = {next_power_of_2(row.launched): SCALED_RATIO for row in sorted(table.rows, key=lambda row: row.launched)}
    for row in judge_rows(replace(table, margins=least)):
        if row["launch"] and row["ratio"] < _BAR:
            at = next_power_of_2(row["launched"])
            least[at] = max(least[at], floor(100 * row["judged"] + 1) / 100)
    return least


def mean(values: Iterable[float]) -> float:
    return exp(fmean(map(log, values)))


def figures(table: MeasurementTable) -> dict[str, Any]:
    """Return the figures of the study."""
    rows = judge_rows(table)
    taken = [row["ratio"] for row in rows if row["launch"]]
    lost = [1.0] * (len(rows) - len(taken))
    return {
        "table": table.origin,
        "margins": {
            "measured": MEASURED_RATIO,
            "scaled": SCALED_RATIO,
            "predicted": dict(table.margins),
            "unlike": EXTRAPOLATED_RATIO,
        },
        "points": len(rows),
        "launches": len(taken),
        "mean": round(mean(taken + lost), 4),
        "oracle": round(mean(max(row["ratio"], 1.0) for row in rows), 4),
        "worst": min(taken),
        "below": sum(ratio < _BAR for ratio in taken),
        "error": round(pstdev(log(row["judged"] / row["ratio"]) for row in rows), 4),
        "rows": rows,
    }


def round_us(us: Mapping[str, float]) -> dict[str, float]:
    """To nanoseconds, more than a median is good for."""
    return {where: round(value, 3) for where, value in us.items()}


def iter_measured(row: Mapping[str, Any], chip: DeviceSpec) -> Iterator[FFNTimes]:
    """Rows of a table, of a row of a sweep whose modules ran a launch: the FFN alone, and the whole layer."""
    us = {where: {name: t["median_us"] for name, t in row[where].items()} for where in ("alone", "layer")}
    library = {
        "alone": min(us["alone"][name] for name in ("eager", "fused", "compile")),
        "layer": min(us["layer"][name] for name in ("eager", "fused")),
        "compiled": us["layer"]["compile"],
    }
    plain = {
        "alone": us["alone"]["module"],
        "layer": us["layer"]["module"],
        "compiled": us["layer"]["module, compiled"],
    }
    yield new_row(row, None, chip, plain, library)
    if "whole" in us["layer"]:
        whole = {"layer": us["layer"]["whole"], "compiled": us["layer"]["whole, compiled"]}
        yield new_row(row, row["eps"], chip, whole, {where: library[where] for where in whole})


def new_row(
    row: Mapping[str, Any],
    norm: float | None,
    chip: DeviceSpec,
    launch_us: Mapping[str, float],
    library_us: Mapping[str, float],
) -> FFNTimes:
    """A row of a table."""
    shape = {name: row[name] for name in ("model", "hidden", "ffn", "activation", "gated", "tokens")}
    times = {"launch_us": round_us(launch_us), "library_us": round_us(library_us)}
    new = FFNTimes(**shape, norm=norm, launched=0, predicted_us=0.0, **times)
    new = replace(new, launched=choose_launch_rows(new.tokens, new.shape, chip))
    us = predict_us(new.build_graph(new.launched), chip, MegakernelExecutor)
    return replace(new, predicted_us=round(us, 3))


def table_of(sweep: Mapping[str, Any]) -> tuple[Path, MeasurementTable]:
    """The table of a sweep, and its file: the rows whose modules ran a launch in any case."""
    key, chip = next((key, spec) for key, spec in load_known_chips().items() if spec.name == sweep["gpu"])
    taken = [row for row in sweep["rows"] if row["runs"] == "launch" and "fused" in row["alone"]]
    rows = [made for row in taken for made in iter_measured(row, chip)]
    rows.sort(key=lambda row: (row.model, row.norm is not None, row.tokens))
    versions = {name: sweep["versions"][name] for name in ("torch", "triton")}
    path = tables.FOLDER / f"{key}.json"
    found = MeasurementTable(chip, MegakernelExecutor.name, versions, sweep["date"], sweep["protocol"], {}, tuple(rows))
    return path, replace(found, margins=margins(found))


def predict_rows(table: MeasurementTable) -> MeasurementTable:
    """Return a table with the times that are predicted today, and margins that follow from them."""
    rows = tuple(
        replace(row, predicted_us=round(predict_us(row.build_graph(row.launched), table.device, MegakernelExecutor), 3))
        for row in table.rows
    )
    found = replace(table, margins={}, rows=rows)
    return replace(found, margins=margins(found))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "path", type=Path, help="the record to write; with --table, the sweep to read; with --predict, the table"
    )
    parser.add_argument("--table", action="store_true", help="write the table that ships")
    parser.add_argument("--predict", action="store_true", help="write the table with today's predictions")
    given = parser.parse_args()
    if given.predict:
        write_atomic(given.path, tables.format_table(predict_rows(tables.read_table(given.path))))
        return
    if given.table:
        target, table = table_of(json.loads(given.path.read_text()))
        write_atomic(target, tables.format_table(table))
        return
    path = given.path
    shipped = tables.FOLDER / f"{path.stem.rpartition('-')[2]}.json"
    if not shipped.exists():
        raise SystemExit(f"{path.name} names no chip with a table; call it like choose-h200.json")
    found = figures(tables.read_table(shipped))
    write_cpu_record(path, format_command(path), PROTOCOL, MEASURES, found, ("numpy",))
    print(*(f"{name}: {value}" for name, value in found.items() if name != "rows"), sep="\n")


if __name__ == "__main__":
    main()

"""``interlace tune``: measured search; results are stored in the user's cache."""

from __future__ import annotations

from statistics import median
from typing import Annotated

import typer

from interlace.cli.console import print_line, print_table, show_stages
from interlace.cli.machine import find_machine, list_versions
from interlace.cli.names import Device
from interlace.cli.options import JsonFile
from interlace.cli.outputs import save_json
from interlace.cli.table import build_columns
from interlace.cli.workloads import Selection, add_per_workload, add_workload_group
from interlace.core.files import cache_dir
from interlace.policies.tiling import format_tilings
from interlace.tune import DEFAULT_TOP, TuningCandidate, TuningResult
from interlace.tune import tune as search


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = add_workload_group(app, "tune", "Search for the fastest setting on this GPU, and keep it.")

    @add_per_workload(commands, several=True)
    def tune(
        work: Selection,
        top: Annotated[
            int,
            typer.Option(
                "--top", min=1, metavar="K", help="Measure the K plans that are predicted best, and the default."
            ),
        ] = DEFAULT_TOP,
        json: JsonFile = None,
    ) -> None:
        """Find the fastest setting of a workload in each size: predict many, measure the best few.

        It runs as one launch, by the fastest executor that can.

        What is found is kept in the cache of this user, for this GPU and these versions: $INTERLACE_CACHE_DIR, else
        $XDG_CACHE_HOME/interlace, else ~/.cache/interlace.

        Example: interlace tune ffn --preset llama3-8b --m 16 --m 1024
        """
        cases = work.build_all(gpu=True)
        machine = find_machine(Device.CUDA)
        with show_stages() as progress:
            found = list(search(cases, top, progress))
        if json is not None:
            head = {"gpu": machine.name, "versions": list_versions()}
            save_json(json, {**head, "rows": [row.to_data() for row in found]})
        for row in found:
            _show(f"{', '.join([work.kind.name, *row.workload.describe_fields()])}, on {machine.name}", row)
        print_line(f"kept in {cache_dir()}")


def _show(title: str, row: TuningResult) -> None:
    def cells(candidate: TuningCandidate) -> list[str]:
        us, off = candidate.us, candidate.prediction_error
        what = "default" if candidate.schedule == row.default_schedule else ""
        measured = ["failed", "", ""] if us is None or off is None else [f"{us:.1f}", f"{off:+.1%}", ""]
        if us is not None:
            measured[2] = f"{row.default_us / us:.3f}x"
        return [f"{candidate.predicted_us:.1f}", *measured, what, format_tilings(candidate.schedule.op_tilings)]

    headings = ("predicted us", "measured us", "prediction off by", "gain", "", "setting")
    print_table(build_columns(f"{title}, {row.executor} executor", headings, map(cells, row.candidates)))
    offs = [abs(c.prediction_error) for c in row.candidates if c.prediction_error is not None]
    print_line(
        f"{row.predicted} settings predicted, {row.tried_schedules} measured, "
        f"{len(row.candidates) - row.tried_schedules} failed; prediction off by {median(offs):.1%} in the median; the "
        f"best takes {row.best_us:.1f} us, the default {row.default_us:.1f}"
    )

"""``interlace tune``: measured search, kept in the user's cache."""

from __future__ import annotations

from statistics import median
from typing import Annotated

import typer

from interlace.cli.console import say, show, stepping
from interlace.cli.machine import find, versions
from interlace.cli.names import Device
from interlace.cli.options import JsonFile
from interlace.cli.outputs import save_json
from interlace.cli.table import columns
from interlace.cli.workloads import Selection, group, per_workload
from interlace.core.files import cache_dir
from interlace.tune import TOP, Candidate, Tuned
from interlace.tune import tune as search


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = group(app, "tune", "Search for the fastest setting on this GPU, and keep it.")

    @per_workload(commands, several=True)
    def tune(
        work: Selection,
        top: Annotated[
            int,
            typer.Option(
                "--top", min=1, metavar="K", help="Measure the K plans that are predicted best, and the default."
            ),
        ] = TOP,
        json: JsonFile = None,
    ) -> None:
        """Find the fastest setting of a workload in each size: predict many, measure the best few.

        It runs as one launch, by the fastest executor that can.

        What is found is kept in the cache of this user, for this GPU and these versions: $INTERLACE_CACHE_DIR, else
        $XDG_CACHE_HOME/interlace, else ~/.cache/interlace.

        Example: interlace tune ffn --preset llama3-8b --m 16 --m 1024
        """
        cases = work.each(gpu=True)
        machine = find(Device.CUDA)
        with stepping() as progress:
            found = list(search(cases, top, progress))
        if json is not None:
            head = {"gpu": machine.name, "versions": versions()}
            save_json(json, {**head, "rows": [row.to_data() for row in found]})
        for row in found:
            _show(f"{', '.join([work.kind.name, *row.workload.described()])}, on {machine.name}", row)
        say(f"kept in {cache_dir()}")


def _show(title: str, row: Tuned) -> None:
    def cells(candidate: Candidate) -> list[str]:
        us, off = candidate.us, candidate.off
        what = "default" if candidate.setting == row.default else ""
        measured = ["failed", "", ""] if us is None or off is None else [f"{us:.1f}", f"{off:+.1%}", ""]
        if us is not None:
            measured[2] = f"{row.default_us / us:.3f}x"
        return [f"{candidate.predicted_us:.1f}", *measured, what, str(candidate.setting)]

    headings = ("predicted us", "measured us", "prediction off by", "gain", "", "setting")
    show(columns(f"{title}, {row.executor} executor", headings, map(cells, row.candidates)))
    offs = [abs(c.off) for c in row.candidates if c.off is not None]
    say(
        f"{row.predicted} settings predicted, {row.tried} measured, {len(row.candidates) - row.tried} failed; "
        f"prediction off by {median(offs):.1%} in the median; the best takes {row.best_us:.1f} us, "
        f"the default {row.default_us:.1f}"
    )

"""Table of hand-offs between ops."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from interlace.cli import table
from interlace.core.text import format_count
from interlace.kernels.base import mask_layer_index
from interlace.planner.handovers import HandOff


def build_waits_table(found: Iterable[HandOff]) -> Table:
    """Return the table; identical layers share a line with the waits of one item and the exposed time of all."""
    awaited: dict[str, dict[str, int]] = {}
    exposed: dict[str, float] = {}
    for each in found:
        name = mask_layer_index(each.op)
        exposed[name] = exposed.get(name, 0.0) + each.exposed_us
        mine = awaited.setdefault(name, {})
        for op, tiles in each.awaited:
            mine[mask_layer_index(op)] = max(mine.get(mask_layer_index(op), 0), tiles)

    def cells(name: str) -> tuple[str, str, str]:
        others = ", ".join(f"{op} ({format_count(tiles, 'tile')})" for op, tiles in awaited[name].items())
        return name, others or "nothing", table.format_number(exposed[name])

    return table.build_columns("what each op waits for", ("op", "waits for", "exposed us"), map(cells, awaited))

"""What ops wait for, as a table."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from interlace.cli import table
from interlace.core.text import plural
from interlace.kernels.base import of_layers
from interlace.planner.handovers import HandOver


def waiting(found: Iterable[HandOver]) -> Table:
    """One line for layers that are alike: what an item of one waits for, and the exposed time of all of them."""
    awaited: dict[str, dict[str, int]] = {}
    exposed: dict[str, float] = {}
    for each in found:
        name = of_layers(each.op)
        exposed[name] = exposed.get(name, 0.0) + each.exposed_us
        mine = awaited.setdefault(name, {})
        for op, tiles in each.awaited:
            mine[of_layers(op)] = max(mine.get(of_layers(op), 0), tiles)

    def cells(name: str) -> tuple[str, str, str]:
        others = ", ".join(f"{op} ({plural(tiles, 'tile')})" for op, tiles in awaited[name].items())
        return name, others or "nothing", table.number(exposed[name])

    return table.columns("what each op waits for", ("op", "waits for", "exposed us"), map(cells, awaited))

"""``interlace order``: the best order of a small grid compared with the named orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from interlace.cli import names, table
from interlace.cli.console import convert_to_bad_input, note, print_table, show_stages
from interlace.cli.options import JsonFile, make_option, register_command
from interlace.cli.outputs import save_json
from interlace.core.text import format_count
from interlace.orders.families import list_families
from interlace.orders.panels import EvictionPolicy, PanelGrid, Visit
from interlace.orders.replay import count_loads

if TYPE_CHECKING:
    from interlace.orders.exact import ExactResult

_WIDEST = 16  # columns of a picture that fits the terminal


def register(app: typer.Typer) -> None:
    """Add the command."""

    @register_command(app, "order")
    def order(
        grid: Annotated[
            tuple[int, int],
            typer.Option("--grid", parser=names.parse_grid, metavar="RxC", help="Output tiles: rows x columns."),
        ],
        capacity: Annotated[
            int, typer.Option("--capacity", metavar="N", help="Units that the cache holds, 2 at the least.")
        ],
        cache: Annotated[
            EvictionPolicy | None,
            make_option(names.CACHES, "--cache", "CACHE", "What a full cache evicts, lru by default"),
        ] = None,
        start: Annotated[
            tuple[int, int] | None,
            typer.Option(
                "--start",
                parser=names.parse_start,
                metavar="R,C",
                help="The first tile, or any. Rows are alike, and so are columns: the minimum is the same.",
            ),
        ] = None,
        chunks: Annotated[int, typer.Option("--chunks", metavar="N", help="Units of a panel: chunks along K.")] = 1,
        seconds: Annotated[float, typer.Option("--seconds", help="Stop short of a proof after this time.")] = 60.0,
        states: Annotated[
            int | None,
            typer.Option(
                "--states", help="Stop short of a proof at this many states; by default, as many as 1 GiB holds."
            ),
        ] = None,
        json: JsonFile = None,
    ) -> None:
        """Find the order of a matmul's tiles that loads least, prove it, and show the named orders beside it.

        A tile reads its row panel and its column panel, all of K or one of N chunks of K at a time. The
        cache holds so many of these units; touching one that it does not hold is a load. lru evicts what was
        touched longest ago, opt what is touched again last, which no cache beats. In the best order a tile
        touches whichever of its two units suits it first (and with chunks runs K in either direction); in the
        named ones the row's comes first.

        Up to 49 tiles the search is exact, within --seconds and --states. Up to 64x64 a beam search finds an
        order that is no worse than any named one; --seconds short of it leaves the best named one. The first use
        compiles the search, about 8 s once.

        Example: interlace order --grid 4x4 --capacity 3

        Example: interlace order --grid 3x3 --chunks 2 --capacity 7 --cache opt --json best.json
        """
        # Imported late: it takes half a second (numba), and no other command needs it.
        from interlace.orders.exact import find_best_order

        policy = cache or EvictionPolicy.LRU
        with convert_to_bad_input():
            panels = PanelGrid(*grid, chunks)
            with show_stages() as progress:
                progress("searching", 0, 1)
                found = find_best_order(
                    panels,
                    capacity,
                    policy,
                    start=start,
                    max_states=states,
                    seconds=seconds,
                    progress=lambda seen, low, high: progress(f"{seen:,} states, {low} to {high} loads", low, high),
                )
        familiar = {
            member.name: count_loads(panels, member.make_walk(panels), capacity, policy)
            for member in list_families(panels, capacity)
        }
        unit = "panel" if chunks == 1 else "chunk"
        facts = [
            ("tiles", f"{panels.rows} x {panels.columns}" + (f", in {chunks} chunks" if chunks > 1 else "")),
            ("cache", f"{policy.value.upper()}, {format_count(capacity, unit)}"),
            ("minimum" if found.is_proved else "best found", format_count(found.loads, "load")),
            ("proved", "yes" if found.is_proved else "no"),
            ("lower bound", format_count(found.lower_bound, "load")),
            ("states kept", f"{found.states:,}"),
        ]
        if json is not None:
            asked = {"grid": list(grid), "chunks": chunks, "capacity": capacity, "cache": policy.value}
            save_json(json, asked | _to_data(found) | {"families": familiar})
        print_table(table.build_facts("the order that loads least", facts))
        if panels.columns <= _WIDEST:
            print_table(_draw_picture(panels, found.walk))
        rows = [
            (name, f"{cost:,}", f"{cost / found.loads:.2f}x")
            for name, cost in sorted(familiar.items(), key=lambda item: item[1])
        ]
        print_table(table.build_columns("named orders", ("order", "loads", "of the best"), rows))
        if found.stop_reason:
            note(f"no proof: {found.stop_reason}; {found.loads} is the best found, {found.lower_bound} a lower bound")


def _draw_picture(grid: PanelGrid, walk: Sequence[Visit]) -> Table:
    """Return a table of the step at which each tile runs; < marks tiles that run K backwards."""
    when = {(visit.row, visit.column): f"{i}{'<' if visit.backwards else ''}" for i, visit in enumerate(walk)}
    headings = ("", *(f"col {column}" for column in range(grid.columns)))
    rows = ((f"row {row}", *(when[row, column] for column in range(grid.columns))) for row in range(grid.rows))
    backwards = ", < for K backwards" if any(visit.backwards for visit in walk) else ""
    return table.build_columns(f"when each tile runs{backwards}", headings, rows)


def _to_data(found: ExactResult) -> dict[str, object]:
    return {
        "minimum": found.loads,
        "proved": found.is_proved,
        "lower_bound": found.lower_bound,
        "stopped": found.stop_reason,
        "states": found.states,
        "path": [list(tile) for tile in found.path],
        "column_first": [visit.column_first for visit in found.walk],
        "backwards": [visit.backwards for visit in found.walk],
    }

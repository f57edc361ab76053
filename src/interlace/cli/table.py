"""Tables on the terminal, and formatted numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from interlace.bench.timing import Timing
from interlace.cli.console import escape_text
from interlace.core.text import format_count
from interlace.executors import DeviceExecutor, Executor
from interlace.executors.serial import CudaGraphExecutor
from interlace.kernels.base import format_tiling
from interlace.plan.plan import Plan


@dataclass(frozen=True)
class ResultRow:
    """Result of one executor."""

    executor: type[Executor]
    plan: Plan
    relative_error: float
    times: Timing


def build_results(title: str, rows: Sequence[ResultRow]) -> Table:
    """Return the table of ``interlace run``: speeds relative to ``cuda_graph`` if it ran, and the plans."""
    plans: dict[str, list[str]] = {}
    for row in rows:
        plans.setdefault(f"{format_tiling(row.plan.graph)}: {format_plan(row.plan)}", []).append(row.executor.name)
    told = [f"verified plan of {', '.join(names)}: {line}" for line, names in plans.items()]
    caption = Text("\n".join(map(escape_text, told)))
    table = Table(title=_make_text(title), caption=caption, caption_justify="left", title_justify="left")
    table.add_column("executor", overflow="fold")
    table.add_column("what it is", overflow="fold")
    for heading in ("rel. error", "median us", "p20", "p80"):
        table.add_column(heading, justify="right", no_wrap=True)
    base = next((row.times.median_us for row in rows if row.executor is CudaGraphExecutor), None)
    if base is not None:
        table.add_column("speed", justify="right", no_wrap=True)
    for row in rows:
        times = (row.times.median_us, row.times.p20_us, row.times.p80_us)
        compared = base is not None and issubclass(row.executor, DeviceExecutor)
        speed = [] if base is None else [f"{base / row.times.median_us:.2f}x" if compared else ""]
        table.add_row(
            row.executor.title,
            row.executor.description,
            format_error(row.relative_error),
            *map(format_number, times),
            *speed,
        )
    return table


def build_facts(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    """Return a table of two columns without headings."""
    table = Table(title=_make_text(title), title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(row[0], _make_text(row[1]))
    return table


def build_columns(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of text; all columns except the first are right-aligned."""
    table = Table(title=_make_text(title), title_justify="left")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_make_text, row))
    return table


def format_plan(plan: Plan) -> str:
    """Return a plan in one line."""
    return (
        f"{format_count(len(plan.items), 'item')}, {format_count(plan.semaphores, 'semaphore')}, "
        f"{format_count(plan.workers, 'worker')}, {plan.dispatch.value} dispatch, {plan.policy}, {plan.order}"
    )


def _make_text(value: str) -> Text:
    """Return text that is shown unchanged, even if it looks like markup."""
    return Text(escape_text(value))


def format_number(value: float) -> str:
    """Format a number with three significant digits, or as a whole number: 0.120, 12.0, 1,234."""
    if not math.isfinite(value):
        return str(value)
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:#.3g}"


def format_volume(nbytes: float) -> str:
    """Format an amount of data: 512 B, 1.23 MB, 17.2 GB."""
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if nbytes >= 10**power:
            return f"{format_number(nbytes / 10**power)} {unit}"
    return f"{nbytes:.0f} B"


def format_size(nbytes: int) -> str:
    """Format a capacity exactly: 50 MiB, 48 KiB, 1,000 B."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift:,} {unit}"
    return f"{nbytes:,} B"


def format_error(value: float) -> str:
    """Format a relative error: 2.1e-16, 0 if exact."""
    return "0" if value == 0 else f"{value:.1e}"

"""A record of ``interlace bench WORKLOAD`` to look at: speedups over the best library by size, and their limit.

    speedup = best library's time / best executor's time        limit = best library's time / floor

The floor is the time that memory or tensor cores need by themselves, so no executor is above the limit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from interlace.core.errors import StudioError

#: Rows that the page draws; a record has some dozens.
MOST_ROWS = 1 << 12


@dataclass(frozen=True)
class RecordRow:
    """One problem of a record.

    Attributes:
        series: what rows of one line have in common: the preset, or the workload's fields but its size.
        size: such as the number of tokens.
        floor_us, library_us, executor_us: medians, in microseconds.
        library, executor: the fastest of each.
        target: speedup to reach; None if there is none.
        layer: speedup inside a layer of a model; None where that was not measured.
    """

    series: str
    size: int
    floor_us: float
    library: str
    library_us: float
    executor: str
    executor_us: float
    target: float | None
    layer: float | None

    def shown(self) -> dict[str, Any]:
        """As JSON, with ``ratio`` and ``limit``."""
        ratio, limit = self.library_us / self.executor_us, self.library_us / self.floor_us
        return {**vars(self), "ratio": ratio, "limit": limit}


@dataclass(frozen=True)
class RecordView:
    """A record.

    Attributes:
        title: what was measured, on what, when, by which command.
        rows: in the record's order.
    """

    page: ClassVar[str] = "records.html"
    title: str
    command: str
    protocol: str
    rows: tuple[RecordRow, ...]

    @staticmethod
    def read(text: str) -> RecordView:
        """Read what ``interlace bench WORKLOAD --out`` wrote.

        Raises:
            StudioError: another record or other JSON, with the command that wrote it.
        """
        command = ""
        try:
            data = json.loads(text)
            command = str(data["command"])
            rows = tuple(_row(row) for row in data["rows"])
            title = f"{data['rows'][0]['workload']['name']} on {data['gpu']}, {data['date']}"
            if len(rows) > MOST_ROWS:
                raise StudioError(f"a record of {len(rows)} rows; the page draws {MOST_ROWS}")
            return RecordView(title, command, str(data["protocol"]), rows)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            by = f" but of `{command[:100]}`" if command else ""
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)[:100]
            raise StudioError(
                f"not a record of `interlace bench WORKLOAD --out`{by} ({why}); open one that it wrote"
            ) from None

    def shown(self) -> dict[str, Any]:
        """All of it."""
        told = {"name": self.title, "command": self.command, "protocol": self.protocol}
        return {**told, "rows": [row.shown() for row in self.rows]}


def _row(row: dict[str, Any]) -> RecordRow:
    workload, layer, target = row["workload"], row["layer"], row["target"]
    library, executor = str(row["library"]), str(row["executor"])
    size = row["size"]
    if type(size) is not int or size < 1:
        raise ValueError(f"size is {size!r}")
    fields = ", ".join(
        f"{name} {value}"
        for name, value in workload.items()
        if name != "name" and value is not None and value is not False and value != size
    )
    return RecordRow(
        str(row["preset"] or fields),
        size,
        _positive(row["floor_us"]),
        library,
        _positive(row["libraries"][library]["median_us"]),
        executor,
        _positive(row["executors"][executor]["median_us"]),
        None if target is None else _positive(target),
        None if layer is None else _positive(layer["ratio"]),
    )


def _positive(value: Any) -> float:
    if not 0 < float(value) < float("inf"):
        raise ValueError(f"{value!r} is no positive number")
    return float(value)

"""View of records of one or several GPUs and dates: speedups over the best library by size, and hardware counters.

    speedup = best library's time / best executor's time        limit = best library's time / floor

The floor is the time that memory or tensor cores need by themselves, so no executor is above the limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from interlace.core.errors import StudioError

#: Rows that the page draws; a record has some dozens.
MAX_ROWS = 1 << 12


@dataclass(frozen=True)
class RecordRow:
    """Problem that was timed.

    Attributes:
        series: common part of the rows of one line: the preset, or the workload's fields without its size.
        size: size of the problem, such as the number of tokens.
        floor_us, library_us, executor_us: medians, in microseconds.
        library, executor: names of the fastest ones.
        target: speedup to reach; None if there is none.
        layer: speedup inside a layer of a model; None if it was not measured.
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

    def to_data(self) -> dict[str, Any]:
        """Return the row as JSON data, with ``ratio`` and ``limit``."""
        ratio, limit = self.library_us / self.executor_us, self.library_us / self.floor_us
        return {**vars(self), "ratio": ratio, "limit": limit}


@dataclass(frozen=True)
class CounterRow:
    """Launch measured by hardware counters.

    Attributes:
        series: workload that ran.
        size: size as formatted text.
        us: duration in microseconds.
        read_bytes, written_bytes: bytes moved between memory and the L2.
        hit_rate: hit rate of the L2, from 0 to 1.
        expected_bytes: predicted bytes read; None if there was no prediction.
        verdict: limit of the launch; "" if the record has none.
    """

    series: str
    size: str
    us: float
    read_bytes: float
    written_bytes: float
    hit_rate: float
    expected_bytes: float | None
    verdict: str


@dataclass(frozen=True)
class Record:
    """Contents of one file.

    Attributes:
        title: measurement, device and date.
        command, protocol: command and protocol of the measurement; "" if the file has none.
        rows, counted: rows in the record's order.
    """

    title: str
    command: str
    protocol: str
    rows: tuple[RecordRow, ...]
    counted: tuple[CounterRow, ...]

    @staticmethod
    def read(text: str) -> Record:
        """Read a record that ``interlace bench WORKLOAD --out``, ``interlace profile --json`` or ``benchmarks`` wrote.

        Raises:
            StudioError: another record or other JSON, with the command that wrote it.
        """
        command = ""
        try:
            data = json.loads(text)
            command = str(data.get("command", ""))
            rows = data["rows"]
            if not 0 < len(rows) <= MAX_ROWS:
                raise StudioError(f"a record of {len(rows)} rows; the page draws 1 to {MAX_ROWS}")
            counted = [_parse_counter_row(row, data) for row in rows if _has_counters(row)]
            timed = [_parse_timed_row(row) for row in rows if not _has_counters(row)]
            name = rows[0]["workload"]["name"] if "workload" in rows[0] else str(rows[0]["name"])
            told = [f"{name} on {data['gpu']}", str(data.get("date", ""))]
            title = ", ".join(filter(None, told))
            return Record(title, command, str(data.get("protocol", "")), tuple(timed), tuple(counted))
        except StudioError:
            raise
        except Exception as error:  # noqa: BLE001  # a file may hold anything
            by = f" but of `{command[:100]}`" if command else ""
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)[:100]
            raise StudioError(
                f"not a record of `interlace bench WORKLOAD --out` or `interlace profile --json`{by} ({why}); open one "
                "that they wrote"
            ) from None


@dataclass(frozen=True)
class RecordView:
    """View of several records, for example of two GPUs or two dates."""

    page: ClassVar[str] = "records.html"
    records: tuple[Record, ...]

    @staticmethod
    def read(*texts: str) -> RecordView:
        """Read the text of each record. Raises StudioError as ``Record.read``."""
        return RecordView(tuple(map(Record.read, texts)))

    def to_data(self) -> dict[str, Any]:
        """Return all data of the view."""
        return {
            "name": "records",
            "records": [
                {
                    **vars(record),
                    "rows": [row.to_data() for row in record.rows],
                    "counted": [vars(row) for row in record.counted],
                }
                for record in self.records
            ],
        }


def _parse_timed_row(row: dict[str, Any]) -> RecordRow:
    """Return a row of ``bench``, or of ``benchmarks/decode.py``, which names a model, its batch and its context."""
    layer, target = row.get("layer"), row.get("target")
    libraries, executors = row["libraries"], row["executors"]
    library = str(row.get("library") or _find_fastest(libraries))
    executor = str(row.get("executor") or _find_fastest(executors))
    size = row["size"] if "size" in row else row["batch"]
    if type(size) is not int or size < 1:
        raise ValueError(f"size is {size!r}")
    named = f"{row['model']}, context {row['context']}" if "model" in row else row["preset"]
    return RecordRow(
        str(named or _format_fields(row["workload"], size)),
        size,
        _parse_positive(row["floor_us"]),
        library,
        _parse_positive(libraries[library]["median_us"]),
        executor,
        _parse_positive(executors[executor]["median_us"]),
        None if target is None else _parse_positive(target),
        _parse_positive(layer["ratio"]) if isinstance(layer, dict) else None,
    )


def _find_fastest(timed: Mapping[str, Any]) -> str:
    return min(timed, key=lambda name: _parse_positive(timed[name]["median_us"]))


def _has_counters(row: dict[str, Any]) -> bool:
    return "counted" in row or "dram_read_bytes" in row


def _parse_counter_row(row: dict[str, Any], record: dict[str, Any]) -> CounterRow:
    """Return a row of ``profile``, or of ``benchmarks/dram_traffic.py``, which names a matmul, a tile and an order."""
    if "counted" not in row:
        return CounterRow(
            ", ".join(filter(None, (row["name"], row["tile"], row["order"]))),
            " x ".join(str(row[extent]) for extent in "mnk" if row[extent]),  # an FFN has only its tokens
            _parse_positive(row["ns"]) / 1e3,
            _parse_positive(row["dram_read_bytes"]),
            float(row["dram_write_bytes"]),
            _parse_share(row["l2_hit_pct"] / 100),
            None,
            "",
        )
    found, field = row["counted"], str(record["sweep"])
    size = row["workload"][field]
    return CounterRow(
        f"{row['workload']['name']}, {_format_fields(row['workload'], size)}, {row['executor']}",
        f"{field} {size}",
        _parse_positive(found["us"]),
        _parse_positive(found["dram_read_bytes"]),
        float(found["dram_write_bytes"]),
        _parse_share(found["l2_hit_rate"]),
        _parse_positive(row["predicted"]["dram_read_bytes"]),
        str(found["verdict"]),
    )


def _format_fields(workload: Mapping[str, Any], size: int) -> str:
    """Return the fields of a workload without its name and its size."""
    return ", ".join(
        f"{name} {value}"
        for name, value in workload.items()
        if name != "name" and value is not None and value is not False and value != size
    )


def _parse_positive(value: Any) -> float:
    if not 1e-30 < float(value) < 1e30:  # otherwise a ratio of two may be infinite
        raise ValueError(f"{value!r} is no positive number")
    return float(value)


def _parse_share(value: Any) -> float:
    if not 0 <= float(value) <= 1:
        raise ValueError(f"{value!r} is no share of hits")
    return float(value)

"""View of a trace that ``interlace trace`` wrote, and of another one on the same axis.

Times of the page are in thousandths of the unit of its ruler: nanoseconds for microseconds, and thousandths of a step
for a clock that counts steps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from interlace.core.errors import StudioError
from interlace.graph.access import Ints
from interlace.studio.plan_view import MAX_ITEMS
from interlace.trace.events import Trace
from interlace.trace.summary import Summary


@dataclass(frozen=True, eq=False)
class Timeline:
    """Trace of a file.

    Attributes:
        title: title of its process, such as the names of the device and the clock.
        trace: recorded events. Its workers are the lanes of the file, and its tiles the items' numbers, because a file
            does not contain grids.
        tiles: coordinates of each item's tile, as text.
        lanes: names of the lanes.
        producers: for each item, the last one to end of those that it waited for, that is, the item that handed off to
            it; -1 for an item that waited for none.
    """

    title: str
    trace: Trace
    tiles: tuple[str, ...]
    lanes: tuple[str, ...]
    producers: Ints

    @staticmethod
    def read(text: str) -> Timeline:
        """Read the JSON that ``trace.perfetto.to_perfetto`` makes.

        Raises:
            StudioError: other JSON, events that are not of such a file, or more items than the page draws.
        """
        try:
            data = json.loads(text)
            return _parse_timeline(data["traceEvents"], data["otherData"]["clock"])
        except StudioError:
            raise
        except Exception as error:  # noqa: BLE001  # a file may hold anything
            why = f"{type(error).__name__}: {error}"[:200]
            raise StudioError(f"not a trace that `interlace trace` wrote ({why}); write it anew") from None

    def to_data(self) -> dict[str, Any]:
        """Return columns of its items in sequence, and their summary."""
        trace, first = self.trace, int(self.trace.wait_ns.min())
        unit = "steps" if trace.clock == "steps" else "us"
        columns = {"wait": trace.wait_ns, "start": trace.start_ns, "end": trace.end_ns}
        summary = Summary.from_trace(trace, len(self.lanes))
        return {
            "title": self.title,
            "unit": unit,
            "ops": [{"name": name} for name in trace.ops],
            "op": trace.op.tolist(),
            "tile": list(self.tiles),
            "worker": trace.worker.tolist(),
            "lanes": list(self.lanes),
            "workers": len(self.lanes),
            "after": self.producers.tolist(),
            **{name: (column - first).tolist() for name, column in columns.items()},
            "span_ns": trace.span_ns,
            "summary": {
                "busy": summary.busy,
                "waiting": summary.waiting,
                "idle": summary.idle,
                "handed": self._summarise_hand_offs(),
                "ops": [
                    {
                        "op": op.op,
                        "number": trace.ops.index(op.op),
                        "items": op.items,
                        "waves": op.waves,
                        "tail": op.tail,
                        "tail_from": op.last_wave_ns,
                        "end": op.end_ns,
                        "waiting_ns": op.waiting_ns,
                    }
                    for op in summary.ops
                ],
            },
        }

    def _summarise_hand_offs(self) -> dict[str, Any]:
        """Return the number of items that waited for a producer, and the median time from its end to their start."""
        trace = self.trace
        item = np.flatnonzero((self.producers >= 0) & (trace.end_ns[self.producers] > trace.wait_ns))
        took = trace.start_ns[item] - trace.end_ns[self.producers[item]]
        return {"count": len(item), "median": float(np.median(took)) if len(item) else None}


@dataclass(frozen=True, eq=False)
class TimelineView:
    """View of one trace, or of two on one axis, the measured one first."""

    page: ClassVar[str] = "trace.html"
    timelines: tuple[Timeline, ...]

    def __post_init__(self) -> None:
        """Check that both clocks have a common axis. Raises StudioError."""
        clocks = sorted({timeline.trace.clock for timeline in self.timelines})
        if len(clocks) > 1 and "steps" in clocks:
            raise StudioError(f"traces by the clocks {', '.join(clocks)}; steps have no length, open them one by one")

    def to_data(self) -> dict[str, Any]:
        """Return all data of the view."""
        return {"name": "timeline", "timelines": [timeline.to_data() for timeline in self.timelines]}


def _parse_timeline(events: list[dict[str, Any]], clock: str) -> Timeline:
    work = [event for event in events if event.get("cat") == "work"]
    if not 0 < len(work) <= MAX_ITEMS:
        raise StudioError(f"a trace of {len(work)} items; the page draws 1 to {MAX_ITEMS}; use larger tiles")
    work.sort(key=lambda event: int(event["args"]["item"]))
    if [event["args"]["item"] for event in work] != list(range(len(work))):
        raise ValueError("items are not 0, 1, and so on")
    ops = tuple(dict.fromkeys(str(event["args"]["op"]) for event in work))
    number = {op: at for at, op in enumerate(ops)}
    start, end = (_parse_times(column) for column in zip(*((e["ts"], e["ts"] + e["dur"]) for e in work), strict=True))
    wait = start.copy()
    for event in events:
        if event.get("cat") == "wait":
            wait[_parse_item(event, len(work))] = _parse_times([event["ts"]])[0]
    if not (np.all(wait <= start) and np.all(start <= end)):
        raise ValueError("an item ends before it begins")
    numbers, track = np.unique([int(event["tid"]) for event in work], return_inverse=True)
    said = {event.get("tid"): str(event["args"]["name"]) for event in events if event.get("name") == "thread_name"}
    titles = (str(event["args"]["name"]) for event in events if event.get("name") == "process_name")
    title = next(titles, f"a trace (clock: {clock})")
    sm = np.array([int(event["args"]["sm"]) for event in work], np.int64)
    # Items of a lane never overlap, while blocks of ordinary launches come and go: lanes are the summary's workers.
    lane = track.reshape(-1).astype(np.int64)
    trace = Trace(
        np.array([number[event["args"]["op"]] for event in work], np.int64),
        np.arange(len(work)),
        lane,
        sm,
        wait,
        start,
        end,
        ops,
        str(clock),
    )
    return Timeline(
        title,
        trace,
        tuple(_format_tile(event["args"]["tile"]) for event in work),
        tuple(said.get(int(tid), f"track {tid}") for tid in numbers),
        _find_hand_offs(events, end),
    )


def _find_hand_offs(events: list[dict[str, Any]], end_ns: Ints) -> Ints:
    after = np.full(len(end_ns), -1, np.int64)
    producers = {event["id"]: _parse_item(event, len(end_ns)) for event in events if event.get("ph") == "s"}
    for event in events:
        if event.get("ph") == "f":
            item, producer = _parse_item(event, len(end_ns)), producers[event["id"]]
            if after[item] < 0 or end_ns[after[item]] < end_ns[producer]:
                after[item] = producer
    return after


def _parse_item(event: dict[str, Any], items: int) -> int:
    item = int(event["args"]["item"])
    if not 0 <= item < items:
        raise ValueError(f"item {item} of {items}")
    return item


def _parse_times(microseconds: Any) -> Ints:
    """Return nanoseconds, or thousandths of a step; the file has a step as a microsecond."""
    with np.errstate(over="ignore"):
        found = np.asarray(microseconds, np.float64) * 1e3
    if not np.isfinite(found).all() or np.abs(found).max() > 2**53:
        raise ValueError("a time is no number of microseconds")
    rounded: Ints = np.rint(found).astype(np.int64)
    return rounded


def _format_tile(tile: Any) -> str:
    return str(tuple(int(c) for c in tile)) if isinstance(tile, list) else str(int(tile))

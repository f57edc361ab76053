"""Export of a trace to a file for ui.perfetto.dev, in Chrome's trace-event JSON.

One process holds a track per worker, named after the SM on which it ran. An item is up to two slices: the
wait, if it took any time, and the work. A trace of 2 us with two items on SM 3 becomes

    wait up      X  ts 0.0   dur 0.5
    up           X  ts 0.5   dur 1.0   args: op, tile, item, worker, sm
    wait down    X  ts 1.5   dur 0.2
    down         X  ts 1.7   dur 0.3

and a flow arrow (``s`` to ``f``, each with its item) leads from the end of the item that posted last to the item that
waited for it. Times are microseconds from the first arrival. The event format is Google's "Trace Event Format" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interlace.graph.access import Ints
from interlace.trace.events import Trace

_PID = 1
#: Viewers that honour ``cname`` colour by it, others by the slice's name; both distinguish waits from work.
_WAIT_COLOUR = "grey"
_WORK_COLOURS = ("thread_state_running", "rail_response", "rail_animation", "good", "rail_load")


def to_perfetto(
    trace: Trace,
    *,
    grids: Sequence[tuple[int, ...]] = (),
    arrows: Ints | None = None,
    steals: Ints | None = None,
    name: str = "interlace",
) -> dict[str, Any]:
    """Convert the trace to JSON-ready data.

    Args:
        trace: trace of a run.
        grids: grid of each op, to show tile coordinates; without them tiles are shown by number.
        arrows: (producer item, consumer item) per row, shape (n, 2), drawn as flows.
        steals: (item, thief, victim) per row, shape (n, 3), from ``steals``; the item's args then name the victim.
        name: name of the process, such as the device's.

    A clock that counts steps has no unit; one step is shown as one microsecond, and the process name says so.
    """
    steps = trace.clock == "steps"
    unit = 1.0 if steps else 1e-3
    origin = int(trace.wait_ns.min()) if len(trace.op) else 0
    wait_us, start_us, end_us = ((t - origin) * unit for t in (trace.wait_ns, trace.start_ns, trace.end_ns))
    track, names = _assign_tracks(trace)
    title = f"{name} (clock: {trace.clock}{', one step shown as 1 us' if steps else ''})"
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": _PID, "args": {"name": title}}]
    for tid, text in enumerate(names):
        about = {"ph": "M", "pid": _PID, "tid": tid}
        events.append({**about, "name": "thread_name", "args": {"name": text}})
        events.append({**about, "name": "thread_sort_index", "args": {"sort_index": tid}})
    victims = {} if steals is None else {item: victim for item, _, victim in steals.tolist()}
    for i, (op, tile) in enumerate(zip(trace.op.tolist(), trace.tile.tolist(), strict=True)):
        common = {"ph": "X", "pid": _PID, "tid": int(track[i])}
        where = [int(c) for c in np.unravel_index(tile, grids[op])] if op < len(grids) else tile
        place = {"worker": int(trace.worker[i]), "sm": int(trace.sm[i])}
        args = {"op": trace.ops[op], "tile": where, "item": i, **place}
        if i in victims:
            args["stolen from worker"] = victims[i]
        if start_us[i] > wait_us[i]:
            wait = {"name": f"wait {trace.ops[op]}", "cat": "wait", "cname": _WAIT_COLOUR}
            events.append({**common, **wait, **_format_span(wait_us[i], start_us[i]), "args": args})
        work = {"name": trace.ops[op], "cat": "work", "cname": _WORK_COLOURS[op % len(_WORK_COLOURS)]}
        events.append({**common, **work, **_format_span(start_us[i], end_us[i]), "args": args})
    for number, (producer, consumer) in enumerate([] if arrows is None else arrows.tolist()):
        # An arrow binds to the slice that encloses its end, so both ends lie just inside one. A wait can end
        # a moment before its producer has recorded its post, or lie inside the consumer's work.
        inside = min(1e-3, (end_us[producer] - start_us[producer]) / 2)
        leave = end_us[producer] - inside
        arrive = max(start_us[consumer], min(leave, end_us[consumer]))
        common = {"pid": _PID, "name": "post", "cat": "dependency", "id": number}
        begin = {
            "ph": "s",
            "tid": int(track[producer]),
            "ts": _round_us(min(leave, arrive)),
            "args": {"item": producer},
        }
        end = {"ph": "f", "bp": "e", "tid": int(track[consumer]), "ts": _round_us(arrive), "args": {"item": consumer}}
        events += [{**common, **begin}, {**common, **end}]
    return {"displayTimeUnit": "ns", "otherData": {"clock": trace.clock}, "traceEvents": events}


def _assign_tracks(trace: Trace) -> tuple[Ints, list[str]]:
    """Return the track of each item, and the tracks' names in display order."""
    order = np.lexsort((trace.wait_ns, trace.worker))
    same = trace.worker[order][1:] == trace.worker[order][:-1]
    moved = trace.sm[order][1:] != trace.sm[order][:-1]
    overlap = trace.wait_ns[order][1:] < trace.end_ns[order][:-1]
    resident = not (same & (moved | overlap)).any()
    # Blocks of ordinary launches reuse numbers and come and go; they take the first free lane of their SM.
    lane = trace.worker if resident else _assign_lanes(trace)
    word = "worker" if resident else "lane"
    pairs, track = np.unique(np.stack([trace.sm, lane], axis=1), axis=0, return_inverse=True)
    shared = np.bincount(pairs[:, 0])[pairs[:, 0]] > 1 if len(pairs) else np.zeros(0, bool)
    names = [
        f"SM {sm} · {word} {number}" if several else f"SM {sm}"
        for (sm, number), several in zip(pairs.tolist(), shared.tolist(), strict=True)
    ]
    return track.reshape(-1).astype(np.int64), names


def _assign_lanes(trace: Trace) -> Ints:
    """Assign each item a lane of its SM that no other item uses at the same time."""
    lane = np.zeros(len(trace.op), np.int64)
    free_ns: dict[int, list[int]] = {}
    for i in np.argsort(trace.wait_ns, kind="stable").tolist():
        ends = free_ns.setdefault(int(trace.sm[i]), [])
        number = next((n for n, end in enumerate(ends) if end <= trace.wait_ns[i]), len(ends))
        ends[number : number + 1] = [int(trace.end_ns[i])]
        lane[i] = number
    return lane


def _format_span(begin_us: float, end_us: float) -> dict[str, float]:
    return {"ts": _round_us(begin_us), "dur": _round_us(end_us - begin_us)}


def _round_us(value: float) -> float:
    """Round microseconds to the picosecond, which drops the noise of the last float bits."""
    return round(float(value), 6)

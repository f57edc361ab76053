"""Files that the studio opens: which of plan, trace and record one is follows from what it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from interlace.cli.console import BadInput, convert_to_bad_input, show_spinner
from interlace.cli.inputs import read_text
from interlace.cli.plan_file import load_plan
from interlace.cli.trace import find_arrows
from interlace.core.errors import StudioError
from interlace.studio.answers import StudioView
from interlace.studio.plan_view import PlanView
from interlace.studio.records import Record, RecordView
from interlace.studio.timeline import Timeline, TimelineView
from interlace.trace.perfetto import to_perfetto

_Read = TypeVar("_Read")
_LARGEST = 256 << 20  # bytes; a trace takes some 400 for each item


def open_view(paths: Sequence[Path]) -> StudioView | None:
    """What the page begins with; None without a file.

    Raises:
        BadInput: a file is missing, damaged, too large, or nothing that the studio shows, or they do not go together.
    """
    if not paths:
        return None
    texts = [
        read_text(path, _LARGEST, "a file of the studio", "`interlace plan`, `trace` or `bench`") for path in paths
    ]
    kinds = [_detect_kind(text) for text in texts]
    if set(kinds) == {"record"}:
        return RecordView(tuple(_read(path, text, Record.read) for path, text in zip(paths, texts, strict=True)))
    if len(paths) == 1 and kinds[0] == "plan":
        plan = load_plan(paths[0])
        with convert_to_bad_input(), show_spinner("verifying and simulating (the first use compiles the simulation)"):
            return PlanView.of(plan)
    if len(paths) > 2 or kinds[0] != "trace" or "record" in kinds:
        names = ", ".join(f"{str(path)!r} ({kind})" for path, kind in zip(paths, kinds, strict=True))
        raise BadInput(f"{names} do not go together; open one file, records, two traces, or a trace and a plan")
    timelines = [
        _read(path, text, Timeline.read) if kind == "trace" else _simulate_plan(path)
        for path, text, kind in zip(paths, texts, kinds, strict=True)
    ]
    with convert_to_bad_input():
        return TimelineView(tuple(timelines))


def _detect_kind(text: str) -> str:
    """``trace``, ``record``, or ``plan`` for all else, whose reader tells what is wrong with it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return "plan"
    if not isinstance(data, dict):
        return "plan"
    if "traceEvents" in data:
        return "trace"
    return "record" if {"command", "protocol"} <= set(data) or {"sweep", "rows"} <= set(data) else "plan"


def _read(path: Path, text: str, reader: Callable[[str], _Read]) -> _Read:
    try:
        return reader(text)
    except StudioError as error:
        raise BadInput(f"{str(path)!r}: {error}") from None


def _simulate_plan(path: Path) -> Timeline:
    """A plan as the simulated machine runs it."""
    plan = load_plan(path)
    with convert_to_bad_input(), show_spinner("simulating (the first use compiles the simulation)"):
        view = PlanView.of(plan)
    if view.trace is None:
        raise BadInput(f"{str(path)!r}: no times can be predicted: {view.why}")
    grids = [op.grid for op in plan.graph.ops]
    data = to_perfetto(
        view.trace, grids=grids, arrows=find_arrows(plan, view.trace), name=f"predicted, {view.device.name}"
    )
    return Timeline.read(json.dumps(data))

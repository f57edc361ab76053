"""Files that the studio opens; the content decides between plan, trace and record."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from interlace.cli.console import BadInput, convert_to_bad_input, show_spinner
from interlace.cli.first_use import SIMULATOR
from interlace.cli.inputs import read_text
from interlace.cli.plan_file import load_plan
from interlace.cli.trace import find_arrows
from interlace.core.devices import DEFAULT_GPU, DeviceSpec
from interlace.core.errors import StudioError
from interlace.studio.pending import Pending, StudioView
from interlace.studio.plan_view import PlanView
from interlace.studio.records import Record, RecordView
from interlace.studio.timeline import Timeline, TimelineView
from interlace.trace.perfetto import to_perfetto

_Read = TypeVar("_Read")
_LARGEST = 256 << 20  # bytes; a trace takes about 400 for each item


def open_view(paths: Sequence[Path], device: DeviceSpec = DEFAULT_GPU) -> StudioView | Pending | None:
    """Return the view that the page begins with; None without a file. A plan is simulated on ``device`` on demand.

    Raises:
        BadInput: a file is missing, damaged, too large or of another kind, or the files do not go together.
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
        with convert_to_bad_input(), show_spinner("verifying"):
            view = PlanView.prove(plan, device)
        return Pending(PlanView, view.simulate, f"simulating on {device.name}; {SIMULATOR}")
    if len(paths) > 2 or kinds[0] != "trace" or "record" in kinds:
        names = ", ".join(f"{str(path)!r} ({kind})" for path, kind in zip(paths, kinds, strict=True))
        raise BadInput(f"{names} do not go together; open one file, records, two traces, or a trace and a plan")
    timelines = [
        _read(path, text, Timeline.read) if kind == "trace" else _simulate_plan(path, device)
        for path, text, kind in zip(paths, texts, kinds, strict=True)
    ]
    with convert_to_bad_input():
        return TimelineView(tuple(timelines))


def _detect_kind(text: str) -> str:
    """Return ``trace``, ``record``, or ``plan`` for anything else; the reader of plans reports its faults."""
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


def _simulate_plan(path: Path, device: DeviceSpec) -> Timeline:
    """Return the timeline of a plan on the simulated machine."""
    plan = load_plan(path)
    with convert_to_bad_input(), show_spinner("simulating"):
        view = PlanView.from_plan(plan, device)
    if view.trace is None:
        raise BadInput(f"{str(path)!r}: no times can be predicted: {view.why}")
    grids = [op.grid for op in plan.graph.ops]
    data = to_perfetto(
        view.trace, grids=grids, arrows=find_arrows(plan, view.trace), name=f"predicted, {view.device.name}"
    )
    return Timeline.read(json.dumps(data))

"""View of a plan: its items on the simulated machine, the waits of each, and its proof.

A plan that may not run is shown too, with the error of ``verify``, and with times if it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from interlace.core.devices import DEFAULT_GPU, DeviceSpec
from interlace.core.errors import (
    CoverageError,
    DeadlockError,
    FaultLocation,
    GraphError,
    InterlaceError,
    IntraOpRaceError,
    ItemError,
    PlanError,
    StudioError,
    ThresholdError,
)
from interlace.graph.access import Access, Ints
from interlace.graph.op import Op
from interlace.graph.tensor import Region
from interlace.plan.facts import check_items
from interlace.plan.plan import Plan
from interlace.plan.verify import verify
from interlace.studio.wire import check_members
from interlace.trace.events import Trace
from interlace.trace.summary import Summary

#: Maximum number of items of a plan that the page draws. Their columns are about 2 MB of JSON.
MAX_ITEMS = 1 << 16
#: Faults of plans with waits for existing semaphores only, which the simulated machine accepts.
_TIMED = (CoverageError, DeadlockError, ItemError, ThresholdError)
_MAX_LISTED = 64  # tiles of a list; the number of further ones is reported


@dataclass(frozen=True, eq=False)
class PlanView:
    """View of a plan.

    Attributes:
        plan: the plan.
        device: device to simulate.
        proof: text of the proof, or of the error of ``verify``.
        fault: the error; None for a proved plan.
        trace: predicted times of its items; None for a plan that does not end or that cannot be simulated.
        why: reason why there is no trace; "" if there is one, or none yet.
    """

    page: ClassVar[str] = "plan.html"
    plan: Plan
    device: DeviceSpec
    proof: str
    fault: InterlaceError | None
    trace: Trace | None
    why: str = ""

    @staticmethod
    def from_plan(plan: Plan, device: DeviceSpec = DEFAULT_GPU) -> PlanView:
        """Verify and simulate a plan. Raises as ``prove``."""
        return PlanView.prove(plan, device).simulate()

    @staticmethod
    def prove(plan: Plan, device: DeviceSpec = DEFAULT_GPU) -> PlanView:
        """Verify a plan; ``simulate`` adds the times.

        Raises:
            StudioError: more items than the page draws, or none.
            PlanError: columns that make no sense, unless only one item of an existing op is affected.
        """
        if not 0 < len(plan.items) <= MAX_ITEMS:
            raise StudioError(f"a plan of {len(plan.items)} items; the page draws {MAX_ITEMS}; use larger tiles")
        try:
            check_items(plan)
        except PlanError as error:
            if error.location is None:  # no part of it can be drawn
                raise
        fault: InterlaceError | None = None
        try:
            proof = str(verify(plan))
        except (PlanError, GraphError) as error:
            proof, fault = f"{type(error).__name__}: {error}", error
        if fault is not None and not isinstance(fault, _TIMED):
            what = "its graph" if isinstance(fault, GraphError) else "what it waits for"
            return PlanView(plan, device, proof, fault, None, f"{what} makes no sense")
        return PlanView(plan, device, proof, fault, None)

    def simulate(self) -> PlanView:
        """Return the view with the times of its items, or with the reason why it has none."""
        if self.why:
            return self
        # Imported late: it takes half a second (numba), and pages without a plan do not need it.
        from interlace.planner.predict import CHEAP, predict

        try:
            return replace(self, trace=predict(self.plan, self.device, limit=CHEAP).trace)
        except InterlaceError as error:
            return replace(self, why=str(error))

    def to_data(self) -> dict[str, Any]:
        """Return the whole plan, as columns of its items in sequence."""
        items, trace = self.plan.items, self.trace
        shown = {
            "name": self.plan.graph.name,
            "device": self.device.name,
            "dispatch": self.plan.dispatch.value,
            "workers": self.plan.workers,
            "policy": self.plan.policy,
            "order": self.plan.order,
            "proved": self.fault is None,
            "proof": self.proof,
            "fault": self._describe_fault(),
            "why": self.why,
            "ops": [{"name": op.name, "grid": list(op.grid)} for op in self.plan.graph.ops],
            "op": items.op.tolist(),
            "tile": items.tile.tolist(),
        }
        if trace is None:
            return shown
        first = int(trace.wait_ns.min())
        columns = {"wait": trace.wait_ns, "start": trace.start_ns, "end": trace.end_ns}
        return {
            **shown,
            "unit": "us",
            "worker": trace.worker.tolist(),
            **{name: (column - first).tolist() for name, column in columns.items()},
            "span_ns": trace.span_ns,
            "summary": _format_summary(Summary.from_trace(trace, self.plan.workers)),
        }

    def _describe_fault(self) -> dict[str, Any] | None:
        """Return kind and location of the fault: faulty items, items that should precede them, a tile without item."""
        if self.fault is None:
            return None
        place = self._find_location()
        listed = {name: self._list_items(np.array(getattr(place, name), np.int64)) for name in ("items", "producers")}
        return {"kind": type(self.fault).__name__, **listed, "tile": place.tile}

    def _find_location(self) -> FaultLocation:
        if isinstance(self.fault, IntraOpRaceError):
            items = self.plan.items
            found = ((items.op == self.fault.op) & (items.tile == tile) for tile in self.fault.tiles)
            writing, other = (tuple(np.flatnonzero(mine).tolist()) for mine in found)
            return FaultLocation(other, writing)
        return (isinstance(self.fault, PlanError) and self.fault.location) or FaultLocation()

    def describe_item(self, data: object) -> dict[str, Any]:
        """Return the regions, waits and dependants of an item. Raises StudioError for an item that does not exist."""
        item = check_members(data, "a request", ("item",)).get("item")
        count = len(self.plan.items)
        if type(item) is not int or not 0 <= item < count:
            raise StudioError(f"item is {item!r}; use 0 to {count - 1}")
        items = self.plan.items
        op = self.plan.graph.ops[int(items.op[item])]
        inside = 0 <= items.tile[item] < op.tiles
        reads, writes = (op.reads, op.writes) if inside else ((), ())
        return {
            "item": item,
            "name": self.plan.format_item(item),
            "reads": [self._describe_region(op, access, item) for access in reads],
            "writes": [self._describe_region(op, access, item) for access in writes],
            "posts": int(items.post[item]),
            "waits": self._list_waits(item),
            "dependants": self._list_items(self._find_waiting(int(items.post[item]))),
        }

    def _describe_region(self, op: Op, access: Access, item: int) -> dict[str, Any]:
        """Return the region of a tensor that an item touches: as text, and as bounds within its shape."""
        items, shape = self.plan.items, self.plan.graph.tensor(access.tensor).shape
        tile, k_lo, k_hi = (column[item : item + 1] for column in (items.tile, items.k_lo, items.k_hi))
        lo, hi = (bound[0].tolist() for bound in access.compute_bounds(shape, op.compute_coords(tile), k_lo, k_hi))
        text = str(Region(access.tensor, tuple(lo), tuple(hi)))
        return {"text": text, "tensor": access.tensor, "shape": list(shape), "lo": lo, "hi": hi}

    def _list_waits(self, item: int) -> list[dict[str, Any]]:
        waits, post = self.plan.waits, self.plan.items.post
        found = []
        for row in range(int(waits.ptr[item]), int(waits.ptr[item + 1])):
            first, count, stride = (int(column[row]) for column in (waits.first, waits.count, waits.stride))
            away, step = post - first, max(1, stride)  # a plan that may not run can have any stride
            posting = np.flatnonzero((post >= 0) & (away >= 0) & (away < count * step) & (away % step == 0))
            found.append(
                {
                    "first": first,
                    "count": count,
                    "threshold": int(waits.threshold[row]),
                    "k": int(waits.k[row]),
                    **self._list_items(posting),
                }
            )
        return found

    def _find_waiting(self, semaphore: int) -> Ints:
        """Return the items with a wait for a semaphore."""
        waits = self.plan.waits
        away, step = semaphore - waits.first, np.maximum(1, waits.stride)
        hit = (semaphore >= 0) & (away >= 0) & (away < waits.count * step) & (away % step == 0)
        found: Ints = np.unique(np.searchsorted(waits.ptr, np.flatnonzero(hit), side="right") - 1)
        return found

    def _list_items(self, items: Ints) -> dict[str, Any]:
        first = items[:_MAX_LISTED].tolist()
        return {
            "items": first,
            "names": [self.plan.format_item(item) for item in first],
            "more": len(items) - len(first),
        }


def _format_summary(summary: Summary) -> dict[str, Any]:
    return {
        "busy": summary.busy,
        "waiting": summary.waiting,
        "idle": summary.idle,
        "ops": [
            {"op": op.op, "items": op.items, "waves": op.waves, "tail": op.tail, "waiting_ns": op.waiting_ns}
            for op in summary.ops
        ],
    }

"""``interlace trace``, and the dependency arrows that every trace file shows."""

from __future__ import annotations

import json

import numpy as np
import typer

from interlace.cli import limits, table
from interlace.cli.console import BadInput, show, working
from interlace.cli.handovers import waiting
from interlace.cli.machine import Machine, find
from interlace.cli.options import DeviceOption, ExecutorOption, OutFile, PlanFile, ScheduleOptions, Seed
from interlace.cli.outputs import Output, save, wrote
from interlace.cli.plan_file import planned
from interlace.cli.problem import Plans, Problem, problem
from interlace.cli.runners import Runners
from interlace.cli.workloads import Selection, group, per_workload, plan_file
from interlace.core.errors import PlanError
from interlace.core.text import plural
from interlace.executors import DeviceExecutor, Executor
from interlace.executors.megakernel import OneLaunchExecutor
from interlace.executors.persistent import PersistentStaticExecutor, PersistentTicketExecutor
from interlace.executors.reference import ReferenceExecutor
from interlace.graph.access import Ints
from interlace.graph.ragged import Groups, distinct, offsets, ranges
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.planner.handovers import hand_overs
from interlace.trace.events import Trace
from interlace.trace.perfetto import to_perfetto
from interlace.trace.steals import steals

HOW_TO_OPEN = "open https://ui.perfetto.dev and drop the file on it"
#: What a GPU traces if nobody chose, the first that can.
_TRACED: tuple[type[Executor], ...] = (PersistentTicketExecutor, PersistentStaticExecutor, OneLaunchExecutor)


def register(app: typer.Typer) -> None:
    """Add the command."""
    commands = group(app, "trace", "Run a workload or a plan file on one executor and write what happened when.")

    @per_workload(commands)
    def trace(
        work: Selection,
        schedule: ScheduleOptions,
        out: OutFile,
        executor: ExecutorOption = None,
        device: DeviceOption = None,
        seed: Seed = 0,
    ) -> None:
        """Run a workload on one executor and write what happened when, for ui.perfetto.dev.

        Waits and work are separate slices on a track per worker; arrows lead from the item that posted last
        to the item that waited for it. Without --executor: on a GPU the first of persistent-ticket,
        persistent-static and one_launch that runs the dispatch; else reference.

        Example: interlace trace ffn --m 64 --policy row --out trace.json
        """
        machine = find(device)
        _check_clock(executor, machine)
        if executor is None and machine.cuda and schedule.dispatch is not None:
            executor = next(e for e in _TRACED if schedule.dispatch.dispatch in e.dispatches)
        task = problem(work, machine, schedule.tile)
        limits.check_plan(task.graph, task.choices(schedule, machine.spec))
        _trace(task, task.plans(schedule, machine.spec), machine, out, executor, seed)

    @plan_file(commands)
    def trace_plan(
        plan: PlanFile, out: OutFile, executor: ExecutorOption = None, device: DeviceOption = None, seed: Seed = 0
    ) -> None:
        """Run a plan file on one executor and write what happened when, for ui.perfetto.dev.

        Without --executor: on a GPU the first of persistent-ticket, persistent-static and one_launch that runs the
        plan's dispatch; else reference.

        Example: interlace trace plan.json --out trace.json
        """
        machine = find(device)
        _check_clock(executor, machine)
        _trace(*planned(plan, machine.spec), machine, out, executor, seed)


def _check_clock(executor: type[Executor] | None, machine: Machine) -> None:
    if executor is not None and issubclass(executor, DeviceExecutor) and not machine.cuda:
        raise BadInput("the Triton interpreter has no clock; trace --executor reference, or on a GPU")


def _trace(
    work: Problem, plans: Plans, machine: Machine, out: Output, executor: type[Executor] | None, seed: int
) -> None:
    chosen = executor or (_on_gpu(plans) if machine.cuda else ReferenceExecutor)
    limits.check_memory(work.graph, [chosen], machine, compares=False)
    with working("drawing inputs"):
        inputs = work.inputs(seed)
    with working(f"running {chosen.name}"):
        runner = Runners(inputs, machine, seed).make(chosen, plans(chosen))
        events = runner.trace()
    write(out, events, runner.plan, machine.name)
    show(table.facts(f"{work.title}, on {machine.name}", _rows(events, runner.plan, chosen.name)))
    if events.clock != "steps" and Ordering.WAIT in chosen.keeps:
        show(waiting(hand_overs(runner.plan, events)))
    wrote(out, then=f"; {HOW_TO_OPEN}")


def _on_gpu(plans: Plans) -> type[Executor]:
    """What a GPU traces if nobody chose: the first that runs the dispatch that there is a plan for."""
    for executor in _TRACED[:-1]:
        try:
            plans(executor)
        except PlanError:
            continue
        return executor
    return _TRACED[-1]


def write(out: Output, trace: Trace, plan: Plan, device: str) -> None:
    """Write a trace of a plan with its arrows.

    Raises:
        BadInput: the file cannot be written.
    """
    grids = [op.grid for op in plan.graph.ops]
    data = to_perfetto(trace, grids=grids, arrows=arrows(plan, trace), stolen=_stolen(plan, trace), name=device)
    save(out, json.dumps(data, separators=(",", ":")) + "\n")


def arrows(plan: Plan, trace: Trace) -> Ints:
    """(producer item, waiting item) for each wait of the plan, shape (waits, 2).

    A wait can cover hundreds of semaphores with as many posts each; the producer shown is the one that
    ended last, for which the wait was in fact waiting.
    """
    items, waits = plan.items, plan.waits
    posting = np.flatnonzero(items.post >= 0)
    by_end = posting[np.argsort(trace.end_ns[posting], kind="stable")]
    last = np.full(plan.semaphores, -1, np.int64)
    last[items.post[by_end]] = by_end  # later assignments win
    first, wait_class = distinct(waits.first, waits.count, waits.stride)
    covered = Groups(offsets(waits.count[first]), ranges(waits.first[first], waits.count[first], waits.stride[first]))
    poster = last[covered.values]
    latest = np.lexsort((trace.end_ns[poster], covered.rows))[covered.ptr[1:] - 1]  # the last of each row
    return np.stack([poster[latest][wait_class], waits.item], axis=1)


def _stolen(plan: Plan, trace: Trace) -> Ints | None:
    return steals(plan.items.worker, trace) if plan.dispatch is Dispatch.STEALING else None


def _told(found: Ints) -> str:
    thieves, victims = (plural(len(np.unique(column)), "worker") for column in found.T[1:])
    return f"{plural(len(found), 'item')}, by {thieves} from {victims}" if len(found) else "no items"


def _rows(trace: Trace, plan: Plan, executor: str) -> list[tuple[str, str]]:
    steps = trace.clock == "steps"

    def span(value: int) -> str:
        return plural(value, "step") if steps else f"{table.number(value * 1e-3)} us"

    busy, stolen = trace.waiting_ns + trace.working_ns, _stolen(plan, trace)
    share = f" ({100 * trace.waiting_ns / busy:.0f} % of both)" if busy else ""
    return [
        ("executor", executor),
        ("plan", table.plan_line(plan)),
        ("items", f"{len(trace.op):,} on {plural(len(np.unique(trace.worker)), 'worker')}"),
        ("first arrival to last end", span(trace.span_ns)),
        *([] if stolen is None else [("stolen", _told(stolen))]),
        ("working, all workers", span(trace.working_ns)),
        ("waiting, all workers", span(trace.waiting_ns) + share),
    ]

"""``interlace trace``, and the dependency arrows that every trace file shows."""

from __future__ import annotations

import json

import numpy as np
import typer

from interlace.cli import limits, table
from interlace.cli.console import BadInput, print_table, show_spinner
from interlace.cli.handovers import build_waits_table
from interlace.cli.machine import HostMachine, find_machine
from interlace.cli.options import DeviceOption, ExecutorOption, OutFile, PlanFile, ScheduleOptions, Seed
from interlace.cli.outputs import Output, report_written, save
from interlace.cli.plan_file import load_problem
from interlace.cli.problem import Plans, RunProblem, build_problem
from interlace.cli.runners import RunnerFactory
from interlace.cli.workloads import Selection, add_per_workload, add_plan_file, add_workload_group
from interlace.core.errors import PlanError
from interlace.core.text import format_count
from interlace.executors import DeviceExecutor, Executor
from interlace.executors.megakernel import MegakernelExecutor
from interlace.executors.persistent import PersistentStaticExecutor, PersistentTicketExecutor
from interlace.executors.reference import ReferenceExecutor
from interlace.graph.access import Ints
from interlace.graph.ragged import Groups, compute_offsets, expand_ranges, find_distinct
from interlace.plan.orderings import Ordering
from interlace.plan.plan import Dispatch, Plan
from interlace.planner.handovers import find_hand_offs
from interlace.trace.events import Trace, find_steals
from interlace.trace.perfetto import to_perfetto

HOW_TO_OPEN = "open https://ui.perfetto.dev and drop the file on it"
#: Default executors to trace on a GPU; the first that supports the dispatch is used.
_TRACED: tuple[type[Executor], ...] = (PersistentTicketExecutor, PersistentStaticExecutor, MegakernelExecutor)


def register(app: typer.Typer) -> None:
    """Add the command."""
    commands = add_workload_group(
        app, "trace", "Run a workload or a plan file on one executor and write what happened when."
    )

    @add_per_workload(commands)
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
        machine = find_machine(device)
        _check_clock(executor, machine)
        if executor is None and machine.cuda and schedule.dispatch is not None:
            executor = next(e for e in _TRACED if schedule.dispatch.dispatch in e.dispatches)
        task = build_problem(work, machine, schedule.tile)
        limits.check_plan(task.graph, task.make_schedule(schedule, machine.spec))
        _trace(task, task.make_plans(schedule, machine.spec), machine, out, executor, seed)

    @add_plan_file(commands)
    def trace_plan(
        plan: PlanFile, out: OutFile, executor: ExecutorOption = None, device: DeviceOption = None, seed: Seed = 0
    ) -> None:
        """Run a plan file on one executor and write what happened when, for ui.perfetto.dev.

        Without --executor: on a GPU the first of persistent-ticket, persistent-static and one_launch that runs the
        plan's dispatch; else reference.

        Example: interlace trace plan.json --out trace.json
        """
        machine = find_machine(device)
        _check_clock(executor, machine)
        _trace(*load_problem(plan, machine.spec), machine, out, executor, seed)


def _check_clock(executor: type[Executor] | None, machine: HostMachine) -> None:
    if executor is not None and issubclass(executor, DeviceExecutor) and not machine.cuda:
        raise BadInput("the Triton interpreter has no clock; trace --executor reference, or on a GPU")


def _trace(
    work: RunProblem, plans: Plans, machine: HostMachine, out: Output, executor: type[Executor] | None, seed: int
) -> None:
    chosen = executor or (_select_gpu_executor(plans) if machine.cuda else ReferenceExecutor)
    limits.check_memory(work.graph, [chosen], machine, compares=False)
    with show_spinner("drawing inputs"):
        inputs = work.inputs(seed)
    with show_spinner(f"running {chosen.name}"):
        runner = RunnerFactory(inputs, machine, seed).make(chosen, plans(chosen))
        events = runner.trace()
    write_trace(out, events, runner.plan, machine.name)
    print_table(table.build_facts(f"{work.title}, on {machine.name}", _build_rows(events, runner.plan, chosen.name)))
    if events.clock != "steps" and Ordering.WAIT in chosen.enforced_orderings:
        print_table(build_waits_table(find_hand_offs(runner.plan, events)))
    report_written(out, then=f"; {HOW_TO_OPEN}")


def _select_gpu_executor(plans: Plans) -> type[Executor]:
    """Return the default executor on a GPU: the first that runs the dispatch of the plan."""
    for executor in _TRACED[:-1]:
        try:
            plans(executor)
        except PlanError:
            continue
        return executor
    return _TRACED[-1]


def write_trace(out: Output, trace: Trace, plan: Plan, device: str) -> None:
    """Write a trace of a plan with its arrows.

    Raises:
        BadInput: the file cannot be written.
    """
    grids = [op.grid for op in plan.graph.ops]
    data = to_perfetto(
        trace, grids=grids, arrows=find_arrows(plan, trace), steals=_find_steals(plan, trace), name=device
    )
    save(out, json.dumps(data, separators=(",", ":")) + "\n")


def find_arrows(plan: Plan, trace: Trace) -> Ints:
    """Return (producer item, waiting item) for each wait of the plan, shape (waits, 2).

    A wait can cover hundreds of semaphores with as many posts each; the producer shown is the one that
    ended last, which is the one that ended the wait.
    """
    items, waits = plan.items, plan.waits
    posting = np.flatnonzero(items.post >= 0)
    by_end = posting[np.argsort(trace.end_ns[posting], kind="stable")]
    last = np.full(plan.semaphores, -1, np.int64)
    last[items.post[by_end]] = by_end  # later assignments win
    first, wait_class = find_distinct(waits.first, waits.count, waits.stride)
    covered = Groups(
        compute_offsets(waits.count[first]), expand_ranges(waits.first[first], waits.count[first], waits.stride[first])
    )
    poster = last[covered.values]
    latest = np.lexsort((trace.end_ns[poster], covered.rows))[covered.ptr[1:] - 1]  # the last of each row
    return np.stack([poster[latest][wait_class], waits.item], axis=1)


def _find_steals(plan: Plan, trace: Trace) -> Ints | None:
    return find_steals(plan.items.worker, trace) if plan.dispatch is Dispatch.STEALING else None


def _describe_steals(found: Ints) -> str:
    thieves, victims = (format_count(len(np.unique(column)), "worker") for column in found.T[1:])
    return f"{format_count(len(found), 'item')}, by {thieves} from {victims}" if len(found) else "no items"


def _build_rows(trace: Trace, plan: Plan, executor: str) -> list[tuple[str, str]]:
    steps = trace.clock == "steps"

    def span(value: int) -> str:
        return format_count(value, "step") if steps else f"{table.format_number(value * 1e-3)} us"

    busy, stolen = trace.waiting_ns + trace.working_ns, _find_steals(plan, trace)
    share = f" ({100 * trace.waiting_ns / busy:.0f} % of both)" if busy else ""
    return [
        ("executor", executor),
        ("plan", table.format_plan(plan)),
        ("items", f"{len(trace.op):,} on {format_count(len(np.unique(trace.worker)), 'worker')}"),
        ("first arrival to last end", span(trace.span_ns)),
        *([] if stolen is None else [("stolen", _describe_steals(stolen))]),
        ("working, all workers", span(trace.working_ns)),
        ("waiting, all workers", span(trace.waiting_ns) + share),
    ]

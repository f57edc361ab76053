"""``interlace run``: a workload or a plan on every executor that the machine has, compared with float64 and timed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from interlace.cli import limits, table, trace
from interlace.cli.console import FAILED, BadInput, fail, note, say, show, working
from interlace.cli.machine import Machine, find, versions
from interlace.cli.names import (
    CUDA_GRAPH,
    PDL,
    PERSISTENT_STATIC,
    PERSISTENT_TICKET,
    REFERENCE,
    REFERENCE_RANDOM,
    SEMAPHORE_STREAMS,
    SERIAL,
    ExecutorChoice,
)
from interlace.cli.options import (
    DeviceOption,
    ExecutorOptions,
    JsonFile,
    PlanFile,
    ScheduleOptions,
    Seed,
    TraceFile,
)
from interlace.cli.outputs import Output, save_json
from interlace.cli.plan import plan_data
from interlace.cli.plan_file import planned
from interlace.cli.problem import Problem, Proofs, problem
from interlace.cli.runners import Runner, Runners, expected, relative_error, time_all
from interlace.cli.table import Row
from interlace.cli.workloads import Selection, group, per_workload, plan_file
from interlace.core.dtypes import fp32
from interlace.core.errors import DeviceError, GraphError, NoDeviceError, PlanError
from interlace.plan.plan import Plan

# Beyond these the reference takes seconds, so on a GPU it is left out unless asked for.
_REFERENCE_FLOPS, _REFERENCE_BYTES = 1e9, 16 << 20
_ON_GPU = (SERIAL, CUDA_GRAPH, PDL, SEMAPHORE_STREAMS, PERSISTENT_STATIC, PERSISTENT_TICKET)


def register(app: typer.Typer) -> None:
    """Add the command."""
    commands = group(app, "run", "Run a workload or a plan file on every executor; compare with float64 and time it.")

    @per_workload(commands)
    def run(
        work: Selection,
        schedule: ScheduleOptions,
        executor: ExecutorOptions = None,
        device: DeviceOption = None,
        seed: Seed = 0,
        json: JsonFile = None,
        trace: TraceFile = None,
    ) -> None:
        """Run a workload on every executor that this machine has; compare with float64 and time it.

        On a CPU, executors that need Triton run when named, under TRITON_INTERPRET=1. Exit code 1 if an executor is
        wrong.

        Example: interlace run ffn --preset minilm --m 32 --json result.json

        Example: interlace run ffn --checkpoint model.safetensors --up mlp.up.weight --down mlp.down.weight
        """
        machine = find(device)
        with working("planning and verifying"):
            task = problem(work, machine, schedule.tile)
            limits.check_plan(task.graph, task.choices(schedule, machine))
        _run(task, task.proofs(schedule, machine), machine, executor, seed, json, trace)

    @plan_file(commands)
    def run_plan(
        plan: PlanFile,
        executor: ExecutorOptions = None,
        device: DeviceOption = None,
        seed: Seed = 0,
        json: JsonFile = None,
        trace: TraceFile = None,
    ) -> None:
        """Run a plan file on every executor that takes its dispatch; compare with float64 and time it.

        It is proved first. Exit code 1 if an executor is wrong.

        Example: interlace run plan.json --executor reference
        """
        machine = find(device)
        with working("verifying"):
            task, proofs = planned(plan)
        _run(task, proofs, machine, executor, seed, json, trace)


def _run(
    work: Problem,
    proofs: Proofs,
    machine: Machine,
    executor: Sequence[ExecutorChoice] | None,
    seed: int,
    json: Output | None,
    trace: Output | None,
) -> None:
    chosen = list(dict.fromkeys(executor or _default(work, machine)))
    traced = _traced(chosen, machine) if trace is not None else None
    limits.check_memory(work.graph, chosen, machine, compares=True)
    with working("drawing inputs"):
        inputs = work.inputs(seed)
    with working("planning and verifying"):
        verified = [(choice, proofs(choice.dispatch)) for choice in chosen]
    with working("computing in float64"):
        right = expected(work, inputs, machine)
    made = Runners(inputs, machine, seed)
    errors: dict[Runner, float] = {}
    for choice, proof in verified:
        try:
            with working(f"running {choice.name}"):
                runner = made.make(choice, proof)
                errors[runner] = relative_error(runner.outputs(), right)
        except (DeviceError, GraphError, PlanError) as error:
            if executor:  # who named it wants to know; the others still have a result
                raise
            note(f"{choice.name} is left out: {error}")
    if not errors:
        raise NoDeviceError("no executor of this machine takes the plan; see the notes above")
    with working("timing"):
        times = time_all(list(errors), machine)
    rows = [Row(r.choice, e, t) for (r, e), t in zip(errors.items(), times, strict=True)]
    plan = verified[-1][1].plan
    if json is not None:
        save_json(json, _record(work, machine, plan, rows, seed))
    show(table.results(f"{work.title}, on {machine.timed}", f"verified plan: {table.plan_line(plan)}", rows))
    if trace is not None:
        able = [r for r in errors if r.choice is traced]
        if not able:
            raise BadInput("--trace: the executor that could trace is left out; name one that runs the plan")
        _write_trace(trace, able[0], machine)
    _judge(rows, work)


def _default(work: Problem, machine: Machine) -> tuple[ExecutorChoice, ...]:
    """What runs if nobody chose."""
    if not machine.cuda:
        return (REFERENCE, REFERENCE_RANDOM)
    flops = sum(op.flops * op.tiles for op in work.graph.ops)
    small = flops <= _REFERENCE_FLOPS and sum(t.nbytes for t in work.graph.tensors) <= _REFERENCE_BYTES
    able = tuple(c for c in _ON_GPU if work.dispatch is None or c.dispatch in (None, work.dispatch))
    return (REFERENCE, *able) if small else able


def _traced(chosen: Sequence[ExecutorChoice], machine: Machine) -> ExecutorChoice:
    """The last executor whose trace means something; under the Triton interpreter there is no clock."""
    able = [c for c in chosen if c.traces and (machine.cuda or c.device is None)]
    if not able:
        raise BadInput(
            f"--trace: none of {', '.join(c.name for c in chosen)} can trace; add --executor reference"
        )
    return able[-1]


def _write_trace(out: Output, runner: Runner, machine: Machine) -> None:
    with working(f"tracing {runner.choice.name}"):
        events = runner.trace()
    trace.write(out, events, runner.plan, machine.name)
    say(f"wrote a trace of {runner.choice.name} to {out}; {trace.HOW_TO_OPEN}")


def _record(work: Problem, machine: Machine, plan: Plan, rows: Sequence[Row], seed: int) -> Mapping[str, Any]:
    return {
        "workload": {**work.facts, "seed": seed},
        "device": machine.facts,
        "versions": versions(),
        "plan": plan_data(plan),
        "executors": [
            {
                "name": row.choice.name,
                "relative_error": row.relative_error if math.isfinite(row.relative_error) else None,
                "median_us": row.times.median_us,
                "p20_us": row.times.p20_us,
                "p80_us": row.times.p80_us,
            }
            for row in rows
        ],
    }


def _judge(rows: Sequence[Row], work: Problem) -> None:
    """Exit with 1 if an executor is further from float64 than rounding explains."""
    coarsest = max((t.dtype for t in work.graph.tensors), key=lambda dtype: dtype.epsilon)
    # The inputs and what each op writes round once each. In float32 the order of the sum matters more.
    rounding = 1e-4 if coarsest is fp32 else (2 + len(work.graph.ops)) * coarsest.epsilon
    for row in rows:
        limit = 1e-9 if row.choice.device is None else rounding
        if not row.relative_error <= limit:
            raise fail(
                f"{row.choice.name!r} differs from float64 by {table.error(row.relative_error)}, "
                f"more than rounding explains ({limit:.0e}); please report this with your command",
                FAILED,
            )

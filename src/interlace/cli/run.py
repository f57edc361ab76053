"""``interlace run``: a workload or a plan on every executor that the machine has, compared with float64 and timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import typer

from interlace.cli import limits, table, trace
from interlace.cli.console import FAILED, BadInput, fail, note, print_table, show_spinner
from interlace.cli.gpu_forecast import GpuForecast, predict_for_gpu
from interlace.cli.machine import HostMachine, find_machine, list_versions
from interlace.cli.names import Device
from interlace.cli.options import (
    DeviceOption,
    ExecutorOptions,
    JsonFile,
    PlanFile,
    ScheduleOptions,
    Seed,
    TraceFile,
)
from interlace.cli.outputs import Output, report_written, save_json
from interlace.cli.plan import build_plan_data
from interlace.cli.plan_file import load_problem
from interlace.cli.problem import Plans, RunProblem, build_problem
from interlace.cli.runners import Runner, RunnerFactory, compute_expected, compute_relative_error, time_all
from interlace.cli.table import ResultRow
from interlace.cli.workloads import Selection, add_per_workload, add_plan_file, add_workload_group
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import fp32
from interlace.core.errors import DeviceError, GraphError, NoDeviceError, PlanError
from interlace.executors import EXECUTORS, DeviceExecutor, Executor
from interlace.executors.reference import RandomReferenceExecutor, ReferenceExecutor
from interlace.plan.verify import Proof

# Beyond these limits the reference takes seconds, so on a GPU it only runs on request.
_REFERENCE_FLOPS, _REFERENCE_BYTES = 1e9, 16 << 20
_CANNOT = (DeviceError, GraphError, PlanError)


def register(app: typer.Typer) -> None:
    """Add the command."""
    commands = add_workload_group(
        app, "run", "Run a workload or a plan file on every executor; compare with float64 and time it."
    )

    @add_per_workload(commands)
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

        On a GPU each executor runs in tiles of its own, and options of the plan stand for all; those that cannot run it
        are left out with a note. Without a GPU a small case runs in NumPy, and what the workload would do on a GPU is
        predicted, unless --device cpu or an executor is named; those that need Triton run under TRITON_INTERPRET=1.
        With a chip or a file as --device the prediction is for that GPU. Exit code 1 if an executor is wrong. The first
        use compiles the simulator, about 5 s once.

        Example: interlace run ffn --preset minilm --m 32 --json result.json

        Example: interlace run ffn --checkpoint model.safetensors --up mlp.up.weight --down mlp.down.weight
        """
        predicted_for = device if isinstance(device, DeviceSpec) else None
        machine = find_machine(Device.CPU if predicted_for is not None else device)
        with show_spinner("planning and verifying"):
            task = build_problem(work, machine, schedule.tile)
            limits.check_plan(task.graph, task.make_schedule(schedule, machine.spec))
        foresee = None
        if predicted_for is not None:
            foresee = partial(predict_for_gpu, work, schedule, predicted_for)
        elif not machine.cuda and device is not Device.CPU and executor is None:
            foresee = partial(predict_for_gpu, work, schedule)
        _run(task, task.make_plans(schedule, machine.spec), machine, executor, seed, json, trace, foresee)

    @add_plan_file(commands)
    def run_plan(
        plan: PlanFile,
        executor: ExecutorOptions = None,
        device: DeviceOption = None,
        seed: Seed = 0,
        json: JsonFile = None,
        trace: TraceFile = None,
    ) -> None:
        """Run a plan file on every executor that takes it; compare with float64 and time it.

        It is proved first. Exit code 1 if an executor is wrong.

        Example: interlace run plan.json --executor reference
        """
        machine = find_machine(device)
        with show_spinner("verifying"):
            task, plans = load_problem(plan, machine.spec)
        _run(task, plans, machine, executor, seed, json, trace)


def _run(
    work: RunProblem,
    plans: Plans,
    machine: HostMachine,
    executor: Sequence[type[Executor]] | None,
    seed: int,
    json: Output | None,
    trace: Output | None,
    foresee: Callable[[], GpuForecast | None] | None = None,
) -> None:
    chosen = list(dict.fromkeys(executor or _select_default(work, machine)))
    traced = _select_traced(chosen, machine) if trace is not None else None
    limits.check_memory(work.graph, chosen, machine, compares=True)
    with show_spinner("drawing inputs"):
        inputs = work.inputs(seed)
    with show_spinner("planning and verifying"):
        planned = _plan_executors(chosen, plans, named=bool(executor))
    with show_spinner("computing in float64"):
        right = compute_expected(work, inputs, machine)
    made = RunnerFactory(inputs, machine, seed)
    errors: dict[Runner, float] = {}
    for kind, proof in planned.items():
        try:
            with show_spinner(f"running {kind.name}"):
                runner = made.make(kind, proof)
                errors[runner] = compute_relative_error(runner.compute_outputs(), right)
        except _CANNOT as error:
            if executor:  # report it for a named executor; the others still have a result
                raise
            note(f"{kind.name} is left out: {error}")
    if not errors:
        raise NoDeviceError("no executor of this machine takes the plan; see the notes above")
    with show_spinner("timing"):
        times = time_all(list(errors), machine)
    rows = [ResultRow(r.executor, r.plan, e, t) for (r, e), t in zip(errors.items(), times, strict=True)]
    ahead = None if foresee is None else foresee()
    if json is not None:
        told = {} if ahead is None else {"predicted": ahead.to_data()}
        save_json(json, {**_make_record(work, machine, rows, seed), **told})
    print_table(table.build_results(f"{work.title}, on {machine.timing_title}", rows))
    if ahead is not None:
        ahead.show()
    if trace is not None:
        able = [r for r in errors if r.executor is traced]
        if not able:
            raise BadInput("--trace: the executor that could trace is left out; name one that runs the plan")
        _write_trace(trace, able[0], machine)
    _judge(rows, work)


def _select_default(work: RunProblem, machine: HostMachine) -> list[type[Executor]]:
    """Return the default executors."""
    if not machine.cuda:
        return [ReferenceExecutor, RandomReferenceExecutor]
    flops = sum(op.flops * op.tiles for op in work.graph.ops)
    small = flops <= _REFERENCE_FLOPS and sum(t.nbytes for t in work.graph.tensors) <= _REFERENCE_BYTES
    on_device = [executor for executor in EXECUTORS if issubclass(executor, DeviceExecutor)]
    return [ReferenceExecutor, *on_device] if small else [*on_device]


def _plan_executors(chosen: Sequence[type[Executor]], plans: Plans, named: bool) -> dict[type[Executor], Proof]:
    """Return the plan of each executor, without the executors that cannot run one.

    Raises:
        BadInput, DeviceError: a named executor cannot run one.
    """
    found = {}
    for executor in chosen:
        try:
            found[executor] = plans(executor)
            executor.prove(found[executor])
        except _CANNOT as error:
            if named and isinstance(error, DeviceError):
                raise
            if named:
                raise BadInput(str(error)) from error
            found.pop(executor, None)
            note(f"{executor.name} is left out: {error}")
    return found


def _select_traced(chosen: Sequence[type[Executor]], machine: HostMachine) -> type[Executor]:
    """Return the last executor with a meaningful trace; the Triton interpreter has no clock."""
    able = [e for e in chosen if e.has_trace_times and (machine.cuda or not issubclass(e, DeviceExecutor))]
    if not able:
        raise BadInput(f"--trace: none of {', '.join(e.name for e in chosen)} can trace; add --executor reference")
    return able[-1]


def _write_trace(out: Output, runner: Runner, machine: HostMachine) -> None:
    with show_spinner(f"tracing {runner.executor.name}"):
        events = runner.trace()
    trace.write_trace(out, events, runner.plan, machine.name)
    report_written(out, f"a trace of {runner.executor.name} to ", f"; {trace.HOW_TO_OPEN}")


def _make_record(work: RunProblem, machine: HostMachine, rows: Sequence[ResultRow], seed: int) -> Mapping[str, Any]:
    return {
        "workload": {**work.facts, "seed": seed},
        "device": machine.facts,
        "versions": list_versions(),
        "executors": [
            {
                "name": row.executor.name,
                "relative_error": row.relative_error if math.isfinite(row.relative_error) else None,
                "median_us": row.times.median_us,
                "p20_us": row.times.p20_us,
                "p80_us": row.times.p80_us,
                "plan": build_plan_data(row.plan),
            }
            for row in rows
        ],
    }


def _judge(rows: Sequence[ResultRow], work: RunProblem) -> None:
    """Exit with 1 if an executor is further from float64 than rounding explains."""
    coarsest = max((t.dtype for t in work.graph.tensors), key=lambda dtype: dtype.epsilon)
    # The inputs and what each op writes round once each. In float32 the order of the sum matters more.
    rounding = 1e-4 if coarsest is fp32 else (2 + len(work.graph.ops)) * coarsest.epsilon
    for row in rows:
        limit = rounding if issubclass(row.executor, DeviceExecutor) else 1e-9
        if not row.relative_error <= limit:
            raise fail(
                f"{row.executor.name!r} differs from float64 by {table.format_error(row.relative_error)}, "
                f"more than rounding explains ({limit:.0e}); please report this with your command",
                FAILED,
            )

"""``interlace explain``: what the planner would do, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from interlace.cli import table
from interlace.cli.console import bad_input, show, stepping
from interlace.cli.machine import target
from interlace.cli.options import DeviceOption, ExecutorOptions, JsonFile, TileOption
from interlace.cli.outputs import save_json
from interlace.cli.problem import problem
from interlace.cli.workloads import Selection, group, per_workload
from interlace.kernels.base import by_layers, of_layers, tiling

if TYPE_CHECKING:
    from interlace.cli.predicted import Predicted
    from interlace.planner.explain import Explanation


def register(app: typer.Typer) -> None:
    """Add the command."""

    @per_workload(group(app, "explain", "What the planner would do, and why. Nothing runs."))
    def explain_workload(
        work: Selection,
        tile: TileOption = None,
        device: DeviceOption = None,
        executor: ExecutorOptions = None,
        json: JsonFile = None,
    ) -> None:
        """Let the planner choose executor, tiles, order, interleaving, splits and policy of a workload, and say why.

        Nothing runs: each executor has its best plan by prediction, and that of the fastest is proved safe. With
        --device cuda it is for the GPU here, or for an NVIDIA H200 where there is none. Of each op it tells what limits
        it, how full its last wave is, what it waits for and how long that is exposed; of the whole, the least time and
        bytes from memory beside lower bounds, how every executor would do, and what each decision is worth.

        Example: interlace explain ffn --preset llama3-8b --m 2048 --device cuda
        """
        from interlace.cli.predicted import Predicted, executor_ways
        from interlace.planner.explain import explain
        from interlace.planner.ways import compare, differences, rival

        machine = target(device)
        with bad_input():
            task = problem(work, machine, tile)
            with stepping() as step:
                step("tiles", 0, 1)
                ways = executor_ways(task, machine.spec, executor)
                most = sum(20 + 8 * len(way.graphs) for way in ways)
                entries = compare(ways, machine.spec, lambda tried: step("planning", tried, most))
                best = entries[0]
                step("proving", most, most)
                told = explain(best.planned, machine.spec, best.way.mode, best.way.dispatches, task.flops)
                other = rival(entries)
                reasons = [] if other is None else [*differences(best, other, machine.spec)]
                _ = told.planned.proof  # while the bar is there
        told = replace(told, reasons=(*reasons, *told.reasons))
        fastest = Predicted(best.way.names, best.planned.best.prediction, best.way.mode, machine.spec)
        found = [fastest, *(Predicted.of(entry, machine.spec) for entry in entries[1:])]
        if json is not None:
            save_json(json, _data(told, found))
        _show(f"{task.title}, planned for {machine.spec.name}", told, found)


def _show(title: str, told: Explanation, found: Sequence[Predicted]) -> None:
    from interlace.cli.handovers import waiting
    from interlace.cli.predicted import comparison

    best, plain = told.planned.best.prediction, told.planned.plain
    plain_us, plain_read = told.planned.us(plain), told.planned.dram_read(plain)
    traffic = best.traffic
    spawned = sum(op.tiles for op in told.planned.best.graph.ops if op.when)
    dispatches = ", ".join(f"{d.value} {table.number(us)} us" for d, us in told.dispatches_us.items())
    exposed = sum(each.exposed_us for each in told.hand_overs)
    rows = [
        ("fastest executor", ", ".join(found[0].names)),
        ("tiles", tiling(told.planned.best.graph)),
        ("plan", table.plan_line(told.planned.plan)),
        ("proved", str(told.planned.proof)),
        *([("tiles that data decide on", f"{spawned:,}; predicted as if all ran")] if spawned else []),
        ("predicted time", f"{table.number(best.us)} us; row-major, op after op: {table.number(plain_us)} us"),
        ("floor", f"{table.number(told.floor_us)} us; predicted is {best.us / told.floor_us:.2f} times that"),
        *([("hand-overs", f"{table.number(exposed)} us exposed")] if told.hand_overs else []),
        *([("by dispatch", dispatches)] if len(told.dispatches_us) > 1 else []),
        ("from memory", f"{_mb(traffic.dram_read)}; row-major, op after op: {_mb(plain_read)}"),
        *((f"  {name}", _mb(count)) for name, count in by_layers(traffic.read).items()),
        ("L2 hit rate", f"{traffic.hit_rate:.0%} of {_mb(traffic.touched)}"),
        *((f"bound, {b.label.value}", f"{_mb(b.bytes)}, {b.counts.value}") for b in told.bounds),
        ("  source of bounds", "; ".join(dict.fromkeys(b.source for b in told.bounds))),
        ("energy", f"{told.energy.joules:.3g} J, {told.energy.label}"),
    ]
    show(table.facts(title, rows))
    show(comparison("every executor at its best", found))
    headings = ("op", "tiles", "waves", "last wave idle", "limit", "compute us", "L2 us", "memory us")
    # Of layers that are alike, the first.
    first = {of_layers(o.op): o for o in reversed(told.ops)}
    ops = (
        (o.op, f"{o.tiles:,}", f"{o.waves:.2f}", f"{o.tail:.0%}", o.limit.value, *map(table.number, o.times_us))
        for o in reversed(first.values())
    )
    show(table.columns("what limits each op", headings, ops))
    if told.hand_overs:
        show(waiting(told.hand_overs))
    why = ((f"{r.decision}: {r.chosen}", table.number(r.without_us), _mb(r.without_bytes)) for r in told.reasons)
    if told.reasons:
        show(table.columns("what each decision is worth", ("decision", "us without it", "from memory without it"), why))
    planned = told.planned
    others = [
        (tiling(c.graph), c.prediction.plan.order, c.prediction.plan.policy, table.number(planned.us(c)), _mb(read))
        for c, read in ((c, planned.dram_read(c)) for c in planned.ranking)
    ]
    heading = f"best of {told.planned.tried} candidates"
    show(table.columns(heading, ("tiles", "order; splits; interleaving", "policy", "us", "from memory"), others))


def _data(told: Explanation, found: Sequence[Predicted]) -> dict[str, Any]:
    best, plain = told.planned.best.prediction, told.planned.plain
    return {
        "executor": found[0].names[0],
        "tiles": tiling(best.plan.graph),
        "order": best.plan.order,
        "policy": best.plan.policy,
        "predicted_us": best.us,
        "plain_us": told.planned.us(plain),
        "dram_read_bytes": best.traffic.dram_read,
        "dram_read_bytes_by_tensor": dict(best.traffic.read),
        "plain_dram_read_bytes": told.planned.dram_read(plain),
        "hit_rate": best.traffic.hit_rate,
        "bounds": [
            {"name": b.name, "bytes": b.bytes, "label": b.label.value, "counts": b.counts.value, "source": b.source}
            for b in told.bounds
        ],
        "joules_estimated": told.energy.joules,
        "executors": [each.to_data() for each in found],
        "ops": [
            {
                "op": o.op,
                "tiles": o.tiles,
                "waves": o.waves,
                "tail": o.tail,
                "limit": o.limit.value,
                "compute_us": o.compute_us,
                "l2_us": o.l2_us,
                "memory_us": o.memory_us,
            }
            for o in told.ops
        ],
        "floor_us": told.floor_us,
        "hand_overs": [
            {"op": each.op, "waits_for": dict(each.awaited), "exposed_us": each.exposed_us} for each in told.hand_overs
        ],
        "dispatches_us": {dispatch.value: us for dispatch, us in told.dispatches_us.items()},
        "reasons": [
            {"decision": r.decision, "chosen": r.chosen, "without_us": r.without_us, "without_bytes": r.without_bytes}
            for r in told.reasons
        ],
        "tried": told.planned.tried,
    }


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"

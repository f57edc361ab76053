"""``interlace explain``: what the planner would do, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from interlace.cli import table
from interlace.cli.console import convert_to_bad_input, print_table, show_stages
from interlace.cli.machine import find_target
from interlace.cli.options import DeviceOption, ExecutorOptions, JsonFile, TileOption
from interlace.cli.outputs import save_json
from interlace.cli.problem import build_problem
from interlace.cli.workloads import Selection, add_per_workload, add_workload_group
from interlace.kernels.base import format_tiling, mask_layer_index, sum_over_layers

if TYPE_CHECKING:
    from interlace.cli.predicted import PredictedRun
    from interlace.planner.explain import Explanation
    from interlace.planner.graph_bounds import BoundDistance
    from interlace.planner.intervals import ReadInterval


def register(app: typer.Typer) -> None:
    """Add the command."""

    @add_per_workload(add_workload_group(app, "explain", "What the planner would do, and why. Nothing runs."))
    def explain_workload(
        work: Selection,
        tile: TileOption = None,
        device: DeviceOption = None,
        executor: ExecutorOptions = None,
        json: JsonFile = None,
    ) -> None:
        """Let the planner choose executor, tiles, order, interleaving, splits and policy of a workload, and say why.

        Nothing runs: each executor has its best plan by prediction, and that of the fastest is proved safe. With
        --device cuda it is for the GPU here, or for an NVIDIA H200 where there is none; a chip or a file names another
        one. The first use compiles the simulator, about 5 s once.

        For each op it reports what limits it, how full its last wave is, what it waits for and how long that is
        exposed; for the whole, the least time and bytes from memory next to lower bounds, how every executor would do,
        and what each decision is worth.

        Example: interlace explain ffn --preset llama3-8b --m 2048 --device cuda
        """
        from interlace.cli.predicted import PredictedRun, list_candidates
        from interlace.planner.configs import compare, explain_differences, find_rival
        from interlace.planner.explain import explain

        machine = find_target(device)
        with convert_to_bad_input():
            task = build_problem(work, machine, tile)
            with show_stages() as step:
                step("tiles", 0, 1)
                ways = list_candidates(task, machine.spec, executor)
                most = sum(20 + 8 * len(way.graphs) for way in ways)
                entries = compare(ways, machine.spec, lambda tried: step("planning", tried, most))
                best = entries[0]
                step("proving", most, most)
                told = explain(best.search_result, machine.spec, best.config.mode, best.config.dispatches, task.flops)
                other = find_rival(entries)
                reasons = [] if other is None else [*explain_differences(best, other, machine.spec)]
                _ = told.search_result.proof  # while the bar is shown
        told = replace(told, reasons=(*reasons, *told.reasons))
        fastest = PredictedRun(best.config.names, best.search_result.best.prediction, best.config.mode, machine.spec)
        found = [fastest, *(PredictedRun.from_config(entry, machine.spec) for entry in entries[1:])]
        if json is not None:
            save_json(json, _to_data(told, found))
        _show(f"{task.title}, planned for {machine.spec.name}", told, found)


def _show(title: str, explanation: Explanation, found: Sequence[PredictedRun]) -> None:
    from interlace.cli.handovers import build_waits_table
    from interlace.cli.predicted import build_comparison

    best, plain = explanation.search_result.best.prediction, explanation.search_result.baseline
    plain_us, plain_read = (
        explanation.search_result.compute_us(plain),
        explanation.search_result.compute_dram_read(plain),
    )
    traffic = best.traffic
    spawned = sum(op.tiles for op in explanation.search_result.best.graph.ops if op.when)
    dispatches = ", ".join(f"{d.value} {table.format_number(us)} us" for d, us in explanation.dispatches_us.items())
    exposed = sum(each.exposed_us for each in explanation.hand_offs)
    rows = [
        ("fastest executor", ", ".join(found[0].names)),
        ("tiles", format_tiling(explanation.search_result.best.graph)),
        ("plan", table.format_plan(explanation.search_result.plan)),
        ("proved", str(explanation.search_result.proof)),
        *([("tiles that data decide on", f"{spawned:,}; predicted as if all ran")] if spawned else []),
        (
            "predicted time",
            f"{table.format_number(best.us)} us; row-major, op after op: {table.format_number(plain_us)} us",
        ),
        (
            "floor",
            f"{table.format_number(explanation.floor_us)} us; predicted is {best.us / explanation.floor_us:.2f} times "
            "that",
        ),
        *([("hand-offs", f"{table.format_number(exposed)} us exposed")] if explanation.hand_offs else []),
        *([("by dispatch", dispatches)] if len(explanation.dispatches_us) > 1 else []),
        (
            "from memory",
            f"{_format_mb(traffic.dram_read)}{_format_interval(explanation.read_interval)}; row-major, op after op: "
            f"{_format_mb(plain_read)}",
        ),
        *((f"  {name}", _format_mb(count)) for name, count in sum_over_layers(traffic.read_bytes).items()),
        ("L2 hit rate", f"{traffic.hit_rate:.0%} of {_format_mb(traffic.touched_bytes)}"),
        *((f"bound, {each.bound.label.value}", _format_distance(each)) for each in explanation.bounds),
        ("  nearest bound", _describe_distance(explanation.nearest_bound)),
        ("  source of bounds", "; ".join(dict.fromkeys(each.bound.source for each in explanation.bounds))),
        ("energy", f"{explanation.energy.joules:.3g} J, {explanation.energy.label}"),
    ]
    print_table(table.build_facts(title, rows))
    print_table(build_comparison("every executor at its best", found))
    headings = ("op", "tiles", "waves", "last wave idle", "limit", "compute us", "L2 us", "memory us")
    # The first of identical layers.
    first = {mask_layer_index(o.op): o for o in reversed(explanation.ops)}
    ops = (
        (o.op, f"{o.tiles:,}", f"{o.waves:.2f}", f"{o.tail:.0%}", o.limit.value, *map(table.format_number, o.times_us))
        for o in reversed(first.values())
    )
    print_table(table.build_columns("what limits each op", headings, ops))
    if explanation.hand_offs:
        print_table(build_waits_table(explanation.hand_offs))
    why = (
        (f"{r.decision}: {r.chosen}", table.format_number(r.without_us), _format_mb(r.without_bytes))
        for r in explanation.reasons
    )
    if explanation.reasons:
        print_table(
            table.build_columns(
                "what each decision is worth", ("decision", "us without it", "from memory without it"), why
            )
        )
    planned = explanation.search_result
    others = [
        (
            format_tiling(c.graph),
            c.prediction.plan.order,
            c.prediction.plan.policy,
            table.format_number(planned.compute_us(c)),
            _format_mb(read),
        )
        for c, read in ((c, planned.compute_dram_read(c)) for c in planned.ranking)
    ]
    heading = f"best of {explanation.search_result.tried_candidates} candidates"
    print_table(
        table.build_columns(heading, ("tiles", "order; splits; interleaving", "policy", "us", "from memory"), others)
    )


def _to_data(explanation: Explanation, found: Sequence[PredictedRun]) -> dict[str, Any]:
    best, plain = explanation.search_result.best.prediction, explanation.search_result.baseline
    return {
        "executor": found[0].names[0],
        "tiles": format_tiling(best.plan.graph),
        "order": best.plan.order,
        "policy": best.plan.policy,
        "predicted_us": best.us,
        "plain_us": explanation.search_result.compute_us(plain),
        "dram_read_bytes": best.traffic.dram_read,
        "dram_read_bytes_by_tensor": dict(best.traffic.read_bytes),
        "plain_dram_read_bytes": explanation.search_result.compute_dram_read(plain),
        "dram_read_interval_bytes": [explanation.read_interval.low, explanation.read_interval.high],
        "hit_rate": best.traffic.hit_rate,
        "bounds": [_build_bound_data(bound) for bound in explanation.bounds],
        "nearest_bound": _build_bound_data(explanation.nearest_bound),
        "joules_estimated": explanation.energy.joules,
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
            for o in explanation.ops
        ],
        "floor_us": explanation.floor_us,
        "hand_overs": [
            {"op": each.op, "waits_for": dict(each.awaited), "exposed_us": each.exposed_us}
            for each in explanation.hand_offs
        ],
        "dispatches_us": {dispatch.value: us for dispatch, us in explanation.dispatches_us.items()},
        "reasons": [
            {"decision": r.decision, "chosen": r.chosen, "without_us": r.without_us, "without_bytes": r.without_bytes}
            for r in explanation.reasons
        ],
        "tried": explanation.search_result.tried_candidates,
    }


def _build_bound_data(distance: BoundDistance) -> dict[str, Any]:
    bound = distance.bound
    return {
        "name": bound.name,
        "bytes": bound.bytes,
        "label": bound.label.value,
        "counts": bound.counts.value,
        "source": bound.source,
        "moved_bytes": distance.moved_bytes,
        "ratio": distance.ratio,
    }


def _format_distance(distance: BoundDistance) -> str:
    bound = distance.bound
    return f"{_format_mb(bound.bytes)}, {bound.counts.value}; the plan moves {distance.ratio:.2f} times that"


def _describe_distance(distance: BoundDistance) -> str:
    bound = distance.bound
    moved = f"the plan moves {_format_mb(distance.moved_bytes)}, {distance.ratio:.2f} times that"
    return f"{bound.label.value} for {bound.counts.value} of {bound.name}: {moved}"


def _format_interval(interval: ReadInterval) -> str:
    """Return the interval where it says more than its middle, near a knee of the cache."""
    return (
        ""
        if interval.is_narrow
        else f" (near a knee of the cache: {_format_mb(interval.low)} to {_format_mb(interval.high)})"
    )


def _format_mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"

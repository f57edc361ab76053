"""``interlace explain``: what the planner would do, and why."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlace.cli import table
from interlace.cli.console import BadInput, bad_input, show, stepping
from interlace.cli.machine import Machine, target
from interlace.cli.options import DeviceOption, JsonFile, TileOption
from interlace.cli.outputs import save_json
from interlace.cli.workloads import Selection, group, per_workload
from interlace.core.devices import DeviceSpec
from interlace.graph.graph import Graph
from interlace.kernels.matmul.gluon_tuning import in_tile
from interlace.planner.settings import retiled
from interlace.sim.modes import PERSISTENT, Mode
from interlace.workloads import FFN, Workload
from interlace.workloads.base import Tile

if TYPE_CHECKING:
    from interlace.planner.explain import Explanation


def register(app: typer.Typer) -> None:
    """Add the command."""

    @per_workload(group(app, "explain", "What the planner would do, and why. Nothing runs."))
    def explain_workload(
        work: Selection,
        tile: TileOption = None,
        device: DeviceOption = None,
        hopper: Annotated[
            bool, typer.Option("--hopper", help="Plan for the Hopper executor, whose loads run ahead of waits.")
        ] = False,
        json: JsonFile = None,
    ) -> None:
        """Let the planner choose tiles, order, interleaving, splits and policy of a workload, and say why.

        Nothing runs: the plan is chosen by prediction, and proved safe. With --device cuda it is for the GPU here, or
        for an NVIDIA H200 where there is none. Of each op it tells what limits it and how full its last wave is; of
        the whole, bytes from memory beside lower bounds, time under each executor, and what each decision is worth.

        Example: interlace explain ffn --preset llama3-8b --m 2048 --device cuda --hopper
        """
        from interlace.planner.explain import explain
        from interlace.planner.search import search

        machine = target(device)
        workload = work.on(machine.cuda)
        with bad_input():
            graphs, spec, mode = _question(workload, machine, tile, hopper)
            with stepping() as step:
                planned = search(graphs, spec, mode, lambda tried: step("planning", tried, 20 + 8 * len(graphs)))
                told = explain(planned, spec, mode)
        if json is not None:
            save_json(json, _data(told))
        _show(f"{workload.title}, planned for {spec.name}", told)


def _question(
    workload: Workload, machine: Machine, tile: Tile | None, hopper: bool
) -> tuple[Sequence[Graph], DeviceSpec, Mode]:
    """In which tilings, for which device and by which executor to plan.

    An FFN on a GPU is planned in those tilings that the executor can launch; with ``--tile``, in that one.

    Raises:
        BadInput: the Hopper executor does not run this.
    """
    from interlace.executors.hopper import HopperExecutor
    from interlace.executors.persistent import PersistentTicketExecutor

    if not machine.cuda or not isinstance(workload, FFN):
        if hopper:
            raise BadInput("--hopper plans an FFN for a GPU; drop it, or use the workload ffn with --device cuda")
        return [workload.graph(machine.spec, tile)], machine.spec, PERSISTENT
    graph = workload.graph(machine.spec)
    executor = HopperExecutor if hopper else PersistentTicketExecutor
    reason = executor.obstacle(graph, machine.spec)
    if reason is not None:
        raise BadInput(f"{reason}; drop --hopper" if hopper else reason)
    if tile is not None and not hopper:
        return [workload.graph(machine.spec, tile)], machine.spec, PERSISTENT
    graphs = executor.tilings(graph, machine.spec)
    if tile is not None:
        ways = (retiled(graph, setting) for setting in in_tile(graph, machine.spec, tile.m, tile.n, tile.k))
        graphs = tuple(islice((way for way in ways if executor.misfit(way, machine.spec) is None), 1))
        if not graphs:
            shown = f"{tile.m}x{tile.n}x{tile.k}"
            raise BadInput(f"the Hopper executor cannot launch tiles of {shown} here; drop --tile to see those it can")
    return graphs, machine.spec, executor.mode(graphs[0], machine.spec)


def _show(title: str, told: Explanation) -> None:
    from interlace.planner.explain import tiling

    best, plain = told.planned.best.prediction, told.planned.plain.prediction
    traffic = best.traffic
    rows = [
        ("tiles", tiling(told.planned.best.graph)),
        ("plan", table.plan_line(told.planned.plan)),
        ("proved", f"{told.planned.proof.edges:,} dependencies enforced, no deadlock, no race"),
        ("predicted time", f"{table.number(best.us)} us; row-major, op after op: {table.number(plain.us)} us"),
        ("from memory", f"{_mb(traffic.dram_read)}; row-major, op after op: {_mb(plain.traffic.dram_read)}"),
        *((f"  {name}", _mb(count)) for name, count in traffic.read.items()),
        ("L2 hit rate", f"{traffic.hit_rate:.0%} of {_mb(traffic.touched)}"),
        *((f"bound, {b.label.value}", f"{_mb(b.bytes)}, {b.counts.value}") for b in told.bounds),
        ("  source of bounds", "; ".join(dict.fromkeys(b.source for b in told.bounds))),
        ("energy", f"{told.energy.joules:.3g} J, {told.energy.label}"),
        *((f"as {name}", f"{table.number(us)} us") for name, us in told.times_us.items()),
    ]
    show(table.facts(title, rows))
    headings = ("op", "tiles", "waves", "last wave idle", "limit", "compute us", "L2 us", "memory us")
    ops = (
        (o.op, f"{o.tiles:,}", f"{o.waves:.2f}", f"{o.tail:.0%}", o.limit.value, *map(table.number, o.times_us))
        for o in told.ops
    )
    show(table.columns("what limits each op", headings, ops))
    why = ((f"{r.decision}: {r.chosen}", table.number(r.without_us), _mb(r.without_bytes)) for r in told.reasons)
    if told.reasons:
        show(table.columns("what each decision is worth", ("decision", "us without it", "from memory without it"), why))
    found = [c.prediction for c in told.planned.ranking]
    others = (
        (tiling(p.plan.graph), p.plan.order, p.plan.policy, table.number(p.us), _mb(p.traffic.dram_read)) for p in found
    )
    heading = f"best of {told.planned.tried} candidates"
    show(table.columns(heading, ("tiles", "order; splits; interleaving", "policy", "us", "from memory"), others))


def _data(told: Explanation) -> dict[str, Any]:
    from interlace.planner.explain import tiling

    best, plain = told.planned.best.prediction, told.planned.plain.prediction
    return {
        "tiles": tiling(best.plan.graph),
        "order": best.plan.order,
        "policy": best.plan.policy,
        "predicted_us": best.us,
        "plain_us": plain.us,
        "dram_read_bytes": best.traffic.dram_read,
        "dram_read_bytes_by_tensor": dict(best.traffic.read),
        "plain_dram_read_bytes": plain.traffic.dram_read,
        "hit_rate": best.traffic.hit_rate,
        "bounds": [
            {"name": b.name, "bytes": b.bytes, "label": b.label.value, "counts": b.counts.value, "source": b.source}
            for b in told.bounds
        ],
        "joules_estimated": told.energy.joules,
        "times_us": dict(told.times_us),
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
        "reasons": [
            {"decision": r.decision, "chosen": r.chosen, "without_us": r.without_us, "without_bytes": r.without_bytes}
            for r in told.reasons
        ],
        "tried": told.planned.tried,
    }


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"

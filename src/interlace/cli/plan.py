"""``interlace plan`` and ``interlace verify``: plans as files."""

from __future__ import annotations

from pathlib import Path

import typer

from interlace.cli import limits, plan_file, table
from interlace.cli.console import FAILED, fail, show, working
from interlace.cli.machine import target
from interlace.cli.options import DeviceOption, JsonFile, OutFile, PlanFile, ScheduleOptions, command
from interlace.cli.outputs import save, save_json, wrote
from interlace.cli.problem import problem
from interlace.cli.workloads import Selection, group, per_workload
from interlace.core.errors import InterlaceError
from interlace.core.text import plural
from interlace.kernels.base import listed, tiling
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof, verify
from interlace.planner.build import build


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @per_workload(group(app, "plan", "Plan a workload, prove the plan safe, and write it as JSON."))
    def plan(
        work: Selection,
        schedule: ScheduleOptions,
        out: OutFile,
        device: DeviceOption = None,
        json: JsonFile = None,
    ) -> None:
        """Plan a workload, prove the plan safe, and write it as JSON.

        With --device cuda it plans for a GPU that need not be here. A plan without proof is not written.

        Example: interlace plan ffn --m 256 --policy batched-row:2 --interleave panels:2 --out plan.json
        """
        machine = target(device)
        task = problem(work, machine, schedule.tile)
        choices = task.choices(schedule, machine.spec)
        limits.check_plan(task.graph, choices)
        with working("planning and verifying"):
            proof = verify(build(task.graph, choices))
        save(out, proof.plan.to_json())
        if json is not None:
            save_json(json, {"workload": task.facts, "device": machine.facts, **_summary(proof)})
        show(table.facts(f"{task.title}, for {machine.name}", _rows(proof)))
        wrote(out)

    @command(app, "verify")
    def verify_file(plan: PlanFile, json: JsonFile = None) -> None:
        """Prove that a plan can neither deadlock nor race, from its graph alone.

        Exit code 0 and what was proved; 1 and what is wrong; 2 if the file is no plan.

        Example: interlace verify plan.json
        """
        with working("verifying"):
            verdict = _verify(plan)
        if isinstance(verdict, Proof):
            if json is not None:
                save_json(json, _proved(verdict))
            show(table.facts(f"{plan}: safe, no deadlock and no race{verdict.provided}", _rows(verdict)))
            return
        if json is not None:
            wrong = {"type": type(verdict).__name__, "message": str(verdict)}
            save_json(json, {"verified": False, "error": wrong})
        raise fail(f"{type(verdict).__name__}: {verdict}", FAILED)


def _verify(path: Path) -> Proof | InterlaceError:
    """The proof, or what is wrong with the plan. Raises BadInput if the file is none."""
    plan = plan_file.read(path)
    try:
        return verify(plan)
    except InterlaceError as error:
        return error


def plan_data(plan: Plan) -> dict[str, object]:
    """A verified plan as JSON, in numbers."""
    return {
        "tiles": tiling(plan.graph),
        "items": len(plan.items),
        "semaphores": plan.semaphores,
        "workers": plan.workers,
        "dispatch": plan.dispatch.value,
        "policy": plan.policy,
        "order": plan.order,
        "verified": True,
    }


def _summary(proof: Proof) -> dict[str, object]:
    """All that ``_rows`` says, as JSON."""
    plan = proof.plan
    ops = [{"name": op.name, "kernel": op.kernel, "grid": list(op.grid), "tiles": op.tiles} for op in plan.graph.ops]
    return {
        "graph": {"name": plan.graph.name, "ops": ops},
        "plan": {**plan_data(plan), "waits": len(plan.waits)},
        "proof": _proved(proof),
    }


def _rows(proof: Proof) -> list[tuple[str, str]]:
    plan = proof.plan
    ops = listed(f"{op.name} {' x '.join(map(str, op.grid))}" for op in plan.graph.ops)
    return [
        ("graph", f"{plan.graph.name}: {ops} tiles"),
        ("items", f"{len(plan.items):,}"),
        ("waits", f"{len(plan.waits):,}"),
        ("semaphores", f"{plan.semaphores:,}"),
        ("workers", f"{plan.workers:,}, {plan.dispatch.value} dispatch"),
        ("policy", plan.policy),
        ("order", plan.order),
        ("dependencies enforced", f"{proof.edges:,}"),
        ("  by waits", f"{proof.edges_by_wait:,}"),
        ("  by a worker's own order", f"{proof.edges - proof.edges_by_wait:,}"),
        ("longest chain of waits", plural(proof.longest_chain, "item")),
        ("workers that must be resident", f"{proof.workers_needed:,}"),
        ("waits only for earlier items", "yes" if proof.in_sequence else "no"),
    ]


def _proved(proof: Proof) -> dict[str, object]:
    return {
        "verified": True,
        "edges": proof.edges,
        "edges_by_wait": proof.edges_by_wait,
        "edges_by_order": proof.edges - proof.edges_by_wait,
        "longest_chain": proof.longest_chain,
        "workers_needed": proof.workers_needed,
        "in_sequence": proof.in_sequence,
        "unproved": list(proof.unproved),
    }

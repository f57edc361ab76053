"""``interlace plan`` and ``interlace verify``: plans as files."""

from __future__ import annotations

from pathlib import Path

import typer

from interlace.cli import limits, plan_file, table
from interlace.cli.console import FAILED, fail, print_table, show_spinner
from interlace.cli.machine import find_target
from interlace.cli.options import DeviceOption, JsonFile, OutFile, PlanFile, ScheduleOptions, register_command
from interlace.cli.outputs import report_written, save, save_json
from interlace.cli.problem import build_problem
from interlace.cli.workloads import Selection, add_per_workload, add_workload_group
from interlace.core.errors import InterlaceError
from interlace.core.text import format_count
from interlace.kernels.base import format_ops, format_tiling
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof, verify
from interlace.planner.build import build


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @add_per_workload(add_workload_group(app, "plan", "Plan a workload, prove the plan safe, and write it as JSON."))
    def plan(
        work: Selection,
        schedule: ScheduleOptions,
        out: OutFile,
        device: DeviceOption = None,
        json: JsonFile = None,
    ) -> None:
        """Plan a workload, prove the plan safe, and write it as JSON.

        With --device cuda, a chip or a file it plans for a GPU that need not be here. A plan without proof is not
        written.

        Example: interlace plan ffn --m 256 --policy batched-row:2 --interleave panels:2 --out plan.json
        """
        machine = find_target(device)
        task = build_problem(work, machine, schedule.tile)
        given = task.make_schedule(schedule, machine.spec)
        limits.check_plan(task.graph, given)
        with show_spinner("planning and verifying"):
            proof = verify(build(task.graph, given))
        save(out, proof.plan.to_json())
        if json is not None:
            save_json(json, {"workload": task.facts, "device": machine.facts, **_build_summary(proof)})
        print_table(table.build_facts(f"{task.title}, for {machine.name}", _build_rows(proof)))
        report_written(out)

    @register_command(app, "verify")
    def verify_file(plan: PlanFile, json: JsonFile = None) -> None:
        """Prove that a plan can neither deadlock nor race, from its graph alone.

        Exit code 0 and what was proved; 1 and what is wrong; 2 if the file is no plan.

        Example: interlace verify plan.json
        """
        with show_spinner("verifying"):
            verdict = _verify(plan)
        if isinstance(verdict, Proof):
            if json is not None:
                save_json(json, _build_proof_data(verdict))
            print_table(
                table.build_facts(f"{plan}: safe, no deadlock and no race{verdict.assumptions}", _build_rows(verdict))
            )
            return
        if json is not None:
            wrong = {"type": type(verdict).__name__, "message": str(verdict)}
            save_json(json, {"verified": False, "error": wrong})
        raise fail(f"{type(verdict).__name__}: {verdict}", FAILED)


def _verify(path: Path) -> Proof | InterlaceError:
    """Return the proof, or the error in the plan. Raises BadInput if the file is no plan."""
    plan = plan_file.load_plan(path)
    try:
        return verify(plan)
    except InterlaceError as error:
        return error


def build_plan_data(plan: Plan) -> dict[str, object]:
    """Return the counts of a verified plan as JSON data."""
    return {
        "tiles": format_tiling(plan.graph),
        "items": len(plan.items),
        "semaphores": plan.semaphores,
        "workers": plan.workers,
        "dispatch": plan.dispatch.value,
        "policy": plan.policy,
        "order": plan.order,
        "verified": True,
    }


def _build_summary(proof: Proof) -> dict[str, object]:
    """Return the contents of ``_build_rows`` as JSON data."""
    plan = proof.plan
    ops = [{"name": op.name, "kernel": op.kernel, "grid": list(op.grid), "tiles": op.tiles} for op in plan.graph.ops]
    return {
        "graph": {"name": plan.graph.name, "ops": ops},
        "plan": {**build_plan_data(plan), "waits": len(plan.waits)},
        "proof": _build_proof_data(proof),
    }


def _build_rows(proof: Proof) -> list[tuple[str, str]]:
    plan = proof.plan
    ops = format_ops(f"{op.name} {' x '.join(map(str, op.grid))}" for op in plan.graph.ops)
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
        ("longest chain of waits", format_count(proof.longest_chain, "item")),
        ("workers that must be resident", f"{proof.workers_needed:,}"),
        ("waits only for earlier items", "yes" if proof.in_sequence else "no"),
    ]


def _build_proof_data(proof: Proof) -> dict[str, object]:
    return {
        "verified": True,
        "edges": proof.edges,
        "edges_by_wait": proof.edges_by_wait,
        "edges_by_order": proof.edges - proof.edges_by_wait,
        "longest_chain": proof.longest_chain,
        "workers_needed": proof.workers_needed,
        "in_sequence": proof.in_sequence,
        "unproved": list(proof.unproved_ops),
    }

"""Plan files: read with care, since they may come from anywhere, and run as workloads are."""

from __future__ import annotations

import stat
from dataclasses import fields
from pathlib import Path

from interlace.cli import limits
from interlace.cli.console import BadInput
from interlace.cli.machine import Machine
from interlace.cli.options import ScheduleOptions, WorkloadOptions
from interlace.cli.problem import Problem, Proofs, problem
from interlace.core.errors import PlanFormatError
from interlace.kernels.base import kernel_of
from interlace.kernels.read import read_plan
from interlace.plan.plan import Dispatch, Plan
from interlace.plan.verify import Proof, verify
from interlace.policies.sync import TileSync

_LARGEST = 256 << 20  # bytes; a plan takes some 50 for each item and each wait


def read(path: Path) -> Plan:
    """The plan of a file with the built-in kernels, not yet verified.

    Raises:
        BadInput: the file is missing, damaged, too large, or no plan.
    """
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            what = "folder" if stat.S_ISDIR(info.st_mode) else "device or pipe"
            raise BadInput(f"{str(path)!r} is a {what}, no file; name a plan that `interlace plan` wrote")
        if info.st_size > _LARGEST:
            raise BadInput(f"{str(path)!r} has {info.st_size} bytes, a plan has at most {_LARGEST}; plan larger tiles")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{str(path)!r} is not text, so no plan; write plans with `interlace plan`") from None
    try:
        return read_plan(text)
    except PlanFormatError as error:
        raise BadInput(f"{str(path)!r}: {error}") from None


def task(options: WorkloadOptions, schedule: ScheduleOptions, machine: Machine) -> tuple[Problem, Proofs]:
    """What to run and by which plans: a workload under its options, or a plan file, which has both in it.

    Raises:
        BadInput: as ``problem`` and ``read`` do, options beside a plan file, or kernels that are not built in.
        PlanError: the plan of a file is not safe.
    """
    if not isinstance(options.workload, Path):
        work = problem(options, machine)
        limits.check_plan(work.graph, work.choices(schedule, machine))
        return work, work.proofs(schedule, machine)
    fixed = [o for o in fields(options) if o.name not in ("workload", "device")]
    given = [o.name for o in fixed if getattr(options, o.name) is not None]
    given += [o.name for o in fields(schedule) if getattr(schedule, o.name) != o.default]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise BadInput(f"{names} cannot be combined with a plan file, which fixes the graph and its schedule")
    return _planned(options.workload, verify(read(options.workload)))


def _planned(path: Path, proof: Proof) -> tuple[Problem, Proofs]:
    plan, graph = proof.plan, proof.plan.graph
    for op in graph.ops:
        if op.body is None:
            raise BadInput(
                f"op {op.name!r} has kernel {op.kernel!r}, which is not built in; verify the plan, or run it from "
                "Python: interlace.read_plan(text, [kernel])"
            )
        if kernel_of(op).reference is None:
            raise BadInput(f"op {op.name!r}: kernel {op.kernel!r} has no NumPy reference to compare with")

    def proofs(dispatch: Dispatch | None) -> Proof:
        if dispatch not in (None, plan.dispatch):
            raise BadInput(
                f"{str(path)!r} has {plan.dispatch.value} dispatch, not {dispatch.value}; name other executors, or "
                "plan again"
            )
        return proof

    facts = {"name": "plan", "file": str(path), "graph": graph.name}
    return Problem(graph, f"{graph.name} of {path}", facts, None, {}, None, TileSync(), dispatch=plan.dispatch), proofs

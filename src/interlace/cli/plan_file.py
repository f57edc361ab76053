"""Plan files: read with care, since they may come from anywhere, and run as workloads are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from interlace.cli.console import BadInput
from interlace.cli.inputs import text_of
from interlace.cli.problem import Planned, Plans, Problem
from interlace.core.devices import DeviceSpec
from interlace.core.errors import PlanFormatError
from interlace.executors import Executor
from interlace.kernels.base import kernel_of
from interlace.kernels.read import read_plan
from interlace.plan.plan import Plan
from interlace.plan.verify import verify
from interlace.policies.setting import Setting
from interlace.workloads.base import draw

_LARGEST = 256 << 20  # bytes; a plan takes some 50 for each item and each wait


def read(path: Path) -> Plan:
    """The plan of a file with the built-in kernels, not yet verified.

    Raises:
        BadInput: the file is missing, damaged, too large, or no plan.
    """
    text = text_of(path, _LARGEST, "a plan", "`interlace plan`")
    try:
        return read_plan(text)
    except PlanFormatError as error:
        raise BadInput(f"{str(path)!r}: {error}") from None


def planned(path: Path, spec: DeviceSpec) -> tuple[Problem, Plans]:
    """What the plan of a file runs, and that plan for every executor that takes it.

    Raises:
        BadInput: as ``read`` does, or kernels that are not built in.
        PlanError: the plan is not safe.
    """
    proof = verify(read(path))
    graph = proof.plan.graph
    for op in graph.ops:
        if op.body is None:
            raise BadInput(
                f"op {op.name!r} has kernel {op.kernel!r}, which is not built in; verify the plan, or run it from "
                "Python: interlace.read_plan(text, [kernel])"
            )
        if kernel_of(op).reference is None:
            raise BadInput(f"op {op.name!r}: kernel {op.kernel!r} has no NumPy reference to compare with")

    facts = {"name": "plan", "file": str(path), "graph": graph.name}
    title = f"{graph.name} of {path}"

    def plans(executor: type[Executor]) -> Planned:
        executor.check(graph, spec)
        if spec.architecture:
            executor.check_tiles(graph, spec)
        return Planned(executor.prove(proof), Setting())

    return Problem(graph, title, facts, partial(draw, graph), None), plans

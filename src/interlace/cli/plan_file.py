"""Plan files: checked as foreign input when read, and run like workloads."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from interlace.cli.console import BadInput
from interlace.cli.inputs import read_text
from interlace.cli.problem import Plans, RunProblem
from interlace.core.devices import DeviceSpec
from interlace.core.errors import PlanFormatError
from interlace.executors import Executor
from interlace.kernels.base import get_kernel
from interlace.kernels.read_plan import read_plan
from interlace.plan.plan import Plan
from interlace.plan.verify import Proof, verify
from interlace.workloads.base import sample_inputs

_LARGEST = 256 << 20  # bytes; a plan takes about 50 for each item and each wait


def load_plan(path: Path) -> Plan:
    """Return the plan of a file with the built-in kernels, not yet verified.

    Raises:
        BadInput: the file is missing, damaged, too large, or no plan.
    """
    text = read_text(path, _LARGEST, "a plan", "`interlace plan`")
    try:
        return read_plan(text)
    except PlanFormatError as error:
        raise BadInput(f"{str(path)!r}: {error}") from None


def load_problem(path: Path, spec: DeviceSpec) -> tuple[RunProblem, Plans]:
    """Return the problem that the plan of a file runs, and its plan for each executor that takes it.

    Raises:
        BadInput: see ``load_plan``; or a kernel is not built in.
        PlanError: the plan is not safe.
    """
    proof = verify(load_plan(path))
    graph = proof.plan.graph
    for op in graph.ops:
        if op.body is None:
            raise BadInput(
                f"op {op.name!r} has kernel {op.kernel!r}, which is not built in; verify the plan, or run it from "
                "Python: interlace.read_plan(text, [kernel])"
            )
        if get_kernel(op).reference is None:
            raise BadInput(f"op {op.name!r}: kernel {op.kernel!r} has no NumPy reference to compare with")

    facts = {"name": "plan", "file": str(path), "graph": graph.name}
    title = f"{graph.name} of {path}"

    def plans(executor: type[Executor]) -> Proof:
        executor.check(graph, spec)
        if spec.architecture:
            executor.check_tiles(graph, spec)
        return executor.prove(proof)

    return RunProblem(graph, title, facts, partial(sample_inputs, graph), None), plans

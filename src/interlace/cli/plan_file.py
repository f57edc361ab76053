"""Plan files: read with care, since they may come from anywhere, and run as workloads are."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path

from interlace.cli.console import BadInput
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

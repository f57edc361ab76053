"""Search for failures of random loop kernels as ops of the megakernel, for ``python -m tests.emulator``.

Tiles that threads would fill ahead or by ``cp.async`` are loaded by TMA or by plain loads. Depending on the kernel, all
TMA loads are pre-wait loads, or none, or those of every second input.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import torch

import interlace as il
from interlace.core.errors import InterlaceError
from interlace.kernels.base import build_megakernel_body
from interlace.loops import as_op
from interlace.loops.ir.index import evaluate
from interlace.loops.ir.statements import Block, Copy, Load, LoopKernel, MemorySpace, Stmt
from interlace.megakernel import parts
from interlace.plan.plan import Plan

from ..cases import TORCH
from .programs import EmulatedLaunch, prepare
from .search import draw_kernel

#: Number of launches per compilation.
TOGETHER = 20
#: Tolerance for values with intermediate results rounded to 16 bits.
TOLERANCE = 2e-2


@dataclass(frozen=True)
class Joined:
    """Kernel ``number`` as the only op of a launch."""

    number: int
    run: EmulatedLaunch


def search(numbers: Iterable[int], seeds: int = 1) -> tuple[int, list[tuple[int, list[str]]]]:
    """Return how many kernels of ``numbers`` can join a launch, and the numbers and failures of those that fail."""
    every = [one for number in numbers if (one := join_kernel(number)) is not None]
    wrong = []
    for first in range(0, len(every), TOGETHER):
        some = every[first : first + TOGETHER]
        prepare([one.run for one in some])
        for one in some:
            troubles = [trouble for seed in range(seeds) for trouble in troubles_of(one, seed)]
            if troubles:
                wrong.append((one.number, troubles))
    return len(every), wrong


def join_kernel(number: int) -> Joined | None:
    """Return the random kernel of a number in a launch; None if there is no such kernel or op, or it cannot join."""
    found = draw_kernel(number)
    if found is None:
        return None
    kernel, sizes = _by_tma_or_plain(found.trial.source), dict(found.trial.sizes)
    try:
        plan = _plan(kernel, sizes)
        if plan is None:
            return None
        with mock.patch.object(
            parts, "build_megakernel_body", lambda op, t, given: build_megakernel_body(op, t, _some(given, number))
        ):
            return Joined(number, EmulatedLaunch(plan, stages=2 + number // 3 % 3))
    except InterlaceError:
        return None


def troubles_of(one: Joined, seed: int) -> list[str]:
    """Return the faults, and the outputs that differ from the reference."""
    graph, random = one.run.plan.graph, np.random.default_rng(one.number)
    given = {}
    for tensor in map(graph.tensor, graph.inputs):
        values = random.integers(-4, 5, tensor.shape).astype(np.float32)
        given[tensor.name] = torch.from_numpy(values).to(TORCH[tensor.dtype.name])
    right = il.ReferenceExecutor(one.run.plan).run({name: value.double().numpy() for name, value in given.items()})
    outputs = {name: torch.full_like(one.run.allocate_tensor(name), float("nan")) for name in graph.outputs}
    one.run.seed = seed
    one.run.run({**given, **outputs})
    out = [f"seed {seed}: {fault}" for fault in one.run.faults]
    one.run.faults.clear()
    for name, value in outputs.items():
        if not np.allclose(value.double().numpy(), right[name], TOLERANCE, TOLERANCE, equal_nan=True):
            out.append(f"seed {seed}: {name} is not what the loops mean")
    return out


def _plan(kernel: LoopKernel, sizes: dict[str, int]) -> Plan | None:
    """Return the plan of a graph of one op; None if a tensor has no element, or there is no tensor."""
    declared = {t.name: t for t in kernel.tensors if t.memory is MemorySpace.GLOBAL}
    shapes = {name: tuple(evaluate(n, sizes) for n in t.shape) for name, t in declared.items()}
    if not shapes or any(0 in shape for shape in shapes.values()):
        return None
    tensors = {name: il.Tensor(name, shape, declared[name].dtype) for name, shape in shapes.items()}
    op = as_op("op", kernel, tensors, sizes=sizes)
    inputs, outputs = (tuple(name for name, t in declared.items() if t.is_written is is_) for is_ in (False, True))
    return il.build(il.Graph("joined", (*tensors.values(),), (op,), inputs, outputs), il.Schedule(1))


def _some(settled: frozenset[str], number: int) -> frozenset[str]:
    return (settled, frozenset(sorted(settled)[::2]), frozenset[str]())[number % 3]


def _by_tma_or_plain(kernel: LoopKernel) -> LoopKernel:
    marked = {ring.tensor for ring in kernel.rings}

    def change_copy(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            return replace(stmt, body=tuple(map(change_copy, stmt.body)))
        if not isinstance(stmt, Load) or kernel.find_tensor(stmt.dst.tensor).memory is not MemorySpace.SHARED:
            return stmt
        return replace(stmt, by=Copy.TMA if stmt.dst.tensor in marked else Copy.PLAIN)

    return replace(kernel, body=tuple(map(change_copy, kernel.body)))

"""Random chains of skinny GEMMs: LL hand-off (``words``) and semaphores give bitwise equal results.

A chain has three matmuls. The second reads what a norm of the first one's output needs, and the third reads the
output of the second. Tiles, warpgroups, blocks, stages, the number of tokens that consumers poll themselves, and the
tensors that use the LL protocol are random.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from unittest import mock

import torch

import interlace as il
from interlace.core.errors import HangError, LaunchEndedError, PlanError
from interlace.plan.plan import Dispatch, Plan

from ..cases import TORCH
from .both_ways import search_failures
from .programs import EmulatedLaunch, run_poisoned

FINE = 16  # number of columns in a sum of squares
NORMED = ("scaled", "squares")


@dataclass(frozen=True)
class Chain:
    """The chain of a seed number, with LL hand-off and with semaphores."""

    number: int
    words: EmulatedLaunch
    semaphores: EmulatedLaunch

    def troubles(self, seed: int) -> list[str]:
        """Return the failures under a schedule."""
        try:
            found, right = (run_poisoned(run, _inputs(run.plan.graph, seed), seed) for run in self._runs)
        except (HangError, LaunchEndedError) as error:
            return [str(error)]
        told = [str(fault) for run in self._runs for fault in run.faults]
        told += [] if bool(right.isfinite().all()) else ["results are no numbers"]
        told += [] if torch.equal(found, right) else [f"words {sorted(self.words.lowered.ll_edges.sizes)} change it"]
        return told

    @property
    def _runs(self) -> tuple[EmulatedLaunch, EmulatedLaunch]:
        return self.words, self.semaphores


def search(numbers: Iterable[int], seeds: int = 3) -> tuple[int, list[tuple[int, list[str]]]]:
    """Return how many chains ``numbers`` yield, and the numbers of those that fail, with their failures."""
    return search_failures(draw_chain, numbers, seeds)


def draw_chain(number: int) -> Chain | None:
    """Return the chain of a number; None if fewer than two stages fit, or none of its tensors can use LL words."""
    random = Random(number)
    plan = il.build(_graph(random), il.Schedule(random.randint(1, 4), Dispatch.STATIC))
    stages, here = random.choice((2, 3, 4)), random.choice((0, 512, 2048, 4096))
    words = random.sample([(*NORMED, "inner"), NORMED, ("inner",)], 3)
    with mock.patch("interlace.kernels.matmul.megakernel_body.POLLED_BY_CONSUMERS", here):
        for some in words:
            try:
                return Chain(number, _launch(plan, stages, some), _launch(plan, stages, ()))
            except (PlanError, StopIteration):
                continue
    return None


def _launch(plan: Plan, stages: int, words: tuple[str, ...]) -> EmulatedLaunch:
    at_once = plan.workers > 1
    return EmulatedLaunch(plan, stages=stages, at_once=at_once, ll_tensors=words, timeout_s=2.0, jitter_s=1e-6)


def _graph(random: Random) -> il.Graph:
    m, dtype = random.randint(1, 16), random.choice((il.bf16, il.fp16))
    warps, rows = random.choice((4, 4, 8)), 8 if m <= 8 else 16
    depth, width, inner, out = (64 * random.randint(1, most) for most in (3, 9, 4, 2))
    shapes = {"x": (m, depth), "w": (width, depth), "scale": (width,), "up": (inner, width), "down": (out - 24, inner)}
    shapes |= random.choice(({}, {"gate": (inner, width)}, {"bias": (inner,)}))
    shapes |= random.choice(({}, {"residual": (m, out - 24)}))
    given = {name: il.Tensor(name, shape, dtype) for name, shape in shapes.items()}
    shapes = {"scaled": (m, width), "inner": (m, inner), "out": (m, out - 24)}
    made = {name: il.Tensor(name, shape, dtype) for name, shape in shapes.items()}
    made["squares"] = il.Tensor("squares", (m, width // FINE), il.fp32)

    def tile(*columns: int) -> il.MatmulTile:
        deep = random.choice((64, 128, 192, 256))
        return il.MatmulTile(rows, random.choice(columns), deep, num_warps=warps, swap_ab=True)

    left = {"scale": given["scale"], "scaled": made["scaled"], "squares": made["squares"]}
    norm = {"x_squares": made["squares"], "eps": 1e-2}
    norm |= {name: given[name] for name in ("gate", "bias") if name in given}
    norm |= {"activation": il.Activation.SILU} if "gate" in given else {}
    ops = (
        il.matmul("first", given["x"], given["w"], **left, tile=tile(16, 32, 48)),
        il.matmul("second", made["scaled"], given["up"], made["inner"], **norm, tile=tile(8, 16, 24, 40)),
        il.matmul(
            "third", made["inner"], given["down"], made["out"], residual=given.get("residual"), tile=tile(8, 16, 24)
        ),
    )
    return il.Graph("chain", (*given.values(), *made.values()), ops, tuple(given), ("out",))


def _inputs(graph: il.Graph, seed: int) -> dict[str, torch.Tensor]:
    random, found = torch.Generator().manual_seed(seed), {}
    for tensor in map(graph.tensor, graph.inputs):
        scale = tensor.shape[-1] ** -0.5 if tensor.name in ("w", "up", "down", "gate") else 1.0
        found[tensor.name] = (torch.randn(tensor.shape, generator=random) * scale).to(TORCH[tensor.dtype.name])
    return found

"""Random decode steps: LL hand-off (``words``) and semaphores give bitwise equal results, and both are correct.

Models, batches, positions, splits of attention, pages, tiles, blocks, stages and bytes in flight are random. So ops of
every kind follow each other in one ring. Its prefetch slots may be a turn ahead of its slots for dependent loads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import torch

import interlace as il
from interlace.core.errors import HangError, LaunchEndedError, PlanError
from interlace.workloads import Decode, LlamaShape, build_decode_graph

from ..cases import TORCH, relative_error
from ..paged import STEPS, in_pages
from .both_ways import search_failures
from .programs import EmulatedLaunch

_PAGE, _TOLERANCE = 64, 1e-2


@dataclass(frozen=True)
class Step:
    """The decode step of a seed number, with the default LL hand-off and with semaphores only."""

    number: int
    work: Decode
    positions: tuple[int, ...]
    words: EmulatedLaunch
    semaphores: EmulatedLaunch

    def troubles(self, seed: int) -> list[str]:
        """Return the failures under a schedule."""
        try:
            found, right = (self._logits(run, seed) for run in (self.words, self.semaphores))
        except (HangError, LaunchEndedError) as error:
            return [str(error)]
        told = [str(fault) for run in (self.words, self.semaphores) for fault in run.faults]
        told += [] if torch.equal(found, right) else [f"words {sorted(self.words.lowered.ll_edges.sizes)} change it"]
        given = {name: value.double().numpy() for name, value in self._inputs(seed).items()}
        error = relative_error(right, torch.from_numpy(self.work.run_dense(np, given)["logits"]))
        return told if error < _TOLERANCE else [*told, f"off by {error:.1e}"]

    def _inputs(self, seed: int) -> dict[str, torch.Tensor]:
        graph = self.semaphores.plan.graph
        given = {**self.work.make_inputs(seed), "position": np.array(self.positions, np.float32)}
        t = {n: torch.from_numpy(value).to(TORCH[graph.tensor(n).dtype.name]) for n, value in given.items()}
        for name in (name for name in t if name.endswith("_cache")):
            for b, at in enumerate(self.positions):
                t[name][b, :, at:] = float("nan")
        return t

    def _logits(self, run: EmulatedLaunch, seed: int) -> torch.Tensor:
        """Return the logits of a run; everything that it writes is NaN before."""
        graph, t = run.plan.graph, self._inputs(seed)
        if "table" in graph.inputs:
            t = in_pages(t, graph.tensor("layers.0.k_cache").shape[0])
        t |= {name: run.allocate_tensor(name) for name in graph.outputs}
        for name in (*graph.intermediates, "logits"):
            value = t[name] if name in t else run.get_intermediate(name)
            value.fill_(float("nan") if value.is_floating_point() else -1)
        run.seed = seed
        run.run(t)
        return t["logits"]


def search(numbers: Iterable[int], seeds: int = 2) -> tuple[int, list[tuple[int, list[str]]]]:
    """Return how many steps ``numbers`` yield, and the numbers of those that fail, with their failures."""
    return search_failures(draw_step, numbers, seeds)


def draw_step(number: int) -> Step | None:
    """Return the step of a number; None if fewer than two stages fit."""
    random = Random(number)
    kv_heads, group, d = random.randint(1, 2), random.choice((1, 2, 4, 9)), random.choice((16, 24, 64, 64, 128))
    hidden, ffn = (64 * random.randint(1, 4) for _ in range(2))
    told = {name: random.random() < 0.3 for name in ("qkv_bias", "qk_norm", "tied")}
    layers, vocabulary = random.randint(1, 2), random.randint(30, 150)
    shape = LlamaShape(layers, hidden, ffn, kv_heads * group, kv_heads, d, vocabulary, **told)
    batch, capacity = random.choice((1, 1, 2, 3, 5, 9)), random.randint(20, 150)
    positions = tuple(random.randrange(capacity - 1) for _ in range(batch))
    each = -(-capacity // _PAGE)
    pages = sum(min((at + STEPS) // _PAGE + 1, each) for at in positions) + 1 if random.random() < 0.3 else None
    splits = random.randint(1, 3)
    device = replace(il.H200, sms=splits * batch * kv_heads, sm_dram_bytes_per_s=1e6 if splits > 1 else 1e15)
    tile = None
    if random.random() < 0.5:
        rows = 8 if batch <= 8 else 16
        columns, deep = random.choice((16, 24, 48)), random.choice((64, 128, 256))
        tile = il.MatmulTile(rows, columns, deep, num_warps=4, swap_ab=True)
    graph = build_decode_graph(shape, batch, capacity, device, tile, pages=pages)
    workers, stages, under_way = random.randint(1, 4), random.choice((2, 3, 3, 4)), random.choice((8192, 1 << 20))
    try:
        plan = il.autoplan(graph, il.H200, il.MegakernelExecutor, workers=workers)
        made = (
            EmulatedLaunch(
                plan,
                stages=stages,
                in_flight_bytes=under_way,
                at_once=plan.workers > 1,
                ll_tensors=words,
                timeout_s=2.0,
                jitter_s=1e-6,
            )
            for words in (None, ())
        )
        work = Decode(**{**vars(shape), "batch": batch, "capacity": capacity, "context": 0})
        return Step(number, work, positions, *made)
    except (PlanError, StopIteration):
        return None

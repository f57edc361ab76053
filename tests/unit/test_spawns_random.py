"""Random graphs whose items spawn others: what is accepted runs as under any other dispatch, and only what is wanted.

An oracle decides by brute force what a plan promises. It follows the graph element by element, and so shares nothing
with ``plan/spawns``: it runs each op in order on plain arrays, tile by tile, and notes which tiles are wanted.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import assume, event, given
from hypothesis import strategies as st

import interlace as il
from interlace.core.errors import SpawnError
from interlace.graph.access import ALL, axes
from interlace.kernels.base import Kernel
from interlace.kernels.bodies import Reference

from ..draws import EXAMPLES

(I,) = axes(1)
ELEMENTS = 4
POLICIES = (il.TileSync(), il.TileSync(), il.TileSync(), il.RowSync(), il.KernelSync())


def _value(name: str, tile: int, reads: Mapping[str, Any]) -> float:
    """Return the value that a tile writes to each element: 0 a third of the time where it decides which items run."""
    text = f"{name} {tile} {[(arg, np.asarray(v).tolist()) for arg, v in sorted(reads.items())]}"
    return zlib.crc32(text.encode()) % 3 * 1.0


def _kernel(name: str, tiles: int) -> Kernel:
    def finish(acc: None, reads: Mapping[str, Any], params: Any, at: tuple[int, ...]) -> dict[str, Any]:
        return {"out": np.full(ELEMENTS // tiles, _value(name, at[0], reads))}

    return Kernel(name, reference=Reference(finish, needs_coords=True))


@st.composite
def spawning(draw: Any) -> il.Graph:
    """Ops on vectors of four elements, each with one, two or four tiles; some run only if an earlier op says so."""
    tensors: list[il.Tensor] = []
    ops: list[il.Op] = []
    for n in range(draw(st.integers(2, 7))):
        known = st.sampled_from(tensors or [None])
        when = draw(known) if draw(st.booleans()) else None
        tiles = ELEMENTS if when else draw(st.sampled_from((1, 2, 4)))
        own = (I.block(ELEMENTS // tiles),)
        others = draw(st.lists(known.filter(bool), max_size=2, unique=True)) if tensors else []
        reads = {f"x{at}": (tensor, draw(st.sampled_from((own, (ALL,))))) for at, tensor in enumerate(others)}
        out = draw(known) if draw(st.integers(0, 4)) == 0 else None
        if out is None or out in (when, *others):
            out = il.Tensor(f"t{n}", (ELEMENTS,), il.int32)
            tensors.append(out)
        if when:
            reads["flag"] = (when, own)
        op = _kernel(f"op{n}", tiles).make_op(
            f"op{n}", (tiles,), reads, {"out": (out, own)}, when="flag" if when else ""
        )
        ops.append(op)
    return il.Graph("random", tuple(tensors), tuple(ops), (), tuple(t.name for t in tensors))


def compute_expected(graph: il.Graph) -> tuple[dict[str, np.ndarray], set[tuple[int, int]]]:
    """Values of all tensors, and which tiles are wanted."""
    memory = {t.name: np.zeros(t.shape) for t in graph.tensors}
    ran = set()
    for o, op in enumerate(graph.ops):
        for tile in range(op.tiles):
            read = {a.arg: memory[a.tensor][graph.compute_region(op, a, tile, 0, 1).slices].copy() for a in op.reads}
            region = graph.compute_region(op, op.writes[0], tile, 0, 1)
            wanted = not op.when or bool(read[op.when].any())
            memory[region.tensor][region.slices] = _value(op.name, tile, read) if wanted else 0.0
            if wanted:
                ran.add((o, tile))
    return memory, ran


@EXAMPLES
@given(spawning(), st.lists(st.sampled_from(POLICIES), min_size=7, max_size=7), st.integers(1, 4), st.integers(0, 9))
def test_what_is_accepted_runs_all_that_is_wanted_once_and_in_time(
    graph: il.Graph, policies: list[il.SyncPolicy], workers: int, seed: int
) -> None:
    assume(any(op.when for op in graph.ops))
    policy = {op.name: p for op, p in zip(graph.ops, policies, strict=False)}
    values, ran = compute_expected(graph)
    ticket = il.ReferenceExecutor(il.build(graph, il.Schedule(workers, policy=policy))).run({})
    assert all(np.array_equal(ticket[name], values[name]) for name in graph.outputs)
    try:
        proof = il.verify(il.build(graph, il.Schedule(workers, il.Dispatch.SPAWN, policy=policy)))
    except SpawnError:
        event("refused")
        return
    event("accepted")
    for steps in (None, seed, seed + 10):
        executor = il.ReferenceExecutor(proof, seed=steps)
        for _ in range(2):
            found = executor.run({})
            assert all(np.array_equal(found[name], values[name]) for name in graph.outputs)
            assert executor.trace is not None
            tiles = list(zip(executor.trace.op.tolist(), executor.trace.tile.tolist(), strict=True))
            assert len(tiles) == len(set(tiles))
            assert set(tiles) == ran

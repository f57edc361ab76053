"""Loads with the L2's policy ``evict_first``: bodies declare those of their CUDA source, and modes name them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import interlace as il
from interlace.core.errors import InterlaceError
from interlace.csrc import read_header
from interlace.megakernel.parts import build_bodies
from interlace.workloads import LLAMAS, WORKLOADS, build_decode_graph


def find_loaded(source: str) -> set[str]:
    """Return the arguments that the last header of a body's source and those next to it load with the policy."""
    headers = re.findall(r'#include "(ops/[^"]+)"', source)
    headers = [header for header in headers if Path(header).parent == Path(headers[-1]).parent]
    found = set()
    for statement in read_header(*headers).split(";"):
        if "evict_first()" in statement or "load_share<false>(" in statement:
            found |= set(re.findall(r"\b(weight|gate|[kv]_cache)(?:_boxes)?\b", statement.rsplit("(target", 1)[-1]))
    return found


def test_bodies_declare_the_loads_of_their_source() -> None:
    graphs = [build_decode_graph(LLAMAS["smollm2-135m"], 1, 64, il.H200, chunk=16)]
    graphs += [workload.from_fields({}, gpu=False).build_graph(il.H200) for workload in WORKLOADS]
    kernels = {}
    for graph in graphs:
        try:
            bodies = build_bodies(graph)
        except InterlaceError:  # an op without a body in the megakernel
            continue
        for op, body in zip(graph.ops, bodies, strict=True):
            if '#include "ops/' in body.source:
                kernels[op.kernel, body.source] = set(body.loads.evict_first_inputs), find_loaded(body.source)
    names = {name for name, _ in kernels}
    assert {"matmul", "conv2d", "attend", "chunk_attention", "block_sparse_matmul"} <= names
    assert {name: both for (name, _), both in kernels.items() if both[0] != both[1]} == {}
    assert {name for (name, _), (declared, _) in kernels.items() if declared} == {"matmul", "attend", "chunk_attention"}


@pytest.mark.parametrize(("dispatch", "neighbours"), [(il.Dispatch.STATIC, 2), (il.Dispatch.TICKET, 1)])
def test_a_mode_has_the_pairs_of_blocks_that_load_the_same_weights(dispatch: il.Dispatch, neighbours: int) -> None:
    tile = il.MatmulTile(128, 128, 64, num_warps=8)
    graph = il.workloads.ffn(256, il.workloads.FFNShape(256, 1024, il.Activation.RELU, False), il.bf16, tile, tile)
    mode = il.MegakernelExecutor.build_mode(graph, il.H200)
    assert mode.evict_first == {"w_up", "w_down"}
    columns, rows = (il.Schedule(8, dispatch, order=order) for order in (il.ColumnMajor(), il.RowMajor()))
    assert mode.count_neighbours(il.build(graph, columns)) == neighbours
    assert mode.count_neighbours(il.build(graph, rows)) == 1

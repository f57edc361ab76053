"""A decode step under the Triton interpreter: ragged batches, step after step, and what its ops touch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import interlace as il
from interlace.executors.device import DeviceExecutor
from interlace.workloads import Decode, LlamaShape, build_decode_graph

from ..cases import TORCH, relative_error
from ..paged import in_pages, in_rows

NAN = float("nan")
SMALL = LlamaShape(1, 32, 48, 4, 2, 24, 41, qkv_bias=True, qk_norm=True)
#: An odd group, and heads of the usual size.
USUAL = LlamaShape(1, 64, 32, 7, 1, 64, 40, tied=True)
POSITIONS = (0, 5, 90)


def step(shape: LlamaShape, dtype: il.DType, pages: int | None = None) -> tuple[Decode, il.Graph]:
    problem = Decode(**{**vars(shape), "batch": len(POSITIONS), "capacity": 100, "context": 0, "dtype": dtype})
    device = replace(il.CPU, sms=12 if shape is SMALL else 3, sm_dram_bytes_per_s=1e6)  # so slow that caches are split
    graph = build_decode_graph(shape, len(POSITIONS), 100, device, dtype=dtype, pages=pages)
    assert graph.op("layers.0.attend").grid[2] == (2 if shape is SMALL else 1)
    return problem, graph


def tensors(problem: Decode, graph: il.Graph) -> dict[str, torch.Tensor]:
    """Inputs of a ragged batch, with NaN in caches where nothing was appended yet, and outputs."""
    given = dict(problem.make_inputs(0))
    given["position"] = np.array(POSITIONS, np.float32)
    for name in graph.inputs:
        if name.endswith("_cache"):
            for b, at in enumerate(POSITIONS):
                given[name][b, :, at:] = NAN
    out = {name: torch.from_numpy(value).to(TORCH[graph.tensor(name).dtype.name]) for name, value in given.items()}
    for name in graph.outputs:
        out[name] = torch.zeros(graph.tensor(name).shape, dtype=TORCH[graph.tensor(name).dtype.name])
    return out


def executor(cls: type[DeviceExecutor], graph: il.Graph) -> DeviceExecutor:
    return cls(il.build(graph, il.Schedule(3)), il.RunOptions("cpu"))


@pytest.mark.parametrize(("shape", "dtype"), [(SMALL, il.bf16), (USUAL, il.fp32)])
def test_three_steps_in_a_row_are_right_for_every_sequence_of_a_ragged_batch(
    shape: LlamaShape, dtype: il.DType
) -> None:
    problem, graph = step(shape, dtype)
    run, t = executor(il.SerialExecutor, graph), tensors(problem, graph)
    limit = 1e-5 if dtype is il.fp32 else 8 * dtype.epsilon
    for n in range(3):
        exact = {name: value.double().numpy() for name, value in t.items()}
        right = problem.run_dense(np, exact)
        run.run(t)
        assert relative_error(t["logits"], torch.from_numpy(right["logits"])) < limit
        assert t["next"].tolist() == t["logits"].argmax(1).tolist()
        t["tokens"].copy_(t["next"])
        t["position"] += 1
        written = [int(t["layers.0.k_cache"][b, :, :, 0].isnan().sum()) for b in range(3)]
        assert written == [(100 - at - n - 1) * shape.kv_heads for at in POSITIONS]


def test_steps_over_pages_are_those_over_a_cache_for_each_sequence() -> None:
    problem, plain = step(SMALL, il.bf16)
    _, paged = step(SMALL, il.bf16, pages=5)
    rows = tensors(problem, plain)
    pages = {name: value.clone() for name, value in in_pages(rows, 5).items()}
    runs = executor(il.SerialExecutor, plain), executor(il.SerialExecutor, paged)
    for _ in range(2):
        for run, t in zip(runs, (rows, pages), strict=True):
            run.run(t)
            t["tokens"].copy_(t["next"])
            t["position"] += 1
        for name, value in in_rows(pages).items():
            assert torch.equal(value.nan_to_num(), rows[name].nan_to_num()), name
    assert pages["layers.0.k_cache"][:, 0, :, 0].isnan().all(1).sum() == 1, "the page that nobody has"


def test_tiles_that_wait_for_tiles_change_no_bit_of_a_step() -> None:
    problem, graph = step(SMALL, il.bf16)
    serial, other = tensors(problem, graph), tensors(problem, graph)
    executor(il.SerialExecutor, graph).run(serial)
    executor(il.SemaphoreStreamsExecutor, graph).run(other)
    for name in ("logits", "next", "layers.0.k_cache", "layers.0.v_cache"):
        assert torch.equal(serial[name].nan_to_num(), other[name].nan_to_num())


ALL_OPS = ["embedding", "layers.0.attend", "layers.0.combine", "layers.0.append", "most", "next"]


@pytest.mark.parametrize(
    ("op", "pages"), [*((op, None) for op in ALL_OPS), ("layers.0.attend", 3), ("layers.0.append", 3)]
)
def test_ops_touch_what_they_declare(op: str, pages: int | None) -> None:
    """Whatever ids, positions and pages are: they are clamped to the table, the cache and the pool."""
    graph = build_decode_graph(SMALL, 2, 80, replace(il.CPU, sms=8, sm_dram_bytes_per_s=1e6), pages=pages)
    last = graph.op(op).tiles - 1
    for device in ("reference", "cpu"):
        il.check_footprint(graph, op, device=device, tiles=(last,))

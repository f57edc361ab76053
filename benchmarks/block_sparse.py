"""Block-sparse products as one launch under several dispatches, against PyTorch with the weight as BSR and as dense.

    python benchmarks/block_sparse.py benchmarks/results/block-sparse-h200.json
    python benchmarks/block_sparse.py benchmarks/results/block-sparse-h200.json --case zeros-80:16

Needs a Hopper GPU. A case is a preset, whose zero blocks are at random, and rows of x. PyTorch multiplies by a BSR
tensor, eager, and by the dense weight, eager and compiled; it stores both forms of the weight ahead. It has several
ways to multiply by BSR: two public ones, and its Triton kernel with its default parameters (for most shapes one stage
and four warps) and with three stages. See ``uneven.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import uneven
from uneven import REPEATS, Case, Rival, Way

from interlace.bench.problem import BenchProblem, Tensors
from interlace.bench.timing import describe_protocol
from interlace.workloads import BlockSparse

PROTOCOL = (
    f"CUDA graphs of many runs each, {describe_protocol(REPEATS)}, random blocks in bf16 "
    "rotated past twice the L2, one table drawn once; PyTorch multiplies by torch.sparse_bsr_tensor and by the dense "
    "weight, both stored ahead; bytes: nonzero blocks over the rate of memory; products: of nonzero blocks over that "
    "of the tensor cores"
)
#: Sources that a row depends on in addition to those of the launch: CUDA C++ and tiles of products.
MEASURES = (
    "csrc/ops/block_sparse.cuh",
    "csrc/ops/matmul",
    "kernels/block_sparse",
    "kernels/matmul",
    "workloads/block_sparse.py",
)
ZEROS = 50, 80, 95
ROWS = 16, 256, 4096
CASES = [
    Case((("preset", f"zeros-{zeros}"), ("m", m)), BlockSparse.from_fields({"m": m}, True, f"zeros-{zeros}"))
    for zeros in ZEROS
    for m in ROWS
]


def store_weights(problem: BenchProblem, *, as_bsr: bool) -> Sequence[Tensors]:
    """Return the sets of weights as PyTorch's BSR tensors, or as dense matrices."""
    import torch

    work = problem.workload
    assert isinstance(work, BlockSparse)
    sets = [{**problem.rest, **each} for each in problem.weights]
    return [{"weight": work.make_bsr(torch, t) if as_bsr else work.expand(torch, t)} for t in sets]


def store_bsr(problem: BenchProblem) -> Sequence[Tensors]:
    """Return the sets of weights as BSR tensors."""
    return store_weights(problem, as_bsr=True)


def store_dense(problem: BenchProblem) -> Sequence[Tensors]:
    """Return the sets of weights as dense matrices."""
    return store_weights(problem, as_bsr=False)


def make_linear(problem: BenchProblem, *, compiled: bool = False) -> Way:
    """Return ``F.linear`` of x and a stored weight."""
    import torch

    def multiply(t: Tensors) -> Tensors:
        return {"out": torch.nn.functional.linear(t["x"], t["weight"])}

    return torch.compile(multiply, dynamic=False) if compiled else multiply


def make_product(problem: BenchProblem) -> Way:
    """Return the product of a stored weight and the transpose of x, transposed."""

    def multiply(t: Tensors) -> Tensors:
        return {"out": (t["weight"] @ t["x"].T).T}

    return multiply


def make_triton(problem: BenchProblem, *, is_staged: bool) -> Way:
    """Return PyTorch's Triton kernel for products with BSR tensors, which its public functions call.

    Args:
        is_staged: True for three stages, and tiles of up to 128 rows of x.
    """
    from torch.sparse._triton_ops import bsr_dense_addmm

    work = problem.workload
    assert isinstance(work, BlockSparse)
    columns = max(1, work.m // 128)
    staged = {"SPLIT_N": columns, "GROUP_SIZE_ROW": 4, "num_stages": 3, "num_warps": 8 if work.m >= 128 else 4}

    def multiply(t: Tensors) -> Tensors:
        unused = t["x"].new_empty(()).expand(work.n, work.m)
        meta = staged if is_staged else None
        return {"out": bsr_dense_addmm(unused, t["weight"], t["x"].T, beta=0, meta=meta).T}

    return multiply


def measure(case: Case) -> dict[str, Any]:
    """Return the row of a case."""
    rivals = {
        "PyTorch BSR, F.linear": Rival(make_linear, store_bsr),
        "PyTorch BSR @ x.T": Rival(make_product, store_bsr),
        "PyTorch BSR, Triton": Rival(partial(make_triton, is_staged=False), store_bsr),
        "PyTorch BSR, Triton in 3 stages": Rival(partial(make_triton, is_staged=True), store_bsr),
        "PyTorch dense": Rival(make_linear, store_dense),
        "PyTorch dense, compiled": Rival(partial(make_linear, compiled=True), store_dense),
    }
    return uneven.measure_case(case, rivals)


if __name__ == "__main__":
    uneven.main(__doc__, PROTOCOL, CASES, measure, MEASURES)

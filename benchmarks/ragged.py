"""Attention over sequences of mixed length as one launch under several dispatches, against PyTorch.

    python benchmarks/ragged.py benchmarks/results/ragged-h200.json
    python benchmarks/ragged.py benchmarks/results/ragged-h200.json --case zipf:32:8192

Needs a Hopper GPU. A case is how lengths spread, sequences, and cached positions of a sequence at most, with the heads
of Llama 3.1 8B. PyTorch calls ``scaled_dot_product_attention`` for each sequence, or once for all, masked behind their
ends, or FlexAttention with a block mask that is made ahead, so that it passes over what is masked. See ``uneven.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import uneven
from script import make_cache_mask
from uneven import REPEATS, Case, Rival, Way

from interlace.bench.problem import BenchProblem, Tensors
from interlace.bench.timing import describe_protocol
from interlace.workloads import RaggedAttention
from interlace.workloads.ragged import Lengths

PROTOCOL = (
    f"CUDA graphs of many runs each, {describe_protocol(REPEATS)}, random caches in bf16 "
    "rotated past twice the L2, lengths drawn once; PyTorch turns queries and keys, appends to the caches and attends, "
    "FlexAttention under torch.compile with a block mask that is made ahead; bytes: of cached positions over the rate "
    "of memory"
)
#: Sources that a row depends on in addition to those of the launch: shares and their tables.
MEASURES = ("workloads/ragged.py",)
CASES = [
    Case(
        (("lengths", lengths.value), ("batch", batch), ("longest", longest)),
        RaggedAttention.from_fields({"lengths": lengths, "batch": batch, "longest": longest}, True),
    )
    for lengths, batch, longest in (
        (Lengths.UNIFORM, 32, 8192),
        (Lengths.ZIPF, 32, 8192),
        (Lengths.GIANT, 8, 32768),
    )
]


def work_of(problem: BenchProblem) -> RaggedAttention:
    assert isinstance(problem.workload, RaggedAttention)
    return problem.workload


def copies(problem: BenchProblem) -> list[Tensors]:
    """Caches to append to, each in memory of its own: what torch.compile mutates may not share any."""
    return [{name: cache.clone() for name, cache in weights.items()} for weights in problem.weights]


def each(problem: BenchProblem) -> Way:
    """A call for each sequence."""
    return problem.run_pytorch


def get_padded(problem: BenchProblem) -> Way:
    """One call for all."""
    return problem.alternatives["padded"]


def flex(problem: BenchProblem) -> Way:
    """FlexAttention, and what is before it, each under torch.compile."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    work = work_of(problem)
    mask = make_cache_mask(problem.rest["position"].long(), work.capacity)
    append = torch.compile(lambda t: work.append_kv(torch, t), dynamic=False)
    attend = torch.compile(flex_attention, dynamic=False)

    def run(t: Tensors) -> Tensors:
        out = attend(append(t)[:, :, None], t["k_cache"], t["v_cache"], block_mask=mask, enable_gqa=True)
        return {"out": out.reshape(work.batch, -1)}

    return run


def compile_maker(make: Callable[[BenchProblem], Way]) -> Callable[[BenchProblem], Way]:
    """Under torch.compile."""
    import torch

    return lambda problem: torch.compile(make(problem), dynamic=False)


def measure(case: Case) -> dict[str, Any]:
    """Return the row of a case."""
    rivals = {
        "SDPA, a call each": Rival(each, copies),
        "SDPA, padded": Rival(get_padded, copies),
        "SDPA, a call each, compiled": Rival(compile_maker(each), copies),
        "SDPA, padded, compiled": Rival(compile_maker(get_padded), copies),
        "FlexAttention": Rival(flex, copies),
    }
    return uneven.measure_case(case, rivals)


if __name__ == "__main__":
    uneven.main(__doc__, PROTOCOL, CASES, measure, MEASURES)

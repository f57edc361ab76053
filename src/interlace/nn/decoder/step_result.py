"""Results of a decoder's steps, and reports on what runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


class StepResult(NamedTuple):
    """Result of a step for each slot, in the decoder's own tensors, which the next step overwrites.

    Attributes:
        logits: (batch, vocabulary), undefined for free slots.
        next: (batch,) int32, next token of each slot: greedy or sampled, as passed to ``add``.
    """

    logits: torch.Tensor
    next: torch.Tensor


@dataclass(frozen=True)
class StepReport:
    """Report on what runs a decoder's steps.

    Attributes:
        executor: name of the executor whose launches run the steps; None for PyTorch's own ops.
        why: reason against launches, or description of the launches and reasons against other executors.
        weight_bytes: bytes of weights that a step reads at any length.
        cache_bytes: bytes of KV cache that a step also reads for the current sequences.
    """

    executor: str | None
    why: str
    weight_bytes: int
    cache_bytes: int

    def __str__(self) -> str:
        what = "PyTorch's own ops" if self.executor is None else f"launches of the {self.executor} executor"
        moved = f"a step reads {self.weight_bytes / 1e6:.4g} MB of weights and {self.cache_bytes / 1e6:.4g} MB of cache"
        return f"{what}: {self.why}; {moved}"

"""What a decoder says of itself and its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


class Stepped(NamedTuple):
    """What a step found, for each slot; the decoder's own tensors, which the next step overwrites.

    Attributes:
        logits: (batch, vocabulary); of a free slot they mean nothing.
        next: (batch,) int32, the token that follows: the likeliest, or drawn, as ``join`` was told.
    """

    logits: torch.Tensor
    next: torch.Tensor


@dataclass(frozen=True)
class Runs:
    """What runs a decoder's steps.

    Attributes:
        executor: name of the executor whose launches do; None for PyTorch's own ops.
        why: what rules out launches, or which they are and what rules out others.
        weight_bytes: that a step reads whatever the lengths.
        cache_bytes: that it reads besides for the sequences that are there now.
    """

    executor: str | None
    why: str
    weight_bytes: int
    cache_bytes: int

    def __str__(self) -> str:
        what = "PyTorch's own ops" if self.executor is None else f"launches of the {self.executor} executor"
        moved = f"a step reads {self.weight_bytes / 1e6:.4g} MB of weights and {self.cache_bytes / 1e6:.4g} MB of cache"
        return f"{what}: {self.why}; {moved}"

"""Keys and values of the sequences that a decoder holds, in memory that is taken once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from interlace.workloads.llama import LlamaShape


@dataclass(frozen=True)
class Cache:
    """A row of memory for each slot; ``decoder.lengths`` says how many of its positions mean something.

    Attributes:
        k, v: for each layer (batch, kv_heads, capacity, head_dim), keys after RoPE.
    """

    k: tuple[torch.Tensor, ...]
    v: tuple[torch.Tensor, ...]

    @staticmethod
    def make(shape: LlamaShape, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> Cache:
        """An empty one, all zeros."""
        extents = (batch, shape.kv_heads, capacity, shape.head_dim)

        def tensors() -> tuple[torch.Tensor, ...]:
            return tuple(torch.zeros(extents, dtype=dtype, device=device) for _ in range(shape.layers))

        return Cache(tensors(), tensors())

    @property
    def position_bytes(self) -> int:
        """Bytes of one position of one sequence, in all layers."""
        return sum(2 * k.element_size() * k.shape[1] * k.shape[3] for k in self.k)

"""Predicted time of steps that read prompts, linear in the tokens."""

from __future__ import annotations

from typing import NamedTuple


class LinearCost(NamedTuple):
    """Stand-in for ``ChunkCost``: a step, what any chunk adds, and what each of its rows adds, in microseconds."""

    step_us: float
    chunk_us: float
    token_us: float

    def compute_more_us(self, chunk: int) -> float:
        return self.chunk_us + self.token_us * chunk

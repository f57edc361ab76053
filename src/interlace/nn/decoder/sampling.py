"""How the next tokens follow from logits: the likeliest, or drawn.

Drawing is by the Gumbel trick: where E are independent exponentials, argmax(logits / temperature - log E) has the
distribution of softmax(logits / temperature), in one pass over the logits and without leaving the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import torch

from interlace.core.arguments import whole
from interlace.core.errors import SamplingError

_SEEDS = 1 << 31


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: by which logits are divided; 0 takes the likeliest token.
        top_k: of how many likeliest ones; None for all.
        top_p: of the least number of likeliest ones that have this probability together; None for all. After ``top_k``.
        seed: of the draws; each sequence has draws of its own, whatever else is in the batch.

    Raises:
        ArgumentError: a count that is no whole number.
        SamplingError: a value out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, 0.0, 1e9)
        if self.top_p is not None:
            _check_real("top_p", self.top_p, 1e-9, 1.0)
        if self.top_k is not None and whole(self.top_k, "Sampling", "top_k") < 1:
            raise SamplingError(f"top_k is {self.top_k}; give 1 or more, or None for all")
        if not 0 <= whole(self.seed, "Sampling", "seed") < _SEEDS:
            raise SamplingError(f"seed is {self.seed}; give a number from 0 to {_SEEDS - 1}")

    def generator(self, sequence: int, device: torch.device) -> torch.Generator:
        """Of a sequence's draws."""
        return torch.Generator(device).manual_seed(self.seed * _SEEDS + sequence)


def draw(logits: torch.Tensor, noise: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Tokens (batch,) int64 from logits (batch, vocabulary).

    Args:
        noise: (batch, vocabulary) fp32, independent exponentials of rate 1; not looked at where nothing is drawn.
    """
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    scores = logits.float() / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[-1]:
        least = scores.topk(sampling.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ranked, order = scores.sort(dim=-1, descending=True)
        shares = ranked.softmax(dim=-1)
        # Probability of all likelier ones: none for the first, so that one always stays.
        dropped = shares.cumsum(dim=-1) - shares >= sampling.top_p
        scores = scores.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)
    return (scores - noise.clamp_min(torch.finfo(noise.dtype).tiny).log()).argmax(dim=-1)


def _check_real(name: str, value: object, least: float, most: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not least <= value <= most:  # type: ignore[operator]
        raise SamplingError(f"{name} is {value!r}; give a number from {least:g} to {most:g}")

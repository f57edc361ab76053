"""Greedy and random sampling of the next tokens from logits; ``kernels/sample`` describes the method.

The sampling parameters are in device memory, one row for each slot, so that the launches of a step need not change.
This module also samples with PyTorch's own ops, for prompts and for steps that run without launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

import torch

from interlace.core.arguments import check_int, safe_repr
from interlace.core.errors import SamplingError
from interlace.kernels.sample.philox import generate_words, to_uniform
from interlace.nn.decoder.mirror import MirroredTensors

_NUMBERS = 1 << 31
_MAX_TEMPERATURE = 1e9


def _check_real(name: str, value: object, least: float, most: float) -> None:
    if not isinstance(value, Real) or isinstance(value, bool) or not least <= value <= most:  # type: ignore[operator]
        raise SamplingError(f"{name} is {safe_repr(value)}; give a number from {least:g} to {most:g}")


@dataclass(frozen=True)
class SlotSampling:
    """Sampling parameters of a sequence.

    Attributes:
        temperature: divisor of the logits, 1e-9 to 1e9; 0 for greedy sampling.
        top_k: number of most probable tokens to sample from, including ties with the last one; None for all.
        top_p: total probability of the smallest set of tokens to sample from (nucleus sampling), including ties with
            the last one; None for all. Applied after ``top_k``.
        seed: seed of the random numbers, which depend only on the seed, the sequence and the position.
        sequence: number that gives each sequence of the same seed its own random numbers.

    Raises:
        ArgumentError: a count is not a whole number.
        SamplingError: a value is out of range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    sequence: int = 0

    def __post_init__(self) -> None:
        _check_real("temperature", self.temperature, 0.0, _MAX_TEMPERATURE)
        # With a smaller divisor several logits may be infinite in float32, and the first of them would be selected.
        if 0 < self.temperature < 1 / _MAX_TEMPERATURE:
            raise SamplingError(
                f"temperature is {self.temperature!r}; give 0 for the likeliest token, or {1 / _MAX_TEMPERATURE:g} or "
                "more"
            )
        if self.top_p is not None:
            _check_real("top_p", self.top_p, 1e-9, 1.0)
        if self.top_k is not None and check_int(self.top_k, "SlotSampling", "top_k") < 1:
            raise SamplingError(f"top_k is {safe_repr(self.top_k)}; give 1 or more, or None for all")
        for name in ("seed", "sequence"):
            number = getattr(self, name)
            if not 0 <= check_int(number, "SlotSampling", name) < _NUMBERS:
                raise SamplingError(f"{name} is {safe_repr(number)}; give a number from 0 to {_NUMBERS - 1}")


GREEDY = SlotSampling()


class SamplingState:
    """Sampling parameters of all slots, in the device tensors that the launches of a step read.

    Args:
        mirror: tensors by the names of ``list_fields``; changes reach the device by ``MirroredTensors.upload``.

    Attributes:
        tensors: ``temperature`` and ``top_p`` (batch,) fp32, ``top_k`` (batch,) and ``key`` (batch, 2) int32.
    """

    def __init__(self, mirror: MirroredTensors) -> None:
        self._mirror, self._host = mirror, mirror.host
        self.tensors: Mapping[str, torch.Tensor] = {name: mirror.tensors[name] for name in self.list_fields(0)}
        self._is_random = [False] * len(self.tensors["key"])

    @staticmethod
    def list_fields(batch: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shapes and dtypes of the mirrored tensors."""
        numbers = {"temperature": torch.float32, "top_p": torch.float32, "top_k": torch.int32}
        return {**{name: ((batch,), dtype) for name, dtype in numbers.items()}, "key": ((batch, 2), torch.int32)}

    def set(self, slot: int, sampling: SlotSampling) -> None:
        """Set the sampling parameters of a slot."""
        is_random = sampling.temperature > 0
        if not is_random and not self._is_random[slot]:
            return  # the other parameters of a greedy slot have no effect
        self._is_random[slot] = is_random
        host = self._host
        host["temperature"][slot] = sampling.temperature
        host["top_k"][slot] = min(sampling.top_k or 0, _NUMBERS - 1)
        host["top_p"][slot] = 1.0 if sampling.top_p is None else sampling.top_p
        host["key"][slot] = sampling.seed, sampling.sequence
        self._mirror.mark()

    def is_random(self, slot: int) -> bool:
        """Return True if the tokens of a slot are sampled, not greedy."""
        return self._is_random[slot]

    def sample(self, logits: torch.Tensor, position: torch.Tensor, slots: slice) -> torch.Tensor:
        """Sample tokens (n,) for some slots, from the logits (n, vocabulary) of the tokens at these positions (n,)."""
        if not any(self._is_random[slots]):
            return logits.argmax(dim=-1)
        return sample_tokens(logits, position, {name: tensor[slots] for name, tensor in self.tensors.items()})


def sample_tokens(logits: torch.Tensor, position: torch.Tensor, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Sample tokens (n,) from logits (n, vocabulary) at positions (n,), by rows of ``SamplingState.tensors``."""
    x, count = logits.float(), logits.shape[-1]
    cold, top_p, top_k = state["temperature"] <= 0, state["top_p"][:, None], state["top_k"].long()
    heat = torch.where(cold, 1.0, state["temperature"])[:, None]
    ranked = x.sort(dim=-1, descending=True).values
    least = ranked.gather(-1, torch.where((top_k > 0) & (top_k < count), top_k, count)[:, None] - 1)
    weights = ((ranked - ranked[:, :1]) / heat).exp() * (ranked >= least)
    # Total weight of all more probable tokens: 0 for the first, so at least one token is always kept.
    before = weights.cumsum(dim=-1) - weights
    last = (before < top_p * weights.sum(dim=-1, keepdim=True)).sum(dim=-1, keepdim=True).clamp_min(1) - 1
    least = torch.where(top_p < 1, torch.maximum(least, ranked.gather(-1, last)), least)
    key = state["key"].long()
    columns = torch.arange(count, device=x.device)
    drawn_words = generate_words(columns, position.long()[:, None], key[:, :1], key[:, 1:])
    noise = -(-(-to_uniform(drawn_words.float())).log1p()).log()  # independent of the default dtype
    scores = (x / heat + noise).masked_fill(x < least, -torch.inf)
    return torch.where(cold[:, None], x, scores).argmax(dim=-1)

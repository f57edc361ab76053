"""Texts of several prompts at once: sequences join as slots become free, and leave when they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from interlace.core.arguments import whole
from interlace.core.errors import ArgumentError, LengthError, PromptError, SlotError
from interlace.nn.decoder.sampling import Sampling, draw

Prompt = Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor
Prompts = Prompt | Sequence[Prompt]


class Piece(NamedTuple):
    """A token that was made.

    Attributes:
        sequence: number of the prompt that it follows.
        token: its id.
    """

    sequence: int
    token: int


class Steps(Protocol):
    """What is asked of a ``Decoder`` here."""

    batch: int
    capacity: int
    device: torch.device
    logits: torch.Tensor
    next: torch.Tensor

    @property
    def taken(self) -> tuple[int, ...]: ...

    def checked_ids(self, ids: Prompt) -> list[int]: ...

    def join(self, ids: Prompt) -> int: ...

    def leave(self, slot: int) -> None: ...

    def step(self, tokens: torch.Tensor) -> object: ...


@dataclass
class _Sequence:
    number: int
    left: int
    generator: torch.Generator


def prompts_of(ids: Prompts) -> tuple[list[Any], bool]:
    """Prompts as a list, and whether one was given by itself.

    Raises:
        PromptError: there are none.
    """
    if isinstance(ids, (torch.Tensor, np.ndarray)):
        return ([ids], True) if ids.ndim < 2 else ([*ids], False)
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence):
        raise PromptError(f"a prompt is {ids!r}; give ids of tokens, as a list of ints, or a list of such lists")
    if not len(ids):
        raise PromptError("a prompt has no ids; give one token at least, such as that of the beginning of a text")
    several = isinstance(ids[0], (torch.Tensor, np.ndarray, Sequence))
    return ([*ids], False) if several else ([ids], True)


def run(
    decoder: Steps, prompts: Sequence[Prompt], max_new_tokens: int, stop: Sequence[int], sampling: Sampling
) -> Iterator[Piece]:
    """Pieces of texts as they are made; all arguments are checked here, before the first. See ``Decoder.stream``."""
    most = whole(max_new_tokens, "generate", "max_new_tokens")
    if most < 1:
        raise ArgumentError(f"generate: max_new_tokens is {most}; give a positive number")
    ends = frozenset(whole(id, "generate", f"stop[{i}]") for i, id in enumerate(stop))
    checked = []
    for number, prompt in enumerate(prompts):
        try:
            checked.append(decoder.checked_ids(prompt))
        except PromptError as error:
            raise PromptError(f"prompt {number}: {error}") from None
        # The last token of all is not looked at again, so it needs no position.
        positions = len(checked[-1]) + most - 1
        if positions > decoder.capacity:
            raise LengthError(
                f"prompt {number} has {len(checked[-1])} tokens, and with {most} new ones it takes {positions} "
                f"positions of a capacity of {decoder.capacity}; shorten either, or build the decoder with a larger "
                "capacity"
            )
    _check_empty(decoder)
    return _pieces(decoder, checked, most, ends, sampling)


def _pieces(
    decoder: Steps, prompts: list[list[int]], most: int, ends: frozenset[int], sampling: Sampling
) -> Iterator[Piece]:
    _check_empty(decoder)
    waiting = deque(enumerate(prompts))
    running: dict[int, _Sequence] = {}
    drawn = sampling.temperature > 0
    noise = torch.ones(decoder.logits.shape if drawn else (0, 0), dtype=torch.float32, device=decoder.device)

    def end(slot: int) -> None:
        del running[slot]
        decoder.leave(slot)

    try:
        while waiting or running:
            while waiting and len(running) < decoder.batch:
                number, prompt = waiting.popleft()
                running[decoder.join(prompt)] = _Sequence(number, most, sampling.generator(number, decoder.device))
            for slot, sequence in running.items():
                if drawn:
                    noise[slot].exponential_(generator=sequence.generator)
            tokens = draw(decoder.logits, noise, sampling) if drawn else decoder.next
            made = tokens.tolist()
            for slot, sequence in sorted(running.items()):
                if made[slot] in ends:
                    end(slot)
                    continue
                yield Piece(sequence.number, made[slot])
                sequence.left -= 1
                if not sequence.left:
                    end(slot)
            if running:
                decoder.step(tokens)
    finally:
        for slot in [*running]:
            end(slot)


def _check_empty(decoder: Steps) -> None:
    if decoder.taken:
        raise SlotError(f"other sequences hold slots {list(decoder.taken)}; let them leave before a text is generated")

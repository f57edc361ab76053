"""Ids of tokens as callers give them."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from interlace.core.arguments import whole
from interlace.core.errors import ArgumentError, PromptError

Prompt = Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor
Prompts = Prompt | Sequence[Prompt]


def checked_ids(ids: Prompt, vocabulary: int) -> list[int]:
    """Ids of tokens as a list of ints.

    Raises:
        PromptError: there are none, or not in one dimension, or one is no whole number or out of the vocabulary.
    """
    values = ids.tolist() if isinstance(ids, (torch.Tensor, np.ndarray)) else ids
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise PromptError(f"a prompt is {reprlib.repr(ids)}; give ids of tokens, as a list of ints")
    try:
        found = [whole(value, "prompt", f"ids[{i}]") for i, value in enumerate(values)]
    except ArgumentError as error:
        raise PromptError(f"{error}, an id of a token") from None
    if not found:
        raise PromptError("a prompt has no ids; give one token at least, such as that of the beginning of a text")
    for i, id in enumerate(found):
        if not 0 <= id < vocabulary:
            raise PromptError(f"ids[{i}] is {id}; the vocabulary has ids 0 to {vocabulary - 1}")
    return found


def step_ids(
    tokens: Sequence[int] | torch.Tensor, taken: Sequence[int], batch: int, vocabulary: int
) -> torch.Tensor:
    """The token of each slot, as a step takes them; those of slots that are not taken are not looked at.

    Raises:
        PromptError: ids out of the vocabulary, or not as many as slots.
    """
    if isinstance(tokens, torch.Tensor) and tokens.device.type != "cpu":
        if tokens.shape != (batch,):
            raise PromptError(f"tokens have shape {tuple(tokens.shape)}; give ({batch},), one for each slot")
        return tokens.clamp(0, vocabulary - 1)
    given = tokens.tolist() if isinstance(tokens, (torch.Tensor, np.ndarray)) else tokens
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)) or len(given) != batch:
        count = len(given) if isinstance(given, (list, tuple)) else reprlib.repr(given)
        raise PromptError(f"{count} tokens were given; give {batch}, one for each slot")
    ids = dict(zip(taken, checked_ids([given[slot] for slot in taken], vocabulary), strict=True))
    return torch.tensor([ids.get(slot, 0) for slot in range(batch)])


def prompts_of(ids: Prompts) -> tuple[list[Any], bool]:
    """Prompts as a list, and whether one was given by itself.

    Raises:
        PromptError: there are none.
    """
    if isinstance(ids, (torch.Tensor, np.ndarray)):
        return ([ids], True) if ids.ndim < 2 else ([*ids], False)
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence):
        raise PromptError(f"a prompt is {reprlib.repr(ids)}; give ids of tokens, as a list of ints, or several such")
    if not len(ids):
        raise PromptError("a prompt has no ids; give one token at least, such as that of the beginning of a text")
    several = isinstance(ids[0], (torch.Tensor, np.ndarray, Sequence))
    return ([*ids], False) if several else ([ids], True)

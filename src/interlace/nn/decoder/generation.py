"""Texts of several prompts at once: sequences join as slots become free, and leave when they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch

from interlace.core.arguments import whole
from interlace.core.errors import ArgumentError, LengthError, PromptError, SlotError
from interlace.nn.decoder.ids import Prompt, checked_ids
from interlace.nn.decoder.sampling import Sampling
from interlace.nn.decoder.slots import advise_capacity
from interlace.workloads.llama import LlamaShape


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

    shape: LlamaShape
    batch: int
    capacity: int
    pages: int
    window: int | None
    device: torch.device
    next: torch.Tensor

    @property
    def taken(self) -> tuple[int, ...]: ...

    def pages_of(self, positions: int) -> int: ...

    def join(self, ids: Prompt, *, sampling: Sampling) -> int: ...

    def leave(self, slot: int) -> None: ...

    def step(self) -> object: ...


@dataclass
class _Sequence:
    number: int
    left: int
    pages: int  # that it may come to have


def run(
    decoder: Steps, prompts: Sequence[Prompt], max_new_tokens: int, stop: Sequence[int], sampling: Sampling
) -> Iterator[Piece]:
    """Pieces of texts as they are made; all arguments are checked here, before the first. See ``Decoder.stream``."""
    most = whole(max_new_tokens, "generate", "max_new_tokens")
    if most < 1:
        raise ArgumentError(f"generate: max_new_tokens is {most}; give a positive number")
    given = stop.tolist() if isinstance(stop, torch.Tensor) else stop
    if not isinstance(given, Iterable):
        raise ArgumentError(f"generate: stop is {given!r}; give the ids that end a text, as [{given}], or [] for none")
    ends = frozenset(whole(id, "generate", f"stop[{i}]") for i, id in enumerate(given))
    checked = []
    for number, prompt in enumerate(prompts):
        try:
            checked.append(checked_ids(prompt, decoder.shape.vocabulary))
        except PromptError as error:
            raise PromptError(f"prompt {number}: {error}") from None
        # The last token of all is not looked at again, so it needs no position.
        positions = len(checked[-1]) + most - 1
        if positions > decoder.capacity:
            raise LengthError(
                f"prompt {number} has {len(checked[-1])} tokens, and with {most} new ones it takes {positions} "
                f"positions of a capacity of {decoder.capacity}; shorten either"
                f"{advise_capacity(decoder.capacity, decoder.window)}"
            )
        if decoder.pages_of(positions) > decoder.pages:
            raise LengthError(
                f"prompt {number} has {len(checked[-1])} tokens, and with {most} new ones it takes "
                f"{decoder.pages_of(positions)} pages of {decoder.pages}; shorten either, or build the decoder with "
                "more pages"
            )
    _check_empty(decoder)
    return pieces(decoder, checked, most, ends, sampling, decoder.device.type != "cpu")


def pieces(
    decoder: Steps, prompts: list[list[int]], most: int, ends: frozenset[int], sampling: Sampling, ahead: bool
) -> Iterator[Piece]:
    """Pieces of texts as they are made.

    Args:
        ahead: start a step before the tokens that it takes are read, so that the device never waits for the host; a
            sequence that turns out to have ended was then stepped once more.
    """
    _check_empty(decoder)
    waiting = deque(enumerate(prompts))
    running: dict[int, _Sequence] = {}

    def end(slot: int) -> None:
        del running[slot]
        decoder.leave(slot)

    try:
        while waiting or running:
            while waiting and len(running) < decoder.batch:
                number, prompt = waiting[0]
                pages = decoder.pages_of(len(prompt) + most - 1)
                if sum(sequence.pages for sequence in running.values()) + pages > decoder.pages:
                    break  # so that no step runs out of them
                waiting.popleft()
                slot = decoder.join(prompt, sampling=replace(sampling, sequence=number))
                running[slot] = _Sequence(number, most, pages)
            read, made_by = _reading(decoder.next), sorted(running.items())
            for slot, sequence in made_by:
                if sequence.left == 1 or (not ahead and read()[slot] in ends):
                    end(slot)
            if ahead and running:
                decoder.step()
            made = read()
            for slot, sequence in made_by:
                if made[slot] not in ends:
                    sequence.left -= 1
                    yield Piece(sequence.number, made[slot])
                elif slot in running:
                    end(slot)
            if not ahead and running:
                decoder.step()  # behind the tokens that are there, which wait for none
    finally:
        for slot in [*running]:
            end(slot)


def _reading(tokens: torch.Tensor) -> Callable[[], list[int]]:
    """What gives tokens as a list, and waits for nothing that is enqueued from now on."""
    if tokens.device.type == "cpu":
        made: list[int] = tokens.tolist()
        return lambda: made
    host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    host.copy_(tokens, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> list[int]:
        copied.synchronize()
        there: list[int] = host.tolist()
        return there

    return read


def _check_empty(decoder: Steps) -> None:
    if decoder.taken:
        raise SlotError(f"other sequences hold slots {list(decoder.taken)}; let them leave before a text is generated")

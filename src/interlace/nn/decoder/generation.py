"""Generation for several prompts with continuous batching: sequences get slots as these become free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from interlace.core.arguments import check_int, safe_repr
from interlace.core.errors import ArgumentError, LengthError, SlotError
from interlace.models.llama import LlamaShape
from interlace.nn.decoder.exclusive_lock import ExclusiveLock
from interlace.nn.decoder.ids import check_stop_ids
from interlace.nn.decoder.padding import Padding
from interlace.nn.decoder.sampling import SlotSampling
from interlace.nn.decoder.slots import advise_capacity

#: ``chunked_prefill_size`` that lets each prompt be read whole when it gets a slot.
WHOLE_PROMPTS = -1


class GeneratedToken(NamedTuple):
    """Generated token.

    Attributes:
        sequence: index of the prompt.
        token: token id.
    """

    sequence: int
    token: int


class DecoderProtocol(Protocol):
    """Interface of ``Decoder`` that generation uses."""

    shape: LlamaShape
    batch: int
    max_seq_len: int
    num_blocks: int
    window: int | None
    device: torch.device
    next: torch.Tensor
    stop_token_ids: tuple[int, ...]
    padding: Padding
    lock: ExclusiveLock

    @property
    def active_slots(self) -> tuple[int, ...]: ...

    @property
    def unread(self) -> Mapping[int, int]: ...

    def count_pages(self, positions: int) -> int: ...

    def _add(self, ids: list[int], past_key_values: None, sampling: SlotSampling) -> int: ...

    def _abort(self, slot: int) -> None: ...

    def _step(self) -> object: ...

    def _hold_limits(self, chunked_prefill_size: int | None) -> AbstractContextManager[None]: ...


@dataclass
class _Sequence:
    number: int
    left: int
    num_pages: int  # upper bound at the end of the sequence


class TokenStream(Iterator[GeneratedToken]):
    """Iterator over generated tokens.

    From the first piece on, the decoder refuses other calls until the stream ends or is closed. A dropped stream is
    closed. Any thread may read it, one at a time.
    """

    def __init__(self, turns: ExclusiveLock, user: str, begin: Callable[[], Iterator[GeneratedToken]]) -> None:
        self._lock, self._user, self._begin = turns, user, begin
        self._reader, self._has_begun = ExclusiveLock(), False
        self._pieces = self._hold()

    def _hold(self) -> Generator[GeneratedToken]:
        with self._lock.acquire(self._user):
            yield from self._begin()

    def __next__(self) -> GeneratedToken:
        """Return the next piece.

        Raises:
            BusyError: the decoder does something else, or another thread reads this stream.
            SlotError: sequences that were added hold slots.
        """
        with self._reader.acquire(self._user):
            try:
                piece = next(self._pieces)
            except SlotError:
                if not self._has_begun:  # so that it can begin later
                    self._pieces = self._hold()
                raise
            self._has_begun = True
            return piece

    def close(self) -> None:
        """End all texts and free their slots.

        Raises:
            BusyError: another thread reads this stream.
        """
        with self._reader.acquire(self._user):
            self._pieces.close()


def start_stream(
    decoder: DecoderProtocol,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    stop_token_ids: Any,
    sampling: SlotSampling,
    chunked_prefill_size: int | None,
    user: str,
) -> TokenStream:
    """Check all arguments, and return a stream of generated tokens; see ``Decoder.stream``.

    Args:
        user: name of the calling method, for messages.
    """
    most = check_int(max_new_tokens, "generate", "max_new_tokens")
    if most < 1:
        raise ArgumentError(f"generate: max_new_tokens is {safe_repr(most)}; give a positive number")
    if chunked_prefill_size is not None:
        chunked_prefill_size = check_int(chunked_prefill_size, "generate", "chunked_prefill_size")
        if chunked_prefill_size != WHOLE_PROMPTS and chunked_prefill_size < 1:
            raise ArgumentError(
                f"generate: chunked_prefill_size is {safe_repr(chunked_prefill_size)}; give a positive number of "
                f"tokens, {WHOLE_PROMPTS} to read prompts whole, or None"
            )
    ends = frozenset(check_stop_ids(stop_token_ids, "generate"))
    for number, prompt in enumerate(prompts):
        # The last new token is never an input of a step, so it needs no position.
        positions = len(prompt) + most - 1
        if positions > decoder.max_seq_len:
            raise LengthError(
                f"prompt {number} has {len(prompt)} tokens, and with {safe_repr(most)} new ones it takes "
                f"{safe_repr(positions)} positions of a max_seq_len of {decoder.max_seq_len}; shorten either"
                f"{advise_capacity(decoder.max_seq_len, decoder.window)}"
            )
        if decoder.count_pages(positions) > decoder.num_blocks:
            raise LengthError(
                f"prompt {number} has {len(prompt)} tokens, and with {most} new ones it takes "
                f"{decoder.count_pages(positions)} pages of {decoder.num_blocks}; shorten either, or build the decoder "
                "with more blocks"
            )
    decoder.lock.check(user, decoder.active_slots)
    _check_empty(decoder)
    ahead = decoder.device.type != "cpu"

    def begin() -> Iterator[GeneratedToken]:
        with decoder._hold_limits(chunked_prefill_size):
            yield from generate_tokens(decoder, [*prompts], most, ends, sampling, ahead)

    return TokenStream(decoder.lock, user, begin)


def generate_tokens(
    decoder: DecoderProtocol,
    prompts: list[list[int]],
    most: int,
    ends: frozenset[int],
    sampling: SlotSampling,
    ahead: bool,
) -> Iterator[GeneratedToken]:
    """Yield tokens as they are generated.

    Args:
        ahead: True to enqueue each step before its input tokens are read on the host, so that the device never waits
            for the host. A sequence that turns out to have ended has then run one extra step.
    """
    _check_empty(decoder)
    waiting = deque(enumerate(prompts))
    running: dict[int, _Sequence] = {}

    def end(slot: int) -> None:
        del running[slot]
        decoder._abort(slot)

    try:
        while waiting or running:
            while waiting and len(running) < decoder.batch:
                number, prompt = waiting[0]
                pages = decoder.count_pages(len(prompt) + most - 1)
                if sum(sequence.num_pages for sequence in running.values()) + pages > decoder.num_blocks:
                    break  # reserves pages for the whole text, so that no step runs out of pages
                waiting.popleft()
                slot = decoder._add(prompt, None, replace(sampling, sequence=number))
                running[slot] = _Sequence(number, most, pages)
            unread = decoder.unread
            read = _make_reader(decoder.next)
            made_by = sorted((slot, sequence) for slot, sequence in running.items() if slot not in unread)
            for slot, sequence in made_by:
                if sequence.left == 1 or (not ahead and read()[slot] in ends):
                    end(slot)
            if ahead and running:
                decoder._step()
            made = read()
            for slot, sequence in made_by:
                if made[slot] not in ends:
                    sequence.left -= 1
                    yield GeneratedToken(sequence.number, made[slot])
                elif slot in running:
                    end(slot)
            if not ahead and running:
                decoder._step()  # after all available tokens are yielded, so that none of them waits for the step
    finally:
        for slot in [*running]:
            end(slot)


def _make_reader(tokens: torch.Tensor) -> Callable[[], list[int]]:
    """Return a function that reads tokens as a list, without waiting for work enqueued after this call."""
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


def _check_empty(decoder: DecoderProtocol) -> None:
    if decoder.active_slots:
        raise SlotError(
            f"other sequences hold slots {list(decoder.active_slots)}; abort them before a text is generated"
        )

"""Exclusive use of a decoder by an engine, which has checked tokens and lengths itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from interlace.core.errors import SlotError
from interlace.nn.decoder.decoder import Decoder
from interlace.nn.decoder.files import Progress
from interlace.nn.decoder.pages import PageAllocator
from interlace.nn.decoder.sampling import SlotSampling


class DecoderSession:
    """Methods of a decoder without checks of token ids. Until ``close``, all other users get a BusyError.

    Args:
        decoder: decoder without sequences.
        chunk: most prompt tokens that a step reads.
        can_build: see ``Decoder.read_in_chunks``.

    Raises:
        BusyError: another call or stream is in progress.
        SlotError: the decoder has sequences.
        ArgumentError: the chunk is not a positive number.
    """

    def __init__(self, decoder: Decoder, chunk: int, can_build: bool = True) -> None:
        self.decoder = decoder
        if decoder.active_slots:
            raise SlotError(f"other sequences hold slots {[*decoder.active_slots]}; abort them before an engine starts")
        decoder.read_in_chunks(chunk, can_build=can_build)
        self._lock = ExitStack()
        self._lock.enter_context(decoder.lock.acquire("an engine"))

    def close(self) -> None:
        """Release the decoder; sequences keep their slots."""
        self._lock.close()

    @property
    def pages(self) -> PageAllocator | None:
        """Pages that the slots share, None if each slot has its own memory."""
        return self.decoder._pages

    def read_positions(self) -> torch.Tensor:
        """Return the number of tokens of each slot (batch,), int32 on the device, after the steps so far."""
        self.decoder._slots.upload()
        return self.decoder._slots.position

    def count_growing(self) -> int:
        """Return the number of pages that the next step needs for the tokens that it decodes."""
        return len(self.decoder._slots.find_growing())

    def add(self, tokens: list[int], sampling: SlotSampling, pages: Sequence[int] = ()) -> int:
        """Claim a slot for a sequence whose tokens later steps read, and return the slot.

        Args:
            pages: pages with keys and values of the first tokens, fewer than all; they are not read again.

        Raises:
            SlotError, LengthError, PageError: see ``Decoder.add``.
        """
        return self.decoder._add(tokens, None, sampling, pages)

    def abort(self, slot: int) -> None:
        """Free a slot."""
        self.decoder._abort(slot)

    def build_chunks(self, progress: Progress) -> None:
        """Build all launches that read prompts; see ``Decoder.build_chunks``."""
        self.decoder._build_chunks(progress)

    def step(self) -> None:
        """Enqueue a step of all sequences: chunks of prompts, and a token of each sequence that is read.

        Raises:
            LengthError, PageError: see ``Decoder.step``.
        """
        self.decoder._step()


class TokenCopy:
    """Copy of a decoder's ``next`` to the host, which does not wait for work that is enqueued after it.

    Args:
        batch: number of slots.
        device: device of the decoder.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        is_gpu = device.type == "cuda"
        self._host = torch.zeros(batch, dtype=torch.int32, pin_memory=is_gpu)
        self._copied = torch.cuda.Event() if is_gpu else None  # type: ignore[no-untyped-call]

    def enqueue(self, tokens: torch.Tensor) -> None:
        """Enqueue the copy on the current stream."""
        self._host.copy_(tokens, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def read(self) -> list[int]:
        """Wait for the copy, and return the tokens by slot."""
        if self._copied is not None:
            self._copied.synchronize()
        tokens: list[int] = self._host.tolist()
        return tokens

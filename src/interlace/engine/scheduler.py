"""Slots for waiting sequences: first come, first served, as slots and blocks become free."""

from __future__ import annotations

from collections import deque

from interlace.engine.request import EngineSequence
from interlace.nn.decoder.sampling import SlotSampling
from interlace.nn.decoder.session import DecoderSession


class Scheduler:
    """Waiting sequences, and the sequences that hold slots of a decoder.

    Args:
        session: session of the decoder.

    Attributes:
        waiting: sequences without a slot, in the order of their arrival.
        running: sequences by slot.
    """

    def __init__(self, session: DecoderSession) -> None:
        self._session, self._decoder = session, session.decoder
        self.waiting: deque[EngineSequence] = deque()
        self.running: dict[int, EngineSequence] = {}

    def admit(self) -> None:
        """Give slots to waiting sequences while there is room."""
        while self.waiting and len(self.running) < self._decoder.batch:
            sequence = self.waiting[0]
            if self._count_blocks(sequence) + sum(map(self._count_blocks, self.running.values())) > self.num_blocks:
                break
            self.waiting.popleft()
            sequence.slot = self._session.add(sequence.tokens, make_slot_sampling(sequence))
            self.running[sequence.slot] = sequence

    def release(self, sequence: EngineSequence) -> None:
        """Free the slot of a sequence, or take it from the waiting ones."""
        if sequence.slot is None:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            return
        self._session.abort(sequence.slot)
        del self.running[sequence.slot]
        sequence.slot = None

    @property
    def num_blocks(self) -> int:
        """Number of blocks that all slots share; 0 if each slot has its own memory."""
        return self._decoder.num_blocks

    def _count_blocks(self, sequence: EngineSequence) -> int:
        """Return the number of blocks that a sequence may need."""
        request = sequence.request
        return self._decoder.count_pages(len(request.prompt) + request.max_tokens - 1)


def make_slot_sampling(sequence: EngineSequence) -> SlotSampling:
    """Return the parameters by which the steps themselves sample the tokens of a sequence."""
    params = sequence.request.params
    if params.is_greedy:
        return SlotSampling()
    top_k, top_p = (params.top_k if params.top_k > 0 else None), (params.top_p if params.top_p < 1 else None)
    return SlotSampling(params.temperature, top_k, top_p, sequence.seed, sequence.index)

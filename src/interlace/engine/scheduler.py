"""Slots and blocks for sequences: first come, first served.

When blocks run out, the sequence that arrived last gives up its slot and its blocks, and keeps its tokens. It is the
first to wait, and is read again, as a longer prompt, when there is room. The sequence that arrived first never gives
up anything, so that every sequence comes to its end.
"""

from __future__ import annotations

from collections import deque

from interlace.engine.blocks import PrefixCache
from interlace.engine.logits import make_sampling
from interlace.engine.request import EngineSequence
from interlace.models.llama import PAGE_TOKENS
from interlace.nn.decoder.sampling import GREEDY
from interlace.nn.decoder.session import DecoderSession


class Scheduler:
    """Waiting sequences, and the sequences that hold slots of a decoder.

    Args:
        session: session of the decoder.
        has_prefix_cache: True to share blocks between sequences that begin alike; needs a decoder with blocks.

    Attributes:
        waiting: sequences without a slot, in the order of their arrival.
        running: sequences by slot.
        num_queries, num_hits: prompt tokens looked up and found in the prefix cache.
        num_preemptions: number of times that a sequence gave up its slot.
    """

    def __init__(self, session: DecoderSession, has_prefix_cache: bool) -> None:
        self._session, self._pages, self._batch = session, session.pages, session.decoder.batch
        self._cache = PrefixCache(self._pages) if has_prefix_cache and self._pages is not None else None
        self.waiting: deque[EngineSequence] = deque()
        self.running: dict[int, EngineSequence] = {}
        self.num_queries = self.num_hits = self.num_preemptions = 0

    @property
    def block_usage(self) -> float:
        """Share of the blocks, or of the slots where each has its own memory, that sequences hold."""
        if self._pages is None:
            return len(self.running) / self._batch
        return 1 - self._pages.num_free / self._pages.count

    def admit(self) -> None:
        """Give slots to waiting sequences while there is room."""
        while self.waiting and len(self.running) < self._batch:
            sequence = self.waiting[0]
            if self._is_sibling_unread(sequence):
                return
            shared = [] if self._cache is None else self._cache.find(sequence.tokens, sequence.hashes)
            if not self._has_room(sequence, shared):
                return
            self.waiting.popleft()
            self._add(sequence, shared)

    def secure_blocks(self) -> None:
        """Preempt sequences until the next step has enough blocks."""
        pages = self._pages
        while pages is not None and self._session.count_growing() > pages.num_free:
            last = max(self.running.values(), key=lambda sequence: sequence.arrival)
            self.release(last)
            self.waiting.appendleft(last)
            self.num_preemptions += 1

    def enter_blocks(self, sequence: EngineSequence, num_cached: int) -> None:
        """Enter the full blocks of a sequence into the prefix cache.

        Args:
            num_cached: number of tokens whose keys and values are enqueued.
        """
        end = min(num_cached, len(sequence.tokens)) // PAGE_TOKENS
        if self._cache is None or self._pages is None or sequence.slot is None or end <= sequence.num_entered:
            return
        blocks = self._pages.list_pages(sequence.slot)
        self._cache.insert(sequence.tokens, sequence.hashes, blocks, sequence.num_entered, end)
        sequence.num_entered = end

    def release(self, sequence: EngineSequence) -> None:
        """Free the slot of a sequence, or take it from the waiting ones."""
        if sequence.slot is None:
            if sequence in self.waiting:
                self.waiting.remove(sequence)
            return
        self._session.abort(sequence.slot)
        del self.running[sequence.slot]
        sequence.slot = None

    def _add(self, sequence: EngineSequence, shared: list[int]) -> None:
        # Steps sample greedily where other ops sample afterwards.
        sampling = GREEDY if sequence.request.params.changes_logits else make_sampling(sequence)
        slot = self._session.add(sequence.tokens, sampling, shared)
        sequence.slot, sequence.num_entered = slot, len(shared)
        self.running[slot] = sequence
        num_shared = len(shared) * PAGE_TOKENS
        if self._cache is not None:
            self.num_queries += len(sequence.tokens)
            self.num_hits += num_shared
        if not sequence.num_generated:
            sequence.request.num_cached_tokens = num_shared

    def _has_room(self, sequence: EngineSequence, shared: list[int]) -> bool:
        if self._pages is None:
            return True
        free = self._pages.num_free - sum(not self._pages.num_users[block] for block in shared)
        return self._pages.count_pages(len(sequence.tokens)) - len(shared) <= free

    def _is_sibling_unread(self, sequence: EngineSequence) -> bool:
        """Return True if a sequence can soon share the blocks of the same prompt's first text."""
        first = sequence.request.sequences[0]
        if self._cache is None or sequence is first or first.slot is None:
            return False
        return len(sequence.tokens) > PAGE_TOKENS and first.slot in self._session.decoder.unread

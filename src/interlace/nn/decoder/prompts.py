"""Prompts of a decoder: read whole when they are added, or in chunks by its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch

from interlace.executors.gpu import find_spec
from interlace.models.llama import LlamaShape
from interlace.models.step_rows import CHUNKS
from interlace.nn.decoder.ahead import StepKey, compile_side_by_side
from interlace.nn.decoder.batches import BatchLaunches, take_rows
from interlace.nn.decoder.cache import KVCache, check_positive
from interlace.nn.decoder.chunks import ChunkLaunches, select_chunks
from interlace.nn.decoder.exclusive_lock import ExclusiveLock
from interlace.nn.decoder.files import Progress
from interlace.nn.decoder.ids import Prompt
from interlace.nn.decoder.launch import TORCH_DTYPES, StepLaunch, build_step_launch
from interlace.nn.decoder.library import BUCKETS, LibraryReader
from interlace.nn.decoder.padding import Padding, read_prompt
from interlace.nn.decoder.pages import PageAllocator
from interlace.nn.decoder.prompt_queue import PromptLimits, PromptQueue
from interlace.nn.decoder.reader import ChunkCost, PromptReader, Reading
from interlace.nn.decoder.sampling import SamplingState
from interlace.nn.decoder.slots import Slots
from interlace.nn.decoder.weights import count_streamed_bytes


class PromptMixin:
    """Methods of a decoder that read prompts, and that build the launches of steps."""

    shape: LlamaShape
    batch: int
    max_seq_len: int
    num_blocks: int
    device: torch.device
    dtype: torch.dtype
    cache: KVCache
    logits: torch.Tensor
    next: torch.Tensor
    padding: Padding
    lock: ExclusiveLock
    _weights: Mapping[str, torch.Tensor]
    _rope: torch.Tensor
    _tokens: torch.Tensor
    _pages: PageAllocator | None
    _slots: Slots
    _sampling: SamplingState
    _launch: StepLaunch | str
    _batches: BatchLaunches
    _library: LibraryReader
    _prompts: PromptQueue
    _chunks: ChunkLaunches
    _reader: PromptReader | None

    @torch.inference_mode()
    def prefill(self, ids: Prompt, slot: int, *, attention_mask: object = None) -> torch.Tensor:
        """Append tokens to the sequence in a slot; return the logits (vocabulary,) of the last token.

        Raises:
            PromptError, BusyError: see ``add``.
            SlotError: the slot has no sequence; see ``add``.
            LengthError: the sequence would exceed the capacity.
            PageError: the tokens need more pages than are free.
        """
        tokens = read_prompt(ids, attention_mask, self.shape.vocabulary, self.padding)
        with self.lock.acquire("Decoder.prefill"):
            self._prompts.check_read(slot)
            length = self._slots.get_length(slot)
            self._slots.check_room(slot, length, len(tokens))
            self._slots.grow({slot: length + len(tokens)})
            self._read_tokens(tokens, slot, length)
            self._slots.activate(slot, length + len(tokens))
            return self.logits[slot]

    def _read_whole(self, tokens: list[int], slot: int, cached: int) -> None:
        """Read a prompt, whose first tokens are cached, now: by launches that exist if no sequence has tokens to keep.

        A launch writes ``logits`` and ``next`` of all slots.
        """
        queue, can_launch = PromptQueue(), bool(self._chunks.launches) and not self._slots.stepped_slots
        queue.add(slot, tokens, cached)
        while queue.unread:
            if self._reader is not None and can_launch:
                self._slots.upload()
                reading = self._reader.select(queue, BUCKETS[-1], is_decoding=False, can_build=False)
            else:
                reading = Reading(queue.select_segments(len(tokens)))
            self._run_reading(reading)
            for segment in reading.segments:
                queue.advance(segment)
        self._slots.activate(slot, len(tokens))

    def _select_reading(self, is_decoding: bool) -> Reading | None:
        """Return what the next step reads of prompts, None if nothing is left to read."""
        limits = self._prompts.limits
        limit = limits.decoding if is_decoding else limits.alone
        if not self._prompts.unread:
            return None
        if self._reader is None or not (limits.can_build or self._chunks.launches):
            return Reading(self._prompts.select_segments(limit))
        self._slots.upload()  # reads that are timed write to pages
        return self._reader.select(self._prompts, limit, is_decoding, limits.can_build)

    def _run_reading(self, reading: Reading, decoded: Mapping[int, int] | None = None) -> None:
        """Enqueue reads of prompts; a launch also decodes, by slot, the token of this position."""
        if reading.chunk is not None:
            self._slots.upload()
            self._chunks.run(reading.chunk, self._tokens if decoded else None, decoded or {}, reading.segments)
            return
        for segment in reading.segments:
            self._read_tokens([*segment.tokens], segment.sequence, segment.start)

    def _read_tokens(self, tokens: list[int], slot: int, length: int) -> None:
        """Read tokens after the first ``length`` of a slot with PyTorch's own ops."""
        self._slots.upload()
        self._library.read(tokens, slot, length)
        if self._sampling.is_random(slot):
            slots, last = slice(slot, slot + 1), torch.full((1,), length + len(tokens) - 1, device=self.device)
            self.next[slots] = self._sampling.sample(self.logits[slots], last, slots)

    def _build_launch(
        self, chunk: int = 0, rows: Mapping[str, torch.Tensor] | None = None, slots: int | None = None
    ) -> StepLaunch | str:
        """Build the launch of a step, of the first slots only if their number is given."""
        batch = self.batch if slots is None else slots
        own = {"tokens": self._tokens, "position": self._slots.position, "logits": self.logits, "next": self.next}
        own = take_rows({**own, **self._sampling.tensors, **self.cache.tensors}, batch, self._pages is not None)
        tensors = {**own, "rope": self._rope, **self._weights, **(rows or {})}
        pages = None if self._pages is None else self.num_blocks
        with torch.inference_mode(self.logits.is_inference()):  # same mode as when the decoder was built
            advance = self._slots.advance[:batch] if rows is None else torch.zeros_like(rows["position"])
            return build_step_launch(self.shape, batch, self.max_seq_len, tensors, advance, pages, chunk)

    def _build_side_by_side(
        self, launches: Mapping[str, tuple[int, int]], build: Callable[[int, int], None], progress: Progress
    ) -> None:
        """Build launches of so many slots and a chunk each, by name; on a GPU they are compiled side by side."""
        if not launches:
            return
        keys = {}
        if self.device.type == "cuda":
            pages, dtype = None if self._pages is None else self.num_blocks, TORCH_DTYPES[self.dtype]
            of_all = self.shape, self.max_seq_len, find_spec(str(self.device)), dtype, pages
            keys = {name: StepKey(*of_all, slots, chunk) for name, (slots, chunk) in launches.items()}
        with compile_side_by_side(keys.values()) as processes:
            for name in progress(launches):
                if name in keys:
                    processes.wait(keys[name])
                build(*launches[name])

    def build_batches(self, sizes: Iterable[int], progress: Progress = iter) -> None:
        """Build launches of fewer slots than the decoder has, which run steps whose sequences are in the first slots.

        Without launches of steps, as on a CPU, the call does nothing.

        Args:
            sizes: numbers of slots; those that the decoder has not are skipped.
            progress: iterator over the names of the launches, which may display the progress.

        Raises:
            BusyError: another call or stream is in progress.
            LaunchEndedError: a launch ended itself, and with it the CUDA context.
        """
        with self.lock.acquire("Decoder.build_batches"):
            missing = self._batches.list_missing(sizes)
            launches = {f"steps of {slots} sequences": (slots, 0) for slots in missing}
            self._build_side_by_side(launches, lambda slots, _: self._batches.build(slots), progress)

    def _build_reader(self) -> None:
        """Make the choice of what reads prompts, where launches run steps on a GPU."""
        self._chunks = ChunkLaunches(self.batch, self.max_seq_len, self.device, self._build_launch)
        self._reader = None
        if self.device.type == "cuda" and isinstance(self._launch, StepLaunch):
            weight_bytes = count_streamed_bytes(self.shape, self._weights)
            spec, dtype = find_spec(str(self.device)), TORCH_DTYPES[self.dtype]
            cost = ChunkCost.predict(self.shape, self.batch, dtype, weight_bytes, spec)
            self._reader = PromptReader(self._chunks, self._library, cost, self._launch.step_us)

    def read_in_chunks(self, chunk: int | None, *, can_build: bool = True) -> None:
        """Let steps read the prompts that are added from now on, while other sequences decode.

        ``add`` then only claims a slot and its pages. Each step reads at most ``chunk`` tokens of all prompts together;
        ``unread`` says what is left. ``logits`` and ``next`` of a slot mean nothing until its prompt is read.

        On a GPU a step reads prompts in its own launch or by PyTorch's ops, whichever is faster (``explain``). Launches
        for a number of tokens are built when they are first needed, which takes seconds (``build_chunks``).

        Args:
            chunk: most tokens of prompts that a step reads; None to read a prompt whole when it is added. Launches take
                fewer where tokens and slots then fill whole tiles.
            can_build: False to read by PyTorch's ops and launches that exist: for a few prompts, building a launch
                takes longer than it saves.

        Raises:
            ArgumentError: the number of tokens is not positive.
            BusyError: another call or stream is in progress.
            SlotError: prompts of an earlier number of tokens are not read yet.
        """
        tokens = 0 if chunk is None else check_positive(chunk, "chunk")
        with self.lock.acquire("Decoder.read_in_chunks"):
            for slot in self._prompts.unread:
                self._prompts.check_read(slot)
            self._prompts.limits = replace(self._limit_tokens(tokens), can_build=can_build)

    def build_chunks(self, progress: Progress = iter) -> None:
        """Build all launches that read prompts in chunks now, not when a prompt first needs them.

        Without launches of steps, as on a CPU, the call does nothing.

        Args:
            progress: iterator over the names of the launches, which may display the progress.

        Raises:
            BusyError: another call or stream is in progress.
            LaunchEndedError: a launch ended itself, and with it the CUDA context.
        """
        with self.lock.acquire("Decoder.build_chunks"):
            self._build_chunks(progress)

    def _build_chunks(self, progress: Progress) -> None:
        if self._reader is None:
            return
        limit = self._prompts.limits.decoding or self._select_limits(None).decoding
        missing = [chunk for chunk in self._chunks.list_chunks(limit) if chunk not in self._chunks.launches]
        launches = {f"chunks of {chunk} tokens": (self.batch, chunk) for chunk in missing}
        self._build_side_by_side(launches, lambda _, chunk: self._chunks.build(chunk), progress)

    @property
    def unread(self) -> Mapping[int, int]:
        """Tokens of prompts that are left to read, by slot; empty unless steps read prompts in chunks."""
        return self._prompts.unread

    @contextmanager
    def _hold_limits(self, chunked_prefill_size: int | None) -> Iterator[None]:
        """Hold the limits of ``stream``, and restore those of ``read_in_chunks`` afterwards."""
        before = self._prompts.limits
        self._prompts.limits = self._select_limits(chunked_prefill_size)
        try:
            yield
        finally:
            self._prompts.limits = before

    def _select_limits(self, chunked_prefill_size: int | None) -> PromptLimits:
        """Return the limits of ``stream``: by default those of ``read_in_chunks``, else of the largest launches."""
        if chunked_prefill_size is not None:
            return self._limit_tokens(max(chunked_prefill_size, 0))
        if self._prompts.limits.decoding or self._reader is None:
            return self._prompts.limits
        return PromptLimits(max(select_chunks(CHUNKS[-1], self.batch)), BUCKETS[-1])

    def _limit_tokens(self, tokens: int) -> PromptLimits:
        """Return the limits of steps that read so many tokens: where one launch can, those that fill whole tiles."""
        if not tokens or self._reader is None or tokens > CHUNKS[-1]:
            return PromptLimits(tokens, tokens)
        return PromptLimits(min(tokens, max(select_chunks(tokens, self.batch))), tokens)

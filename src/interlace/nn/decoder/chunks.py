"""Prompts that steps read in chunks, while other sequences decode.

With at most 4 tokens of prompts a step, and prompts of 6 and 5 tokens added at once:

    step     0                1                  2
    reads    a0 a1 a2 a3      a4 a5 b0 b1        b2 b3 b4
    decodes                                      a            from the step after its last token on

A step of launches pads its tokens of prompts to one of a few chunks (``models/step_rows``), each of which is a graph of
its own, planned once. PyTorch's own ops read segment by segment. Which is faster is measured when launches are built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from interlace.core.errors import SlotError
from interlace.models.step_rows import CHUNKS, PromptSegment, build_step_rows, select_chunk
from interlace.nn.decoder.launch import StepLaunch, describe_launch

#: Builds the launches of a chunk on tensors of its rows, or returns a reason why there are none.
LaunchBuilder = Callable[[int, Mapping[str, torch.Tensor]], StepLaunch | str]
#: Returns the microseconds in which PyTorch's own ops read so many tokens; None where that cannot be measured.
LibraryTimer = Callable[[int], float | None]
_ALIGN = 16  # elements to which tensors of a step's rows begin: 64 bytes
#: Rows of a step with prompts, sequences included: whole tiles of products. A step of 16 sequences and 128 tokens is
#: predicted to take a quarter longer than one of 112.
_ROWS = 64, 128, 256, 512
_LEAST = 16  # tokens of prompts for which a step is planned


class PromptQueue:
    """Prompts that are not wholly read, first come, first served.

    Attributes:
        chunk: most tokens of prompts that a step reads; 0 if prompts are read whole when they are added.
    """

    def __init__(self) -> None:
        self.chunk = 0
        self._prompts: dict[int, tuple[list[int], int]] = {}  # tokens, and how many of them are cached

    @property
    def unread(self) -> dict[int, int]:
        """Number of tokens that are left to read, by slot."""
        return {slot: len(tokens) - cached for slot, (tokens, cached) in self._prompts.items()}

    def check_read(self, slot: int) -> None:
        """Raise SlotError if the prompt of a slot is not wholly read."""
        left = self.unread.get(slot, 0) if isinstance(slot, int) else 0  # others are refused elsewhere
        if left:
            raise SlotError(f"slot {slot} has {left} tokens of its prompt left to read; run steps until it has none")

    def add(self, slot: int, tokens: list[int], cached: int) -> None:
        """Add the prompt of a slot, whose first tokens are cached already."""
        self._prompts[slot] = tokens, cached

    def drop(self, slot: int) -> None:
        """Remove the prompt of a slot, if it has one."""
        self._prompts.pop(slot, None)

    def select_segments(self) -> list[PromptSegment]:
        """Return the tokens that the next step reads."""
        segments, room = [], self.chunk
        for slot, (tokens, cached) in self._prompts.items():
            taken = tokens[cached : cached + room]
            room -= len(taken)
            if taken:
                segments.append(PromptSegment(slot, cached, tuple(taken)))
        return segments

    def advance(self, segment: PromptSegment) -> tuple[int, bool]:
        """Count a segment as read; return the length of its sequence, and whether its prompt is wholly read."""
        tokens, _ = self._prompts[segment.sequence]
        length = segment.start + len(segment.tokens)
        self._prompts[segment.sequence] = tokens, length
        if length == len(tokens):
            self.drop(segment.sequence)
        return length, length == len(tokens)


class ChunkLaunches:
    """Launches of steps that read prompts, by number of rows of prompts.

    Attributes:
        launches: launches by chunk, the largest last; empty if PyTorch's own ops read prompts.
        reasons: how each chunk is read, in words.
    """

    def __init__(self) -> None:
        self.launches: dict[int, tuple[StepLaunch, _StepTensors]] = {}
        self.reasons: list[str] = []

    @staticmethod
    def select_chunks(chunk: int, batch: int) -> tuple[int, ...]:
        """Return the chunks for which launches are built, at most three: each takes seconds to plan and compile.

        Args:
            chunk: most tokens of prompts that a step may read.
            batch: number of slots.
        """
        fit = [rows - batch for rows in _ROWS if _LEAST <= rows - batch <= chunk]
        return tuple(dict.fromkeys((*fit[:2], *fit[-1:]))) or (select_chunk(min(chunk, CHUNKS[-1])),)

    def build(
        self,
        chunk: int,
        batch: int,
        device: torch.device,
        build_launch: LaunchBuilder,
        step_us: float,
        time_library: LibraryTimer,
    ) -> None:
        """Build launches for chunks in which they are faster than a step and PyTorch's own ops.

        Args:
            chunk: most tokens of prompts of a step.
            batch: number of slots.
            step_us: time of a step without prompts.
        """
        self.launches, self.reasons = {}, []
        for rows in self.select_chunks(chunk, batch):
            tensors = _StepTensors(batch, rows, device)
            launch = build_launch(rows, tensors.views)
            if isinstance(launch, str):
                self.reasons.append(f"chunks of {rows} by PyTorch's own ops: {launch}")
                continue
            library_us = time_library(rows)
            if library_us is not None and launch.step_us > library_us + step_us:
                self.reasons.append(
                    f"chunks of {rows} by PyTorch's own ops, {library_us + step_us:.0f} us with a step, not by "
                    f"launches, {launch.step_us:.0f} us"
                )
                continue
            self.reasons.append(f"chunks of {rows} by launches of the {describe_launch(launch)[0]} executor")
            self.launches[rows] = launch, tensors

    def find_chunk(self, segments: Sequence[PromptSegment]) -> int | None:
        """Return the smallest chunk with launches that has room for segments; None if no such chunk exists."""
        taken = sum(len(segment.tokens) for segment in segments)
        return min((chunk for chunk in self.launches if chunk >= taken), default=None)

    def run(
        self,
        chunk: int,
        capacity: int,
        tokens: torch.Tensor,
        decoded: Mapping[int, int],
        segments: Sequence[PromptSegment],
    ) -> None:
        """Enqueue a step on the current stream.

        Args:
            capacity: positions that a slot may have.
            tokens: (batch,) int32 on the device, token of each slot that decodes.
            decoded: position of the token, by slot that decodes.
            segments: tokens of prompts.
        """
        launch, tensors = self.launches[chunk]
        batch = len(tokens)
        rows = build_step_rows(batch, chunk, capacity, {slot: (0, at) for slot, at in decoded.items()}, segments)
        tensors.write(rows)
        tensors.views["tokens"][:batch].copy_(tokens)
        launch.run()


class _StepTensors:
    """Tensors of a step's rows on the device, parts of one that is written by one copy.

    They are filled so that a trial run is one of a segment of sequence 0.

    Attributes:
        views: tensors by the names of ``build_step_rows``.
    """

    def __init__(self, batch: int, chunk: int, device: torch.device) -> None:
        extents = dict.fromkeys(("tokens", "position", "sequence"), batch + chunk)
        extents |= {"first": chunk, "wanted": batch, "wanted_position": batch}
        self._offsets, end = {}, 0
        for name, count in extents.items():
            self._offsets[name] = slice(end, end + count)
            end += -(-count // _ALIGN) * _ALIGN
        self._rows = torch.zeros(end, dtype=torch.int32, device=device)
        self.views = {name: self._rows[own] for name, own in self._offsets.items()}
        self.views["sequence"][:batch] = torch.arange(batch)

    def write(self, rows: Mapping[str, NDArray[np.int32]]) -> None:
        """Enqueue the copy of all rows, without waiting for the device."""
        host = torch.zeros(len(self._rows), dtype=torch.int32, pin_memory=self._rows.is_cuda)
        for name, own in self._offsets.items():
            host[own] = torch.from_numpy(rows[name])
        self._rows.copy_(host, non_blocking=True)

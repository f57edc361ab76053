"""Launches of steps that read prompts in chunks, while other sequences decode.

A step pads its tokens of prompts to one of a few chunks (``models/step_rows``), each of which is a graph of its own:
it takes seconds to plan and compile, once, and is kept on disk. Launches are built when they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from interlace.models.step_rows import CHUNKS, PromptSegment, build_step_rows, select_chunk
from interlace.nn.decoder.launch import StepLaunch
from interlace.nn.decoder.library import measure_us

#: Builds the launches of a chunk on tensors of its rows, or returns a reason why there are none.
LaunchBuilder = Callable[[int, Mapping[str, torch.Tensor]], StepLaunch | str]
_ALIGN = 16  # elements to which tensors of a step's rows begin: 64 bytes
#: Rows of a step with prompts, sequences included: whole tiles of products. A step of 16 sequences and 128 tokens is
#: predicted to take a quarter longer than one of 112. 40 rows read a prompt of 32 tokens in a decoder of few slots.
_ROWS = 40, 64, 128, 256, 512
_LEAST = 16  # tokens of prompts for which a step is planned


def select_chunks(limit: int, batch: int) -> tuple[int, ...]:
    """Return the chunks for which launches are built, at most four: each takes seconds to plan and compile.

    Args:
        limit: most tokens of prompts that a step may read.
        batch: number of slots.
    """
    fit = [rows - batch for rows in _ROWS if _LEAST <= rows - batch <= limit]
    return tuple(dict.fromkeys((*fit[:3], *fit[-1:]))) or (select_chunk(min(limit, CHUNKS[-1])),)


class ChunkLaunches:
    """Launches of steps that read prompts, by number of rows of prompts.

    Args:
        batch: number of slots.
        capacity: positions that a slot may have.
        build_launch: see ``LaunchBuilder``.

    Attributes:
        launches: launches by chunk.
        reasons: reasons against launches, by chunk.
        alone_us: measured microseconds of a step in which no sequence decodes, by chunk.
    """

    def __init__(self, batch: int, capacity: int, device: torch.device, build_launch: LaunchBuilder) -> None:
        self.launches: dict[int, StepLaunch] = {}
        self.reasons: dict[int, str] = {}
        self.alone_us: dict[int, float] = {}
        self._batch, self._capacity, self._device, self._build_launch = batch, capacity, device, build_launch
        self._tensors: dict[int, _StepTensors] = {}

    def list_chunks(self, limit: int) -> list[int]:
        """Return the chunks of which launches exist or may be built, for steps of at most ``limit`` tokens."""
        return sorted({*select_chunks(limit, self._batch), *self.launches} - {*self.reasons})

    def build(self, chunk: int) -> None:
        """Build the launches of a chunk unless they exist, or note the reason against them."""
        if chunk in self.launches or chunk in self.reasons:
            return
        with torch.inference_mode(False):  # a trial run outside of that mode may write them
            tensors = _StepTensors(self._batch, chunk, self._device)
        launch = self._build_launch(chunk, tensors.views)
        if isinstance(launch, str):
            self.reasons[chunk] = launch
        else:
            self.launches[chunk], self._tensors[chunk] = launch, tensors

    def run(
        self,
        chunk: int,
        tokens: torch.Tensor | None,
        decoded: Mapping[int, int],
        segments: Sequence[PromptSegment],
    ) -> None:
        """Enqueue a step on the current stream.

        Args:
            tokens: (batch,) int32 on the device, token of each slot that decodes; None if none decodes.
            decoded: position of the token, by slot that decodes.
            segments: tokens of prompts.
        """
        positions = {slot: (0, at) for slot, at in decoded.items()}
        rows = build_step_rows(self._batch, chunk, self._capacity, positions, segments)
        tensors = self._tensors[chunk]
        tensors.write(rows)
        if tokens is not None:
            tensors.views["tokens"][: self._batch].copy_(tokens)
        self.launches[chunk].run()

    def measure_alone(self, chunk: int, segments: Sequence[PromptSegment]) -> None:
        """Time the step that reads segments while no sequence decodes; another such step changes nothing."""
        self.run(chunk, None, {}, segments)
        self.alone_us[chunk] = measure_us(self._device, self.launches[chunk].run)


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
        host = torch.empty(len(self._rows), dtype=torch.int32, pin_memory=self._rows.is_cuda)
        values = host.numpy()
        for name, own in self._offsets.items():
            values[own] = rows[name]
        self._rows.copy_(host, non_blocking=True)

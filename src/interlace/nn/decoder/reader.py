"""Choice of what reads prompts on a GPU: the launch of a step with a chunk, or PyTorch's own ops in a CUDA graph.

The choice is made for every step that reads prompts, by the time until all tokens that the step may read are read,
per token. Where sequences decode, this includes their steps, so that many prompts are read in few:

    1,024 tokens, nobody decodes     PyTorch's ops                 4,500 / 1,024              4.4, chosen
                                     chunks of 496, 496 and 48     (2 * 2,700 + 900) / 1,024  6.2
    496 tokens, 15 decode            PyTorch's ops, then a step    (3,400 + 837) / 496        8.5
                                     a chunk of 496 in the step    2,858 / 496                5.8, chosen
    8,192 tokens, 15 decode          PyTorch's ops, then a step    (36,000 + 837) / 8,192     4.5, chosen
                                     17 chunks of 496              17 * 2,858 / 8,192         5.9

Both are measured, on the tokens that are to be read. PyTorch's ops are measured first, which takes milliseconds.
Launches take seconds to build, so their time is predicted from bytes and FLOPs, and they are built only if the
prediction is the least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType
from interlace.models.llama import LlamaShape
from interlace.models.step_rows import PromptSegment
from interlace.models.weights import list_weights
from interlace.nn.decoder.chunks import ChunkLaunches
from interlace.nn.decoder.library import LibraryReader
from interlace.nn.decoder.prompt_queue import PromptQueue

_STREAM, _L2, _MATMUL = 0.9, 0.65, 0.5  # shares of the rates of memory, of the L2 and of matmuls that launches reach
_TILE_ROWS, _MOST_NARROW = 64, 128  # weight rows of a tile, which loads all rows up to so many; else twice as many
_LAYER_US = 15.0  # that any chunk adds to a layer: rotation and attention of its rows, and products of more than 16


@dataclass(frozen=True)
class Reading:
    """Tokens of prompts that are read at once, and by what.

    Attributes:
        segments: tokens of prompts.
        chunk: rows of prompts of the launch that reads them; None if PyTorch's own ops do.
        token_us: microseconds per token of the steps that read all tokens that this step might: one by PyTorch's ops,
            or those of chunks of this size and at most one smaller one.
        is_measured: False if ``token_us`` is predicted.
    """

    segments: list[PromptSegment]
    chunk: int | None = None
    token_us: float = 0.0
    is_measured: bool = True


@dataclass(frozen=True)
class ChunkCost:
    """Predicted time of steps that read prompts: the longest of memory, L2 and matmuls, and a time for each layer.

    Attributes:
        batch: number of slots.
        stream_us: microseconds to read all weights from memory.
        l2_us: microseconds to load all weights through the L2.
        token_us: microseconds of the products of a row.
        chunk_us: microseconds that any chunk adds.
    """

    batch: int
    stream_us: float
    l2_us: float
    token_us: float
    chunk_us: float

    @staticmethod
    def predict(shape: LlamaShape, batch: int, dtype: DType, weight_bytes: int, device: DeviceSpec) -> ChunkCost:
        """Predict from the bytes of weights that a step reads, and the FLOPs of a token."""
        products = sum(prod(extents) for name, extents in list_weights(shape).items() if name.startswith("layers."))
        return ChunkCost(
            batch,
            weight_bytes / (_STREAM * device.dram_bytes_per_s) * 1e6,
            weight_bytes / (_L2 * device.sm_l2_bytes_per_s * device.sms) * 1e6,
            2 * products / (_MATMUL * device.flops_per_s(dtype)) * 1e6,
            _LAYER_US * shape.layers,
        )

    @property
    def step_us(self) -> float:
        """Microseconds of a step without cached tokens and prompts."""
        return self._time_products_us(self.batch)

    def compute_more_us(self, chunk: int) -> float:
        """Return the microseconds that a chunk of so many rows adds to a step."""
        return self._time_products_us(self.batch + chunk) - self.step_us + self.chunk_us

    def _time_products_us(self, rows: int) -> float:
        wide = _TILE_ROWS if rows <= _MOST_NARROW else 2 * _TILE_ROWS
        return max(self.stream_us, self.l2_us * (1 + rows / wide), self.token_us * rows)


class PromptReader:
    """Choice among a decoder's launches and PyTorch's own ops.

    Args:
        cost: prediction for launches that are not built.
        step_us: measured microseconds of a step without prompts.
    """

    def __init__(self, chunks: ChunkLaunches, library: LibraryReader, cost: ChunkCost, step_us: float) -> None:
        self._chunks, self._library, self._cost, self._step_us = chunks, library, cost, step_us

    def select(self, queue: PromptQueue, limit: int, is_decoding: bool, can_build: bool = True) -> Reading:
        """Return what the next step reads; measure, and build launches, where that decides.

        Args:
            limit: most tokens that the step may read.
            is_decoding: True if sequences decode in the step.
            can_build: False to consider only launches that exist.

        Raises:
            HangError: the watchdog ended a wait of a launch that is measured.
            LaunchEndedError: such a launch ended itself, and with it the CUDA context.
        """
        segments = queue.select_segments(limit)
        total = sum(len(segment.tokens) for segment in segments)
        step_us = self._step_us if is_decoding else 0.0
        library = Reading(segments, None, (sum(map(self._measure_library, segments)) + step_us) / total)
        while True:
            options = [library, *self._list_launches(queue, total, limit, is_decoding, can_build)]
            best = min(options, key=lambda option: option.token_us)
            if best.is_measured:
                return best
            assert best.chunk is not None
            if best.chunk not in self._chunks.launches:
                self._chunks.build(best.chunk)
            else:
                self._chunks.measure_alone(best.chunk, best.segments)

    def describe(self, limit: int) -> str:
        """Return what reads prompts, with the times that decide."""
        times = sorted((bucket.tokens, us) for bucket, us in self._library.times_us.items() if not bucket.reach)
        known = ", ".join(f"{tokens} tokens in {us:.0f} us" for tokens, us in times)
        parts = [f"PyTorch's own ops in CUDA graphs read {known or 'prompts'}"]
        for chunk in sorted({*self._chunks.list_chunks(limit), *self._chunks.reasons}):
            if chunk in self._chunks.reasons:
                parts.append(f"no launches of chunks of {chunk}: {self._chunks.reasons[chunk]}")
                continue
            (alone, _), (us, is_measured) = (self._find_us(chunk, decoding) for decoding in (False, True))
            how, more = "" if is_measured else "predicted, ", us - self._step_us
            parts.append(f"launches read chunks of {chunk} in {alone:.0f} us ({how}{more:.0f} more than a step)")
        return f"{'; '.join(parts)}; the least time per token decides"

    def _measure_library(self, segment: PromptSegment) -> float:
        us = self._library.find_us(len(segment.tokens), segment.start)
        return self._library.measure_us(segment.tokens, segment.sequence, segment.start) if us is None else us

    def _list_launches(
        self, queue: PromptQueue, total: int, limit: int, is_decoding: bool, can_build: bool
    ) -> Iterator[Reading]:
        chunks = [c for c in self._chunks.list_chunks(limit) if can_build or c in self._chunks.launches]
        times = {chunk: self._find_us(chunk, is_decoding) for chunk in chunks}
        for chunk, (us, is_measured) in times.items():
            steps, rest = divmod(total, chunk)
            rest_us = min(us for size, (us, _) in times.items() if size >= rest) if rest else 0.0
            token_us = (steps * us + rest_us) / total
            if steps or rest_us == us:
                yield Reading(queue.select_segments(min(limit, chunk)), chunk, token_us, is_measured)

    def _find_us(self, chunk: int, is_decoding: bool) -> tuple[float, bool]:
        """Return the microseconds of a step with a chunk, and whether they are measured."""
        launch = self._chunks.launches.get(chunk)
        more = self._cost.compute_more_us(chunk)
        if launch is not None:
            more = launch.step_us - self._step_us
        if is_decoding:
            return self._step_us + more, launch is not None
        alone = self._chunks.alone_us.get(chunk)
        return (self._cost.step_us + more, False) if alone is None else (alone, True)

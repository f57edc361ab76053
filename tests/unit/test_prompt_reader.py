"""Choice of what reads prompts: by measured times of launches and PyTorch's ops, and predictions before they exist."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import interlace as il  # noqa: E402
from interlace.models.step_rows import PromptSegment  # noqa: E402
from interlace.nn.decoder.chunks import ChunkLaunches  # noqa: E402
from interlace.nn.decoder.library import Bucket  # noqa: E402
from interlace.nn.decoder.prompt_queue import PromptQueue  # noqa: E402
from interlace.nn.decoder.reader import ChunkCost, PromptReader  # noqa: E402
from interlace.workloads import LLAMAS  # noqa: E402

from ..linear_cost import LinearCost  # noqa: E402

BATCH, STEP_US = 16, 800.0


class Chunks(ChunkLaunches):
    """Launches with these microseconds more than a step, and 100 us less where no sequence decodes."""

    def __init__(self, more_us: dict[int, float]) -> None:
        super().__init__(BATCH, 4096, torch.device("cpu"), self.build_named)
        self.more_us, self.built = more_us, []

    def build_named(self, chunk: int, rows: dict[str, torch.Tensor]) -> object:
        assert rows["position"].shape == (BATCH + chunk,)
        self.built.append(chunk)
        return SimpleNamespace(step_us=STEP_US + self.more_us[chunk]) if chunk in self.more_us else "no plan"

    def measure_alone(self, chunk: int, segments: Sequence[PromptSegment]) -> None:
        assert sum(len(segment.tokens) for segment in segments) <= chunk
        self.alone_us[chunk] = STEP_US + self.more_us[chunk] - 100.0


class Library:
    """Reader that takes so many microseconds, and so many more per token."""

    def __init__(self, us: float, token_us: float) -> None:
        self.us, self.token_us, self.times_us = us, token_us, {}

    def find_us(self, tokens: int, start: int) -> float | None:
        return self.times_us.get(Bucket(tokens, start))

    def measure_us(self, tokens: Sequence[int], slot: int, start: int) -> float:
        return self.times_us.setdefault(Bucket(len(tokens), start), self.us + self.token_us * len(tokens))


def make_queue(*lengths: int) -> PromptQueue:
    queue = PromptQueue()
    for slot, length in enumerate(lengths):
        queue.add(slot, [7] * length, 0)
    return queue


def make_reader(library: Library, more_us: dict[int, float], token_us: float = 4.0) -> tuple[PromptReader, Chunks]:
    chunks = Chunks(more_us)
    return PromptReader(chunks, library, LinearCost(600.0, 60.0, token_us), STEP_US), chunks


def counts(segments: list[PromptSegment]) -> list[int]:
    return [len(segment.tokens) for segment in segments]


def test_launches_are_built_only_where_they_are_predicted_to_be_faster() -> None:
    reader, chunks = make_reader(Library(2000.0, 2.4), {48: 300.0, 112: 640.0, 496: 2000.0})
    # Alone, 32 tokens: the library's 2077 us, a chunk of 48 predicted in 852.
    reading = reader.select(make_queue(32), 2048, is_decoding=False)
    assert (reading.chunk, counts(reading.segments), reading.token_us, chunks.built) == (48, [32], 1000 / 32, [48])
    # 1,024 tokens: 4458 us; chunks of 496, 496 and 48 are predicted in 2 * 2644 + 1000.
    reading = reader.select(make_queue(1024), 2048, is_decoding=False)
    assert (reading.chunk, counts(reading.segments), chunks.built) == (None, [1024], [48])
    # While others decode a step with 496 tokens is predicted to take 2844 us, and takes 2800; the library 3990.
    reading = reader.select(make_queue(1024), 496, is_decoding=True)
    assert (reading.chunk, counts(reading.segments), reading.token_us) == (496, [496], 2800 / 496)
    assert chunks.built == [48, 496]


def test_short_prompts_share_a_chunk() -> None:
    reader, _ = make_reader(Library(900.0, 2.0), {48: 300.0, 112: 640.0, 496: 2000.0})
    reading = reader.select(make_queue(*[32] * 20), 2048, is_decoding=False)
    assert (reading.chunk, counts(reading.segments)) == (496, [32] * 15 + [16])
    reading = reader.select(make_queue(32, 30, 40), 496, is_decoding=True)
    assert (reading.chunk, counts(reading.segments)) == (112, [32, 30, 40])


def test_chunks_are_compared_by_all_that_is_left_to_read() -> None:
    reader, _ = make_reader(Library(9000.0, 2.0), {48: 300.0, 112: 640.0, 496: 2000.0})
    for total, chunk, us in ((48, 48, 1100), (49, 112, 1440), (97, 112, 1440), (130, 112, 2396)):
        reading = reader.select(make_queue(total), 496, is_decoding=True)
        assert (reading.chunk, round(reading.token_us * total)) == (chunk, us)


def test_steps_that_may_read_many_tokens_are_few() -> None:
    """16 prompts of 512 tokens: by PyTorch's ops in one step, not in 17 with a chunk, whose tokens cost less."""
    reader, _ = make_reader(Library(200.0, 5.0), {48: 300.0, 112: 640.0, 496: 2000.0})
    reading = reader.select(make_queue(*[512] * 16), 8192, is_decoding=True)
    assert (reading.chunk, counts(reading.segments)) == (None, [512] * 16)
    assert reading.token_us == pytest.approx((16 * (200 + 5 * 512) + STEP_US) / 8192)
    reading = reader.select(make_queue(*[512] * 16), 496, is_decoding=True)
    assert (reading.chunk, counts(reading.segments)) == (496, [496])


def test_a_launch_that_is_measured_to_be_slower_is_not_used() -> None:
    reader, chunks = make_reader(Library(1000.0, 1.0), {48: 5000.0})
    for decoding in (False, True):
        reading = reader.select(make_queue(40), 48, is_decoding=decoding)
        assert (reading.chunk, counts(reading.segments), chunks.built) == (None, [40], [48])


def test_without_launches_pytorch_reads_and_the_reason_is_noted() -> None:
    reader, chunks = make_reader(Library(1000.0, 1.0), {})
    reading = reader.select(make_queue(40, 5), 100, is_decoding=True)
    assert (reading.chunk, counts(reading.segments), chunks.built) == (None, [40, 5], [48, 24])
    assert reader.describe(48) == (
        "PyTorch's own ops in CUDA graphs read 5 tokens in 1005 us, 40 tokens in 1040 us; no launches of chunks of 24: "
        "no plan; no launches of chunks of 48: no plan; the least time per token decides"
    )


def test_launches_are_not_built_where_only_those_that_exist_may_run() -> None:
    reader, chunks = make_reader(Library(9000.0, 1.0), {48: 300.0})
    assert reader.select(make_queue(40), 48, is_decoding=False, can_build=False).chunk is None
    chunks.build(48)
    assert reader.select(make_queue(40), 48, is_decoding=False, can_build=False).chunk == 48


def test_the_report_says_what_was_measured_and_what_is_predicted() -> None:
    reader, _ = make_reader(Library(2000.0, 2.4), {48: 300.0, 112: 640.0})
    reader.select(make_queue(32), 112, is_decoding=False)
    assert reader.describe(112) == (
        "PyTorch's own ops in CUDA graphs read 32 tokens in 2077 us; launches read chunks of 24 in 756 us (predicted, "
        "156 more than a step); launches read chunks of 48 in 1000 us (300 more than a step); launches read chunks of "
        "112 in 1108 us (predicted, 508 more than a step); the least time per token decides"
    )


def test_predictions_follow_memory_l2_and_flops() -> None:
    """Steps of Llama-3.2-1B and 3.1-8B on an H200; measured were 914, 985, 290, 590 and 2000 us of the first."""
    one = ChunkCost.predict(LLAMAS["llama3.2-1b"], 1, il.bf16, 2_471_000_000, il.H200)
    assert one.stream_us == one.step_us == pytest.approx(2.471e9 / (0.9 * il.H200.dram_bytes_per_s) * 1e6)
    assert one.token_us == pytest.approx(2 * 973e6 / (0.5 * il.H200.flops_per_s(il.bf16)) * 1e6, rel=1e-2)
    assert [round(one.step_us + one.compute_more_us(chunk)) for chunk in (39, 63)] == [846, 926]
    many = ChunkCost.predict(LLAMAS["llama3.2-1b"], 16, il.bf16, 2_471_000_000, il.H200)
    assert [round(many.compute_more_us(chunk)) for chunk in (48, 112, 496)] == [320, 662, 2157]
    large = ChunkCost.predict(LLAMAS["llama3.1-8b"], 1, il.bf16, 15_010_000_000, il.H200)
    assert large.compute_more_us(39) == 15.0 * 32, "40 rows cost no more than the weights"

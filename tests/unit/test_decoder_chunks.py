"""A decoder whose steps read prompts in chunks, on the CPU: the same texts, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from interlace.core.errors import ArgumentError, LengthError, PageError, SlotError  # noqa: E402
from interlace.models.step_rows import PromptSegment  # noqa: E402
from interlace.nn import Decoder, SlotSampling  # noqa: E402
from interlace.nn.decoder.chunks import ChunkLaunches, select_chunks  # noqa: E402
from interlace.nn.decoder.reader import PromptReader, Reading  # noqa: E402

from ..linear_cost import LinearCost  # noqa: E402
from .llama import ToyForCausalLM, oracle, relative_error  # noqa: E402

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [7], [53, 58, 9], [*range(20, 33)]]


@pytest.fixture(scope="module")
def model() -> ToyForCausalLM:
    return ToyForCausalLM()


@pytest.mark.parametrize("pages", [None, 3])
@pytest.mark.parametrize("chunk", [1, 4, 5, 100])
def test_texts_are_the_same_with_chunks_of_any_size(model: ToyForCausalLM, pages: int | None, chunk: int) -> None:
    """More prompts than slots, greedy and sampled."""
    decoder = Decoder.from_model(model, batch=2, max_seq_len=24, num_blocks=pages)
    ways = ({}, {"temperature": 1.5, "top_k": 30, "seed": 4})
    whole = [decoder.generate(PROMPTS, 6, **way) for way in ways]
    decoder.read_in_chunks(chunk)
    assert [decoder.generate(PROMPTS, 6, **way) for way in ways] == whole
    assert (decoder.lengths, dict(decoder.unread), decoder.active_slots) == ((0, 0), {}, ())


def test_sequences_decode_while_a_prompt_is_read(model: ToyForCausalLM) -> None:
    decoder = Decoder.from_model(model, batch=3, max_seq_len=24)
    decoder.read_in_chunks(4)
    first = decoder.add(PROMPTS[2])
    assert (decoder.unread, decoder.lengths) == ({first: 3}, (0, 0, 0))
    decoder.step([0, 0, 0])  # nobody decodes yet
    text = list(PROMPTS[2])
    second, third = decoder.add(PROMPTS[0]), decoder.add(PROMPTS[1])
    for unread in ({second: 7, third: 1}, {second: 3, third: 1}, {}):
        text.append(int(decoder.next[first]))
        logits, following = decoder.step()
        assert relative_error(logits[first], oracle(model, decoder.shape, text)[-1]) < 1e-6
        assert decoder.unread == unread
    assert decoder.lengths == (6, 11, 1)
    for slot, prompt in ((second, PROMPTS[0]), (third, PROMPTS[1])):
        right = oracle(model, decoder.shape, prompt)[-1]
        assert relative_error(logits[slot], right) < 1e-6
        assert following[slot] == right.argmax()
    decoder.step()
    assert decoder.lengths == (7, 12, 2)


def test_a_prompt_that_is_not_read_is_no_sequence_yet_and_may_be_aborted(model: ToyForCausalLM) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=24)
    decoder.read_in_chunks(4)
    slot = decoder.add(PROMPTS[0])
    decoder.step()
    for act in (lambda: decoder.prefill([1], slot), lambda: decoder.kv_cache(slot), lambda: decoder.read_in_chunks(8)):
        with pytest.raises(SlotError, match="slot 0 has 7 tokens of its prompt left to read; run steps until"):
            act()
    decoder.abort(slot)
    assert (decoder.unread, decoder.active_slots) == ({}, ())
    with pytest.raises(SlotError):
        decoder.step()
    decoder.read_in_chunks(None)
    decoder.add(PROMPTS[0])
    assert relative_error(decoder.logits[0], oracle(model, decoder.shape, PROMPTS[0])[-1]) < 1e-6


def test_what_no_chunk_can_be_is_refused_before_anything_changes(model: ToyForCausalLM) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=128, num_blocks=1)
    for chunk in (0, -3):
        with pytest.raises(ArgumentError, match=f"chunk is {chunk}; give a positive number"):
            decoder.read_in_chunks(chunk)
    decoder.read_in_chunks(16)
    with pytest.raises(PageError, match="need 2 more pages of 64 positions, and 1 of the 1 are free"):
        decoder.add([1] * 65)
    with pytest.raises(LengthError, match="a prompt of 129 tokens: that is more than the max_seq_len of 128"):
        decoder.add([1] * 129)
    assert (decoder.unread, decoder.active_slots, decoder.lengths) == ({}, (), (0, 0))


def test_a_prompt_may_end_at_the_capacity(model: ToyForCausalLM) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=11)
    decoder.read_in_chunks(4)
    slot, other = decoder.add(PROMPTS[0]), decoder.add(PROMPTS[2], sampling=SlotSampling(temperature=1.0))
    for _ in range(3):
        decoder.step()
    assert (decoder.lengths, decoder.unread) == ((11, 1), {other: 2})
    assert relative_error(decoder.logits[slot], oracle(model, decoder.shape, PROMPTS[0])[-1]) < 1e-6
    with pytest.raises(LengthError, match="slot 0, 11 positions and 1 more"):
        decoder.step()
    decoder.abort(slot)
    decoder.step()
    assert (decoder.lengths, decoder.unread) == ((0, 3), {})


def test_a_step_that_fails_leaves_prompts_as_they_were(model: ToyForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=24)
    first = decoder.add(PROMPTS[2])
    decoder.read_in_chunks(8)
    second = decoder.add(PROMPTS[0])

    def fail(*given: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    token = int(decoder.next[first])
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "_read_tokens", fail)
        with pytest.raises(torch.OutOfMemoryError):
            decoder.step()
    assert (decoder.lengths, decoder.unread) == ((4, 0), {second: 11})
    decoder.step()
    decoder.step()
    right = oracle(model, decoder.shape, PROMPTS[0])[-1]
    assert relative_error(decoder.logits[second], right) < 1e-6
    assert decoder.lengths == (6, 11)
    assert token == oracle(model, decoder.shape, PROMPTS[2])[-1].argmax()


def test_few_chunks_have_launches() -> None:
    cases = ((1, 1), (16, 16), (40, 16), (128, 16), (5000, 16), (512, 64), (512, 500))
    found = [select_chunks(*case) for case in cases]
    assert found == [(16,), (16,), (24,), (24, 48, 112), (24, 48, 112, 496), (64, 192, 448), (512,)]


@pytest.mark.parametrize("size", [1, 4, 100])
def test_a_stream_reads_chunks_of_its_own_size_and_leaves_the_decoder_s(model: ToyForCausalLM, size: int) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=24)
    whole = decoder.generate(PROMPTS, 6)
    most = []

    def count(reading: Reading, *given: object) -> None:
        most.append(sum(len(segment.tokens) for segment in reading.segments))
        run(reading, *given)

    run, decoder._run_reading = decoder._run_reading, count
    assert decoder.generate(PROMPTS, 6, chunked_prefill_size=size) == whole
    assert max(most) == min(size, 16)  # 3 and 13 tokens wait at once
    most.clear()
    assert decoder.generate(PROMPTS, 6) == whole
    assert max(most) == max(map(len, PROMPTS))
    decoder.read_in_chunks(3)
    stream = decoder.stream(PROMPTS, 6, chunked_prefill_size=-1)
    most.clear()
    next(stream)
    assert most == [11, 1]
    stream.close()
    most.clear()
    assert decoder.generate(PROMPTS, 6) == whole
    assert max(most) == 3


def test_a_size_that_no_chunk_has_is_refused(model: ToyForCausalLM) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=24)
    for size in (0, -2):
        with pytest.raises(
            ArgumentError, match=f"chunked_prefill_size is {size}; give a positive number of tokens, -1"
        ):
            decoder.generate(PROMPTS, 6, chunked_prefill_size=size)
    with pytest.raises(ArgumentError, match="chunked_prefill_size"):
        decoder.stream(PROMPTS, 6, chunked_prefill_size="8")
    assert decoder.active_slots == ()
    decoder.build_chunks()  # nothing to build


class FakeChunks(ChunkLaunches):
    """Launches of a decoder, by PyTorch's ops: a step that decodes, then reads."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder.batch, decoder.max_seq_len, decoder.device, lambda chunk, rows: make_launch(chunk))
        self.decoder, self.ran = decoder, []

    def run(
        self, chunk: int, tokens: torch.Tensor | None, decoded: dict[int, int], segments: list[PromptSegment]
    ) -> None:
        assert sum(len(segment.tokens) for segment in segments) <= chunk
        assert (tokens is None) == (not decoded)
        self.ran.append((chunk, len(decoded)))
        ours = self.decoder
        if decoded:
            position = ours._slots.position.clone()
            ours._slots.redirect_writes()
            ours._run_plain(max(decoded.values()) + 1)
            ours._slots.position.copy_(position)
        for segment in segments:
            ours._read_tokens([*segment.tokens], segment.sequence, segment.start)

    def measure_alone(self, chunk: int, segments: list[PromptSegment]) -> None:
        self.alone_us[chunk] = 2.0 * chunk


def make_launch(chunk: int) -> SimpleNamespace:
    return SimpleNamespace(step_us=100.0 + 2.0 * chunk)


@pytest.mark.parametrize("library_us", [1.0, 5000.0], ids=["PyTorch reads", "launches read"])
@pytest.mark.parametrize("pages", [None, 3])
def test_texts_are_the_same_whatever_reads_the_prompts(
    model: ToyForCausalLM, pages: int | None, library_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=24, num_blocks=pages)
    ways = ({}, {"temperature": 1.5, "top_k": 30, "seed": 4})
    whole = [decoder.generate(PROMPTS, 6, **way) for way in ways]
    monkeypatch.setattr(decoder._library, "find_us", lambda tokens, start: library_us)
    decoder._chunks = FakeChunks(decoder)
    decoder._reader = PromptReader(decoder._chunks, decoder._library, LinearCost(10.0, 1.0, 1.0), 100.0)
    assert [decoder.generate(PROMPTS, 6, **way, chunked_prefill_size=4) for way in ways] == whole
    assert bool(decoder._chunks.launches) == bool(decoder._chunks.ran) == (library_us > 1.0)
    if library_us > 1.0:
        assert {decoding for _, decoding in decoder._chunks.ran} == {0, 1}
        names = []
        decoder.build_chunks(lambda every: (names.append(name) or name for name in every))
        assert names == [f"chunks of {chunk} tokens" for chunk in (38, 62, 126, 510)]
        assert "launches read chunks of 16 in 32 us (32 more than a step)" in str(decoder.explain())
    for size in (None, -1):
        assert decoder.generate(PROMPTS, 6, chunked_prefill_size=size) == whole[0]


def test_no_launch_is_built_for_prompts_unless_allowed(model: ToyForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=24)
    whole = decoder.generate(PROMPTS, 6)
    decoder._chunks = FakeChunks(decoder)
    decoder._reader = PromptReader(decoder._chunks, decoder._library, LinearCost(10.0, 1.0, 1.0), 100.0)
    decoder.read_in_chunks(16, can_build=False)
    assert decoder.generate(PROMPTS, 6) == whole, "and PyTorch's ops are not timed either"
    assert (decoder._chunks.launches, decoder._chunks.ran) == ({}, [])
    monkeypatch.setattr(decoder._library, "find_us", lambda tokens, start: 5000.0)
    decoder._chunks.build(16)
    assert decoder.generate(PROMPTS, 6) == whole
    assert ([*decoder._chunks.launches], bool(decoder._chunks.ran)) == ([16], True), "those that exist run"

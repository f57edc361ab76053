"""Prompts that PyTorch's own ops read in graphs of fixed shapes: on the CPU, op by op, against the decoder's oracle."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from interlace.nn import Decoder  # noqa: E402
from interlace.nn.decoder.library import BUCKETS, Bucket, find_bucket, measure_us  # noqa: E402

from .llama import ToyForCausalLM, oracle, relative_error  # noqa: E402

CAPACITY = 100  # positions, not whole pages


@pytest.fixture(scope="module")
def model() -> ToyForCausalLM:
    return ToyForCausalLM()


def read(decoder: Decoder, tokens: list[int], slot: int, start: int, bucket: Bucket) -> torch.Tensor:
    """Read tokens as a GPU does, and return the logits."""
    with torch.inference_mode():
        decoder._library.write_inputs(tokens, slot, start)
        decoder._library.enqueue(bucket)
    return decoder.logits[slot]


@pytest.mark.parametrize("pages", [None, 7], ids=["plain", "pages"])
def test_padded_prompts_are_those_of_the_oracle_and_write_no_other_row(
    model: ToyForCausalLM, pages: int | None
) -> None:
    """Prompts in two pieces cut anywhere, in poisoned caches, in a slot of pages that are not in order."""
    decoder = Decoder.from_model(model, batch=3, max_seq_len=CAPACITY, num_blocks=pages)
    prompt = torch.randint(61, (CAPACITY,), generator=torch.Generator().manual_seed(1)).tolist()
    right = oracle(model, decoder.shape, prompt)
    decoder.abort(decoder.add([1] * 70))
    decoder.add([1])
    slot = decoder.kv_cache().slot
    decoder._slots.grow({slot: CAPACITY})
    decoder._slots.upload()
    for count in (1, 31, 32, 33, 64, 99):
        for tensor in (*decoder.cache.k, *decoder.cache.v):
            tensor.fill_(float("nan"))
        logits = read(decoder, prompt[:count], slot, 0, find_bucket(count, 0, CAPACITY))
        assert relative_error(logits, right[count - 1]) < 1e-5  # angles are in float32
        assert decoder.next[slot] == right[count - 1].argmax()
        cached = decoder.cache.k[0].isfinite()[..., 0].sum().item()
        assert cached == count * decoder.shape.kv_heads
        more = min(40, CAPACITY - count)
        bucket = find_bucket(more, count, CAPACITY)
        assert bucket.reach == CAPACITY
        logits = read(decoder, prompt[count : count + more], slot, count, bucket)
        assert relative_error(logits, right[count + more - 1]) < 1e-5
        assert decoder.cache.v[1].isfinite()[..., 0].sum().item() == cached + more * decoder.shape.kv_heads


def test_padding_reaches_nothing(model: ToyForCausalLM) -> None:
    """The same bits whatever ids lie after the last."""
    decoder = Decoder.from_model(model, batch=2, max_seq_len=CAPACITY)
    for start in (0, 6):
        found = []
        for padding in (0, 60):
            decoder._library._inputs.fill_(padding)
            read(decoder, [3, 1, 4, 1, 5, 9], 1, 0, Bucket(32, 0))
            logits = read(decoder, [2, 6, 5], 1, start, find_bucket(3, start, CAPACITY))
            found.append((logits.clone(), decoder.cache.k[1].clone()))
        assert all(torch.equal(*both) for both in zip(*found, strict=True))


def test_few_buckets_cover_prompts_of_any_length() -> None:
    cases = ((1, 0), (32, 0), (33, 0), (1056, 0), (2048, 0), (5, 1), (100, 200), (500, 3000), (2048, 2000))
    found = [find_bucket(*case, 4096) for case in cases]
    right = [(32, 0), (32, 0), (64, 0), (1280, 0), (2048, 0), (32, 256), (128, 512), (512, 4096), (2048, 4096)]
    assert found == [Bucket(*each) for each in right]
    assert all(find_bucket(n, 0, 4096).tokens <= 1.25 * n for n in range(128, 2049))
    assert len({find_bucket(n, at, 4096) for n in BUCKETS for at in range(0, 4096 - n + 1, 16)}) == 19 + 67


@pytest.mark.parametrize(
    ("us", "calls", "least"), [([9, 3, 4, 2], 4, 2), ([9e3, 3e3, 4e3, 2e3], 3, 3e3), ([1, 6e3], 2, 6e3)]
)
def test_what_takes_long_is_timed_less_often(
    us: list[float], calls: int, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call never counts, and one more always does."""
    times = iter(us)
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _: next(times) / 1e3)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    made: list[int] = []
    assert measure_us(torch.device("cpu"), lambda: made.append(1)) == least
    assert len(made) == calls


def test_graphs_are_given_up_where_memory_has_no_room_for_one_more(
    model: ToyForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none is left to give up, the error is the caller's. No error, which holds tensors, lives in a retry."""
    library = Decoder.from_model(model, batch=1, max_seq_len=CAPACITY)._library
    room, tried = 2, []

    def capture(bucket: Bucket) -> object:
        assert sys.exc_info()[0] is None
        tried.append(bucket.tokens)
        if len(library._graphs) >= room:
            raise torch.OutOfMemoryError("no room")
        return SimpleNamespace(replay=lambda: None)

    monkeypatch.setattr(library, "_capture", capture)
    for tokens in (32, 64, 128):
        library._run(Bucket(tokens, 0))
    assert [*library._graphs] == [Bucket(128, 0)]
    library._run(Bucket(32, 0))
    assert [*library._graphs] == [Bucket(128, 0), Bucket(32, 0)]
    room = 0
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="no room"):
            library._run(Bucket(64, 0))
    assert tried == [32, 64, 128, 128, 32, 64, 64, 64], "the last time there was nothing to give up"

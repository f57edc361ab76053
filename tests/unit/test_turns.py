"""One user of a decoder at a time: threads, streams and calls that overlap are refused, and change no text."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from interlace.core.errors import ArgumentError, BusyError, SlotError  # noqa: E402
from interlace.nn import Decoder  # noqa: E402
from interlace.nn.decoder import step as plain  # noqa: E402
from interlace.nn.decoder.exclusive_lock import ExclusiveLock  # noqa: E402

from .llama import ToyForCausalLM  # noqa: E402

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [53, 58, 9]]


@pytest.fixture(scope="module")
def model() -> ToyForCausalLM:
    return ToyForCausalLM()


@pytest.fixture
def decoder(model: ToyForCausalLM) -> Decoder:
    return Decoder.from_model(model, batch=3, max_seq_len=16)


def in_thread(act: Callable[[], object]) -> Any:
    """Return what a call returns in another thread, or the error that it raises."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(act())
        except Exception as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


CALLS: dict[str, Callable[[Decoder], object]] = {
    "generate": lambda d: d.generate([1], 2),
    "stream": lambda d: next(d.stream([1], 2)),
    "add": lambda d: d.add([1]),
    "abort": lambda d: d.abort(0),
    "step": lambda d: d.step(),
    "prefill": lambda d: d.prefill([1], 0),
    "kv_cache": lambda d: d.kv_cache(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("thread", [False, True], ids=["same thread", "another thread"])
def test_a_stream_has_the_decoder_until_it_ends(decoder: Decoder, name: str, thread: bool) -> None:
    right = decoder.generate(PROMPTS, 5)
    stream = decoder.stream(PROMPTS, 5)
    pieces = [next(stream)]
    try:
        found = in_thread(lambda: CALLS[name](decoder)) if thread else CALLS[name](decoder)
    except BusyError as error:
        found = error
    assert isinstance(found, BusyError)
    assert "Decoder.stream is under way; let it end (a stream is read to its end, or closed)" in str(found)
    pieces += stream
    assert [[p.token for p in pieces if p.sequence == n] for n in range(3)] == right
    slot = decoder.add([1])
    decoder.abort(slot)


@pytest.mark.parametrize("outer", ["generate", "step", "add", "prefill"])
@pytest.mark.parametrize("inner", CALLS)
def test_a_call_during_another_is_refused(
    decoder: Decoder, outer: str, inner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one comes from a thread, and again from within, as from a hook."""
    right = decoder.generate([1], 2)
    found: list[Any] = []
    name = "decode" if outer in ("generate", "step") else "prefill"
    original = getattr(plain, name)

    def meanwhile(*arguments: Any) -> Any:
        if not found:
            found.append(in_thread(lambda: CALLS[inner](decoder)))
            with pytest.raises(BusyError, match=rf"Decoder\.{outer} is under way"):
                CALLS[inner](decoder)
        return original(*arguments)

    if outer in ("step", "prefill"):
        decoder.add([1])
    monkeypatch.setattr(plain, name, meanwhile)
    text = CALLS[outer](decoder)
    assert isinstance(found[0], BusyError)
    assert outer != "generate" or text == right
    assert decoder.active_slots == (() if outer == "generate" else (0,))


def test_threads_that_generate_at_once_get_their_own_text_or_an_error(model: ToyForCausalLM) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=16)
    right = [decoder.generate([prompt], 6) for prompt in PROMPTS]
    texts: list[list[Any]] = [[], [], []]
    ready = threading.Barrier(3)

    def run(number: int) -> None:
        ready.wait()
        for _ in range(12):
            try:
                texts[number].append(decoder.generate([PROMPTS[number]], 6))
            except BusyError as error:
                texts[number].append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, found in enumerate(texts):
        assert len(found) == 12, "no thread ended with another error"
        assert all(text == right[number] for text in found if not isinstance(text, BusyError))
    assert any(not isinstance(text, BusyError) for found in texts for text in found)
    assert decoder.active_slots == ()


def test_threads_that_take_turns_by_a_lock_serve_sequences_together(model: ToyForCausalLM) -> None:
    decoder = Decoder.from_model(model, batch=2, max_seq_len=16)
    slots = [in_thread(lambda prompt=prompt: decoder.add(prompt)) for prompt in PROMPTS[:2]]
    for _ in range(3):
        in_thread(decoder.step)
    tokens = decoder.next.tolist()
    for slot in slots:
        in_thread(lambda slot=slot: decoder.abort(slot))
    assert tokens == [decoder.generate(prompt, 4)[-1] for prompt in PROMPTS[:2]]


def test_threads_read_one_stream_in_turn(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    right = decoder.generate(PROMPTS[0], 4)
    stream = decoder.stream(PROMPTS[0], 4)
    assert [in_thread(lambda: next(stream)).token for _ in range(4)] == right
    assert isinstance(in_thread(lambda: next(stream)), StopIteration)
    stream, found = decoder.stream(PROMPTS[0], 4), []
    original = plain.decode

    def meanwhile(*arguments: Any) -> Any:
        found.extend([in_thread(lambda: next(stream)), in_thread(stream.close)])
        return original(*arguments)

    monkeypatch.setattr(plain, "decode", meanwhile)
    assert [piece.token for piece in stream] == right
    assert found
    assert all(isinstance(error, BusyError) for error in found)


def test_two_streams_of_one_thread_do_not_interleave(decoder: Decoder) -> None:
    right = [decoder.generate(prompt, 3) for prompt in PROMPTS]
    first, second = decoder.stream(PROMPTS[0], 3), decoder.stream(PROMPTS[1], 3)
    pieces = [next(first)]
    with pytest.raises(BusyError, match=r"Decoder\.stream: Decoder\.stream is under way"):
        next(second)
    with pytest.raises(BusyError, match=r"Decoder\.stream: other sequences hold slots \[0\]"):
        decoder.stream(PROMPTS[2], 3)
    pieces += first
    assert [piece.token for piece in pieces] == right[0]
    assert [piece.token for piece in second] == right[1], "one that was refused begins later, and is not empty"
    assert decoder.generate(PROMPTS[2], 3) == right[2]


def test_a_stream_that_finds_slots_taken_begins_when_they_are_free(decoder: Decoder) -> None:
    right = decoder.generate(PROMPTS[0], 3)
    stream = decoder.stream(PROMPTS[0], 3)
    slot = decoder.add([1])
    with pytest.raises(SlotError, match=r"other sequences hold slots \[0\]; abort them"):
        next(stream)
    decoder.abort(slot)
    assert [piece.token for piece in stream] == right


def _forget(stream: Iterator[Any]) -> None:
    stream.close()


def _fail(stream: Iterator[Any]) -> None:
    with suppress(ZeroDivisionError):
        for _ in stream:
            raise ZeroDivisionError


def _circle(stream: Iterator[Any]) -> None:
    itself = [stream]
    itself.append(itself)


@pytest.mark.parametrize("leave", [_forget, _fail, _circle, lambda stream: None], ids=["close", "fail", "gc", "drop"])
@pytest.mark.parametrize("thread", [False, True], ids=["same thread", "another thread"])
def test_a_stream_that_is_left_frees_the_decoder(
    decoder: Decoder, leave: Callable[[Iterator[Any]], None], thread: bool
) -> None:
    def act() -> None:
        stream = decoder.stream(PROMPTS, 3)
        next(stream)
        leave(stream)

    in_thread(act) if thread else act()
    gc.collect()
    assert decoder.active_slots == ()
    assert len(decoder.generate([1], 3)) == 3


def test_a_text_that_fails_frees_the_decoder(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    right, original = decoder.generate(PROMPTS[0], 4), plain.decode
    for error in (torch.OutOfMemoryError("out"), KeyboardInterrupt()):

        def fails(*arguments: Any, error: BaseException = error) -> Any:
            raise error

        monkeypatch.setattr(plain, "decode", fails)
        for act in (lambda: decoder.generate(PROMPTS[0], 4), lambda: [*decoder.stream(PROMPTS[0], 4)]):
            with pytest.raises(type(error)):
                act()
        slot = decoder.add([1])
        with pytest.raises(type(error)):
            decoder.step()
        decoder.abort(slot)
    monkeypatch.setattr(plain, "decode", original)
    assert decoder.generate(PROMPTS[0], 4) == right


def test_turns_of_one_decoder_are_its_own(model: ToyForCausalLM, decoder: Decoder) -> None:
    other = Decoder.from_model(model, batch=1, max_seq_len=16)
    first, second = decoder.stream(PROMPTS[0], 4), other.stream(PROMPTS[0], 4)
    assert [a.token for a, b in zip(first, second, strict=True) if a == b] == other.generate(PROMPTS[0], 4)


def test_a_turn_ends_with_its_context() -> None:
    turns = ExclusiveLock()
    with pytest.raises(ZeroDivisionError), turns.acquire("first"):
        raise ZeroDivisionError
    with turns.acquire("second"), pytest.raises(BusyError, match="third: second is under way"), turns.acquire("third"):
        pass
    with turns.acquire("fourth"):
        pass


# ---------------------------------------------------------------- stops


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (np.array(3), r"generate: stop_token_ids is 3; give the ids that end a text, as \[3\], or \[\] for none"),
        (torch.tensor(3), r"stop_token_ids is 3; give the ids that end a text, as \[3\]"),
        (3.0, r"stop_token_ids is 3\.0; give the ids"),
        ("ab", r"stop_token_ids is 'ab'; give the ids"),
        (b"ab", r"stop_token_ids is b'ab'; give the ids"),
        ({2: 3}, r"stop_token_ids is {2: 3}; give the ids"),
        (10**5000, r"stop_token_ids is an int of 16,610 bits; give the ids that end a text, as \[2\]"),
        (torch.tensor([3], device="meta"), r"stop_token_ids is a tensor that is on the device meta"),
        (torch.tensor([3]).to_sparse(), r"stop_token_ids is a tensor that has layout torch.sparse_coo"),
        (torch.tensor([3.0]), r"stop_token_ids is a tensor of torch.float32"),
        (np.array([3.0]), r"stop_token_ids is an array of float64"),
        (torch.tensor([[3]]), r"stop_token_ids\[0\] is \[3\]"),
        ([None], r"stop_token_ids\[0\] is None"),
        ([True], r"stop_token_ids\[0\] is True"),
        ([torch.tensor(3, device="meta")], r"stop_token_ids\[0\] is a Tensor"),
        (itertools.count(), "stop has more than 1048576 ids; give those that end a text"),
        (range(10**12), "stop has more than 1048576 ids"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_stops_that_are_no_ids_are_refused(decoder: Decoder, stop: Any, message: str) -> None:
    for act in (decoder.generate, decoder.stream):
        with pytest.raises(ArgumentError, match=message):
            act([1], 5, stop_token_ids=stop)
    assert decoder.active_slots == ()


def test_stops_may_come_in_any_collection(model: ToyForCausalLM, decoder: Decoder) -> None:
    text = decoder.generate(PROMPTS[0], 6)
    end = text[3]
    right = text[: text.index(end)]
    for stop in ([end], (end,), {end}, np.array([end]), torch.tensor([end]), iter([end]), range(end, end + 1)):
        assert decoder.generate(PROMPTS[0], 6, stop_token_ids=stop) == right
    assert decoder.generate(PROMPTS[0], 6, stop_token_ids=[]) == text
    with pytest.raises(ArgumentError, match=r"Decoder: stop_token_ids is 3; give the ids that end a text, as \[3\]"):
        Decoder.from_weights(decoder.shape, decoder._weights, decoder._rope, stop_token_ids=np.array(3))

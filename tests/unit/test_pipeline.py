"""Pipelines of chunks on a CPU: order, bounded memory, back-pressure, and what is left when a chunk fails."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from interlace.core.errors import ArgumentError, ChunkError, DeviceError, NoDeviceError, ShapeError  # noqa: E402
from interlace.streams import lanes, pipeline  # noqa: E402


def numbers(n: int) -> Any:
    return torch.full((4, 3), float(n))


def flatten(_: object, result: Any) -> list[float]:
    return result.flatten().tolist()


def twice(x: Any) -> Any:
    return 2 * x


def run(chunks: Any, compute: Any = twice, upload: Any = numbers, download: Any = flatten, **options: Any) -> Any:
    return pipeline(chunks, upload, compute, download, device="cpu", **options)


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Memory of all buffers made from now on."""
    made: list[weakref.ref[Any]] = []
    init = lanes.Buffer.__init__

    def note_buffer(self: lanes.Buffer, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        made.append(weakref.ref(self))

    monkeypatch.setattr(lanes.Buffer, "__init__", note_buffer)
    return made


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Tensors that share memory with a buffer, made from now on: one that somebody keeps keeps all of it."""
    made: list[weakref.ref[Any]] = []
    like = lanes.Buffer.view_like

    def note_view(self: lanes.Buffer, tensor: Any) -> Any:
        view = like(self, tensor)
        made.append(weakref.ref(view))
        return view

    monkeypatch.setattr(lanes.Buffer, "view_like", note_view)
    return made


def alive(buffers: list[weakref.ref[Any]]) -> int:
    gc.collect()
    return sum(buffer() is not None for buffer in buffers)


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_every_chunk_comes_back_in_order(streams: int, count: int) -> None:
    assert run(range(count), streams=streams) == [[2.0 * n] * 12 for n in range(count)]


def test_shapes_and_dtypes_may_change_from_chunk_to_chunk() -> None:
    chunks = [torch.arange(24.0), torch.arange(12, dtype=torch.int64).view(3, 4).T, torch.empty(0), torch.tensor(5.0)]
    found = run(chunks, upload=lambda chunk: chunk, compute=lambda x: x + 1, download=lambda _, y: y.clone())
    assert [torch.equal(y, chunk + 1) for y, chunk in zip(found, chunks, strict=True)] == [True] * 4
    assert [y.dtype for y in found] == [chunk.dtype for chunk in chunks]


def test_compute_may_overwrite_its_input_and_never_sees_that_of_the_host() -> None:
    chunks = [numbers(n) for n in range(6)]
    assert run(chunks, upload=lambda c: c, compute=lambda x: x.mul_(3)) == [[3.0 * n] * 12 for n in range(6)]
    assert [float(chunk[0, 0]) for chunk in chunks] == [0, 1, 2, 3, 4, 5]


def test_gradients_stay_with_the_caller() -> None:
    weight = torch.ones(3, requires_grad=True)
    found = run(range(3), compute=lambda x: x * weight, download=lambda _, y: (y.requires_grad, float(y.sum())))
    assert found == [(False, 12.0 * n) for n in range(3)]


def test_memory_is_bounded_and_chunks_are_drawn_as_there_is_room(buffers: list[weakref.ref[Any]]) -> None:
    drawn, delivered, ahead = 0, 0, []

    def chunks() -> Iterator[int]:
        nonlocal drawn
        for n in range(40):
            drawn += 1
            ahead.append(drawn - delivered)
            yield n

    def download(_: int, __: Any) -> None:
        nonlocal delivered
        delivered += 1

    run(chunks(), download=download, streams=3)
    assert (drawn, delivered, max(ahead)) == (40, 40, 4)
    assert len(buffers) == 2 * 4  # on the device and back, for each of the chunks under way
    assert alive(buffers) == 0


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("part", ["chunks", "upload", "compute", "download"])
def test_a_chunk_that_fails_is_named_and_ends_it_and_buffers_are_free(
    part: str, streams: int, buffers: list[weakref.ref[Any]], views: list[weakref.ref[Any]]
) -> None:
    seen: dict[str, list[int]] = {name: [] for name in ("chunks", "upload", "compute", "download")}

    def note(name: str, n: int) -> None:
        if (name, n) == (part, 5):
            raise ValueError("no such thing")
        seen[name].append(n)

    def chunks() -> Iterator[int]:
        for n in range(20):
            note("chunks", n)
            yield n

    def upload(n: int) -> Any:
        note("upload", n)
        return numbers(n)

    def compute(x: Any) -> Any:
        n = int(x[0, 0])
        del x
        note("compute", n)
        return numbers(n)

    def download(n: int, y: Any) -> None:
        assert float(y[0, 0]) == n
        del y
        note("download", n)

    with pytest.raises(ChunkError, match=f"chunk 5 failed in {part}: ValueError: no such thing") as failed:
        run(chunks(), compute, upload, download, streams=streams)
    error = failed.value
    assert (error.chunk, error.part, error.delivered_chunks) == (5, part, 5)
    assert isinstance(error.__cause__, ValueError)
    assert seen["download"] == [0, 1, 2, 3, 4]
    assert max(seen["chunks"]) <= 5 + streams
    assert buffers
    assert alive(buffers) == 0  # although the error is still here
    assert alive(views) == 0


def test_of_two_chunks_that_fail_the_first_is_named() -> None:
    def compute(x: Any) -> Any:
        if x[0, 0] == 5:
            raise ValueError("five")
        return x

    def download(n: int, _: Any) -> None:
        if n == 3:
            raise KeyError("three")

    with pytest.raises(ChunkError, match="chunk 3 failed in download: KeyError: 'three'") as failed:
        run(range(9), compute, download=download)
    assert (failed.value.chunk, failed.value.delivered_chunks) == (3, 3)


def test_an_interrupt_passes_and_buffers_are_free(buffers: list[weakref.ref[Any]]) -> None:
    def upload(n: int) -> Any:
        if n == 3:
            raise KeyboardInterrupt
        return numbers(n)

    with pytest.raises(KeyboardInterrupt):
        run(range(9), upload=upload)
    assert len(buffers) == 2 * 3
    assert alive(buffers) == 0


def test_copies_without_memory_of_their_own_may_be_kept() -> None:
    empty = run(range(3), upload=lambda _: torch.ones(0), download=lambda _, y: y.clone())
    assert [len(kept) for kept in empty] == [0] * 3
    (kept,) = run([2], download=lambda _, y: y.to_sparse())
    assert kept.is_sparse


@pytest.mark.parametrize(
    ("wrong", "cause", "message"),
    [
        ({"upload": lambda n: torch.zeros(n + 1)}, ShapeError, r"chunk 1 .* 8 bytes of .* shape \(2,\) do not"),
        ({"compute": lambda x: x.repeat(1 + int(x[0, 0]))}, RuntimeError, "chunk 0 failed in compute"),
        ({"upload": lambda n: [n]}, DeviceError, "upload returned a list; return one tensor in host memory"),
        ({"upload": lambda n: torch.zeros(3, device="meta")}, DeviceError, "upload returned a tensor on meta"),
        ({"compute": lambda x: None}, DeviceError, "compute returned a NoneType"),
        ({"download": lambda _, y: y}, ArgumentError, "download returned the buffer itself"),
        ({"download": lambda n, y: (n, [y[1:]])}, ArgumentError, "download returned the buffer itself"),
        ({"download": lambda n, y: {n: y.numpy()}}, ArgumentError, "download returned the buffer itself"),
        ({"download": lambda _, y: y[1:].numpy()}, ArgumentError, "which later chunks overwrite; return a copy"),
    ],
)
def test_what_a_function_may_not_return_is_told(wrong: dict[str, Any], cause: type, message: str) -> None:
    with pytest.raises(ChunkError, match=message) as failed:
        run(range(4), **wrong)
    assert isinstance(failed.value.__cause__, cause)


def test_a_result_of_more_bytes_than_the_first_is_refused() -> None:
    message = "chunk 2 failed in download: ShapeError: 24 bytes .* the 16 bytes of a buffer"
    with pytest.raises(ChunkError, match=message):
        run([4, 3, 6, 2], upload=lambda n: torch.full((1,), float(n)), compute=lambda x: torch.zeros(int(x)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"chunks": 3}, ArgumentError, "chunks is 3; pass something to iterate over"),
        ({"upload": 3}, ArgumentError, "upload is 3; pass a function"),
        ({"streams": 0}, ArgumentError, "0 streams; use 1 to 3, one for each part"),
        ({"streams": 4}, ArgumentError, "4 streams"),
        ({"streams": "3"}, ArgumentError, "streams is '3'"),
        ({"device": "gpu"}, NoDeviceError, "'gpu' is no device"),
        ({"device": "cuda:99"}, NoDeviceError, "there is no device 'cuda:99' here"),
        ({"device": "meta"}, NoDeviceError, "there is no device 'meta' here"),
    ],
)
def test_what_makes_no_pipeline_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    usual = {"chunks": [1], "upload": numbers, "compute": lambda x: x, "download": flatten, "device": "cpu"}
    with pytest.raises(error, match=message):
        pipeline(**{**usual, **arguments})


def test_a_bar_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(range(3), progress=True) == run(range(3)) == run(iter(range(3)), progress=True)
    shown = capsys.readouterr()
    assert "chunks" in shown.err
    assert shown.out == ""


# ---------------------------------------------------------------- streams, without a GPU


class Stream:
    """Notes what it waits for."""

    def __init__(self, *_: Any) -> None:
        self.told: list[object] = []

    def wait_stream(self, stream: object) -> None:
        self.told.append(stream)

    def wait_event(self, event: object) -> None:
        self.told.append(event)

    def record_event(self) -> object:
        return self, len(self.told)

    def synchronize(self) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(("count", "shared"), [(1, [0, 0, 0]), (2, [0, 1, 1]), (3, [0, 1, 2])])
def test_parts_share_streams_which_begin_behind_the_callers(
    count: int, shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Stream] = []

    def stream(*_: Any) -> Stream:
        made.append(Stream())
        return made[-1]

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(lanes, "_get_streams", cache(lanes._get_streams.__wrapped__))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: "the caller's")
    place, found = lanes.open_lanes("cuda", count)
    assert (place.type, len(made)) == ("cuda", 3)
    assert [made.index(lane._stream) for lane in found] == shared
    assert [stream.told for stream in made[:count]] == [["the caller's"]] * count
    assert not any(stream.told for stream in made[count:])
    _, again = lanes.open_lanes("cuda:0", count)
    assert [lane._stream for lane in again] == [lane._stream for lane in found], "memory stays with its stream"
    assert len(made) == 3


def test_work_of_a_lane_comes_behind_an_event_and_before_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[Stream] = []

    @contextmanager
    def current(stream: Stream) -> Iterator[None]:
        now.append(stream)
        yield
        now.pop()

    monkeypatch.setattr(torch.cuda, "stream", current)
    stream = Stream()
    lane = lanes.Lane(stream)
    found, event = lane.run(lambda: (now[-1], list(stream.told)), after="an event")
    assert found == (stream, ["an event"])
    assert event == (stream, 1)
    lane.drain()  # what a broken device says now is not news

"""A pipeline over chunks: upload, compute and download run on separate streams, so that three chunks are in flight.

    upload      0   1   2   3
    compute         0   1   2   3
    download            0   1   2   3

The host enqueues the three stages of a chunk with events between them and continues with the next chunk. It waits only
for the oldest chunk, and only when ``streams + 1`` chunks are in flight. So memory is bounded however many chunks there
are, and chunks are fetched from the iterable only when there is room for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from interlace.core.arguments import check_int, format_value
from interlace.core.errors import ArgumentError, ChunkError
from interlace.streams.lanes import Buffer, Lane, check_tensor, open_lanes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
R = TypeVar("R")

_STAGES = 3


def pipeline(
    chunks: Iterable[T],
    upload: Callable[[T], torch.Tensor],
    compute: Callable[[torch.Tensor], torch.Tensor],
    download: Callable[[T, torch.Tensor], R],
    streams: int = _STAGES,
    *,
    device: str = "cuda",
    progress: bool = False,
) -> list[R]:
    """Upload each chunk to a device, compute with it and download the result, with the three stages overlapped.

    Args:
        chunks: iterable of chunks; each is fetched only when there is room for it.
        upload: function that returns the host tensor of a chunk. The tensor is copied into a pinned buffer and from
            there to the device. A contiguous tensor in pinned memory is copied directly; it must then stay unchanged
            until the chunk's download.
        compute: function that returns a device tensor from the uploaded one, which it may overwrite but not keep. It
            runs on a stream of its own, after the work on the caller's current stream.
        download: function that returns the result of a chunk, given the computed tensor in a pinned buffer that later
            chunks overwrite.
        streams: number of streams: 3, or 2 to compute and download on the same one, or 1 for everything.
        device: CUDA device; or "cpu", where the stages run one after another.
        progress: True to show a progress bar on standard error.

    Returns:
        What ``download`` returned for each chunk, in order.

    Raises:
        ChunkError: a stage of a chunk failed, or a chunk has more bytes than the first one. Its cause is the original
            error. Chunks before it are delivered, later ones are not. The device no longer uses the buffers, and they
            are freed unless frames of the caller's own functions hold them.
        ArgumentError: the number of streams is out of range, or an argument is not iterable or not a function.
        NoDeviceError: PyTorch is not installed, or there is no such device.
    """
    if not isinstance(chunks, Iterable):
        raise ArgumentError(
            f"pipeline: chunks is {format_value(chunks)}; pass something to iterate over, such as a list"
        )
    for name, function in (("upload", upload), ("compute", compute), ("download", download)):
        if not callable(function):
            raise ArgumentError(f"pipeline: {name} is {format_value(function)}; pass a function")
    if not 1 <= check_int(streams, "pipeline", "streams") <= _STAGES:
        raise ArgumentError(f"pipeline: {streams} streams; use 1 to {_STAGES}, one for each part at most")
    place, lanes = open_lanes(device, streams)
    line = _Pipeline(upload, compute, download, place, lanes, [_Slot() for _ in range(streams + 1)])
    bar = _open_bar(len(chunks) if isinstance(chunks, Sized) else None) if progress else nullcontext(lambda: None)
    try:
        with bar as advance:
            return line.run(iter(chunks), advance)
    except ChunkError as error:
        _clear_frames(error.__traceback__)
        raise error.with_traceback(None) from _trim_traceback(error.__cause__)
    finally:
        line.close()


@dataclass
class _Slot:
    """Buffers of one chunk in flight: pinned upload buffer, device buffer, and download buffer."""

    upload_buffer: Buffer | None = None
    device_buffer: Buffer | None = None
    download_buffer: Buffer | None = None


@dataclass
class _Flight(Generic[T]):
    """A chunk in flight; ``result`` is on the device, and on the host after the event ``host_event``."""

    number: int
    chunk: T
    slot: _Slot
    result: torch.Tensor
    host_result: torch.Tensor
    host_event: torch.cuda.Event | None


class _Pipeline(Generic[T, R]):
    """The chunks in flight and the functions that process them."""

    def __init__(
        self,
        upload: Callable[[T], torch.Tensor],
        compute: Callable[[torch.Tensor], torch.Tensor],
        download: Callable[[T, torch.Tensor], R],
        place: torch.device,
        lanes: list[Lane],
        slots: list[_Slot],
    ) -> None:
        self._upload, self._compute, self._download = upload, compute, download
        self._place, (self._to, self._through, self._back) = place, lanes
        self._lanes, self._free = lanes, slots
        self._flights: deque[_Flight[T]] = deque()
        self._sent_bytes = self._received_bytes = -1  # sizes of the first chunk; -1 until known
        self.results: list[R] = []

    def run(self, chunks: Iterator[T], advance: Callable[[], None]) -> list[R]:
        """Process all chunks and return their results."""
        number = 0
        try:
            while True:
                if not self._free:
                    self._deliver(advance)
                with _name_stage("chunks", number, self.results):
                    try:
                        chunk = next(chunks)
                    except StopIteration:
                        break
                self._send(number, chunk)
                number += 1
        except ChunkError as error:
            if error.chunk == number:  # otherwise a delivery failed, and later chunks are not delivered
                self._deliver_all(advance)
                error.delivered_chunks = len(self.results)
            raise
        self._deliver_all(advance)
        return self.results

    def close(self) -> None:
        """Wait for the device and drop all buffers."""
        for lane in self._lanes:
            lane.drain()
        self._flights.clear()
        self._free.clear()

    def _send(self, number: int, chunk: T) -> None:
        """Enqueue all three stages of a chunk."""
        slot = self._free[-1]
        with _name_stage("upload", number, self.results):
            there, uploaded = self._enqueue_upload(slot, check_tensor(self._upload(chunk), "upload", "cpu"))
        with _name_stage("compute", number, self.results):
            result, computed = self._through.run(self._compute, there, after=uploaded)
            result = check_tensor(result, "compute", self._place.type)
        with _name_stage("download", number, self.results):
            arriving = self._get_download_buffer(slot, result).view_like(result)
            _, arrived = self._back.run(_copy, arriving, result, after=computed)
        self._free.pop()
        self._flights.append(_Flight(number, chunk, slot, result, arriving, arrived))

    def _enqueue_upload(self, slot: _Slot, host: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """Enqueue the copy of a host tensor into the slot's device buffer; return the device tensor and an event."""
        if self._sent_bytes < 0:
            self._sent_bytes = host.nbytes
        if slot.device_buffer is None:
            slot.device_buffer = self._to.run(Buffer, self._sent_bytes, self._place)[0]
        there = slot.device_buffer.view_like(host)
        if self._place.type == "cuda" and not (host.is_pinned() and host.is_contiguous()):
            if slot.upload_buffer is None:
                slot.upload_buffer = Buffer(self._sent_bytes, None, pinned=True)
            host = slot.upload_buffer.view_like(host).copy_(host)
        return self._to.run(_copy, there, host)

    def _get_download_buffer(self, slot: _Slot, result: torch.Tensor) -> Buffer:
        if self._received_bytes < 0:
            self._received_bytes = result.nbytes
        if slot.download_buffer is None:
            slot.download_buffer = Buffer(self._received_bytes, None, pinned=self._place.type == "cuda")
        return slot.download_buffer

    def _deliver_all(self, advance: Callable[[], None]) -> None:
        while self._flights:
            self._deliver(advance)

    def _deliver(self, advance: Callable[[], None]) -> None:
        """Wait for the oldest chunk and pass it to ``download``."""
        flight = self._flights.popleft()
        with _name_stage("download", flight.number, self.results):
            if flight.host_event is not None:
                flight.host_event.synchronize()
            kept = self._download(flight.chunk, flight.host_result)
            assert flight.slot.download_buffer is not None
            if flight.slot.download_buffer.contains(kept):
                raise ArgumentError("download returned the buffer itself, which later chunks overwrite; return a copy")
        self.results.append(kept)
        self._free.append(flight.slot)
        advance()


def _copy(to: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return to.copy_(of, non_blocking=True)


@contextmanager
def _name_stage(name: str, number: int, results: list[Any]) -> Iterator[None]:
    """Name the chunk and the stage in which an error occurs."""
    try:
        yield
    except Exception as error:
        raise ChunkError(
            f"chunk {number} failed in {name}: {type(error).__name__}: {error}; no chunk after it was delivered, and "
            "`delivered` of this error counts those before it",
            chunk=number,
            part=name,
            delivered_chunks=len(results),
        ) from error


def _clear_frames(trace: TracebackType | None) -> TracebackType | None:
    """Clear the pipeline's own frames, which hold buffers while the error is referenced; return the other frames."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("interlace.streams"):
        with suppress(RuntimeError):  # the pipeline's own frame is still running
            trace.tb_frame.clear()
        trace = trace.tb_next
    return trace


def _trim_traceback(cause: BaseException | None) -> BaseException | None:
    """Return a cause whose traceback begins where the caller's function or the library was called."""
    if cause is not None:
        cause.__traceback__ = _clear_frames(cause.__traceback__)
    return cause


def _open_bar(total: int | None) -> AbstractContextManager[Callable[[], None]]:
    """Open a progress bar that yields a function to advance it by one chunk."""
    from rich.console import Console
    from rich.progress import Progress

    @contextmanager
    def shown_bar() -> Iterator[Callable[[], None]]:
        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task("chunks", total=total)
            yield lambda: bar.advance(task)

    return shown_bar()

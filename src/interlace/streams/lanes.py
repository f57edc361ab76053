"""Streams that the parts of a pipeline run on, and buffers in pinned memory and on the device. On a CPU, neither."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from interlace.core.errors import DeviceError, NoDeviceError, ShapeError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_WAYS = 3  # in, through and out


class Lane:
    """A stream, or on a CPU the host itself, which has done its work when it returns."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._stream = stream

    def run(
        self, work: Callable[..., T], *of: object, after: torch.cuda.Event | None = None
    ) -> tuple[T, torch.cuda.Event | None]:
        """Enqueue what ``work(*of)`` enqueues, behind an event of another lane; its result, and an event behind it.

        Tensors are given in ``of``, not in a closure: the frame of a function that fails keeps its closure, and with
        it what lies there, for as long as somebody keeps the error.
        """
        if self._stream is None:
            return work(*of), None
        import torch

        if after is not None:
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            result = work(*of)
        return result, self._stream.record_event()

    def drain(self) -> None:
        """Wait for all that was enqueued; after a failure of the device, for nothing."""
        if self._stream is not None:
            with suppress(RuntimeError):
                self._stream.synchronize()


def open_lanes(device: str, count: int) -> tuple[Any, list[Lane]]:
    """The device, and a lane for each way in, through and out, of which some share a stream if there are fewer.

    What is computed shares the stream of the way out, and then all three one. They begin behind what the caller's
    stream has.

    Raises:
        NoDeviceError: no PyTorch, or no such device.
    """
    try:
        import torch
    except ImportError as error:
        raise NoDeviceError(f"{error}; a pipeline needs PyTorch, `pip install 'interlace[gpu]'`") from None
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise NoDeviceError(f"{device!r} is no device: {error}") from None
    if place.type == "cpu":
        return place, [Lane(None)] * 3
    if place.type != "cuda" or not torch.cuda.is_available() or (place.index or 0) >= torch.cuda.device_count():
        raise NoDeviceError(f"there is no device {device!r} here; name a CUDA GPU that there is, or 'cpu'")
    streams = _streams(torch.cuda.current_device() if place.index is None else place.index)[:count]
    now = torch.cuda.current_stream(place)
    for stream in streams:
        stream.wait_stream(now)
    return place, [Lane(streams[min(way, count - 1)]) for way in range(_WAYS)]


@cache
def _streams(device: int) -> tuple[torch.cuda.Stream, ...]:
    """Streams of a device, the same for every pipeline: memory that is freed stays with the stream that it was for.

    On others a pipeline would allocate all its buffers anew, during which the device stands still.
    """
    import torch

    return tuple(torch.cuda.Stream(device) for _ in range(_WAYS))  # type: ignore[no-untyped-call]


class Buffer:
    """Memory of a fixed size, of which each chunk takes the beginning.

    Args:
        nbytes: how much.
        device: where; None for the host.
        pinned: of the host, where copies to and from a GPU run beside other work.
    """

    def __init__(self, nbytes: int, device: torch.device | None, pinned: bool = False) -> None:
        import torch

        self.bytes = torch.empty(nbytes, dtype=torch.uint8, device=device or "cpu", pin_memory=pinned)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor of the shape and dtype of another.

        Raises:
            ShapeError: it has more bytes.
        """
        if tensor.nbytes > len(self.bytes):
            raise ShapeError(
                f"{tensor.nbytes} bytes of a tensor of shape {tuple(tensor.shape)} do not fit the {len(self.bytes)} "
                "bytes of a buffer, as many as the first chunk took; let the largest chunk come first, or cut it"
            )
        return self.bytes[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def holds(self, value: object) -> bool:
        """Whether a tensor or an array lies in here, also one in a tuple, a dict or a list, whose members are alike."""
        if isinstance(value, (tuple, dict, list)):
            members = value.values() if isinstance(value, dict) else value[:1] if isinstance(value, list) else value
            return any(self.holds(member) for member in members)
        array = getattr(value, "__array_interface__", None)
        start = array["data"][0] if array else -1
        if hasattr(value, "data_ptr"):
            with suppress(RuntimeError):  # of a sparse tensor, which is a copy
                start = value.data_ptr()
        return bool(0 <= start - self.bytes.data_ptr() < len(self.bytes))


def checked(tensor: object, who: str, on: str) -> torch.Tensor:
    """A tensor that a user's function returned, without its gradients.

    Raises:
        DeviceError: it is none, or lies elsewhere.
    """
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.device.type != on:
        found = f"a tensor on {tensor.device}" if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
        where = "in host memory" if on == "cpu" else "on the GPU"
        raise DeviceError(f"{who} returned {found}; return one tensor {where}")
    return tensor.detach()

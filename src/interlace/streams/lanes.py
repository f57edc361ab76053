"""CUDA streams for the stages of a pipeline, and buffers in pinned host memory and on the device.

On a CPU, stages run on the host without streams.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from interlace.core.errors import DeviceError, NoDeviceError, ShapeError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_STAGES = 3  # number of stages: upload, compute, download


class Lane:
    """A CUDA stream, or on a CPU the host itself, where work is complete when it returns."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self._stream = stream

    def run(
        self, work: Callable[..., T], *of: object, after: torch.cuda.Event | None = None
    ) -> tuple[T, torch.cuda.Event | None]:
        """Enqueue ``work(*of)`` after an event of another lane; return its result and an event recorded after it.

        Pass tensors in ``of``, not in a closure. The frame of a function that fails keeps its closure, and the tensors
        in it, alive for as long as the error is referenced.
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
        """Wait for all enqueued work; after a device failure, return without waiting."""
        if self._stream is not None:
            with suppress(RuntimeError):
                self._stream.synchronize()


def open_lanes(device: str, count: int) -> tuple[Any, list[Lane]]:
    """Open the device and a lane for each of upload, compute and download; stages share streams if ``count`` is small.

    With two streams, compute and download share one; with one stream, all three share it. The lanes start after the
    work that is already on the caller's current stream.

    Raises:
        NoDeviceError: PyTorch is not installed, or there is no such device.
    """
    try:
        import torch
    except ImportError as error:
        raise NoDeviceError(f"{error}; a pipeline needs PyTorch, `pip install -e '.[gpu]'`") from None
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise NoDeviceError(f"{device!r} is no device: {error}") from None
    if place.type == "cpu":
        return place, [Lane(None)] * 3
    if place.type != "cuda" or not torch.cuda.is_available() or (place.index or 0) >= torch.cuda.device_count():
        raise NoDeviceError(f"there is no device {device!r} here; name a CUDA GPU that there is, or 'cpu'")
    streams = _get_streams(torch.cuda.current_device() if place.index is None else place.index)[:count]
    now = torch.cuda.current_stream(place)
    for stream in streams:
        stream.wait_stream(now)
    return place, [Lane(streams[min(way, count - 1)]) for way in range(_STAGES)]


@cache
def _get_streams(device: int) -> tuple[torch.cuda.Stream, ...]:
    """Return the streams of a device, the same for every pipeline: freed memory stays bound to its stream.

    With new streams, each pipeline would allocate all its buffers again, and the device is idle during allocation.
    """
    import torch

    return tuple(torch.cuda.Stream(device) for _ in range(_STAGES))  # type: ignore[no-untyped-call]


class Buffer:
    """Memory of a fixed size; each chunk uses a prefix of it.

    Args:
        nbytes: size in bytes.
        device: device of the memory; None for the host.
        pinned: True for pinned host memory, so that copies to and from a GPU overlap other work.
    """

    def __init__(self, nbytes: int, device: torch.device | None, pinned: bool = False) -> None:
        import torch

        self.bytes = torch.empty(nbytes, dtype=torch.uint8, device=device or "cpu", pin_memory=pinned)

    def view_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor in the buffer with the shape and dtype of another tensor.

        Raises:
            ShapeError: the tensor has more bytes than the buffer.
        """
        if tensor.nbytes > len(self.bytes):
            raise ShapeError(
                f"{tensor.nbytes} bytes of a tensor of shape {tuple(tensor.shape)} do not fit the {len(self.bytes)} "
                "bytes of a buffer, as many as the first chunk took; let the largest chunk come first, or cut it"
            )
        return self.bytes[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def contains(self, value: object) -> bool:
        """Return True if a tensor or array is in this buffer, or one in a tuple, a dict or a (homogeneous) list."""
        if isinstance(value, (tuple, dict, list)):
            members = value.values() if isinstance(value, dict) else value[:1] if isinstance(value, list) else value
            return any(self.contains(member) for member in members)
        array = getattr(value, "__array_interface__", None)
        start = array["data"][0] if array else -1
        if hasattr(value, "data_ptr"):
            with suppress(RuntimeError):  # a sparse tensor, which is a copy
                start = value.data_ptr()
        return bool(0 <= start - self.bytes.data_ptr() < len(self.bytes))


def check_tensor(tensor: object, who: str, on: str) -> torch.Tensor:
    """Return the tensor that a user's function returned, detached from its gradients.

    Raises:
        DeviceError: it is not a tensor, or is in the wrong memory.
    """
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.device.type != on:
        found = f"a tensor on {tensor.device}" if isinstance(tensor, torch.Tensor) else f"a {type(tensor).__name__}"
        where = "in host memory" if on == "cpu" else "on the GPU"
        raise DeviceError(f"{who} returned {found}; return one tensor {where}")
    return tensor.detach()

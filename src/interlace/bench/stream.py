"""Lower bound for memory-bound problems: a stream of bulk loads over the weights, without any arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from interlace.core.devices import DeviceSpec
from interlace.csrc import include
from interlace.executors.gpu import open_device
from interlace.kernels.cuda.compiler import CudaBinary, compile_source
from interlace.kernels.cuda.launcher import LoadedKernel
from interlace.kernels.cuda.ptx import PTX

_BULK = (9, 0)  # compute capability that the kernel requires
_BOX_BYTES, _STAGES = 32 << 10, 6
_THREADS, _BARRIER_BYTES = 32, 8
_HEAD = f"constexpr int STAGES = {_STAGES}, BOX_BYTES = {_BOX_BYTES};\n"


def make_stream(buffers: Sequence[Any], runs: int, device: DeviceSpec) -> Callable[[], None] | None:
    """Return a function that enqueues streams over flat tensors in turn, one after another without gaps.

    Args:
        buffers: flat byte tensors; bytes after the last whole box of 32 KiB are ignored.
        runs: number of streams.
        device: spec of the current CUDA device.

    Returns:
        The function; None on a GPU without bulk loads, and for tensors smaller than a box.
    """
    boxes = buffers[0].numel() // _BOX_BYTES
    if device.capability != _BULK or not boxes:
        return None
    torch, _ = open_device("cuda")
    kernel = LoadedKernel(compile_stream(device.architecture), _STAGES * (_BOX_BYTES + _BARRIER_BYTES))

    def call() -> None:
        current = torch.cuda.current_stream().cuda_stream
        for n in range(runs):
            kernel.launch((device.sms, 1, 1), _THREADS, (buffers[n % len(buffers)], boxes), current, dependent=True)

    return call


@cache
def compile_stream(architecture: str) -> CudaBinary:
    """Compile the stream; needs no GPU. Raises CompileError or NoDeviceError as ``compile_source`` does."""
    return compile_source(_HEAD + include("stream.cuh"), "stream", architecture, preamble=PTX)

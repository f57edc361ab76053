"""The floor of a problem that memory limits: a stream of bulk loads over its weights, with no arithmetic at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from interlace.core.devices import DeviceSpec
from interlace.executors.gpu import open_device

_BULK = (9, 0)  # compute capability of the kernel
_BOX, _STAGES = 128, 6
_WIDTHS = (4096, 2048, 1024, 512, 256, 128)  # elements; of a row that boxes are cut from


def stream(buffers: Sequence[Any], runs: int, device: DeviceSpec) -> Callable[[], None] | None:
    """A function that enqueues streams over flat tensors in turn, one after another without a gap.

    Args:
        buffers: bytes; what lies behind the last whole box of 128 x 128 16-bit numbers is left out.
        runs: streams.
        device: the current CUDA device as data.

    Returns:
        None on a GPU without such loads, and for tensors that hold less than a box.
    """
    boxes = buffers[0].numel() // (2 * _BOX * _BOX)
    if device.capability != _BULK or not boxes:
        return None
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from interlace.kernels.gluon.stream import stream_kernel

    torch, _ = open_device("cuda")
    elements = boxes * _BOX * _BOX
    width = next(width for width in _WIDTHS if elements % (_BOX * width) == 0)
    box = [_BOX, _BOX]
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
    rows = (buffer[: 2 * elements].view(torch.bfloat16).view(-1, width) for buffer in buffers)
    sources = [TensorDescriptor.from_tensor(each, box, layout) for each in rows]

    def call() -> None:
        for n in range(runs):
            stream_kernel[(device.sms,)](sources[n % len(sources)], boxes, _STAGES, num_warps=4, launch_pdl=True)

    return call

"""Lower bound for memory-bound problems: a stream of bulk loads over the weights, without any arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from interlace.core.devices import DeviceSpec
from interlace.executors.gpu import open_device
from interlace.kernels.cuda.compiler import Binary, compile_text
from interlace.kernels.cuda.launcher import LoadedKernel
from interlace.kernels.cuda.ptx import PTX
from interlace.launch.streamed import BULK_LOAD

_BULK = (9, 0)  # compute capability that the kernel requires
_BOX_BYTES, _STAGES = 32 << 10, 6
_THREADS, _BARRIER_BYTES = 32, 8
_HEAD = f"constexpr int STAGES = {_STAGES}, BOX_BYTES = {_BOX_BYTES};\n"
_TEXT = r"""
extern __shared__ __align__(1024) unsigned char shared_memory[];

// Each block reads an equal share of the boxes into its shared memory and drops them. The next stream may begin as soon
// as an SM has room: what is read here nobody writes.
extern "C" __global__ void __launch_bounds__(32, 1) stream(const unsigned char* source, long long boxes) {
  const unsigned slots = shared_address(shared_memory), full = slots + STAGES * BOX_BYTES;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x) return;
  for (int s = 0; s < STAGES; ++s) mbarrier_init(full + 8 * s, 1);
  fence_mbarrier_init();
  const long long first = blockIdx.x * boxes / gridDim.x;
  const int mine = (int)((blockIdx.x + 1) * boxes / gridDim.x - first);
  for (int n = 0; n < mine + STAGES; ++n) {
    const int s = n % STAGES;
    if (n >= STAGES && n - STAGES < mine) mbarrier_wait(full + 8 * s, (n / STAGES - 1) & 1);
    if (n < mine) {
      mbarrier_arrive_expect_tx(full + 8 * s, BOX_BYTES);
      bulk_load(slots + s * BOX_BYTES, source + (first + n) * BOX_BYTES, BOX_BYTES, full + 8 * s,
                evict_first());
    }
  }
}
"""


def stream(buffers: Sequence[Any], runs: int, device: DeviceSpec) -> Callable[[], None] | None:
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
    kernel = LoadedKernel(binary(device.architecture), _STAGES * (_BOX_BYTES + _BARRIER_BYTES))

    def call() -> None:
        current = torch.cuda.current_stream().cuda_stream
        for n in range(runs):
            kernel.launch((device.sms, 1, 1), _THREADS, (buffers[n % len(buffers)], boxes), current, dependent=True)

    return call


@cache
def binary(architecture: str) -> Binary:
    """Compile the stream; needs no GPU. Raises CompileError or NoDeviceError as ``compile_text`` does."""
    return compile_text(_HEAD + _TEXT, "stream", architecture, preamble=PTX + BULK_LOAD)

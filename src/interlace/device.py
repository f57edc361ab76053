"""Device functions for your own Triton kernels: which tile is mine, wait for what it needs, post it.

    from interlace import device

    @triton.jit
    def kernel(sync, x, y, ...):
        tile = device.tile(sync)
        device.wait(tile, sync)
        ...                        # load, compute, store tile (tile.i, tile.j)
        device.post(tile, sync)

``SemaphoreStreamsExecutor.stage`` launches such kernels; memory order is that of
``interlace.kernels.primitives.semaphore``.
"""

from __future__ import annotations

from interlace.kernels.primitives.semaphore import count_chunks, load_tile, post, wait, wait_chunk

__all__ = ["count_chunks", "load_tile", "post", "wait", "wait_chunk"]

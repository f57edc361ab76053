"""Semaphores in global memory as CUDA C++: the primitives of ``semaphore``, for kernels that are text.

Counters, epochs, watchdog, random delays and memory order are those of ``semaphore``; the tables are those of ``abi``.
How threads share the work, and where they meet, is left to the text that follows, so every launch can take them:

    ... all threads' stores, a barrier ...
    if (threadIdx.x == 0) add_release(launch.semaphores + item.post);

    await_posts(launch, item, generate_row_load(launch.waits + wait), threadIdx.x, blockDim.x, 64);
    ... a barrier; for bulk loads, fence.proxy.async.global ...

``L`` is any struct that has the fields ``semaphores``, ``fault``, ``record``, ``timeout_ns`` and ``jitter_ns`` of
``abi.SYNC``, ``I`` any that has ``number``, as a row of the item table, and ``run``. The text stands behind ``PTX``.
"""

from __future__ import annotations

from interlace.csrc import read_header
from interlace.kernels.abi import TABLES

SEMAPHORES = f"\n{TABLES}" + read_header("semaphore.cuh")

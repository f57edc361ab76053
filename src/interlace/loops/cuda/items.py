"""``tile``, ``wait`` and ``post`` of ``primitives/semaphore`` in CUDA C++, for a launch of one thread block per item.

``Sync`` has the fields of its ``Sync``, without the compile-time switches.

    const Item item = begin_item(sync, run);    all threads; ``run`` is 8 bytes of shared memory
    ... tile item.i, item.j, item.l ...
    end_item(sync, item);                       all threads, after a thread that stored by TMA awaited its stores
"""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.abi import SYNC

ITEMS = f"\n{SYNC.source}" + include("loops/items.cuh")

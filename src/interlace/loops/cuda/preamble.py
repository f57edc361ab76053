"""CUDA source that precedes every emitted kernel: PTX instructions, wgmma, functions of tiles, items of a plan.

An item has ``tile``, ``wait`` and ``post`` of ``primitives/semaphore``, in a launch of one thread block per item:

    const Item item = begin_item(sync, run);    all threads; ``run`` is 8 bytes of shared memory
    ... tile item.i, item.j, item.l ...
    end_item(sync, item);                       all threads, after a thread that stored by TMA awaited its stores
"""

from __future__ import annotations

from interlace.core.dtypes import bf16
from interlace.csrc import include
from interlace.kernels.abi import SYNC
from interlace.kernels.cuda.preamble import ELEMENTS, SEMAPHORES
from interlace.kernels.cuda.ptx import PTX, generate_wgmma

#: Columns and element types of the wgmma functions in every CUDA source.
PRODUCTS = ((128, bf16.ptx), (256, bf16.ptx))
#: Index arithmetic.
INDICES = include("loops/indices.cuh")
#: Vectors of tiles, and clipped access. Must follow ``ELEMENTS``.
VALUES = include("loops/values.cuh")
#: Bytes of shared memory that broadcast the number of the run within a block.
ITEM_BYTES = 8
#: Items of a plan. ``Sync`` lacks the compile-time switches that it has in Triton.
ITEMS = f"\n{SYNC.source}" + include("loops/items.cuh")

_PRODUCTS = "".join(generate_wgmma(n, kind) for n, kind in PRODUCTS)
PREAMBLE = PTX + _PRODUCTS + INDICES + ELEMENTS + VALUES + SEMAPHORES + ITEMS

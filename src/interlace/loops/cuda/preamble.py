"""CUDA source that precedes every emitted kernel: PTX instructions, wgmma, tile functions, items of a plan."""

from __future__ import annotations

from interlace.core.dtypes import bf16
from interlace.kernels.cuda.preamble import SEMAPHORES
from interlace.kernels.cuda.ptx import PTX, generate_wgmma
from interlace.loops.cuda.items import ITEMS
from interlace.loops.cuda.tile_functions import TILE_FUNCTIONS

#: Columns and element types of the wgmma functions in every CUDA source.
PRODUCTS = ((128, bf16.ptx), (256, bf16.ptx))
PREAMBLE = PTX + "".join(generate_wgmma(n, kind) for n, kind in PRODUCTS) + TILE_FUNCTIONS + SEMAPHORES + ITEMS

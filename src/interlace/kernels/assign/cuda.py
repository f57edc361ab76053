"""CUDA source of assigning tokens to experts in one tile of the megakernel."""

from __future__ import annotations

from interlace.csrc import include
from interlace.kernels.cuda_body import CudaBody
from interlace.kernels.routing.cuda import CHOOSE, MAX_AT_ONCE, TILES_BEFORE

ASSIGN_CUDA = CudaBody(
    CHOOSE + TILES_BEFORE + include("ops/assign.cuh"),
    "assign_tile",
    constants=("T", "E", "CHOSEN", "TILES", "ROWS"),
    scratch_bytes=lambda op: (
        4 * (2 * int(op.param("E")) + (int(op.param("T")) + MAX_AT_ONCE) * int(op.param("CHOSEN")))
    ),
    is_proved=True,
)

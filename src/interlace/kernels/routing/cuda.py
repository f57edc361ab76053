"""CUDA source of routing tokens to experts in the megakernel."""

from __future__ import annotations

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.kernels.cuda_body import CudaBody

_GROUP_SIZE = 4
#: Most tokens that a block has at a time: some for each of its warps.
MAX_AT_ONCE = 8 * _GROUP_SIZE
_AT_ONCE = 8

_TOKENS = f"\nconstexpr int TOGETHER = {_GROUP_SIZE};\n"
_LOADS = f"\nconstexpr int AT_ONCE = {_AT_ONCE};\n"

CHOOSE = include("ops/rows.cuh") + _TOKENS + include("ops/routing/choose.cuh")
TILES_BEFORE = include("ops/routing/tiles_before.cuh")
_SUM_UP = TILES_BEFORE + _LOADS + include("ops/routing/sum_up.cuh")


def _count_scratch_bytes(op: Op, *, more: int = 0) -> int:
    return 4 * (2 * int(op.param("E")) + more)


ROUTE_CUDA = CudaBody(
    CHOOSE + include("ops/routing/route.cuh"),
    "route_tile",
    constants=("E", "CHOSEN", "BLOCK"),
    scratch_bytes=lambda op: 4 * (int(op.param("E")) + MAX_AT_ONCE * int(op.param("CHOSEN"))),
    is_proved=True,
)
PLACE_CUDA = CudaBody(
    _SUM_UP + include("ops/routing/place.cuh"),
    "place_tile",
    constants=("E", "CHOSEN", "BLOCK", "ROWS"),
    scratch_bytes=lambda op: _count_scratch_bytes(op, more=int(op.param("BLOCK")) * int(op.param("CHOSEN"))),
    is_proved=True,
)
FILL_CUDA = CudaBody(
    _SUM_UP + include("ops/routing/fill.cuh"),
    "fill_tile",
    constants=("E", "CHOSEN", "ROWS"),
    scratch_bytes=lambda op: _count_scratch_bytes(op, more=int(op.param("ROWS")) + 1),
    is_proved=True,
)

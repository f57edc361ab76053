"""The CUDA C++ bodies of routing, for the one launch.

A warp looks for the experts of some tokens. Numbers are compared as integers of the same order, by one instruction for
all lanes; what was taken, and what there is not, is below all of them.
"""

from __future__ import annotations

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import CudaBody

_GROUP_SIZE = 4
#: Tokens that a block has at a time at most: some for each of its warps.
MAX_AT_ONCE = 8 * _GROUP_SIZE
_AT_ONCE = 8

CHOOSE = (
    ROWS
    + rf"""
constexpr int TOGETHER = {_GROUP_SIZE};
"""
    + include("ops/routing/choose.cuh")
)

_ROUTE = CHOOSE + include("ops/routing/route.cuh")

TILES_BEFORE = include("ops/routing/tiles_before.cuh")

_SUM_UP = rf"""{TILES_BEFORE}
constexpr int AT_ONCE = {_AT_ONCE};
""" + include("ops/routing/sum_up.cuh")

_PLACE = _SUM_UP + include("ops/routing/place.cuh")

_FILL = _SUM_UP + include("ops/routing/fill.cuh")


def _count_scratch_bytes(op: Op, *, more: int = 0) -> int:
    return 4 * (2 * int(op.param("E")) + more)


ROUTE_CUDA = CudaBody(
    _ROUTE,
    "route_tile",
    constants=("E", "CHOSEN", "BLOCK"),
    scratch_bytes=lambda op: 4 * (int(op.param("E")) + MAX_AT_ONCE * int(op.param("CHOSEN"))),
    is_proved=True,
)
PLACE_CUDA = CudaBody(
    _PLACE,
    "place_tile",
    constants=("E", "CHOSEN", "BLOCK", "ROWS"),
    scratch_bytes=lambda op: _count_scratch_bytes(op, more=int(op.param("BLOCK")) * int(op.param("CHOSEN"))),
    is_proved=True,
)
FILL_CUDA = CudaBody(
    _FILL,
    "fill_tile",
    constants=("E", "CHOSEN", "ROWS"),
    scratch_bytes=lambda op: _count_scratch_bytes(op, more=int(op.param("ROWS")) + 1),
    is_proved=True,
)

"""The CUDA C++ body of pointwise arithmetic, for the one launch."""

from __future__ import annotations

from interlace.csrc import read_header
from interlace.graph.op import Op
from interlace.kernels import gelu
from interlace.kernels.cuda.teams import TEAMS, fetched_rows, in_ring
from interlace.kernels.text import TextBody

_ROW = gelu.CUDA + read_header("ops/elementwise/elements.cuh")
_CONSTANTS = ("BM", "BN", "ACTIVATION", "TIMES_ROWS", "PLUS_ROWS")


def _matrices(op: Op) -> int:
    return 1 + sum(int(op.param(name)) > 0 for name in ("TIMES_ROWS", "PLUS_ROWS"))


_FETCHED = TextBody(
    fetched_rows("BN") + _ROW + read_header("ops/elementwise/in_ring.cuh"),
    "elementwise_tile",
    constants=_CONSTANTS,
    optional=("times", "plus"),
    late=("x", "times", "plus"),
    loads="Loads",
    proved=True,
    wide=True,
)

ELEMENTWISE_TEXT = TextBody(
    TEAMS + _ROW + read_header("ops/elementwise/elementwise.cuh"),
    "elementwise_tile",
    constants=_CONSTANTS,
    optional=("times", "plus"),
    proved=True,
    wide=True,
    other=in_ring(_FETCHED, "BN", _matrices),
)

"""CUDA source of pointwise arithmetic in the megakernel."""

from __future__ import annotations

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.kernels import gelu
from interlace.kernels.cuda.row_groups import ROW_GROUPS, generate_ring_rows, make_ring_variant
from interlace.kernels.cuda_body import CudaBody

_ROW = gelu.CUDA + include("ops/elementwise/elements.cuh")
_CONSTANTS = ("BM", "BN", "ACTIVATION", "TIMES_ROWS", "PLUS_ROWS")


def _count_matrices(op: Op) -> int:
    return 1 + sum(int(op.param(name)) > 0 for name in ("TIMES_ROWS", "PLUS_ROWS"))


_RING_BODY = CudaBody(
    generate_ring_rows("BN") + _ROW + include("ops/elementwise/in_ring.cuh"),
    "elementwise_tile",
    constants=_CONSTANTS,
    optional_args=("times", "plus"),
    post_wait_inputs=("x", "times", "plus"),
    loads_struct="Loads",
    is_proved=True,
    prefers_two_warpgroups=True,
)

ELEMENTWISE_CUDA = CudaBody(
    ROW_GROUPS + _ROW + include("ops/elementwise/elementwise.cuh"),
    "elementwise_tile",
    constants=_CONSTANTS,
    optional_args=("times", "plus"),
    is_proved=True,
    prefers_two_warpgroups=True,
    select_variant=make_ring_variant(_RING_BODY, "BN", _count_matrices),
)

"""CUDA source of pointwise arithmetic in the megakernel."""

from __future__ import annotations

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.kernels import gelu
from interlace.kernels.cuda.row_groups import ROW_GROUPS, build_ring_variants, generate_ring_rows
from interlace.kernels.cuda_body import CudaBody
from interlace.kernels.megakernel_body import Warpgroups

_ROW = gelu.CUDA + include("ops/elementwise/elements.cuh")


def _count_matrices(op: Op) -> int:
    return 1 + sum(int(op.param(name)) > 0 for name in ("TIMES_ROWS", "PLUS_ROWS"))


def _build_body(text: str, header: str) -> CudaBody:
    return CudaBody(
        text + _ROW + include(header),
        "elementwise_tile",
        constants=("BM", "BN", "ACTIVATION", "TIMES_ROWS", "PLUS_ROWS"),
        optional_args=("times", "plus"),
        warpgroups=Warpgroups(prefers_two=True),
        is_proved=True,
    )


ELEMENTWISE_CUDA = build_ring_variants(
    _build_body(ROW_GROUPS, "ops/elementwise/elementwise.cuh"),
    _build_body(generate_ring_rows("BN"), "ops/elementwise/in_ring.cuh"),
    ("x", "times", "plus"),
    "BN",
    _count_matrices,
)

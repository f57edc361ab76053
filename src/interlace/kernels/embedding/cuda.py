"""The CUDA C++ body of embedding, for the one launch."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import CudaBody


def _can_use_ll(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    """By pairs, which no tile ends in the midst of."""
    pairs = int(op.param("H")) % 2 == 0 and int(op.param("BN")) % 2 == 0
    return "scaled" in tensors and tensors["scaled"].dtype.itemsize == 2 and pairs


EMBEDDING_CUDA = CudaBody(
    ROWS + include("ops/embedding.cuh"),
    "embedding_tile",
    constants=("BN", "SQUARED"),
    optional_args=("scale", "scaled", "squares"),
    is_proved=True,
    ll_outputs=("scaled", "squares"),
    can_use_ll=_can_use_ll,
)

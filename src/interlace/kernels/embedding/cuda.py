"""CUDA source of token embedding in the megakernel."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda_body import CudaBody
from interlace.kernels.megakernel_body import LLArguments


def _can_use_ll(op: Op, tensors: Mapping[str, Tensor], name: str) -> bool:
    """Return whether results may be LL words, each a pair of elements, which no tile may split."""
    pairs = int(op.param("H")) % 2 == 0 and int(op.param("BN")) % 2 == 0
    return "scaled" in tensors and tensors["scaled"].dtype.itemsize == 2 and pairs


EMBEDDING_CUDA = CudaBody(
    include("ops/rows.cuh", "ops/embedding.cuh"),
    "embedding_tile",
    constants=("BN", "SQUARED"),
    optional_args=("scale", "scaled", "squares"),
    ll=LLArguments(outputs=("scaled", "squares"), can_use=_can_use_ll),
    is_proved=True,
)

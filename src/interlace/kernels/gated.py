"""silu(gate) * up in one kernel, for FFNs with library matmuls; fuses PyTorch's two kernels and rounds once."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

#: The number of elements of a tensor must be a multiple of this.
MULTIPLE = 16
_BLOCK = 1024


@triton.jit(do_not_specialize=["pieces"])
def _silu_and_mul(gate, up, pieces, MULTIPLE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    # The compiler can prove that the end is a multiple, and emits full vector loads for any number of tokens.
    inside = at < pieces.to(tl.int64) * MULTIPLE
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(up + at, (g / (1.0 + tl.exp(-g)) * u).to(up.dtype.element_ty), mask=inside)


def silu_and_mul(gate: Any, up: Any) -> Any:
    """Compute ``silu(gate) * up`` in the memory of ``up``, on the current stream of the current device.

    Args:
        gate, up: contiguous PyTorch tensors of one shape and dtype, with a multiple of ``MULTIPLE`` elements.

    Returns:
        The tensor ``up``.
    """
    pieces = up.numel() // MULTIPLE
    _silu_and_mul[(triton.cdiv(up.numel(), _BLOCK),)](gate, up, pieces, MULTIPLE, _BLOCK, num_warps=4)
    return up

"""What the CUDA C++ bodies of attention have in common: exponents, and which cached positions a tile has."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor

_EXPONENTS = include("ops/attend/exponents.cuh")

#: Of splits, one of as many equal shares of its sequence.
SHARE = _EXPONENTS + include("ops/attend/share_equal.cuh")

#: What its row of a table says (``kernels/attend/shares``).
SHARE_TABLE = _EXPONENTS + include("ops/attend/share_table.cuh")


def reads_whole_tensors(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a tile reads all of q, k and v that its op says, so that it may poll their words."""
    return "shares" not in tensors

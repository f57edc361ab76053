"""The CUDA C++ body of attention over a cache on tensor cores, for the one launch: 16-bit elements, heads of 64 or 128.

As in ``attend/cuda`` keys and values of a share come through the ring, some positions to a stage. Here they come by
tensor maps, in boxes of 32 positions and 64 elements: rows of 128 bytes, permuted by the 128-byte swizzle, so that
eight rows of a matrix lie in different banks. What a box has behind the share's last position does not count. Where
other ops of the launch take large slots for dependent operands, of which attention has none, values come into these,
and the ring holds more of the cache while queries are awaited.

A warp takes 16 positions at a time for up to eight heads of the group, and keeps a softmax of its own. It has nobody to
wait for but the stage, and all it does with 16 positions is one chain of instructions that wait for each other;
where a share is the whole cache, two such chains go side by side:

    matrices of keys and values    35 cycles or so, from shared memory into registers
    products with the queries      70, two of them one behind the other; the second eight rows of queries carry what
                                   rounding took from the first, and the sum of both is as exact as float32
    weights                        80, sums, the largest of a lane, a vote, exponents, pairs
    products with the values       their sums are not waited for

In products with values heads are columns: weights lie as scores came, rounded as in FlashAttention, which their total
is not, and 16 elements of a value are rows. Exponents are counted from a peak that may be out of date by ``LAG``, so
that lanes need not tell each other theirs, and sums fade, but rarely (as FlashAttention-4 does, Dao, Hot Chips 2025).

The warp that has the fewest positions begins with this step's own key and value, which never went through the cache.
In the end warps meet in shared memory, once.
"""

from __future__ import annotations

from collections.abc import Mapping

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.attend.share_cuda import SHARE, reads_whole_tensors
from interlace.kernels.cuda.matrices import MATRICES
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.pages import PAGES
from interlace.kernels.text import CudaBody

_HEADS = 8  # of a warp
_WARPS = 4, 8  # of a block, at least and at most
_BOX = 32  # positions that come at once
_WIDTHS = 64, 128  # elements of a head
_SHARE_BYTES = 32


def can_use_mma(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    """Whether this body computes an op."""
    d, group, page = (int(op.param(name)) for name in ("D", "GROUP", "PAGE"))
    of_two_bytes = tensors["k_cache"].dtype.itemsize == 2
    return of_two_bytes and d in _WIDTHS and group <= _HEADS * _WARPS[0] and page % _BOX == 0


def _compute_scratch_bytes(op: Op) -> int:
    """Of each warp and head the sums of values, the peak and the total; and rows of q, k and v that came as words."""
    group, d = int(op.param("GROUP")), int(op.param("D"))
    return 4 * _WARPS[1] * min(group, _HEADS) * (d + 4) + 2 * (group + 2) * d


def _compute_stage_bytes(op: Op) -> int:
    return 2 * _BOX * int(op.param("D")) * 2


def _compute_header_bytes(op: Op) -> int:
    """The share; cosines and sines; rows of q, k and v."""
    group, d = int(op.param("GROUP")), int(op.param("D"))
    return _SHARE_BYTES + 4 * d + 2 * (group + 2) * d


def _compute_box_rows(op: Op) -> dict[str, int]:
    return dict.fromkeys(("k_cache", "v_cache"), _BOX)


def build_mma_source(share: str) -> str:
    """Return the text, given how tiles find their share of the positions."""
    return ROWS + share + PAGES + MATRICES + include("ops/attend/products.cuh")


ATTEND_MMA_CUDA = CudaBody(
    build_mma_source(SHARE),
    "attend_tile",
    constants=("HEADS", "PAGE", "SPLITS", "GROUP", "D", "BLOCK", "WHOLE", "EPS"),
    optional_args=("table", "q_norm", "k_norm", "peak", "total"),
    scratch_bytes=_compute_scratch_bytes,
    is_proved=True,
    streamed_inputs=("k_cache", "v_cache"),
    pre_wait_inputs=("position", "rope", "table", "q_norm", "k_norm"),
    resident_input="position",
    paired_inputs=("q", "k", "v", "rope", "q_norm", "k_norm", "out"),
    loads_struct="Loads",
    stage_bytes=_compute_stage_bytes,
    header_inputs=("q", "k", "v", "rope"),
    header_bytes=_compute_header_bytes,
    box_rows=_compute_box_rows,
    ll_inputs=("q", "k", "v"),
    ll_outputs=("out", "peak", "total"),
    can_use_ll=reads_whole_tensors,
)

"""The CUDA C++ body of attention over a cache, for the one launch: any elements, heads and groups.

Where tensor cores have it easier, ``attend/products_cuda`` is taken instead.

Keys and values of a share come through the ring, some positions to a stage: first its keys, then its values. No earlier
op of a step writes them, so they are on their way before the queries are.

A row is read by a *team* of neighbouring lanes, 16 bytes each; a warp takes up to four heads of the group, and shares
the positions with the other warps of these heads. Every team keeps a softmax of its own over every n-th position
(online, as in the Triton body), and joins the others at the end: first within its warp by shuffles, then through shared
memory, where this step's own key is one more.

Four positions times four heads make 16 scores, of which each lane has a part of every sum. With D = 64 in bf16 a team
has 8 lanes; they exchange halves, so that in three steps each lane has two whole scores, takes two exponents and not
16, and gives the others their weights:

    lane of the team      0    1    2    3    4    5    6    7
    head                  0    0    1    1    2    2    3    3
    positions             0 1  2 3  0 1  2 3  0 1  2 3  0 1  2 3

With D = 80 a team has 16 lanes. Six of them read the last 16 bytes of a row again, and multiply them by nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.attend.products_cuda import ATTEND_MMA_CUDA, build_mma_source, can_use_mma
from interlace.kernels.attend.share_cuda import SHARE, SHARE_TABLE, reads_whole_tensors
from interlace.kernels.base import next_power_of_2
from interlace.kernels.cuda.rows import ROPE_HEADS, ROWS
from interlace.kernels.pages import PAGES
from interlace.kernels.text import CudaBody

_WARPS = 4, 8  # of a block, at least and at most
_HEADS = 4  # of a warp at most, unless there are too many for all warps
_ROWS = 16  # positions that a stage has at least
_WIDEST = 4  # bytes of an element


def _count_heads_per_warp(group: int) -> int:
    """As the text counts them, for the fewest warps."""
    return max(min(_HEADS, next_power_of_2(group)), next_power_of_2(-(-group // _WARPS[0])))


def _compute_scratch_bytes(op: Op) -> int:
    """Queries, the own key and value, angles and scores; of each warp its sums of values, peaks and totals."""
    group, d = int(op.param("GROUP")), int(op.param("D"))
    return 4 * ((group + 4) * d + group + _WARPS[1] * _count_heads_per_warp(group) * (d + 2))


def _compute_stage_bytes(op: Op) -> int:
    return 2 * _ROWS * int(op.param("D")) * _WIDEST


def _select_variant(op: Op, tensors: Mapping[str, Tensor]) -> CudaBody | None:
    products = can_use_mma(op, tensors)
    if "shares" in tensors:
        return (
            _use_share_table(ATTEND_MMA_CUDA, build_mma_source)
            if products
            else _use_share_table(ATTEND_CUDA, _build_source)
        )
    return ATTEND_MMA_CUDA if products else None


def _build_source(share: str) -> str:
    """Return the text, given how tiles find their share of the positions."""
    return ROWS + ROPE_HEADS + share + PAGES + include("ops/attend/attend.cuh")


def _use_share_table(body: CudaBody, text: Callable[[str], str]) -> CudaBody:
    """Return the body whose tiles read their share from a table."""
    return replace(
        body,
        source=text(SHARE_TABLE),
        pre_wait_inputs=(*body.pre_wait_inputs, "shares"),
        resident_input="",
        select_variant=None,
    )


ATTEND_CUDA = CudaBody(
    _build_source(SHARE),
    "attend_tile",
    constants=("HEADS", "PAGE", "SPLITS", "GROUP", "D", "BLOCK", "WHOLE", "EPS"),
    optional_args=("table", "q_norm", "k_norm", "peak", "total"),
    scratch_bytes=_compute_scratch_bytes,
    is_proved=True,
    streamed_inputs=("k_cache", "v_cache"),
    pre_wait_inputs=("position", "rope", "table"),
    resident_input="position",
    loads_struct="Loads",
    stage_bytes=_compute_stage_bytes,
    ll_outputs=("out", "peak", "total"),
    can_use_ll=lambda op, tensors: "peak" in tensors and reads_whole_tensors(op, tensors),
    select_variant=_select_variant,
)

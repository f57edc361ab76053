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

from interlace.csrc import read_header
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.attend.products_cuda import ATTEND_PRODUCTS, products_text, suits
from interlace.kernels.attend.share_cuda import SHARE, TABLED_SHARE, whole_shares
from interlace.kernels.base import power_of_two
from interlace.kernels.cuda.rows import PLACED, ROWS
from interlace.kernels.pages import PAGES
from interlace.kernels.text import TextBody

_WARPS = 4, 8  # of a block, at least and at most
_HEADS = 4  # of a warp at most, unless there are too many for all warps
_ROWS = 16  # positions that a stage has at least
_WIDEST = 4  # bytes of an element


def _heads_of_warp(group: int) -> int:
    """As the text counts them, for the fewest warps."""
    return max(min(_HEADS, power_of_two(group)), power_of_two(-(-group // _WARPS[0])))


def _scratch_bytes(op: Op) -> int:
    """Queries, the own key and value, angles and scores; of each warp its sums of values, peaks and totals."""
    group, d = int(op.param("GROUP")), int(op.param("D"))
    return 4 * ((group + 4) * d + group + _WARPS[1] * _heads_of_warp(group) * (d + 2))


def _stage_bytes(op: Op) -> int:
    return 2 * _ROWS * int(op.param("D")) * _WIDEST


def _other(op: Op, tensors: Mapping[str, Tensor]) -> TextBody | None:
    products = suits(op, tensors)
    if "shares" in tensors:
        return _tabled(ATTEND_PRODUCTS, products_text) if products else _tabled(ATTEND_TEXT, _text)
    return ATTEND_PRODUCTS if products else None


def _text(share: str) -> str:
    """Return the text, given how tiles find their share of the positions."""
    return ROWS + PLACED + share + PAGES + read_header("ops/attend/attend.cuh")


def _tabled(body: TextBody, text: Callable[[str], str]) -> TextBody:
    """Return the body whose tiles read their share from a table."""
    return replace(body, text=text(TABLED_SHARE), early=(*body.early, "shares"), resident="", other=None)


ATTEND_TEXT = TextBody(
    _text(SHARE),
    "attend_tile",
    constants=("HEADS", "PAGE", "SPLITS", "GROUP", "D", "BLOCK", "WHOLE", "EPS"),
    optional=("table", "q_norm", "k_norm", "peak", "total"),
    scratch_bytes=_scratch_bytes,
    proved=True,
    streamed=("k_cache", "v_cache"),
    early=("position", "rope", "table"),
    resident="position",
    loads="Loads",
    stage_bytes=_stage_bytes,
    publishes=("out", "peak", "total"),
    by_words=lambda op, tensors: "peak" in tensors and whole_shares(op, tensors),
    other=_other,
)

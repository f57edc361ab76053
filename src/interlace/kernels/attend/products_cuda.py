"""CUDA source of attention over a cache on tensor cores, and how the texts of attention find their positions."""

from __future__ import annotations

from collections.abc import Mapping

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda_body import CudaBody
from interlace.kernels.cuda_loads import CudaLoads, RingStage
from interlace.kernels.megakernel_body import LLArguments
from interlace.kernels.pages import PAGES

#: One of as many equal shares of a sequence as it has splits.
SHARE = include("ops/attend/exponents.cuh", "ops/attend/share_equal.cuh")
#: The share that a row of a table gives (``kernels/attend/shares``).
SHARE_TABLE = include("ops/attend/exponents.cuh", "ops/attend/share_table.cuh")
_HEADS = 8  # of a warp
_WARPS = 4, 8  # fewest and most warps of a block
_BOXES = 32, 64  # positions of a bulk load: 64 where these are 8 KiB of a head, in whole blocks and pages
_WIDTHS = range(64, 257, 16)  # elements of a head
_PANEL = 64  # elements of a row of a bulk load
_MAX_IN_HEADER = 26 * 256  # elements of q, k and v: each stage has a header
_MAX_POLLED = 34 * 128  # elements of q, k and v that the fewest warps can poll: a thread has registers for them
_SHARE_BYTES = 32
_POLLED = "q", "k", "v"
_NORMS = "q_norm", "k_norm"


def reads_whole_tensors(op: Op, tensors: Mapping[str, Tensor], name: str) -> bool:
    """Return whether a tile reads all of q, k and v that its op declares, so that it may poll LL words of them."""
    return "shares" not in tensors


def _count_own(op: Op) -> int:
    """Return the elements of a tile's q, k and v."""
    return (int(op.param("GROUP")) + 2) * int(op.param("D"))


def _count_polled(op: Op) -> int:
    """Return the elements of a tile's q, k and v, or 0 if these cannot be LL words."""
    return _count_own(op) if _count_own(op) <= _MAX_POLLED else 0


def _can_use_ll(op: Op, tensors: Mapping[str, Tensor], name: str) -> bool:
    return reads_whole_tensors(op, tensors, name) and (name not in _POLLED or _count_polled(op) > 0)


def can_use_mma(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether this body computes an op."""
    d, group, page, block = (int(op.param(name)) for name in ("D", "GROUP", "PAGE", "BLOCK"))
    of_two_bytes = tensors["k_cache"].dtype.itemsize == 2
    fits = group <= _HEADS * _WARPS[0] and _count_own(op) <= _MAX_IN_HEADER
    return of_two_bytes and d in _WIDTHS and fits and page % _BOXES[0] == 0 and (not page or block % _BOXES[0] == 0)


def _compute_given_bytes(op: Op) -> int:
    """Return the bytes of cosines and sines, and of the weights of norms."""
    return (4 + 2 * sum(access.arg in _NORMS for access in op.accesses)) * int(op.param("D"))


def _compute_scratch_bytes(op: Op) -> int:
    """Return the bytes of each warp's sums of values, peaks and totals, and of what comes without a header."""
    group, d, polled = int(op.param("GROUP")), int(op.param("D")), _count_polled(op)
    return 4 * _WARPS[1] * min(group, _HEADS) * (d + 4) + (2 * polled + _compute_given_bytes(op) if polled else 0)


def _select_box(op: Op) -> int:
    """Return the positions of a bulk load, as ``loads.cuh`` computes them."""
    d, page, block = (int(op.param(name)) for name in ("D", "PAGE", "BLOCK"))
    return _BOXES[d <= _PANEL and page % _BOXES[1] == 0 and block % _BOXES[1] == 0]


def _compute_stage_bytes(op: Op) -> int:
    return 2 * _select_box(op) * -(-int(op.param("D")) // _PANEL) * _PANEL * 2


def _compute_header_bytes(op: Op) -> int:
    """Return the bytes of the share, rows of q, k and v, and what else is given."""
    return _SHARE_BYTES + 2 * _count_own(op) + _compute_given_bytes(op)


def _compute_box_rows(op: Op) -> dict[str, int]:
    return dict.fromkeys(("k_cache", "v_cache"), _select_box(op))


def build_mma_source(share: str) -> str:
    """Return the text, given how tiles find their share of the positions."""
    parts = ("loads", "rows_in_lanes", "warp_softmax", "products")
    own = include("ops/mma.cuh", "ops/panels.cuh", *(f"ops/attend/{part}.cuh" for part in parts))
    return include("ops/rows.cuh") + share + PAGES + own


ATTEND_MMA_CUDA = CudaBody(
    build_mma_source(SHARE),
    "attend_tile",
    constants=("HEADS", "PAGE", "SPLITS", "GROUP", "D", "BLOCK", "WHOLE", "EPS"),
    optional_args=("table", "q_norm", "k_norm", "peak", "total"),
    scratch_bytes=_compute_scratch_bytes,
    loads=CudaLoads(
        pre_wait_inputs=("position", "rope", "table", *_NORMS),
        resident_input="position",
        evict_first_inputs=("k_cache", "v_cache"),
        paired_inputs=("q", "k", "v", "rope", *_NORMS, "out"),
        ring=RingStage(
            "Loads",
            streamed_inputs=("k_cache", "v_cache"),
            stage_bytes=_compute_stage_bytes,
            box_rows=_compute_box_rows,
            header_inputs=("q", "k", "v", "rope", *_NORMS),
            header_bytes=_compute_header_bytes,
        ),
    ),
    ll=LLArguments(inputs=_POLLED, outputs=("out", "peak", "total"), can_use=_can_use_ll),
    is_proved=True,
)

"""CUDA source of attention over a cache in the megakernel; ``products_cuda`` has that for tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from interlace.csrc import include
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.attend.products_cuda import (
    ATTEND_MMA_CUDA,
    SHARE,
    SHARE_TABLE,
    build_mma_source,
    can_use_mma,
    reads_whole_tensors,
)
from interlace.kernels.base import next_power_of_2
from interlace.kernels.cuda_body import CudaBody, CudaVariants
from interlace.kernels.cuda_loads import CudaLoads, RingStage
from interlace.kernels.megakernel_body import LLArguments
from interlace.kernels.pages import PAGES

_WARPS = 4, 8  # fewest and most warps of a block
_HEADS = 4  # most heads of a warp, unless there are too many for all warps
_ROWS = 16  # fewest positions of a stage
_WIDEST = 4  # most bytes of an element


def _count_heads_per_warp(group: int) -> int:
    """Return the heads of a warp in a block of the fewest warps, as ``attend.cuh`` computes them."""
    return max(min(_HEADS, next_power_of_2(group)), next_power_of_2(-(-group // _WARPS[0])))


def _compute_scratch_bytes(op: Op) -> int:
    """Return the bytes of queries, own key and value, angles, scores, and each warp's sums, peaks and totals."""
    group, d = int(op.param("GROUP")), int(op.param("D"))
    return 4 * ((group + 4) * d + group + _WARPS[1] * _count_heads_per_warp(group) * (d + 2))


def _compute_stage_bytes(op: Op) -> int:
    return 2 * _ROWS * int(op.param("D")) * _WIDEST


def _build_source(share: str) -> str:
    """Return the text, given how tiles find their share of the positions."""
    return include("ops/rows.cuh", "ops/heads.cuh") + share + PAGES + include("ops/attend/attend.cuh")


def _use_share_table(body: CudaBody, text: Callable[[str], str]) -> CudaBody:
    """Return the body whose tiles read their share from a table."""
    ahead = (*body.loads.pre_wait_inputs, "shares")
    return replace(body, source=text(SHARE_TABLE), loads=replace(body.loads, pre_wait_inputs=ahead, resident_input=""))


_SCALAR = CudaBody(
    _build_source(SHARE),
    "attend_tile",
    constants=("HEADS", "PAGE", "SPLITS", "GROUP", "D", "BLOCK", "WHOLE", "EPS"),
    optional_args=("table", "q_norm", "k_norm", "peak", "total"),
    scratch_bytes=_compute_scratch_bytes,
    loads=CudaLoads(
        pre_wait_inputs=("position", "rope", "table"),
        resident_input="position",
        evict_first_inputs=("k_cache", "v_cache"),
        ring=RingStage("Loads", streamed_inputs=("k_cache", "v_cache"), stage_bytes=_compute_stage_bytes),
    ),
    ll=LLArguments(
        outputs=("out", "peak", "total"),
        can_use=lambda op, tensors, name: "peak" in tensors and reads_whole_tensors(op, tensors, name),
    ),
    is_proved=True,
)
_SCALAR_OF_TABLE = _use_share_table(_SCALAR, _build_source)
_MMA_OF_TABLE = _use_share_table(ATTEND_MMA_CUDA, build_mma_source)


def _select(op: Op, tensors: Mapping[str, Tensor]) -> CudaBody:
    if can_use_mma(op, tensors):
        return _MMA_OF_TABLE if "shares" in tensors else ATTEND_MMA_CUDA
    return _SCALAR_OF_TABLE if "shares" in tensors else _SCALAR


ATTEND_CUDA = CudaVariants(_SCALAR, _select)

"""The CUDA C++ body that joins the splits of attention, for the one launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from interlace.csrc import read_header
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.cuda.rows import ROWS
from interlace.kernels.text import TextBody

_OF_WARP = 64  # elements at a time
_BODY = read_header("ops/combine/combine.cuh")
_EQUAL_SPLITS = read_header("ops/combine/splits_equal.cuh")
_SPLITS_OF_ROWS = read_header("ops/combine/splits_of_rows.cuh")


def _by_words(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    return "rows" not in tensors and int(op.param("D")) % _OF_WARP == 0 and tensors["out"].dtype.itemsize == 2


def _other(op: Op, tensors: Mapping[str, Tensor]) -> TextBody | None:
    if "rows" not in tensors:
        return None
    return replace(COMBINE_TEXT, text=ROWS + _SPLITS_OF_ROWS + _BODY, other=None)


COMBINE_TEXT = TextBody(
    ROWS + _EQUAL_SPLITS + _BODY,
    "combine_tile",
    constants=("HEADS", "SPLITS", "GROUP", "D"),
    paired=("parts",),
    proved=True,
    polls=("parts", "peak", "total"),
    publishes=("out",),
    by_words=_by_words,
    other=_other,
)

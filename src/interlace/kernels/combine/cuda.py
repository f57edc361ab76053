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
#: The row of the result, with which the body begins.
_HEAD = "const long long head = (long long)tile.i * HEADS + tile.j;"
_BODY = read_header("ops/combine/combine.cuh")
_OF_ROWS = read_header("ops/combine/splits_of_rows.cuh")


def _text(first: str, count: str, place: str) -> str:
    """Of the body, given where splits begin, how many a tile has, and how many splits of a head lie before the n-th."""
    return _BODY.replace("FIRST", first).replace("COUNT", count).replace("PLACE", place)


def _by_words(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    return "rows" not in tensors and int(op.param("D")) % _OF_WARP == 0 and tensors["out"].dtype.itemsize == 2


def _other(op: Op, tensors: Mapping[str, Tensor]) -> TextBody | None:
    if "rows" not in tensors:
        return None
    text = _text("(long long)tile.j", "own.count", "own.place")
    text = text.replace(_HEAD, f"{_HEAD}\n  const Splits own = splits_of(tile, a);")
    return replace(COMBINE_TEXT, text=ROWS + _OF_ROWS + text, other=None)


COMBINE_TEXT = TextBody(
    ROWS + _text("head * SPLITS", "SPLITS", ""),
    "combine_tile",
    constants=("HEADS", "SPLITS", "GROUP", "D"),
    paired=("parts",),
    proved=True,
    polls=("parts", "peak", "total"),
    publishes=("out",),
    by_words=_by_words,
    other=_other,
)

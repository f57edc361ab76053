"""The CUDA C++ body of merge, for the one launch."""

from __future__ import annotations

from interlace.csrc import read_header
from interlace.kernels.cuda.rows import ROWS, WORDS
from interlace.kernels.text import TextBody

MERGE_TEXT = TextBody(
    ROWS + WORDS + read_header("ops/merge.cuh"),
    "merge_tile",
    constants=("H", "CHOSEN", "BM", "BN"),
    proved=True,
)

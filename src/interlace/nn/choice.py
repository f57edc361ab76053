"""Choice of what runs an FFN on a GPU, cached for each number of tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from interlace.core.dtypes import DType
from interlace.deploy import Choice, choose, choose_launch_rows
from interlace.executors.gpu import find_spec
from interlace.kernels.row_tiles import select_tile_rows
from interlace.workloads.ffn import FFNShape, ffn

#: Maximum number of tokens for which a launch includes norm and residual of an FFN: up to here it was faster than with
#: PyTorch's (benchmarks/notes/norms.md). For more tokens a norm has many tiles, and launches with tickets share no
#: split-K sums.
MAX_NORM_TOKENS = 64


@lru_cache(1 << 14)
def choose_ffn(device: torch.device, shape: FFNShape, dtype: DType, bias: bool, tokens: int) -> Choice:
    """Choose a launch or PyTorch's ops; beyond ``MAX_NORM_TOKENS`` tokens, for the FFN without its norm."""
    spec = find_spec(str(device))
    shape = shape if tokens <= MAX_NORM_TOKENS else replace(shape, norm=None)
    own, launched = (
        ffn(rows, shape, dtype, bias=bias, norm_rows=select_tile_rows(rows, spec.sms), device=spec)
        for rows in (tokens, choose_launch_rows(tokens, shape, spec))
    )
    return choose(own, spec, launched)

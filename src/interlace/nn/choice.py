"""Choice of what runs an FFN on a GPU, cached for each number of tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from interlace.core.dtypes import DType
from interlace.deploy import Choice, choose, launched_rows
from interlace.executors.gpu import spec_by_name
from interlace.kernels.teams import rows_of
from interlace.workloads.ffn import FFNShape, ffn

#: Maximum number of tokens for which a launch includes norm and residual of an FFN: up to here it was faster than with
#: PyTorch's (docs/tried.md). For more tokens a norm has many tiles, and launches with tickets share no split-K sums.
MOST_WHOLE = 64


@lru_cache(1 << 14)
def choice(device: torch.device, shape: FFNShape, dtype: DType, bias: bool, tokens: int) -> Choice:
    """Choose a launch for ``launched_rows`` or PyTorch's ops; beyond ``MOST_WHOLE`` tokens for the FFN without norm."""
    spec = spec_by_name(str(device))
    shape = shape if tokens <= MOST_WHOLE else replace(shape, norm=None)
    own, launched = (
        ffn(rows, shape, dtype, bias=bias, norm_rows=rows_of(rows, spec.sms), device=spec)
        for rows in (tokens, launched_rows(tokens, shape, spec))
    )
    return choose(own, spec, launched)

"""What runs an FFN over some tokens on a GPU, remembered for each number of tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch

from interlace.core.dtypes import DType
from interlace.deploy import Choice, choose, launched_rows
from interlace.executors.gpu import spec_by_name
from interlace.kernels.teams import rows_of
from interlace.workloads.ffn import FFNShape, ffn

#: Tokens up to which a launch has the norm and the sum around an FFN, too: so far it was faster than with PyTorch's
#: (docs/tried.md). Over more a norm has many tiles, and launches that draw them share no sums of products.
MOST_WHOLE = 64


@lru_cache(1 << 14)
def choice(device: torch.device, shape: FFNShape, dtype: DType, bias: bool, tokens: int) -> Choice:
    """One launch, built for ``launched_rows``, or PyTorch's own ops; over more than ``MOST_WHOLE`` of the FFN alone."""
    spec = spec_by_name(str(device))
    shape = shape if tokens <= MOST_WHOLE else replace(shape, norm=None)
    own, launched = (
        ffn(rows, shape, dtype, bias=bias, norm_rows=rows_of(rows, spec.sms), device=spec)
        for rows in (tokens, launched_rows(tokens, shape, spec))
    )
    return choose(own, spec, launched)

"""What runs an FFN over some tokens on a GPU, remembered for each number of tokens."""

from __future__ import annotations

from functools import lru_cache

import torch

from interlace.core.dtypes import DType
from interlace.deploy import Choice, choose, launched_rows
from interlace.executors.gpu import spec_by_name
from interlace.workloads.ffn import FFNShape, ffn


@lru_cache(1 << 14)
def choice(device: torch.device, shape: FFNShape, dtype: DType, bias: bool, tokens: int) -> Choice:
    """One launch, built for ``launched_rows``, or PyTorch's own ops."""
    spec = spec_by_name(str(device))
    own, launched = (ffn(rows, shape, dtype, bias=bias) for rows in (tokens, launched_rows(tokens, shape, spec)))
    return choose(own, spec, launched)

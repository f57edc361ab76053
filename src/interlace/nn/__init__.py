"""PyTorch modules that run a transformer's feed-forward network as one launch where that is faster.

See docs/pytorch.md.

    mlp = interlace.nn.SwiGLU.from_linears(gate, up, down)
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"{error}; interlace.nn needs `pip install 'interlace[gpu]'`") from None

from interlace.nn.modules import FFN, SwiGLU
from interlace.nn.op import FallbackWarning

__all__ = ["FFN", "FallbackWarning", "SwiGLU"]

"""PyTorch modules for feed-forward networks and networks for images, run as megakernels where that is faster, and for
whole decoders.

See docs/pytorch.md and docs/models.md.

    mlp = interlace.nn.SwiGLU.from_linears(gate, up, down)
    network = interlace.nn.ConvNet.from_model(resnet)
    decoder = interlace.nn.Decoder.from_model(model)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"{error}; interlace.nn needs `pip install -e '.[gpu]'`") from None

from interlace.nn.decoder.decoder import Decoder
from interlace.nn.decoder.sampling import SlotSampling

if TYPE_CHECKING:
    from interlace.nn.convnet.convnet import ConvNet
    from interlace.nn.modules import FFN, SwiGLU
    from interlace.nn.op import FallbackWarning

__all__ = ["FFN", "ConvNet", "Decoder", "FallbackWarning", "SlotSampling", "SwiGLU"]

#: Modules of the names that are imported when they are first asked for: they need PyTorch's compiler, which takes
#: seconds to import, and decoders do without it.
_LAZY = {"ConvNet": "convnet.convnet", "FFN": "modules", "FallbackWarning": "op", "SwiGLU": "modules"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

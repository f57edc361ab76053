"""PyTorch modules for feed-forward networks and networks for images, run as megakernels where that is faster, and for
whole decoders.

See docs/pytorch.md and docs/models.md.

    mlp = interlace.nn.SwiGLU.from_linears(gate, up, down)
    network = interlace.nn.ConvNet.from_model(resnet)
    decoder = interlace.nn.Decoder.from_model(model)
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"{error}; interlace.nn needs `pip install -e '.[gpu]'`") from None

from interlace.nn.convnet.convnet import ConvNet
from interlace.nn.decoder.decoder import Decoder
from interlace.nn.decoder.sampling import SlotSampling
from interlace.nn.modules import FFN, SwiGLU
from interlace.nn.op import FallbackWarning

__all__ = ["FFN", "ConvNet", "Decoder", "FallbackWarning", "SlotSampling", "SwiGLU"]

"""The feed-forward network of a transformer layer, plain or gated."""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.arguments import check_type, whole
from interlace.core.dtypes import DType, bf16
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.matmul import Activation, MatmulTile, matmul


@dataclass(frozen=True)
class FFNShape:
    """Widths of an FFN.

    Attributes:
        hidden: width of the model.
        ffn: width between the two matmuls, on one GPU.
        activation: of the up-projection; a gated FFN uses SiLU.
        gated: ``down(silu(gate(x)) * up(x))`` instead of ``down(activation(up(x)))``.

    Raises:
        ArgumentError: an attribute of another type.
    """

    hidden: int
    ffn: int
    activation: Activation
    gated: bool

    def __post_init__(self) -> None:
        for name in ("hidden", "ffn"):
            object.__setattr__(self, name, whole(getattr(self, name), "FFNShape", name))
        check_type(self.activation, Activation, "FFNShape", "activation")
        check_type(self.gated, bool, "FFNShape", "gated", "True")


#: FFNs of well-known models; ``tp8`` is one eighth of the width, as under tensor parallelism of 8.
MODELS = {
    "llama3-8b": FFNShape(4096, 14336, Activation.SILU, True),
    "llama3-70b-tp8": FFNShape(8192, 28672 // 8, Activation.SILU, True),
    "gpt3-145b-tp8": FFNShape(12288, 4 * 12288 // 8, Activation.GELU_TANH, False),
    "minilm": FFNShape(384, 1536, Activation.GELU_TANH, False),
}


def ffn(
    m: int,
    shape: FFNShape,
    dtype: DType = bf16,
    up: MatmulTile | None = None,
    down: MatmulTile | None = None,
    bias: bool = False,
) -> Graph:
    """An FFN over m tokens: ``x`` (m, hidden) through ``hidden`` (m, ffn) to ``out`` (m, hidden).

    Weights are named ``w_up``, ``w_gate`` (if gated) and ``w_down``, each (outputs, inputs); with ``bias`` there are
    ``b_up`` (ffn,), before the activation, and ``b_down`` (hidden,).

    Raises:
        ArgumentError: a shape that is none, such as the name of a model.
        ShapeError: an extent is not positive, or a gated FFN has another activation than SiLU, or a bias.
    """
    model = f"il.workloads.MODELS[{shape!r}]" if isinstance(shape, str) and shape in MODELS else ""
    check_type(shape, FFNShape, "ffn", "shape", model or "il.workloads.FFNShape(hidden, ffn, activation, gated)")
    x, hidden = Tensor("x", (m, shape.hidden), dtype), Tensor("hidden", (m, shape.ffn), dtype)
    out = Tensor("out", (m, shape.hidden), dtype)
    w_up, w_down = (
        Tensor("w_up", (shape.ffn, shape.hidden), dtype),
        Tensor("w_down", (shape.hidden, shape.ffn), dtype),
    )
    w_gate = (Tensor("w_gate", (shape.ffn, shape.hidden), dtype),) if shape.gated else ()
    b_up, b_down = Tensor("b_up", (shape.ffn,), dtype), Tensor("b_down", (shape.hidden,), dtype)
    ops = (
        matmul(
            "up",
            x,
            w_up,
            hidden,
            gate=w_gate[0] if w_gate else None,
            bias=b_up if bias else None,
            activation=shape.activation,
            tile=up,
        ),
        matmul("down", hidden, w_down, out, bias=b_down if bias else None, tile=down),
    )
    inputs = (x, w_up, *w_gate, w_down, *((b_up, b_down) if bias else ()))
    return Graph(
        "gated-ffn" if shape.gated else "ffn",
        (*inputs, hidden, out),
        ops,
        tuple(t.name for t in inputs),
        ("out",),
    )

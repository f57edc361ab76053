"""Attention's output projection and the FFN after it: all products of a transformer layer after its attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from interlace.core.devices import CPU, DeviceSpec
from interlace.core.dtypes import DType, bf16
from interlace.core.errors import ShapeError
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.matmul import Activation, MatmulTile, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.kernels.row_tiles import select_tile_rows
from interlace.workloads.base import DTypeField, Inputs, Option, Presets, Workload, sample_inputs
from interlace.workloads.ffn import FeedForward, FFNShape, ffn

_EPS = 1e-5  # epsilon of the norm in Llama 3
_DRAWN = "attended", "residual"  # activations, which are drawn from the standard normal distribution


def output_ffn(
    m: int, shape: FFNShape, dtype: DType = bf16, tile: MatmulTile | None = None, norm_rows: int = 1
) -> Graph:
    """Build ``out = ffn(x)`` with ``x = attended @ w_o.T + residual`` for m tokens; see ``ffn`` for the FFN.

    Inputs: ``attended`` and ``residual`` (m, hidden), ``w_o`` (hidden, hidden), and the FFN's weights. If the shape has
    a norm, ``out = x + ffn(rms_norm(x))``.

    Args:
        m: number of tokens.
        shape: widths and activation of the FFN.
        dtype: dtype of all tensors.
        tile: tile of all matmuls.
        norm_rows: rows per tile of the norm.

    Raises:
        ArgumentError, ShapeError, DTypeError: see ``ffn``.
    """
    after = ffn(m, shape, dtype, tile, tile, norm_rows=norm_rows)
    x = after.tensor("x")
    attended, residual = (Tensor(name, x.shape, dtype) for name in _DRAWN)
    w_o = Tensor("w_o", (shape.hidden, shape.hidden), dtype)
    own = attended, residual, w_o
    return Graph(
        f"output-{after.name}",
        (*own, *after.tensors),
        (matmul("output", attended, w_o, x, residual=residual, tile=tile), *after.ops),
        (*(tensor.name for tensor in own), *(name for name in after.inputs if name != "x")),
        after.outputs,
    )


@dataclass(frozen=True)
class OutputFFN(Workload):
    """Attention's output projection with its residual, then the feed-forward network.

    Raises:
        ShapeError: a gated FFN has an activation other than SiLU.
    """

    name: ClassVar[str] = "output-ffn"
    presets: ClassVar[Presets] = {
        "small": {"hidden": 72, "ffn": 136, "activation": Activation.SILU, "gated": True, "norm": True},
        "relu": {"hidden": 4096, "ffn": 4 * 4096, "activation": Activation.RELU},
        "llama3-8b": {"hidden": 4096, "ffn": 14336, "activation": Activation.SILU, "gated": True, "norm": True},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "llama3-8b"
    sizes: ClassVar[tuple[int, ...]] = (16, 1024, 8192)
    weights: ClassVar[tuple[str, ...]] = ("w_o", "w_norm", "w_up", "w_gate", "w_down")

    hidden: Annotated[int, Option("Width of the model (columns).", least=1)]
    ffn: Annotated[int, Option("Width between the two matmuls of the FFN.", least=1)]
    m: Annotated[int, Option("Tokens (rows).", least=1)] = 16
    gated: Annotated[bool, Option("down(silu(gate(x)) * up(x)), or without gate.")] = False
    activation: Annotated[
        Activation, Option("Between the matmuls", metavar="NAME", names={a.value: a for a in Activation})
    ] = Activation.GELU_TANH
    norm: Annotated[bool, Option("With an RMS norm before the FFN and a residual after it.")] = False
    dtype: DTypeField = bf16

    def __post_init__(self) -> None:
        if self.gated and self.activation is not Activation.SILU:
            raise ShapeError(f"a gated FFN uses silu, not {self.activation.value}; use that activation, or no gate")

    @property
    def _feed_forward(self) -> FeedForward:
        """The FFN alone."""
        norm = _EPS if self.norm else None
        return FeedForward(self.hidden, self.ffn, self.m, self.gated, self.activation, self.dtype, norm=norm)

    @property
    def title(self) -> str:
        return f"output projection and {self._feed_forward.title}"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.hidden**2 + self._feed_forward.flops

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        of_matmul, rows = select_matmul_tile(self.m, device, tile), select_tile_rows(self.m, device.sms)
        return output_ffn(self.m, self._feed_forward.shape, self.dtype, of_matmul, rows)

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        x = tensors["attended"] @ tensors["w_o"].T + tensors["residual"]
        return self._feed_forward.run_dense(xp, {**tensors, "x": x})

    def make_inputs(self, seed: int) -> Inputs:
        return sample_inputs(self.build_graph(CPU), seed, self.get_deviation)

    def get_deviation(self, tensor: Tensor) -> float:
        return 1.0 if tensor.name in _DRAWN else super().get_deviation(tensor)

    def make_host_inputs(self, seed: int) -> Inputs:
        return {}  # a CPU takes seconds to draw them

"""Feed-forward half of a transformer layer with layer normalisation and residual, as in GPT-2 and OPT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType, bf16
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.layer_norm import compute_layer_norm, layer_norm
from interlace.kernels.matmul import Activation, MatmulTile, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.kernels.row_tiles import select_tile_rows
from interlace.workloads.base import DTypeField, Option, Presets, Workload
from interlace.workloads.ffn import activate

_EPS = 1e-5  # layer-norm epsilon of both models


def ffn_block(
    m: int,
    hidden: int,
    ffn: int,
    activation: Activation = Activation.GELU_TANH,
    dtype: DType = bf16,
    tile: MatmulTile | None = None,
    rows: int = 1,
) -> Graph:
    """Build ``out = x + down(activation(up(layer_norm(x))))`` for m tokens x (m, hidden), with biases everywhere.

    Inputs: ``x``, ``gain`` and ``shift`` (hidden,) of the normalisation, ``w_up`` (ffn, hidden), ``b_up`` (ffn,),
    ``w_down`` (hidden, ffn), ``b_down`` (hidden,).

    Args:
        m: number of tokens.
        hidden: width of the model.
        ffn: width between the two matmuls.
        activation: activation of the up-projection.
        dtype: dtype of all tensors.
        tile: tile of both matmuls.
        rows: rows per tile of the normalisation.

    Raises:
        ArgumentError, ShapeError, DTypeError: extents, a dtype or tiles that the kernels do not support.
    """
    shapes = {"x": (m, hidden), "gain": (hidden,), "shift": (hidden,), "w_up": (ffn, hidden), "b_up": (ffn,)}
    shapes |= {"w_down": (hidden, ffn), "b_down": (hidden,)}
    made = {"normed": (m, hidden), "hidden": (m, ffn), "out": (m, hidden)}
    t = {name: Tensor(name, shape, dtype) for name, shape in (shapes | made).items()}
    ops = (
        layer_norm("norm", t["x"], t["gain"], t["shift"], t["normed"], eps=_EPS, rows=rows),
        matmul("up", t["normed"], t["w_up"], t["hidden"], bias=t["b_up"], activation=activation, tile=tile),
        matmul("down", t["hidden"], t["w_down"], t["out"], bias=t["b_down"], residual=t["x"], tile=tile),
    )
    return Graph("ffn-block", (*t.values(),), ops, (*shapes,), ("out",))


@dataclass(frozen=True)
class FFNBlock(Workload):
    """The feed-forward half of a layer as GPT-2 has it, ``x + ffn(layer_norm(x))``, with biases."""

    name: ClassVar[str] = "ffn-block"
    presets: ClassVar[Presets] = {
        "small": {"hidden": 72, "ffn": 288},
        "gpt2-xl": {"hidden": 1600, "ffn": 6400},
        "opt-1.3b": {"hidden": 2048, "ffn": 8192, "activation": Activation.RELU},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "gpt2-xl"
    sizes: ClassVar[tuple[int, ...]] = (1, 16, 128, 1024)
    weights: ClassVar[tuple[str, ...]] = ("w_up", "w_down")
    layer_ports: ClassVar[tuple[str, str] | None] = ("x", "out")

    hidden: Annotated[int, Option("Width of the model (columns).", least=1)]
    ffn: Annotated[int, Option("Width between the two matmuls.", least=1)]
    m: Annotated[int, Option("Tokens (rows).", least=1)] = 16
    activation: Annotated[
        Activation, Option("Between the matmuls", metavar="NAME", names={a.value: a for a in Activation})
    ] = Activation.GELU_TANH
    dtype: DTypeField = bf16

    @property
    def title(self) -> str:
        return f"FFN block, {self.m} tokens, {self.hidden} to {self.ffn} to {self.hidden}, {self.dtype}"

    @property
    def flops(self) -> float:
        return 4.0 * self.m * self.hidden * self.ffn

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        of_matmul, rows = select_matmul_tile(self.m, device, tile), select_tile_rows(self.m, device.sms)
        return ffn_block(self.m, self.hidden, self.ffn, self.activation, self.dtype, of_matmul, rows)

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        t = tensors
        if xp is np:
            normed = compute_layer_norm(t["x"], t["gain"], t["shift"], _EPS)
            hidden = activate(np, self.activation, normed @ t["w_up"].T + t["b_up"])
            return {"out": t["x"] + hidden @ t["w_down"].T + t["b_down"]}
        functional = xp.nn.functional
        normed = functional.layer_norm(t["x"], (self.hidden,), t["gain"], t["shift"], _EPS)
        hidden = activate(xp, self.activation, functional.linear(normed, t["w_up"], t["b_up"]))
        return {"out": t["x"] + functional.linear(hidden, t["w_down"], t["b_down"])}

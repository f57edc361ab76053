"""FFN halves of a model's layers in sequence: a run reads only weights, and every op waits for all earlier ones.

    x = x + (silu(rms_norm(x) @ gate.T) * (rms_norm(x) @ up.T)) @ down.T      for each layer

Normalisations are fused into the ops around them (``kernels/folded_norm``), except the first, which is an op of its
own. Layers reuse the same tensors and alternate between two for x, as the layers of ``build_decode_graph`` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from interlace.core.arguments import check_int
from interlace.core.devices import CPU, DeviceSpec
from interlace.core.dtypes import DType, bf16, fp32
from interlace.core.errors import ShapeError
from interlace.core.rounding import round_to
from interlace.graph.graph import Graph
from interlace.graph.op import Op
from interlace.graph.tensor import Tensor
from interlace.kernels.folded_norm import COLUMNS, FINE, count_blocks
from interlace.kernels.matmul import Activation, MatmulTile, matmul
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.kernels.matmul.tilings import SKINNY_TOKENS
from interlace.kernels.rms_norm import compute_rms_norm, rms_norm
from interlace.workloads.base import DTypeField, Inputs, Option, Presets, Workload
from interlace.workloads.decode import RANDOM_NUMBERS, repeat_values
from interlace.workloads.ffn import MODELS

_EPS = 1e-5  # epsilon of every normalisation, as in Llama


def ffn_layers(
    layers: int, m: int, hidden: int, ffn: int, dtype: DType = bf16, tile: MatmulTile | None = None
) -> Graph:
    """Build gated FFNs, each with a norm before and a residual after it: ``x`` to ``out``, both (m, hidden).

    Layer l has the inputs ``layers.l.NAME``: ``norm`` (hidden,), ``gate`` and ``up`` (ffn, hidden), and ``down``
    (hidden, ffn).

    Raises:
        ArgumentError, ShapeError: an extent is not a positive number.
    """
    if check_int(layers, "ffn_layers", "layers") < 1:
        raise ShapeError(f"ffn_layers has layers {layers}; use a positive number")
    squared = FINE if m <= SKINNY_TOKENS else COLUMNS
    x, out = (Tensor(name, (m, hidden), dtype) for name in ("x", "out"))
    inner = Tensor("inner", (m, ffn), dtype)
    # Two sets of tensors for x: a layer reads one and writes the other.
    kept, scaled = ([Tensor(f"x{side}{what}", (m, hidden), dtype) for side in "ab"] for what in ("", "_scaled"))
    squares = [Tensor(f"x{side}_squares", (m, count_blocks(hidden, squared)), fp32) for side in "ab"]
    weights: dict[str, Tensor] = {}
    for n in range(layers):
        shapes = {"norm": (hidden,), "gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
        weights |= {f"layers.{n}.{name}": Tensor(f"layers.{n}.{name}", shape, dtype) for name, shape in shapes.items()}

    ops: list[Op] = [rms_norm("norm", x, weights["layers.0.norm"], scaled[1], _EPS)]
    wide = None if tile is None else replace(tile, n=count_blocks(tile.n, squared) * squared)
    for n in range(layers):
        at, this, before, last = f"layers.{n}", n % 2, 1 - n % 2, n + 1 == layers
        ops += [
            matmul(
                f"{at}.inner",
                scaled[before],
                weights[f"{at}.up"],
                inner,
                gate=weights[f"{at}.gate"],
                activation=Activation.SILU,
                x_squares=squares[before] if n else None,
                eps=_EPS if n else None,
                tile=tile,
            ),
            matmul(
                f"{at}.x",
                inner,
                weights[f"{at}.down"],
                out if last else kept[this],
                residual=kept[before] if n else x,
                scale=None if last else weights[f"layers.{n + 1}.norm"],
                scaled=None if last else scaled[this],
                squares=None if last else squares[this],
                tile=wide,
            ),
        ]
    used = {access.tensor for op in ops for access in op.accesses}
    made = (*kept, *scaled, *squares, inner, out)
    tensors = (x, *weights.values(), *(tensor for tensor in made if tensor.name in used))
    return Graph("ffn-layers", tensors, tuple(ops), ("x", *weights), ("out",))


@dataclass(frozen=True)
class FFNLayers(Workload):
    """The gated FFNs of a model's layers one behind the other, each with its norm and residual."""

    name: ClassVar[str] = "ffn-layers"
    presets: ClassVar[Presets] = {
        "small": {"layers": 3, "hidden": 64, "ffn": 128},
        "llama3-8b": {"layers": 16, "hidden": MODELS["llama3-8b"].hidden, "ffn": MODELS["llama3-8b"].ffn},
        "llama3.2-1b": {"layers": 16, "hidden": 2048, "ffn": 8192},
    }
    cpu_preset: ClassVar[str] = "small"
    gpu_preset: ClassVar[str] = "llama3-8b"
    sizes: ClassVar[tuple[int, ...]] = (1, 16)

    layers: Annotated[int, Option("Layers.", least=1, most=1024)]
    hidden: Annotated[int, Option("Width of the model (columns).", least=1)]
    ffn: Annotated[int, Option("Width between the two matmuls.", least=1)]
    m: Annotated[int, Option("Tokens (rows).", least=1)] = 16
    dtype: DTypeField = bf16

    @property
    def weights(self) -> tuple[str, ...]:  # type: ignore[override]
        """Weights of all layers."""
        return tuple(f"layers.{n}.{name}" for n in range(self.layers) for name in ("norm", "gate", "up", "down"))

    @property
    def title(self) -> str:
        widths = f"{self.hidden} to {self.ffn} to {self.hidden}"
        return f"{self.layers} gated FFN layers, {self.m} tokens, {widths}, {self.dtype}"

    @property
    def flops(self) -> float:
        return 6.0 * self.layers * self.m * self.hidden * self.ffn

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        return ffn_layers(
            self.layers, self.m, self.hidden, self.ffn, self.dtype, select_matmul_tile(self.m, device, tile)
        )

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        x = tensors["x"]
        for n in range(self.layers):
            norm, gate, up, down = (tensors[f"layers.{n}.{name}"] for name in ("norm", "gate", "up", "down"))
            if xp is np:
                h = compute_rms_norm(x, norm, _EPS)
                x = x + (Activation.SILU(h @ gate.T) * (h @ up.T)) @ down.T
            else:
                h = xp.nn.functional.rms_norm(x, x.shape[-1:], norm, _EPS)
                x = x + (xp.nn.functional.silu(h @ gate.T) * (h @ up.T)) @ down.T
        return {"out": x}

    def make_inputs(self, seed: int) -> Inputs:
        """Draw x and the weights from a pool of random numbers; norms are around 1."""
        random = np.random.default_rng(seed)
        pool = random.standard_normal(RANDOM_NUMBERS, np.float32)
        drawn = {}
        for tensor in self.build_graph(CPU).tensors:
            if tensor.name not in ("x", *self.weights):
                continue
            scale, around = (0.1, 1.0) if tensor.name.endswith("norm") else (tensor.shape[-1] ** -0.5, 0.0)
            values = round_to(pool * np.float32(1.0 if tensor.name == "x" else scale) + np.float32(around), self.dtype)
            drawn[tensor.name] = repeat_values(values, int(random.integers(RANDOM_NUMBERS)), tensor.shape)
        return drawn

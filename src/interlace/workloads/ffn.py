"""The feed-forward network of a transformer layer, plain or gated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from interlace.core.arguments import check_int, check_type
from interlace.core.devices import DeviceSpec
from interlace.core.dtypes import DType, bf16
from interlace.core.errors import ArgumentError, DTypeError, ShapeError
from interlace.core.rounding import round_to
from interlace.graph.graph import Graph
from interlace.graph.tensor import Tensor
from interlace.kernels.bodies import COMPUTE_CAPABILITY_MAJOR
from interlace.kernels.matmul import Activation, MatmulTile, matmul
from interlace.kernels.matmul.megakernel_candidates import is_fused_norm_faster
from interlace.kernels.matmul.tile import TileShape, select_matmul_tile
from interlace.kernels.matmul.tilings import can_normalise, may_normalise
from interlace.kernels.rms_norm import compute_rms_norm, rms_norm
from interlace.kernels.row_tiles import select_tile_rows
from interlace.models.checkpoint import Checkpoint
from interlace.workloads.base import DTypeField, Inputs, Option, Presets, RecordedSizes, Target, Workload

_EPS = 1e-5  # epsilon of the norm in the layer that an FFN is measured in
_ROWS = 64  # rows of the tensor core's first operand: tokens, or weight rows with ``swap_ab``
# Largest number of tokens at which layers with a fused norm were measured (benchmarks/notes/norms.md).
_MAX_TOKENS = 4096
_STORED = "Weights from a checkpoint"
_LARGE = (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class FFNShape:
    """Widths and activation of an FFN.

    Attributes:
        hidden: width of the model.
        ffn: width between the two matmuls, on one GPU.
        activation: activation of the up-projection; a gated FFN uses SiLU.
        gated: True for ``down(silu(gate(x)) * up(x))`` instead of ``down(activation(up(x)))``.
        norm: epsilon of an RMS normalisation before the FFN. With it the FFN is half of a layer, ``x +
            ffn(rms_norm(x))``. None for the FFN alone.

    Raises:
        ArgumentError: an attribute has the wrong type.
    """

    hidden: int
    ffn: int
    activation: Activation
    gated: bool
    norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("hidden", "ffn"):
            object.__setattr__(self, name, check_int(getattr(self, name), "FFNShape", name))
        check_type(self.activation, Activation, "FFNShape", "activation")
        check_type(self.gated, bool, "FFNShape", "gated", "True")
        check_type(self.norm, (float, type(None)), "FFNShape", "norm", "1e-5")


#: FFNs of well-known models; ``tp8`` has one eighth of the width, as under tensor parallelism of 8.
MODELS = {
    "llama3-8b": FFNShape(4096, 14336, Activation.SILU, True),
    "llama3-70b-tp8": FFNShape(8192, 28672 // 8, Activation.SILU, True),
    "gpt3-145b-tp8": FFNShape(12288, 4 * 12288 // 8, Activation.GELU_TANH, False),
    "minilm": FFNShape(384, 1536, Activation.GELU_TANH, False),
}
#: FFNs that measurements are recorded of, by the kind of op between the matmuls.
_RECORDED = {
    "relu": FFNShape(4096, 14336, Activation.RELU, False),
    "swiglu": MODELS["llama3-8b"],
    "gelu": MODELS["gpt3-145b-tp8"],
    "swiglu-tp8": MODELS["llama3-70b-tp8"],
}


def ffn(
    m: int,
    shape: FFNShape,
    dtype: DType = bf16,
    up: MatmulTile | None = None,
    down: MatmulTile | None = None,
    bias: bool = False,
    norm_rows: int = 1,
    device: DeviceSpec | None = None,
) -> Graph:
    """Build an FFN over m tokens: ``x`` (m, hidden) through ``hidden`` (m, ffn) to ``out`` (m, hidden).

    Weights are named ``w_up``, ``w_gate`` (if gated) and ``w_down``, each (outputs, inputs). ``bias`` adds ``b_up``
    (ffn,), before the activation, and ``b_down`` (hidden,). A shape with a norm adds ``w_norm`` (hidden,).

    The norm is either fused into the up-projection or an op that writes ``normed`` (m, hidden). It is an op if
    ``has_norm_op`` is true, if the up-projection's tile has 64 or more weight rows with ``swap_ab``, or if the tile
    leaves no registers for it.

    Args:
        m: number of tokens.
        shape: widths and activation.
        dtype: dtype of all tensors.
        up, down: tiles of the two matmuls.
        bias: True to add biases.
        norm_rows: rows per tile of the norm, if it is an op.
        device: device whose predicted times decide whether to fuse the norm over more than 64 tokens; without it the
            norm is then an op.

    Raises:
        ArgumentError: ``shape`` has the wrong type, such as the name of a model.
        ShapeError: an extent is not positive, or a gated FFN has an activation other than SiLU, or a bias.
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
    w_norm, normed = Tensor("w_norm", (shape.hidden,), dtype), Tensor("normed", (m, shape.hidden), dtype)
    folded = shape.norm is not None
    norms = []
    able = up is None or (up.swap_ab and up.n < _ROWS) or can_normalise(up, 1 + shape.gated)
    if shape.norm is not None and (not able or has_norm_op(m, shape, dtype, device)):
        norms.append(rms_norm("norm", x, w_norm, normed, shape.norm, rows=norm_rows))
    own = folded and not norms
    ops = (
        *norms,
        matmul(
            "up",
            normed if norms else x,
            w_up,
            hidden,
            gate=w_gate[0] if w_gate else None,
            bias=b_up if bias else None,
            activation=shape.activation,
            x_scale=w_norm if own else None,
            eps=shape.norm if own else None,
            tile=up,
        ),
        matmul(
            "down",
            hidden,
            w_down,
            out,
            bias=b_down if bias else None,
            residual=x if folded else None,
            tile=down,
        ),
    )
    inputs = (x, *((w_norm,) if folded else ()), w_up, *w_gate, w_down, *((b_up, b_down) if bias else ()))
    return Graph(
        ("gated-ffn" if shape.gated else "ffn") + "-layer" * folded,
        (*inputs, *((normed,) if norms else ()), hidden, out),
        ops,
        tuple(t.name for t in inputs),
        ("out",),
    )


def has_norm_op(m: int, shape: FFNShape, dtype: DType, device: DeviceSpec | None = None) -> bool:
    """Return True if an FFN over m tokens normalises its rows in an op of its own, whatever tile the up-projection has.

    True if the up-projection cannot normalise rows (``may_normalise``: for example widths that are not multiples of
    64, or fp16). Over more than 64 tokens also true, unless the fused norm is predicted to be faster from times of
    megakernel tiles. Predictions are used only for devices that the megakernel runs on, and up to the number of tokens
    that was measured.
    """
    if shape.norm is None or not may_normalise(m, dtype, shape.hidden, shape.ffn):
        return shape.norm is not None
    if m <= _ROWS or m > _MAX_TOKENS or device is None or device.capability[0] != COMPUTE_CAPABILITY_MAJOR:
        return m > _ROWS
    return not is_fused_norm_faster(m, shape.hidden, shape.ffn, 1 + shape.gated, device)


def read_ffn_shape(
    checkpoint: Checkpoint, up: str, down: str, gate: str | None = None, activation: Activation | None = None
) -> tuple[FFNShape, DType]:
    """Return shape and dtype of the FFN whose weights have these names; it is gated if ``gate`` is given.

    ``activation`` defaults to SiLU with a gate, else to tanh-GELU: a checkpoint does not record it.

    Raises:
        GraphError: a weight is missing.
        ShapeError, DTypeError: a weight is not a matrix, or the weights do not fit together.
    """
    (ffn, hidden), dtype = checkpoint.describe_matrix(up)
    wanted = {down: (hidden, ffn)} | ({gate: (ffn, hidden)} if gate is not None else {})
    for name, shape in wanted.items():
        found, other = checkpoint.describe_matrix(name)
        if found != shape:
            raise ShapeError(
                f"tensor {name!r} has shape {found}, but {up!r} is ({ffn}, {hidden}), so it should be "
                f"{shape}; weights are (outputs, inputs), as nn.Linear stores them"
            )
        if other is not dtype:
            raise DTypeError(f"tensor {name!r} is {other} and {up!r} is {dtype}; convert the checkpoint to one dtype")
    usual = Activation.GELU_TANH if gate is None else Activation.SILU
    return FFNShape(hidden, ffn, activation or usual, gate is not None), dtype


@dataclass(frozen=True)
class FeedForward(Workload):
    """The feed-forward network of a transformer layer, plain or gated.

    Raises:
        ShapeError, DTypeError, GraphError: a gated FFN has an activation other than SiLU; a checkpoint does not match
            this FFN, or the names of its weights are missing.
    """

    name: ClassVar[str] = "ffn"
    presets: ClassVar[Presets] = {name: vars(shape) for name, shape in {**MODELS, **_RECORDED}.items()}
    cpu_preset: ClassVar[str] = "minilm"
    gpu_preset: ClassVar[str] = "llama3-8b"
    sizes: ClassVar[tuple[int, ...]] = (1, 16, 64, 128, 256, 512, 1024, 2048)
    record: ClassVar[Mapping[str, RecordedSizes]] = {
        "relu": RecordedSizes(
            (1, 16, 64, 128, 256, *_LARGE),
            (
                Target(1.17, (1, 16, 64)),
                Target(1.18, (128,)),
                Target(1.12, (256,)),
                Target(1.0, _LARGE),
                Target(1.04, _LARGE, mean=True),
            ),
        ),
        "swiglu": RecordedSizes(
            (1, 16, 128, 1024, 4096),
            (Target(1.13, (1, 16)), Target(1.17, (128,)), Target(1.03, (1024, 4096))),
        ),
        "gelu": RecordedSizes(
            (1, 16, 64, 256, 512, 1024, 2048),
            (Target(1.15, (1, 16, 64)), Target(1.03, (256, 512, 1024, 2048), mean=True)),
        ),
        "swiglu-tp8": RecordedSizes((1, 16, 128), (Target(1.15, (1, 16, 128)),)),
    }
    weights: ClassVar[tuple[str, ...]] = ("w_norm", "w_up", "w_gate", "w_down")
    layer_ports: ClassVar[tuple[str, str] | None] = ("x", "out")

    hidden: Annotated[int, Option("Width of the model (columns).", least=1)]
    ffn: Annotated[int, Option("Width between the two matmuls.", least=1)]
    m: Annotated[int, Option("Tokens (rows).", least=1)] = 16
    gated: Annotated[bool, Option("down(silu(gate(x)) * up(x)), or without gate.")] = False
    activation: Annotated[
        Activation, Option("Between the matmuls", metavar="NAME", names={a.value: a for a in Activation})
    ] = Activation.GELU_TANH
    dtype: DTypeField = bf16
    checkpoint: Annotated[
        Path | None,
        Option("A safetensors file; only the named tensors are read.", metavar="FILE", group=_STORED),
    ] = None
    up: Annotated[str | None, Option("Up-projection, (ffn, hidden).", metavar="NAME", group=_STORED)] = None
    down: Annotated[str | None, Option("Down-projection, (hidden, ffn).", metavar="NAME", group=_STORED)] = None
    gate: Annotated[str | None, Option("Gate projection, if the FFN is gated.", metavar="NAME", group=_STORED)] = None
    norm: Annotated[
        float | None,
        Option("With the norm before it and x added after, x + ffn(rms_norm(x)): what the norm adds to mean squares."),
    ] = None

    def __post_init__(self) -> None:
        if self.gated and self.activation is not Activation.SILU:
            raise ShapeError(f"a gated FFN uses silu, not {self.activation.value}; use that activation, or no gate")
        stored = [name for name in ("up", "down", "gate") if getattr(self, name) is not None]
        if self.checkpoint is None:
            if stored:
                raise ArgumentError(f"{stored[0]} names a weight of a checkpoint; pass the checkpoint too")
            return
        shape, _ = _read_shape(self.checkpoint, self.up, self.down, self.gate, self.activation)
        if shape != replace(self.shape, norm=None):
            raise ShapeError(f"checkpoint {str(self.checkpoint)!r} has an FFN of {shape}, not of {self.shape}")

    @classmethod
    def from_fields(cls, field_values: Mapping[str, Any], gpu: bool, preset: str | None = None) -> Self:
        """Build the problem as any workload; a gate implies SiLU, and a checkpoint fixes the shape."""
        if field_values.get("checkpoint") is None:
            name = preset or (cls.gpu_preset if gpu else cls.cpu_preset)
            usual = cls.presets.get(name, {}).get("gated", False)
            if field_values.get("gated", usual) and not usual:
                field_values = {"activation": Activation.SILU, **field_values}
            return super().from_fields(field_values, gpu, preset)
        fixed = (["preset"] if preset else []) + [name for name in ("hidden", "ffn", "gated") if name in field_values]
        if fixed:
            raise ArgumentError(
                f"{', '.join(fixed)} cannot be combined with a checkpoint, which fixes the shape; leave it out"
            )
        up, down, gate, activation = (field_values.get(name) for name in ("up", "down", "gate", "activation"))
        shape, dtype = _read_shape(field_values["checkpoint"], up, down, gate, activation)
        return super().from_fields({"dtype": dtype, **vars(shape), **field_values}, gpu)

    @property
    def shape(self) -> FFNShape:
        """Widths, activation and gate."""
        return FFNShape(self.hidden, self.ffn, self.activation, self.gated, self.norm)

    @property
    def title(self) -> str:
        kind = ("gated FFN" if self.gated else "FFN") + (" layer" if self.norm is not None else "")
        return f"{kind}, {self.m} tokens, {self.hidden} to {self.ffn} to {self.hidden}, {self.dtype}"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.hidden * self.ffn * (2 + self.gated)

    def build_graph(self, device: DeviceSpec, tile: TileShape | None = None) -> Graph:
        up = down = select_matmul_tile(self.m, device, tile)
        own = self.norm is not None and not has_norm_op(self.m, self.shape, self.dtype, device)
        if own and up.swap_ab and self.dtype.itemsize == 2:
            up = MatmulTile.heuristic(_ROWS)  # every executor normalises rows in this tile
        return ffn(
            self.m, self.shape, self.dtype, up, down, norm_rows=select_tile_rows(self.m, device.sms), device=device
        )

    def run_dense(self, xp: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._apply_norm_and_residual(xp, tensors, lambda x: self._apply_network(xp, x, tensors))

    def _apply_norm_and_residual(
        self, xp: Any, tensors: Mapping[str, Any], network: Callable[[Any], Any]
    ) -> Mapping[str, Any]:
        """Apply the norm and residual, if any, around the FFN ``network``."""
        x = tensors["x"]
        if self.norm is None:
            return {"out": network(x)}
        if xp is np:
            return {"out": x + network(compute_rms_norm(x, tensors["w_norm"], self.norm))}
        return {"out": x + network(xp.nn.functional.rms_norm(x, x.shape[-1:], tensors["w_norm"], self.norm))}

    def _apply_network(self, xp: Any, x: Any, tensors: Mapping[str, Any]) -> Any:
        """Apply the FFN alone."""
        up, down = tensors["w_up"], tensors["w_down"]
        if self.gated:
            hidden = activate(xp, Activation.SILU, x @ tensors["w_gate"].T) * (x @ up.T)
        else:
            hidden = activate(xp, self.activation, x @ up.T)
        return hidden @ down.T

    def run_fused(self, torch: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.gated:
            return self.run_dense(torch, tensors)
        from interlace.kernels.gated import MULTIPLE, silu_and_mul  # needs triton

        if self.m * self.ffn % MULTIPLE:
            return self.run_dense(torch, tensors)
        gate, up, down = (tensors[name].T for name in ("w_gate", "w_up", "w_down"))
        return self._apply_norm_and_residual(torch, tensors, lambda x: silu_and_mul(x @ gate, x @ up) @ down)

    def apply_layer(self, torch: Any, x: Any, run: Callable[[Any], Any]) -> Any:
        if self.norm is not None:
            return run(x)
        return x + run(torch.nn.functional.rms_norm(x, x.shape[-1:], eps=_EPS))

    @property
    def layer_workload(self) -> Workload | None:
        return replace(self, norm=_EPS) if self.norm is None else None

    def make_inputs(self, seed: int) -> Inputs:
        """Draw x, and the weights unless a checkpoint has them."""
        drawn = dict(super().make_inputs(seed))
        if self.checkpoint is not None:
            file = Checkpoint.open(self.checkpoint)
            for name, stored in (("w_up", self.up), ("w_down", self.down), ("w_gate", self.gate)):
                if stored is not None:
                    drawn[name] = round_to(file.read(stored), self.dtype)
        return drawn


def _read_shape(
    checkpoint: Path, up: str | None, down: str | None, gate: str | None, activation: Activation | None
) -> tuple[FFNShape, DType]:
    if up is None or down is None:
        raise ArgumentError("a checkpoint needs the names of up and down, and of gate if the FFN is gated")
    return read_ffn_shape(Checkpoint.open(checkpoint), up, down, gate, activation)


def activate(xp: Any, activation: Activation, x: Any) -> Any:
    """Apply an activation to a NumPy or torch array by the library's own functions, as a user would write it."""
    if xp is np:
        return activation(x)
    functional = xp.nn.functional
    if activation is Activation.GELU_TANH:
        return functional.gelu(x, approximate="tanh")
    if activation is Activation.NONE:
        return x
    return functional.silu(x) if activation is Activation.SILU else functional.relu(x)
